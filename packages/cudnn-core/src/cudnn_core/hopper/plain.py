"""The main-loop body for operands that the tensor core reads from shared memory.

May import: the CuTe DSL, and every file of this folder except gemm.py and epilogues.

The producer fills one ring by TMA, each consumer warpgroup issues the WGMMAs of its 64-row blocks
and releases a stage one stage later:

    producer --ring--> consumers

With `tile.promote_k` the tensor core sums 128 elements of K into an accumulator that starts at
zero, and ordinary FP32 additions join it to the sums: FP8 products lose what the tensor core's
adder, of about 14 bits, drops in longer sums. Such a stage is worked in pieces (a row block by a
part of the columns), so that one piece is added while the tensor core works on the next.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import warpgroup

from . import wgmma
from .matrix import MatrixArgs, MatrixOperand
from .rings import Ring
from .tile import ACCUMULATORS, TileConfig

K_STEPS = 4


@dataclass(frozen=True)
class PlainBuffers:
    """Shared memory of this body."""

    a: cute.Tensor
    b: cute.Tensor
    ring: Ring


@dataclass(frozen=True)
class PlainBody:
    """Producer and consumers of one kernel whose sides go to the tensor core as they are."""

    tile: TileConfig
    a: MatrixOperand
    b: MatrixOperand

    def why_not(self) -> str | None:
        if self.a.bits != self.b.bits or (self.a.bits == 16 and self.a.element != self.b.element):
            return f"the tensor core does not multiply {self.a.element} by {self.b.element}"
        if self.tile.promote_k not in (None, self.a.tile_k):
            return f"promote_k must be {self.a.tile_k}, got {self.tile.promote_k}"
        if self.tile.promote_k is not None and self.tile.pingpong:
            return "promoted sums need cooperating warpgroups"
        if self.tile.promote_k is not None and self.split() is None:
            return f"no room for promoted sums of {self.tile.bm} by {self.tile.bn}"
        if (self.a.sharers, self.b.sharers) != (self.tile.cluster[1], self.tile.cluster[0]):
            return "sides are shared by the blocks of a cluster row or column"
        return self.a.why_not(self.tile.bm) or self.b.why_not(self.tile.bn)

    def smem_bytes(self) -> int:
        return self.stage_bytes() * self.tile.stages

    def stage_bytes(self) -> int:
        return self.a.stage_bytes(self.tile.bm) + self.b.stage_bytes(self.tile.bn)

    def allocate(self, smem) -> PlainBuffers:
        consumers = 4 * self.tile.sharers
        return PlainBuffers(
            a=self.a.allocate(smem, self.tile.bm, self.tile.stages),
            b=self.b.allocate(smem, self.tile.bn, self.tile.stages),
            ring=Ring.allocate(smem, self.tile.stages, 1, consumers, self.tile.blocks),
        )

    def initialize(self, buffers: PlainBuffers) -> None:
        """The producer sets up what it fills."""
        buffers.ring.initialize()

    def producer_state(self, buffers: PlainBuffers):
        return buffers.ring.producer_state()

    def consumer_states(self, buffers: PlainBuffers):
        """Where a consumer reads next."""
        return buffers.ring.consumer_state()

    def skip(self, state, k_tiles: Int32):
        """The state after stages that are another warpgroup's."""
        state = state.clone()
        state.advance(k_tiles)
        return state

    @property
    def overwrites(self) -> bool:
        """Whether the first product of an item ignores what the accumulators hold."""
        return self.tile.promote_k is None

    def accumulators(self) -> list:
        """One FP32 fragment for each 64-row block."""
        return [self.fragment(self.tile.columns) for _ in range(self.tile.m_blocks)]

    def fragment(self, columns: int):
        return cute.make_rmem_tensor(((2, 2, columns // 8), 1, 1), Float32)

    def k_tiles(self, k_count: Int32) -> Int32:
        return (k_count + self.a.tile_k - 1) // self.a.tile_k

    @cute.jit
    def produce(self, buffers, a: MatrixArgs, b: MatrixArgs, item, state):
        """One warp: fill the ring for one work item. Waits on ring.empty, signals ring.full."""
        views = self.views(buffers, a, b, item)
        for i in cutlass.range(self.k_tiles(item.k_count), unroll=1):
            self.fill(buffers, a, b, views, i, state)
            state.advance()
        return state

    def views(self, buffers: PlainBuffers, a: MatrixArgs, b: MatrixArgs, item) -> tuple:
        """(shared, global) of A and of B, for the copies of a work item."""
        tile = self.tile
        return (
            self.a.partition(a, buffers.a, tile.bm, item.m0, item.k0, item.batch),
            self.b.partition(b, buffers.b, tile.bn, item.n0, item.k0, item.batch),
        )

    @cute.jit
    def fill(self, buffers, a: MatrixArgs, b: MatrixArgs, views: cutlass.Constexpr, i, state):
        """One warp: copy K tile i of a work item into the next stage."""
        ring, ((a_shared, a_global), (b_shared, b_global)) = buffers.ring, views
        ring.wait_empty(state)
        barrier = ring.full + state.index
        with cute.arch.elect_one():
            ring.expect(state, Int32(self.stage_bytes()))
        self.a.copy(a, a_global[None, i], a_shared[None, state.index], barrier)
        self.b.copy(b, b_global[None, i], b_shared[None, state.index], barrier)

    def sides(self, buffers: PlainBuffers):
        """(operand, buffer) of the fragments' rows and of their columns."""
        normal = self.tile.orientation == "normal"
        a, b = (self.a, buffers.a), (self.b, buffers.b)
        return (a, b) if normal else (b, a)

    def operands(self, buffers: PlainBuffers, columns: int):
        """The product of 64 rows by so many columns, and the stages as its operands.

        Rows are indexed (., (., row block), K step, stage), and columns likewise.
        """
        (rows, row_buffer), (cols, column_buffer) = self.sides(buffers)
        op = wgmma.product(rows.dtype, cols.dtype, columns, rows.major, cols.major)
        tiled_mma = cute.make_tiled_mma(op)
        lane = tiled_mma.get_slice(0)
        row_fragment = tiled_mma.make_fragment_A(lane.partition_A(row_buffer))
        column_fragment = tiled_mma.make_fragment_B(lane.partition_B(column_buffer))
        single = (None, cute.make_layout(1))
        return op, *(cute.logical_divide(f, single) for f in (row_fragment, column_fragment))

    @cute.jit
    def consume(self, buffers, a: MatrixArgs, item, accumulators, state, thread):
        """A consumer warpgroup: issue the products of one work item into `accumulators`.

        Waits on ring.full and signals ring.empty; the last stage is left to `drain`.
        """
        group = cute.arch.make_warp_uniform(thread // 128)
        if cutlass.const_expr(self.tile.promote_k is None):
            return self.sum(buffers, item, accumulators, state, group)
        return self.sum_promoted(buffers, item, accumulators, state, group)

    def first_block(self, group: Int32) -> Int32:
        """The first row block of a consumer warpgroup."""
        return group % self.tile.sharers * self.tile.m_blocks

    @cute.jit
    def sum(self, buffers, item, accumulators, state, group):
        """Everything is summed by the tensor core."""
        ring, first_block = buffers.ring, self.first_block(group)
        count = self.k_tiles(item.k_count)
        op, rows, columns = self.operands(buffers, self.tile.columns)
        release = state.clone()
        for i in cutlass.range(count, unroll=1):
            ring.wait_full(state)
            warpgroup.fence()
            for k in cutlass.range_constexpr(K_STEPS):
                # The first product overwrites what an earlier tile has left.
                atom = wgmma.atom(op, accumulate=(i > 0) | Boolean(k > 0))
                for m in cutlass.range_constexpr(self.tile.m_blocks):
                    cute.gemm(
                        atom,
                        accumulators[m],
                        rows[None, (None, first_block + m), k, state.index],
                        columns[None, (None, 0), k, state.index],
                        accumulators[m],
                    )
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if i > 0:
                ring.release(release)
                release.advance()
            state.advance()
        return state

    def split(self) -> tuple[int, int] | None:
        """How a promoted stage is worked: (parts of the columns, accumulators in turns), or None.

        Narrow parts read the rows too often: 64 columns keep shared memory as busy as the products.

        Two accumulators keep the tensor core busy while one is added; where registers do not allow
        for them, that is left to the other warpgroup.
        """
        sums = self.tile.m_blocks * self.tile.columns // 2
        for parts, buffers in ((1, 2), (2, 2), (1, 1), (2, 1)):
            width = self.tile.columns // parts
            pieces = self.tile.m_blocks * parts
            if width % 8 or pieces % buffers or (width < 96 and parts > 1):
                continue
            if sums + buffers * width // 2 <= ACCUMULATORS:
                return parts, buffers
        return None

    @cute.jit
    def sum_promoted(self, buffers, item, accumulators, state, group):
        """The tensor core sums a stage, and its pieces are added when they are ready."""
        ring, first_block = buffers.ring, self.first_block(group)
        count = self.k_tiles(item.k_count)
        parts, depth = self.split()
        pieces = cutlass.const_expr(self.tile.m_blocks * parts)
        width = cutlass.const_expr(self.tile.columns // parts)
        op, rows, columns = self.operands(buffers, width)
        partial = [self.fragment(width) for _ in range(depth)]
        for _ in cutlass.range(count, unroll=1):
            ring.wait_full(state)
            for p in cutlass.range_constexpr(pieces + depth - 1):
                if cutlass.const_expr(p < pieces):
                    warpgroup.fence()
                    for k in cutlass.range_constexpr(K_STEPS):
                        cute.gemm(
                            wgmma.atom(op, accumulate=k > 0),
                            partial[p % depth],
                            rows[None, (None, first_block + p // parts), k, state.index],
                            columns[None, (None, p % parts), k, state.index],
                            partial[p % depth],
                        )
                    warpgroup.commit_group()
                # All of it is waited for within the stage: across rounds of the loop ptxas would
                # rather serialize the products than follow which accumulator is ready.
                ready = cutlass.const_expr(p + 1 - depth)
                if cutlass.const_expr(ready >= 0):
                    warpgroup.wait_group(min(pieces - 1 - ready, depth - 1))
                    self.add(accumulators, partial[ready % depth], ready, parts)
            ring.release(state)
            state.advance()
        return state

    def add(self, accumulators, partial, piece: int, parts: int) -> None:
        """Join a piece to the sums of its row block and columns."""
        sums, count = accumulators[piece // parts], cute.size(partial)
        first = piece % parts * count
        for i in range(count):
            sums[first + i] = sums[first + i] + partial[i]

    @cute.jit
    def drain(self, buffers, item, accumulators, state):
        """Wait for the last products, and release their stage."""
        if cutlass.const_expr(self.tile.promote_k is None):
            warpgroup.wait_group(0)
            if item.k_count > 0:
                last = state.clone()
                last.reverse()
                buffers.ring.release(last)
        return state
