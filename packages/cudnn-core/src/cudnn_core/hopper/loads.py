"""Producer warps of the bodies with one block-scaled side: a ring of raw stages, a ring of activations.

May import: the CuTe DSL, bits.py, matrix.py, operand.py, tile.py.

A raw stage of FP4 is as long as two of activations, or more, so there are two rings, with a warp each.
Activations that come in their own order of K are given the decoder's by two more warps, in place.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .bits import load_shared_v4, permute, store_shared_v4
from .matrix import STAGE_ROW_BYTES, MatrixArgs
from .operand import OperandArgs

# K elements of a unit: a stage of activations holds some of them.
UNIT_K = 64
# Warps that sort.
SORTERS = 2
# The L2 policy of lines that are the first to go, as copies take it (CUTLASS's CacheHintSm90::EVICT_FIRST).
EVICT_FIRST = 0x12F0000000000000
# Tiles of so many rows of A, as a rule all there are, load weights with it, as they pass once. On an H200, 2026-12-03,
# (64, 28672, 4096) took 44.4 us instead of 45.7 with MXFP8 weights, 0.2 less with 4 bits; (16 or 32, 4096, 14336) with
# the policy took the same, or up to 0.4 more.
PASSING_ROWS = 64


class Loads:
    """What a body with fields `tile`, `weights`, `activations`, `sorts` and `follows` inherits.

    sorts: whether activations come in their own order. follows: whether the kernel ahead in the stream writes
    (weights, activations). Buffers have `weights`, `activations`, the rings `raw` and `ring`, and the ring `plain`
    of stages that are to be sorted, in the same memory as `ring`'s.
    """

    @property
    def roles(self) -> tuple[int, ...]:
        """Warps that load weights, that load activations, that sort."""
        return (1, 1, SORTERS) if self.sorts else (1, 1)

    @property
    def fillers(self) -> int:
        """How many of the roles copy into a ring of their own: the first ones."""
        return 2

    @property
    def stage_k(self) -> int:
        """K elements of a raw stage."""
        return self.tile.raw_k(self.weights.decoder.bits)

    @property
    def stage_units(self) -> int:
        """Units of a raw stage."""
        return self.stage_k // UNIT_K

    @property
    def units(self) -> int:
        """Units of a stage of activations."""
        return self.tile.units or self.stage_units

    @property
    def batch_lines(self) -> int:
        """Lines that a warp sorts at once: of a raw piece of K."""
        return 16 // self.weights.decoder.halves

    @property
    def batches(self) -> int:
        """What there is to sort in a stage, so many lines of a raw piece at once."""
        return self.units // self.weights.decoder.halves * (self.tile.bm // self.batch_lines)

    def raw_tiles(self, k_count: Int32) -> Int32:
        """Raw stages of an item."""
        return (k_count + self.stage_k - 1) // self.stage_k

    def producer_state(self, buffers, part: int):
        if part < 2:
            return (buffers.raw, buffers.ring)[part].producer_state()
        return buffers.plain.consumer_state()

    def scale_stage(self, stage: Int32, piece: int) -> Int32:
        """Where the scales of a piece of a raw stage lie, counted in what one piece or one atom needs."""
        group = self.weights.scale_group(self.tile.raw_pieces)
        return stage * (self.tile.raw_pieces // group) + piece // group

    def existing_blocks(self, weights: OperandArgs, k_tile) -> Int32:
        """How many blocks from the K tile's first on lie inside K."""
        decoder = self.weights.decoder
        return (weights.k + decoder.sf_vec - 1) // decoder.sf_vec - k_tile * decoder.blocks

    @cute.jit
    def produce(
        self,
        buffers,
        weights: OperandArgs,
        activations: MatrixArgs,
        item,
        state,
        part: cutlass.Constexpr,
    ):
        """One warp: fill its ring for one work item. Waits on empty, signals full."""
        if cutlass.const_expr(part >= 2):
            return self.sort(buffers, item, state)
        if cutlass.const_expr(self.follows[part]):
            cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(part == 0):
            return self.produce_weights(buffers, weights, item, state)
        return self.produce_activations(buffers, activations, item, state)

    @cute.jit
    def produce_weights(self, buffers, weights: OperandArgs, item, state):
        rows, ring = self.tile.bn, buffers.raw
        pieces = cutlass.const_expr(self.tile.raw_pieces)
        shared, source = self.weights.partition(
            weights, buffers.weights, rows, item.n0, item.k0, item.batch
        )
        first = item.k0 // self.weights.decoder.tile_k
        policy = Int64(EVICT_FIRST) if cutlass.const_expr(self.tile.bm == PASSING_ROWS) else None
        for i in cutlass.range(self.raw_tiles(item.k_count), unroll=1):
            ring.wait_empty(state)
            barrier = ring.full + state.index
            count = self.weights.scale_count(weights, rows, item.n0, first + i * pieces, pieces)
            count += self.weights.data_bytes(rows) * pieces
            with cute.arch.elect_one():
                ring.expect(state, count)
            for p in cutlass.range_constexpr(pieces):
                cute.copy(
                    weights.tma_atom,
                    source[None, i * pieces + p],
                    shared[None, state.index * pieces + p],
                    tma_bar_ptr=barrier,
                    cache_policy=policy,
                )
            with cute.arch.elect_one():
                for p in cutlass.range_constexpr(0, pieces, self.weights.decoder.scale_pieces):
                    self.weights.load_scales(
                        weights,
                        buffers.weights,
                        rows,
                        item.n0,
                        first + i * pieces + p,
                        item.batch,
                        self.scale_stage(state.index, p),
                        barrier.toint(),
                    )
            state.advance()
        return state

    @cute.jit
    def produce_activations(self, buffers, activations: MatrixArgs, item, state):
        columns, ring = self.tile.bm, buffers.ring
        filled = buffers.plain if self.sorts else ring
        shared, source = self.activations.partition(
            activations, buffers.activations, columns, item.m0, item.k0, item.batch
        )
        units = cutlass.const_expr(self.units)
        stages = self.raw_tiles(item.k_count) * (self.stage_units // units)
        for i in cutlass.range(stages, unroll=1):
            ring.wait_empty(state)
            with cute.arch.elect_one():
                filled.expect(state, Int32(self.activations.stage_bytes(columns) * units))
            for u in cutlass.range_constexpr(units):
                self.activations.copy(
                    activations,
                    source[None, i * units + u],
                    shared[None, state.index * units + u],
                    filled.full + state.index,
                )
            state.advance()
        return state

    @cute.jit
    def sort(self, buffers, item, state):
        """One of the warps that sort: give its part of each stage of an item the decoder's order of K."""
        columns, units = self.tile.bm, cutlass.const_expr(self.units)
        tile = cutlass.const_expr(self.activations.stage_bytes(columns))
        # Units of a raw piece of K.
        span, lines = cutlass.const_expr(self.weights.decoder.halves), self.batch_lines
        # The warps take batches in turn, and one's batch follows upon the other's.
        sorter = cute.arch.make_warp_uniform(cute.arch.warp_idx()) % SORTERS
        base = buffers.activations.iterator.toint() + sorter * (lines * STAGE_ROW_BYTES)
        for _ in cutlass.range(
            self.raw_tiles(item.k_count) * (self.stage_units // units), unroll=1
        ):
            buffers.plain.wait_full(state)
            stage = base + state.index * (units * tile)
            for batch in cutlass.range_constexpr(0, self.batches, SORTERS):
                piece, first = divmod(batch * lines, columns)
                self.sort_lines(stage + piece * (span * tile) + first * STAGE_ROW_BYTES, tile)
            buffers.ring.arrive_full(state)
            state.advance()
        return state

    @cute.jit
    def sort_lines(self, at, tile: cutlass.Constexpr):
        """One warp: a raw piece of K of some lines, whose first lies at address `at`; `tile`: bytes to the next unit.

        A thread takes of a line the pieces of 8 elements that fall to the four threads of a quad in two K steps.
        """
        decoder, lane = self.weights.decoder, cute.arch.lane_idx()
        if cutlass.const_expr(decoder.halves == 2):
            line, turn = lane % 8, lane // 8
        else:
            line, turn = lane % 8 + lane // 16 * 8, lane // 8 % 2
        at = at + line * STAGE_ROW_BYTES
        share = cutlass.const_expr(decoder.tile_k // 32)
        found = [load_shared_v4(self.chunk(at, tile, share * t + turn, lane)) for t in range(4)]
        cute.arch.sync_warp()
        order = decoder.order()
        for place in cutlass.range_constexpr(4):
            first, second = order[8 * place : 8 * place + 2]
            select = Int32(0x7632 if first % 2 else 0x5410)
            made = [permute(words[first // 2], words[second // 2], select) for words in found]
            store_shared_v4(self.chunk(at, tile, 4 * turn + place, lane), *made)

    def chunk(self, at, tile: int, number, lane) -> Int32:
        """The address of 8 K elements of a line, by their number in the raw piece: 8 a unit, swizzled."""
        return at + number // 8 * tile + ((number % 8 ^ lane % 8) << 4)
