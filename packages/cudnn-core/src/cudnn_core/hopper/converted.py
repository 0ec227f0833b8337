"""The main-loop body for one block-scaled side, written to shared memory as BF16 by converter warps.

May import: the CuTe DSL, and every file of this folder except gemm.py and epilogues.

Fragment rows are rows of A (activations), columns are rows of B (weights): with up to 64 activations
that is one product of 64 rows and as many columns as a tile has, which reads what it multiplies from
shared memory, where a decoded element costs one store:

    producer 0 --raw-->    converters --ring-->  consumer
    producer 1 --------------------------ring-->

Stages of the second ring are 64 K elements; a converter thread decodes a row of each. With so many
threads the compiler has registers for products of 128 columns at most.
"""

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .bits import (
    load_shared_u16,
    load_shared_u32,
    load_shared_v4,
    opaque,
    permute,
    store_shared_v4,
)
from .decode import pinned_tables
from .loads import UNIT_K, Loads
from .matrix import STAGE_ROW_BYTES
from .operand import ATOM_BYTES, BlockScaledOperand, OperandArgs, OperandBuffers
from .plain import PlainBody
from .rings import Ring

# Rows of a tile, with a converter thread each.
ROWS = 256
# Elements that are decoded at once.
CHUNK = 32


@dataclass(frozen=True)
class ConvertedBuffers:
    """Shared memory of this body."""

    weights: OperandBuffers
    a: cute.Tensor
    b: cute.Tensor
    raw: Ring
    ring: Ring

    @property
    def activations(self) -> cute.Tensor:
        return self.a


class Place(NamedTuple):
    """Where a converter thread's row lies: in a raw stage, its scales there, as `BlockScaledOperand.scale_offsets` says,
    in a stage of the consumer. tables: of FP4.
    """

    words_at: Int32
    scales_at: tuple
    target_at: Int32
    tables: list[Int32]


