"""The main-loop body for one block-scaled side and few fragment columns: products of single warps.

May import: the CuTe DSL, and every file of this folder except gemm.py and epilogues.

As `DecodedBody`, but the tensor core gets both operands from registers and a warp waits for its own
products only. With few columns that is faster: the warpgroup's products hold the decoding up.
A step of 16 K elements is any 16, as long as both sides mean the same. So a thread takes elements
that lie side by side in memory, all under one scale or two:

    a piece of 64 bytes of a row    thread t of a quad has bytes 16t to 16t+15: 32 FP4 codes, 8 steps
                                    of 4 codes each, or 16 elements of 8 bits, 4 steps
    a quarter, a half of a piece    two steps: 8 elements, 16 bytes of a row of the activations

Of FP4, half of the threads take the upper 8 bytes first: otherwise two of a quad would read the
same banks.
"""

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .bits import (
    load_shared_u8,
    load_shared_u16,
    load_shared_v2,
    load_shared_v4,
    mma_bf16,
    opaque,
    permute,
)
from .decode import pinned_tables
from .decoded import DecodedBody
from .loads import UNIT_K
from .operand import ATOM_BYTES, OperandArgs


class Place(NamedTuple):
    """Where a thread's elements lie.

    words_at: in a raw stage, those of its first row. downs: how far below its rows lie. scales_at:
    each row's codes. columns_at: in a stage of activations, those of its first column. order: what
    puts the codes of two scales in the thread's order. block: its first, of a piece's. tables: of FP4.
    """

    words_at: Int32
    downs: list[int]
    scales_at: list
    columns_at: Int32
    order: Int32
    block: Int32
    tables: list[Int32]


