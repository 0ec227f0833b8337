"""The main-loop body for one block-scaled side: decoded to BF16 in registers, times a BF16 side.

May import: the CuTe DSL, and every file of this folder except gemm.py and epilogues.

Fragment rows are rows of B (weights): a consumer warpgroup decodes them into the register operand
of WGMMA, which reads the columns, rows of A (activations), from shared memory. So an element is
decoded once for all columns of the tile, and C comes out transposed (`orientation` "swapped").
Threads decode elements that lie together, so both sides have K in another order (`Decoder.order`).
A consumer works in groups, with two sets of registers in turn: half of 64 K elements of a 64-row
block, or, where there are registers enough, all of them. A group is decoded while the tensor core runs
the one before.
"""

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from .bits import opaque
from .loads import SORTERS, Loads
from .matrix import MatrixOperand
from .operand import BlockScaledOperand, OperandArgs, OperandBuffers
from .rings import Ring
from .schedule import at_most
from .tile import TileConfig


@dataclass(frozen=True)
class DecodedBuffers:
    """Shared memory of this body."""

    weights: OperandBuffers
    activations: cute.Tensor
    raw: Ring
    ring: Ring
    plain: Ring | None


class Place(NamedTuple):
    """Where a thread's rows lie in a raw stage.

    data_at: its share of its first row. scales_at: as `BlockScaledOperand.scale_offsets` says.
    downs: how far below the first its rows lie. block: the first of its scales.
    """

    data_at: Int32
    scales_at: list
    downs: list[int]
    block: Int32


class Registers(NamedTuple):
    """A thread's words and scale codes of a raw stage, by row, and the register operands of both groups."""

    words: cute.Tensor
    codes: cute.Tensor
    fragments: list[cute.Tensor]


