"""RowSum: the sum of values along each row of C, in one fixed order.

May import: the CuTe DSL, shared.py, lanes.py, frame.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ..bits import bits_float, float_bits
from .frame import Fragments, Resource, meet
from .lanes import across_quad, across_rows
from .shared import load_words, store_words

# Rows and parallel partial sums of a block of the second kernel.
ROWS, LANES = 32, 8


@dataclass(frozen=True)
class RowSumArgs:
    """Run-time values: where sums go (M, 1, L), and partial sums (M, parts, L)."""

    target: cute.Tensor
    partial: cute.Tensor


@dataclass(frozen=True)
class RowSum(Resource):
    """target[m, 0, l] (+)= sum over n of the values given, FP32, bitwise repeatable.

    Each tile leaves one partial sum a row in a workspace, each group of warpgroups' rows its own in
    the swapped orientation; a second, small kernel (`conclude`) adds them up in order. accumulate:
    onto what the target holds, else instead of it.
    """

    fragments: Fragments
    accumulate: bool = False

    @property
    def shared(self) -> bool:
        return self.fragments.swapped

    @property
    def parts_per_tile(self) -> int:
        return self.fragments.tile.sharers if self.fragments.swapped else 1

    def parts(self, n):
        """Partial sums of a row of n columns (of the product)."""
        bn = self.fragments.tile.bn
        return (n + bn - 1) // bn * self.parts_per_tile

    def workspace_bytes(self, m: int, n: int, batches: int) -> int:
        """What `prepare` needs as workspace; it need not be zeroed."""
        return 4 * m * self.parts(n) * batches

    def smem_bytes(self) -> int:
        tile = self.fragments.tile
        return tile.warpgroups * 4 * tile.columns * 4 if self.shared else 0

    @cute.jit
    def prepare(self, target: cute.Tensor, workspace: cute.Tensor, n: Int32):
        """target: FP32 (M, 1, L); workspace: flat bytes; n: columns of the product."""
        m, batches, parts = Int32(target.shape[0]), Int32(target.shape[2]), self.parts(n)
        layout = cute.make_layout(
            (m, parts, batches), stride=(1, Int64(m), Int64(m) * Int64(parts))
        )
        partial = cute.make_tensor(cute.recast_ptr(workspace.iterator, dtype=Float32), layout)
        return RowSumArgs(target, partial)

    def allocate(self, smem):
        if not self.shared:
            return None
        return smem.allocate_array(Float32, self.smem_bytes() // 4, byte_alignment=16)

    def begin(self, args, buffers):
        if self.shared:
            return None
        state = cute.make_rmem_tensor(2 * self.fragments.tile.m_blocks, Float32)
        state.fill(0.0)
        return state

    def add(self, live, frame, values):
        """Take the subtile's elements in; those that do not exist are 0."""
        if self.shared:
            self.add_columns(live, frame, values)
            return
        block = frame.index // self.fragments.per_block
        for i1 in range(2):
            mine = [v for i, v in enumerate(values) if frame.piece.parts(i)[1] == i1]
            at = 2 * block + i1
            live.state[at] = live.state[at] + in_pairs(mine)

    def add_columns(self, live, frame, values):
        """Swapped: the rows of C are fragment columns, which eight lanes and four warps share."""
        piece = frame.piece
        sums = []
        for j in range(piece.columns // 8):
            for i0 in (0, 1):
                both = [values[piece.index(i0, i1, j)] for i1 in range(piece.halves)]
                sums.append(in_pairs(both))
        sums, first = across_rows(sums, frame.lane, lambda a, b: a + b)
        # Number c of a thread's columns is fragment column 8*(c//2) + c%2 after its first.
        column = frame.m + frame.column + (first >> 1) * 8 + (first & 1)
        start = self.buffer(live, frame.group, frame.warp) + 4 * column
        offsets = [4 * (8 * (c // 2) + c % 2) for c in range(len(sums))]
        if frame.index >= self.fragments.per_block:
            # Narrow subtiles leave copies of a sum in several lanes: all read before any writes.
            held = [bits_float(load_words(start, 1, offset)[0]) for offset in offsets]
            sums = [old + value for old, value in zip(held, sums, strict=True)]
            cute.arch.sync_warp()
        for value, offset in zip(sums, offsets, strict=True):
            store_words(start, [float_bits(value)], offset)

    def buffer(self, live, group, warp):
        columns = self.fragments.tile.columns
        return live.buffers.toint() + (group * 4 + warp) * (4 * columns)

    @cute.jit
    def end_tile(self, live: cutlass.Constexpr, item: cutlass.Constexpr, thread):
        warp = cute.arch.make_warp_uniform(thread // 32)
        tile = self.fragments.tile
        part = item.n0 // tile.bn * self.parts_per_tile
        if cutlass.const_expr(self.shared):
            group = warp // 4
            meet(group)
            for first in cutlass.range_constexpr(0, tile.columns, 128):
                m = first + thread % 128
                if m < item.m_valid:
                    self.leave(
                        live, item, m, part + group % tile.sharers, self.total(live, group, m)
                    )
            # The next tile's sums may come.
            meet(group)
        else:
            for i in cutlass.range_constexpr(2 * tile.m_blocks):
                frame = self.fragments.frame(item, warp, thread, i // 2 * self.fragments.per_block)
                total = across_quad(live.state[i], lambda a, b: a + b)
                live.state[i] = Float32(0.0)
                m = frame.m + frame.thread_m + 8 * (i % 2)
                if (m < item.m_valid) & (thread % 4 == 0):
                    self.leave(live, item, m, part, total)

    def total(self, live, group, m):
        loaded = [load_words(self.buffer(live, group, w) + 4 * m, 1, 0)[0] for w in range(4)]
        return in_pairs([bits_float(w) for w in loaded])

    def leave(self, live, item, m, part, total):
        live.args.partial[item.m0 + m, part, item.batch] = total

    @cute.jit
    def conclude(self, args, stream):
        """On the host: launches the kernel that adds the partial sums up."""
        rows, batches = args.partial.shape[0], args.partial.shape[2]
        self.total_kernel(args).launch(
            grid=[(rows + ROWS - 1) // ROWS, batches, 1], block=[ROWS, LANES, 1], stream=stream
        )

    @cute.kernel
    def total_kernel(self, args):
        """Warp w of a block adds parts w, w + 8, ... of 32 rows; warp 0 the eight results, in order."""
        lane, warp, _ = cute.arch.thread_idx()
        block, batch, _ = cute.arch.block_idx()
        staged = cute.arch.alloc_smem(Float32, ROWS * LANES, alignment=16)
        shared = cute.make_tensor(staged, cute.make_layout((ROWS, LANES)))
        partial = args.partial
        m = block * ROWS + lane
        total = Float32(0.0)
        if m < partial.shape[0]:
            for part in cutlass.range(warp, partial.shape[1], LANES, unroll=4):
                total += partial[m, part, batch]
        shared[lane, warp] = total
        cute.arch.sync_threads()
        if (warp == 0) & (m < partial.shape[0]):
            whole = in_pairs([shared[lane, w] for w in range(LANES)])
            if cutlass.const_expr(self.accumulate):
                whole = args.target[m, 0, batch] + whole
            args.target[m, 0, batch] = whole


def in_pairs(values: list):
    """The sum, as a balanced tree: short chains, small rounding errors."""
    while len(values) > 1:
        paired = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = paired + (values[-1:] if len(values) % 2 else [])
    return values[0]