@dataclass(frozen=True)
class SynchronousBody(DecodedBody):
    """Producers and consumers of one kernel: block-scaled `weights`, BF16 `activations`."""

    def why_not(self) -> str | None:
        if self.tile.columns > 64:
            return f"products of single warps are for 64 columns at most, not {self.tile.columns}"
        if self.tile.units != self.stage_units:
            return f"both rings must have stages of {self.stage_units} units"
        if self.activations.contiguous != "k" or self.tile.cluster != (1, 1):
            return "activations must be K-major and each block's own"
        sums = self.tile.m_blocks * self.tile.columns // 2
        if self.tile.promote_k is not None and sums > 64:
            return f"{sums} sums of a thread are too many to be promoted"
        return self.activations.why_not(self.tile.columns) or self.weights.why_not(self.tile.rows)

    @property
    def turns(self) -> int:
        """Parts of a piece, of two steps each."""
        return self.weights.decoder.tile_k // 32

    @property
    def scales(self) -> int:
        """Scales of a thread's share of a row of a piece."""
        return max(1, self.weights.decoder.blocks // 4)

    def place(self, weights: OperandArgs, item, thread) -> Place:
        tile, decoder, lane = self.tile, self.weights.decoder, thread % 32
        g, t = lane // 4, lane % 4
        row, down = self.row_map((thread // 32) % 4, lane)
        row0 = (thread // 128) % tile.sharers * (64 * tile.m_blocks) + row
        downs = [down * (r % 2) + 64 * (r // 2) for r in range(2 * tile.m_blocks)]
        words_at = self.weights.data_offset(row0, Int32(0)) ^ (16 * t)
        columns_at, block, order = g * 128, t >> 1, Int32(0)
        if decoder.bits == 4:
            upper = ((t >> 1) ^ (g >> 1)) & 1
            words_at += 8 * upper
            columns_at += (t >> 1) * (tile.columns * 128) + ((((t & 1) * 4 + 2 * upper) ^ g) << 4)
            block = t * self.scales
            # Bytes 0 and 1, each with zeros above, or bytes 1 and 0; with one scale it is its own neighbour.
            order = Int32(0x4140) if self.scales == 2 else Int32(0x4040)
            if self.scales == 2:
                order += upper * (0x4041 - 0x4140)
        else:
            columns_at += ((2 * t) ^ g) << 4
            order = Int32(0x4040)
        within = (block >> 2) * ATOM_BYTES + (block & 3)
        found = self.weights.scale_offsets(weights, tile.rows, item.n0, row0, downs)
        return Place(
            opaque(words_at),
            downs,
            [(base + within, step) for base, step in found],
            opaque(columns_at),
            opaque(order),
            block,
            pinned_tables(lane, weights.k) if decoder.bits == 4 else [],
        )

    def registers(self):
        rows = 2 * self.tile.m_blocks
        return cute.make_rmem_tensor((4, rows), Int32), cute.make_rmem_tensor(rows, Int32)

    @cute.jit
    def sum(self, args: cutlass.Constexpr, accumulators, states, first, count):
        """Add the products of `count` raw stages, from piece `first` of K on."""
        buffers, weights, place, (words, codes) = args
        raw, ring = states
        pieces, units = self.tile.raw_pieces, self.weights.decoder.halves
        columns = buffers.activations.iterator.toint() + place.columns_at
        for i in cutlass.range(count, unroll=1):
            buffers.raw.wait_full(raw)
            buffers.ring.wait_full(ring)
            for piece in cutlass.range_constexpr(pieces):
                k_tile = first + i * pieces + piece
                existing = self.existing_blocks(weights, k_tile)
                self.load_codes(buffers.weights, raw.index, piece, place, existing, k_tile, codes)
                self.load_words(buffers.weights, raw.index * pieces + piece, place, words)
                if cutlass.const_expr(piece == pieces - 1):
                    buffers.raw.release(raw)
                unit = ring.index * self.tile.units + piece * units
                columns_at = columns + unit * (self.tile.columns * 2 * UNIT_K)
                self.multiply_piece(place, words, codes, columns_at, accumulators)
            buffers.ring.release(ring)
            raw.advance()
            ring.advance()
        return raw, ring

    @cute.jit
    def load_codes(
        self,
        buffers,
        stage,
        piece: cutlass.Constexpr,
        place: cutlass.Constexpr,
        existing,
        k_tile,
        codes,
    ):
        """The scale codes of a thread's share of each row of a piece."""
        at = self.weights.scale_stage(buffers, self.tile.rows, self.scale_stage(stage, piece))
        at += self.weights.first_block(k_tile)
        for r in cutlass.range_constexpr(cute.size(codes)):
            base, step = place.scales_at[r]
            load = load_shared_u16 if cutlass.const_expr(self.scales == 2) else load_shared_u8
            codes[r] = load(at + base + step)
        if existing < self.weights.decoder.blocks:
            for r in cutlass.range_constexpr(cute.size(codes)):
                codes[r] = self.weights.guard(codes[r], 0, existing - place.block)

    def load_words(self, buffers, stage, place: Place, words) -> None:
        """A thread's words of each row of a piece, in the order of its steps."""
        at = self.weights.data_stage(buffers, self.tile.rows, stage) + place.words_at
        for r, down in enumerate(place.downs):
            if self.weights.decoder.bits == 4:
                found = (*load_shared_v2(at + down * 64), *load_shared_v2((at ^ 8) + down * 64))
            else:
                found = load_shared_v4(at + down * 64)
            for w, word in enumerate(found):
                words[w, r] = word

    @cute.jit
    def multiply_piece(self, place: cutlass.Constexpr, words, codes, columns_at, accumulators):
        """Decode a piece and add its products."""
        decoder = self.weights.decoder
        known = [codes[r] for r in range(cute.size(codes))]
        if cutlass.const_expr(decoder.bits == 8):
            fields = decoder.scale_fields(known)
            for turn in cutlass.range_constexpr(self.turns):
                columns = self.load_columns(columns_at, turn)
                steps = cute.make_rmem_tensor((4, 2, self.tile.m_blocks), Int32)
                seen = self.decode(steps, place, words, known, turn, fields, False)
                if cute.arch.vote_any_sync(decoder.special(seen)):
                    self.decode(steps, place, words, known, turn, fields, True)
                self.multiply(steps, columns, accumulators)
        elif cute.arch.vote_any_sync(decoder.unusual(known)):
            self.multiply_fp4(place, words, known, columns_at, accumulators, True)
        else:
            self.multiply_fp4(place, words, known, columns_at, accumulators, False)

    def multiply_fp4(self, place, words, codes, columns_at, accumulators, exactly: bool) -> None:
        for turn in range(self.turns):
            columns = self.load_columns(columns_at, turn)
            steps = cute.make_rmem_tensor((4, 2, self.tile.m_blocks), Int32)
            self.decode(steps, place, words, codes, turn, Int32(0), exactly)
            self.multiply(steps, columns, accumulators)

    def load_columns(self, at: Int32, turn: int) -> list:
        """Both steps' operands of every 8 columns: words 0, 1 of the one, 2, 3 of the other."""
        at = at ^ (16 * turn) if turn else at
        return [load_shared_v4(at + 1024 * j) for j in range(self.tile.columns // 8)]

    def decode(self, steps, place: Place, words, codes, turn: int, seen, exactly: bool):
        """Two steps of all row blocks: word v + 2*h is row half v, K half h; returns `seen` (8-bit)."""
        decoder, per_turn = self.weights.decoder, 4 // self.turns
        for r in range(2 * self.tile.m_blocks):
            share = [words[per_turn * turn + i, r] for i in range(per_turn)]
            which = turn * self.scales // self.turns
            if exactly:
                made = decoder.neighbours_exactly(share, codes[r], place.order, which, place.tables)
            else:
                factor = decoder.factor_of(permute(codes[r], Int32(0), place.order), which)
                made, seen = decoder.neighbours(share, factor, place.tables, seen)
            for i, word in enumerate(made):
                steps[r % 2 + 2 * (i % 2), i // 2, r // 2] = word
        return seen

    def multiply(self, steps, columns: list, accumulators) -> None:
        """Two steps, every row block by every 8 columns."""
        for step in range(2):
            for block, sums in enumerate(accumulators):
                rows = [steps[i, step, block] for i in range(4)]
                for j, found in enumerate(columns):
                    old = [sums[4 * j + i] for i in range(4)]
                    new = mma_bf16(rows, found[2 * step : 2 * step + 2], old)
                    for i, value in enumerate(new):
                        sums[4 * j + i] = value