@dataclass(frozen=True)
class ConvertedBody(Loads, PlainBody):
    """Producers, converters and consumer of one kernel: BF16 `a`, block-scaled `weights`, which become `b`."""

    weights: BlockScaledOperand
    follows: tuple[bool, bool] = (False, False)
    column_parts = 2

    @property
    def activations(self):
        return self.a

    def why_not(self) -> str | None:
        tile = self.tile
        if tile.orientation != "normal" or (tile.warpgroups, tile.converters) != (1, ROWS // 128):
            return "converted weights are fragment columns of one warpgroup"
        if tile.bn != ROWS or tile.units != 1 or tile.promote_k is not None:
            return "converted weights are 256 a tile, 64 elements of K a stage, and sums are not promoted"
        return super().why_not() or self.weights.why_not(tile.bn)

    def smem_bytes(self) -> int:
        raw = self.weights.stage_bytes(self.tile.bn, self.tile.raw_pieces) * self.tile.raw_stages
        return super().smem_bytes() + raw

    def allocate(self, smem) -> ConvertedBuffers:
        tile = self.tile
        return ConvertedBuffers(
            weights=self.weights.allocate(smem, tile.bn, tile.raw_stages, tile.raw_pieces),
            a=self.a.allocate(smem, tile.bm, tile.stages),
            b=self.b.allocate(smem, tile.bn, tile.stages),
            raw=Ring.allocate(smem, tile.raw_stages, 1, 4 * tile.converters),
            # A stage is full when the activations have come and the converters have written theirs.
            ring=Ring.allocate(smem, tile.stages, 1 + 4 * tile.converters, 4),
        )

    def initialize(self, buffers: ConvertedBuffers) -> None:
        buffers.raw.initialize()
        buffers.ring.initialize()

    def k_tiles(self, k_count: Int32) -> Int32:
        """Stages of the consumer."""
        return self.raw_tiles(k_count) * self.stage_units

    def converter_states(self, buffers: ConvertedBuffers):
        """Where converters read and write first."""
        return buffers.raw.consumer_state(), buffers.ring.producer_state()

    @property
    def unit_blocks(self) -> int:
        """Scales of a row of a unit."""
        return UNIT_K // self.weights.decoder.sf_vec

    def place(self, buffers, weights: OperandArgs, item, thread) -> Place:
        words_at = self.weights.data_offset(thread, Int32(0))
        ((base, step),) = self.weights.scale_offsets(
            weights, self.tile.bn, item.n0, thread, [0]
        )
        target_at = buffers.b.iterator.toint() + thread * STAGE_ROW_BYTES + ((thread & 7) << 4)
        fp4 = self.weights.decoder.bits == 4
        tables = pinned_tables(thread, weights.k) if fp4 else []
        return Place(opaque(words_at), (base, step), opaque(target_at), tables)

    @cute.jit
    def convert(self, buffers, weights: OperandArgs, item, states, thread):
        """A converter warpgroup: its rows of the stages of one work item.

        Waits on raw.full and ring.empty, signals raw.empty and ring.full.
        """
        raw, ring = states
        tile, pieces, halves = self.tile, self.tile.raw_pieces, self.weights.decoder.halves
        place = self.place(buffers, weights, item, thread)
        first = item.k0 // self.weights.decoder.tile_k
        for i in cutlass.range(self.raw_tiles(item.k_count), unroll=1):
            buffers.raw.wait_full(raw)
            for unit in cutlass.range_constexpr(self.stage_units):
                piece, half = divmod(unit, halves)
                k_tile = first + i * pieces + piece
                codes = self.load_codes(buffers.weights, weights, raw.index, unit, place, k_tile)
                at = self.weights.data_stage(buffers.weights, tile.bn, raw.index * pieces + piece)
                words = self.load_words(at + place.words_at, half)
                buffers.ring.wait_empty(ring)
                target = place.target_at + ring.index * self.b.stage_bytes(tile.bn)
                self.convert_unit(words, codes, place, target)
                buffers.ring.arrive_full(ring)
                ring.advance()
            buffers.raw.release(raw)
            raw.advance()
        return raw, ring

    @cute.jit
    def load_codes(
        self,
        buffers,
        weights,
        stage,
        unit: cutlass.Constexpr,
        place: cutlass.Constexpr,
        k_tile,
    ):
        """The scale codes of a thread's row of a unit of a raw stage; k_tile: its piece of K."""
        piece, half = divmod(unit, self.weights.decoder.halves)
        block = cutlass.const_expr(half * self.unit_blocks)
        at = self.weights.scale_stage(buffers, self.tile.bn, self.scale_stage(stage, piece))
        at += self.weights.first_block(k_tile) + (block // 4 * ATOM_BYTES + block % 4)
        base, step = place.scales_at
        load = load_shared_u16 if cutlass.const_expr(self.unit_blocks == 2) else load_shared_u32
        codes = load(at + base + step)
        existing = self.existing_blocks(weights, k_tile) - block
        if existing < self.unit_blocks:
            codes = self.weights.guard(codes, 0, existing)
        return codes

    def load_words(self, at: Int32, half: int) -> list:
        """A thread's words of a unit."""
        chunks = range(4) if self.weights.decoder.bits == 8 else range(2 * half, 2 * half + 2)
        return [w for c in chunks for w in load_shared_v4(at ^ (16 * c) if c else at)]

    @cute.jit
    def convert_unit(
        self, words: cutlass.Constexpr, codes: Int32, place: cutlass.Constexpr, target: Int32
    ):
        """Decode a row of a unit and store it."""
        decoder = self.weights.decoder
        if cutlass.const_expr(decoder.bits == 8):
            fields = decoder.scale_fields([codes])
            for chunk in cutlass.range_constexpr(2):
                made = cute.make_rmem_tensor(CHUNK // 2, Int32)
                seen = self.decode(made, words, codes, chunk, place, fields, False)
                if cute.arch.vote_any_sync(decoder.special(seen)):
                    self.decode(made, words, codes, chunk, place, fields, True)
                self.store(made, chunk, target)
        elif cute.arch.vote_any_sync(decoder.unusual([codes])):
            self.convert_fp4(words, codes, place, target, True)
        else:
            self.convert_fp4(words, codes, place, target, False)

    def convert_fp4(self, words: list, codes, place: Place, target, exactly: bool) -> None:
        for chunk in range(2):
            made = cute.make_rmem_tensor(CHUNK // 2, Int32)
            self.decode(made, words, codes, chunk, place, Int32(0), exactly)
            self.store(made, chunk, target)

    def decode(self, made, words: list, codes, chunk: int, place: Place, seen, exactly: bool):
        """CHUNK elements as BF16; returns `seen` (8-bit)."""
        decoder = self.weights.decoder
        share = len(words) // 8
        for part in range(CHUNK // 8):
            eight = chunk * (CHUNK // 8) + part
            block = 8 * eight // decoder.sf_vec
            low = block // 2 * 2
            order = Int32(0x4140 + 0x0101 * low)
            some = words[share * eight : share * (eight + 1)]
            if exactly:
                found = decoder.neighbours_exactly(some, codes, order, block % 2, place.tables)
            else:
                factor = decoder.factor_of(permute(codes, Int32(0), order), block % 2)
                found, seen = decoder.neighbours(some, factor, place.tables, seen)
            for i, word in enumerate(found):
                made[4 * part + i] = word
        return seen

    def store(self, made, chunk: int, target: Int32) -> None:
        """Where the tensor core looks for them: 16-byte chunks are xored with the row's number."""
        for part in range(CHUNK // 8):
            at = 16 * (chunk * (CHUNK // 8) + part)
            words = [made[4 * part + i] for i in range(4)]
            store_shared_v4(target ^ at if at else target, *words)