@dataclass(frozen=True)
class DecodedBody(Loads):
    """Producer and consumers of one kernel: block-scaled `weights`, BF16 `activations`.

    sorts: whether activations come in their own order of K, and are sorted on the way; else they have the decoder's.
    glu: fragment rows of each 64-row block hold pairs of GLU columns: of its rows, 0-31 (up) and
    32-63 (gate), row 8w+r meets row 32+8w+r as fragment rows 16w+r and 16w+8+r, a thread's two.
    """

    tile: TileConfig
    weights: BlockScaledOperand
    activations: MatrixOperand
    glu: bool = False
    follows: tuple[bool, bool] = (False, False)
    sorts: bool = False
    # Consumers leave it to another warp to announce partial tiles: on an H200, 2026-12-03, (64, 28672, 4096) took
    # 42.8 us instead of 43.8 with MXFP8 weights, 36.8 instead of 37.3 with MXFP4. Other bodies were not measured.
    announces = True

    def why_not(self) -> str | None:
        tile = self.tile
        if tile.orientation != "swapped":
            return 'decoded weights are fragment rows: orientation must be "swapped"'
        if self.activations.element != "bfloat16":
            return f"decoded weights meet bfloat16, not {self.activations.element}"
        if tile.cluster[0] != 1 or self.activations.sharers != tile.cluster[1]:
            return "the blocks of a cluster share activations: cluster must be (1, 1) or (1, 2)"
        if self.stage_units % self.units:
            return f"stages of {self.units} units do not divide raw stages of {self.stage_units}"
        if tile.raw_pieces % self.weights.decoder.scale_pieces and tile.raw_pieces > 1:
            return f"{tile.raw_pieces} pieces of rows do not fill scale atoms"
        if self.sorts and (self.activations.contiguous != "k" or tile.columns % 16):
            return "sorted activations must be K-major, in tiles of a multiple of 16"
        if self.sorts and tile.warpgroups != 4:
            return f"warps that sort have registers beside 4 warpgroups, not {tile.warpgroups}"
        if self.sorts and self.units % self.weights.decoder.halves:
            return f"stages of {self.units} units do not hold whole pieces of raw stages"
        if self.sorts and self.batches % SORTERS:
            return f"{self.batches} batches of lines are not for {SORTERS} warps alike"
        if tile.promote_k is not None and (tile.m_blocks > 1 or tile.columns > 128):
            return "sums are promoted with one 64-row block of 128 columns per warpgroup at most"
        return self.activations.why_not(tile.columns) or self.weights.why_not(tile.rows)

    @property
    def role_registers(self) -> tuple[int, int]:
        """As the tile's `registers`; warps that sort hold 16 words beside addresses."""
        return (104, 64) if self.sorts else self.tile.registers

    @property
    def groups(self) -> int:
        """Groups of a unit."""
        sums = self.tile.columns // 2 * (1 if self.tile.promote_k is None else 2)
        whole = self.tile.m_blocks == 1 and self.units > 1 and sums <= 32
        return 1 if whole else 2

    def smem_bytes(self) -> int:
        tile = self.tile
        dense = self.activations.stage_bytes(tile.columns) * self.units * tile.stages
        return dense + self.weights.stage_bytes(tile.rows, tile.raw_pieces) * tile.raw_stages

    def allocate(self, smem) -> DecodedBuffers:
        tile = self.tile
        consumers = 4 * tile.sharers
        return DecodedBuffers(
            weights=self.weights.allocate(smem, tile.rows, tile.raw_stages, tile.raw_pieces),
            activations=self.activations.allocate(smem, tile.columns, tile.stages * self.units),
            raw=Ring.allocate(smem, tile.raw_stages, 1, consumers),
            ring=Ring.allocate(
                smem, tile.stages, SORTERS if self.sorts else 1, consumers, tile.blocks
            ),
            # Its stages are `ring`'s, whose empty barriers guard both.
            plain=Ring.allocate(smem, tile.stages, 1, 1) if self.sorts else None,
        )

    def initialize(self, buffers: DecodedBuffers, part: int) -> None:
        """A producer warp sets up what it fills, and what others make of that."""
        if part == 0:
            buffers.raw.initialize()
        if part == 1:
            buffers.ring.initialize()
            if buffers.plain is not None:
                buffers.plain.initialize()

    def consumer_states(self, buffers: DecodedBuffers):
        """Where a consumer reads next, in both rings."""
        return buffers.raw.consumer_state(), buffers.ring.consumer_state()

    def skip(self, states, k_tiles: Int32):
        """The states after stages that are another warpgroup's."""
        raw, ring = (state.clone() for state in states)
        raw.advance(k_tiles)
        ring.advance(k_tiles * (self.stage_units // self.units))
        return raw, ring

    def accumulators(self) -> list:
        """One FP32 fragment for each 64-row block."""
        shape = ((2, 2, self.tile.columns // 8), 1, 1)
        return [cute.make_rmem_tensor(shape, Float32) for _ in range(self.tile.m_blocks)]

    def k_tiles(self, k_count: Int32) -> Int32:
        """Raw stages of an item."""
        return self.raw_tiles(k_count)

    def mma_op(self):
        return warpgroup.MmaF16BF16Op(
            BFloat16,
            Float32,
            (64, self.tile.columns, 16),
            warpgroup.OperandSource.RMEM,
            OperandMajorMode.K,
            self.activations.major,
        )

    def row_map(self, warp: Int32, lane: Int32) -> tuple[Int32, int]:
        """(a thread's first row of a 64-row block, how far below its second one lies)."""
        if self.glu:
            return 8 * warp + lane // 4, 32
        return 16 * warp + lane // 4, 8

    @cute.jit
    def consume(self, buffers, weights: OperandArgs, item, accumulators, states, thread):
        """A consumer warpgroup: sum one work item into zeroed `accumulators` (one per row block).

        Waits on the full barriers and signals the empty ones of both rings.
        """
        tile = self.tile
        place = self.place(weights, item, thread)
        registers = self.registers()
        first = item.k0 // self.weights.decoder.tile_k
        count = self.k_tiles(item.k_count)
        args = (buffers, weights, place, registers)
        if cutlass.const_expr(tile.promote_k is None):
            return self.sum(args, accumulators, states, first, count)
        return self.sum_promoted(args, accumulators, states, first, count)

    @cute.jit
    def sum_promoted(self, args: cutlass.Constexpr, accumulators, states, first, count):
        """As `sum`; what the tensor core sums is added up in FP32 every promote_k elements."""
        tile = self.tile
        # The inner loop knows nothing of it: ptxas serializes products whose sums are touched.
        whole = cutlass.const_expr(tile.promote_k // self.stage_k)
        promoted = self.accumulators()
        for m in cutlass.range_constexpr(tile.m_blocks):
            promoted[m].fill(0.0)
        for i in cutlass.range((count + whole - 1) // whole, unroll=1):
            part = at_most(count - i * whole, Int32(whole))
            start = first + i * (whole * tile.raw_pieces)
            states = self.sum(args, accumulators, states, start, part)
            for m in cutlass.range_constexpr(tile.m_blocks):
                promoted[m].store(promoted[m].load() + accumulators[m].load())
                accumulators[m].fill(0.0)
        for m in cutlass.range_constexpr(tile.m_blocks):
            accumulators[m].store(promoted[m].load())
        return states

    def place(self, weights: OperandArgs, item, thread) -> Place:
        """Where a thread's rows lie in a stage."""
        tile, lane = self.tile, thread % 32
        row, down = self.row_map((thread // 32) % 4, lane)
        row0 = (thread // 128) % tile.sharers * (64 * tile.m_blocks) + row
        downs = [down * (r % 2) + 64 * (r // 2) for r in range(2 * tile.m_blocks)]
        return Place(
            opaque(self.weights.data_offset(row0, lane % 4)),
            self.weights.scale_offsets(weights, tile.rows, item.n0, row0, downs, lane % 4),
            downs,
            self.weights.decoder.share_start(lane % 4),
        )

    def registers(self) -> Registers:
        rows = 2 * self.tile.m_blocks
        made = Registers(
            cute.make_rmem_tensor((4, rows), Int32),
            cute.make_rmem_tensor(rows, Int32),
            [self.fragment() for _ in range(2)],
        )
        for fragment in made.fragments:
            fragment.fill(0.0)
        return made

    @cute.jit
    def sum(self, args: cutlass.Constexpr, accumulators, states, first, count):
        """Add the products of `count` raw stages, from piece `first` of K on, and wait for them."""
        buffers, weights, place, (words, codes, fragments) = args
        raw, ring = states
        decoder, pieces, units = self.weights.decoder, self.tile.raw_pieces, self.units
        tiled_mma = cute.make_tiled_mma(self.mma_op())
        columns = tiled_mma.make_fragment_B(tiled_mma.get_slice(0).partition_B(buffers.activations))
        release = ring.clone()
        for i in cutlass.range(count, unroll=1):
            buffers.raw.wait_full(raw)
            for unit in cutlass.range_constexpr(self.stage_units):
                piece, half = divmod(unit, decoder.halves)
                if cutlass.const_expr(half == 0):
                    k_tile = first + i * pieces + piece
                    existing = self.existing_blocks(weights, k_tile)
                    scales = self.scale_stage(raw.index, piece)
                    self.load_codes(buffers.weights, scales, place, existing, k_tile, codes)
                    known = self.known(codes)
                    self.load_words(buffers.weights, raw.index * pieces + piece, place, words)
                for group in cutlass.range_constexpr(self.groups):
                    number = unit * self.groups + group
                    # Its registers were last read two groups ago.
                    warpgroup.wait_group(1)
                    if cutlass.const_expr(number % (units * self.groups) == 1):
                        # The first group of a stage is the only one that may still run.
                        if (i > 0) | Boolean(number > 1):
                            buffers.ring.release(release)
                            release.advance()
                    fragment = fragments[number % 2]
                    self.decode(words, codes, half, group, fragment, known)
                    if cutlass.const_expr(number % (units * self.groups) == 0):
                        buffers.ring.wait_full(ring)
                    at = ring.index * units + unit % units
                    self.multiply(group, fragment, columns, at, accumulators)
                    if cutlass.const_expr(number == self.stage_units * self.groups - 1):
                        buffers.raw.release(raw)
                        raw.advance()
                if cutlass.const_expr(unit % units == units - 1):
                    ring.advance()
        warpgroup.wait_group(0)
        if count > 0:
            buffers.ring.release(release)
        return raw, ring

    @property
    def gain(self) -> float:
        """What sums are to be multiplied by."""
        return 2.0**self.weights.decoder.lacking

    def drain(self, buffers, item, accumulators, states):
        """Nothing is left of `consume`."""
        return states

    @cute.jit
    def load_codes(self, buffers, stage, place: cutlass.Constexpr, existing, k_tile, codes):
        """The scale codes of a thread's rows in a raw stage."""
        decoder, rows = self.weights.decoder, 2 * self.tile.m_blocks
        scales = self.weights.scale_stage(buffers, self.tile.rows, stage)
        for r in cutlass.range_constexpr(rows):
            base, step = place.scales_at[r]
            codes[r] = self.weights.load_codes(scales + base + step, k_tile)
        if existing < decoder.blocks:
            for r in cutlass.range_constexpr(rows):
                codes[r] = self.weights.guard(codes[r], existing - place.block)

    @cute.jit
    def known(self, codes):
        """What the scales say of the path that a piece takes: 8-bit: fields that are special with some of its
        elements'; FP4: whether none of them calls for the path that serves every code.
        """
        decoder, words = self.weights.decoder, [codes[i] for i in range(cute.size(codes))]
        if cutlass.const_expr(decoder.bits == 8):
            return decoder.scale_fields(words)
        return not Boolean(cute.arch.vote_any_sync(decoder.unusual(words)))

    def load_words(self, buffers, stage, place: Place, words) -> None:
        """A thread's words of a raw stage."""
        data = self.weights.data_stage(buffers, self.tile.rows, stage) + place.data_at
        for r, down in enumerate(place.downs):
            for w, word in enumerate(self.weights.load_words(data, down)):
                words[w, r] = word

    def fragment(self):
        """A operand registers: word v + 2*h + 4*k is row half v, K half h, K step k."""
        steps = 2 * len(self.group_shape(0)[1])
        return cute.make_rmem_tensor(((2, 2, 2), 1, steps), BFloat16)

    def group_shape(self, group: int) -> tuple[int, tuple[int, ...]]:
        """(row block, pairs of K steps) of a group."""
        whole = self.tile.m_blocks == self.groups
        return (group, (0, 1)) if whole else (0, (group,))

    @cute.jit
    def decode(
        self,
        words,
        codes,
        half: cutlass.Constexpr,
        group: cutlass.Constexpr,
        fragment,
        known,
    ):
        """Fill one group's registers from raw words.

        The branches also keep the compiler from sinking the arithmetic behind the warpgroup's
        fence, where it would have to serialize every WGMMA.
        """
        decoder = self.weights.decoder
        if cutlass.const_expr(decoder.bits == 8):
            seen = self.decode_steps(words, codes, half, group, fragment, known)
            if cute.arch.vote_any_sync(decoder.special(seen)):
                self.decode_exactly(words, codes, half, group, fragment)
        elif known:
            self.decode_steps(words, codes, half, group, fragment, Int32(0))
        else:
            self.decode_exactly(words, codes, half, group, fragment)

    def decode_steps(self, words, codes, half: int, group: int, fragment, seen):
        """Decode a group; returns `seen`, joined with its elements' fields (8-bit)."""
        decoder = self.weights.decoder
        registers = cute.recast_tensor(fragment, Int32)
        block, pairs = self.group_shape(group)
        for v in range(2):
            row = 2 * block + v
            share, factor = [words[w, row] for w in range(4)], decoder.factor(codes[row], half)
            for index, pair in enumerate(pairs):
                made, seen = decoder.pair_words(share, half, pair, factor, seen)
                for i, word in enumerate(made):
                    registers[v + 2 * i + 8 * index] = word
        return seen

    def decode_exactly(self, words, codes, half: int, group: int, fragment) -> None:
        """Decode a group by the path that serves every code."""
        registers = cute.recast_tensor(fragment, Int32)
        block, pairs = self.group_shape(group)
        for v in range(2):
            row = 2 * block + v
            share = [words[w, row] for w in range(4)]
            for index, pair in enumerate(pairs):
                made = self.weights.decoder.pair_exactly(share, half, pair, codes[row])
                for i, word in enumerate(made):
                    registers[v + 2 * i + 8 * index] = word

    def multiply(self, group: int, fragment, columns, stage, accumulators):
        """Issue one group's WGMMAs as a commit group."""
        block, pairs = self.group_shape(group)
        accumulator = accumulators[block]
        atom = cute.make_mma_atom(self.mma_op())
        atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.fence()
        for step in range(2 * len(pairs)):
            cute.gemm(
                atom,
                accumulator,
                fragment[None, None, step],
                columns[None, None, 2 * pairs[0] + step, stage],
                accumulator,
            )
        warpgroup.commit_group()
