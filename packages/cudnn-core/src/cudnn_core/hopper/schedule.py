"""Schedules: which tile a thread block works on next.

May import: the CuTe DSL, tile.py.

A schedule is the host's `prepare` (run-time values from the problem) and `walkers` (how many
clusters to launch), and two device functions: `walk`, the numbers of a block's items, and `item`.
Every role of a block walks the same sequence, so nothing is communicated.
"""

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .tile import TileConfig


class WorkItem(NamedTuple):
    """One partial or whole output tile.

    Rows m0 .. m0+m_valid-1 and columns n0 .. n0+n_valid-1 of C (at most a tile) in `batch`; K
    elements k0 .. k0+k_count-1. k_count = 0 means a tile of zeros. is_first and is_last: the item
    holds the start and the end of the tile's K range.
    """

    m0: Int32
    m_valid: Int32
    n0: Int32
    n_valid: Int32
    batch: Int32
    group: Int32
    k0: Int32
    k_count: Int32
    is_first: bool
    is_last: bool


@dataclass(frozen=True)
class Divisor:
    """A run-time divisor of numbers from 0 to 2^31 - 1: a product and a shift on the device."""

    value: Int32
    factor: Int64
    shift: Int64

    @staticmethod
    @cute.jit
    def of(value: Int32) -> "Divisor":
        """On the host; value is positive."""
        shift = Int64(31)
        while (Int64(1) << (shift - 31)) < value:
            shift += 1
        factor = ((Int64(1) << shift) + value - 1) // value
        return Divisor(value, factor, shift)

    def divide(self, number: Int32) -> Int32:
        return Int32((Int64(number) * self.factor) >> self.shift)


@dataclass(frozen=True)
class DenseArgs:
    """Run-time values of DenseSchedule: the extents, and what tile numbers are divided by.

    plane: cluster tiles of a batch; band: of `raster` rows of them; rest: rows of the last band.
    """

    m: Int32
    n: Int32
    k: Int32
    batches: Int32
    rows: Int32
    columns: Int32
    plane: Divisor
    band: Divisor
    rest: Divisor


@dataclass(frozen=True)
class DenseSchedule:
    """All tiles of a batched (M, N) output, each with the whole of K.

    Within a batch, `raster` tile rows are walked together, column by column, so that blocks which
    run at the same time share operand tiles in the L2 cache. A cluster takes neighbouring tiles as
    one; at the edges some of them have no valid rows or columns.
    """

    tile: TileConfig
    # Whether tiles have partial sums, which the skeleton then has `join`ed.
    splits = False

    @cute.jit
    def prepare(self, m: Int32, n: Int32, k: Int32, batches: Int32) -> DenseArgs:
        """On the host."""
        bm, bn = self.tile.bm * self.tile.cluster[0], self.tile.bn * self.tile.cluster[1]
        rows, columns = Int32((m + bm - 1) // bm), Int32((n + bn - 1) // bn)
        rest = (rows - 1) % self.tile.raster + 1
        plane = Divisor.of(at_least(rows * columns, Int32(1)))
        band = Divisor.of(at_least(self.tile.raster * columns, Int32(1)))
        return DenseArgs(m, n, k, batches, rows, columns, plane, band, Divisor.of(rest))

    @cute.jit
    def walkers(self, args: DenseArgs, limit: Int32) -> Int32:
        """On the host: how many clusters to launch."""
        return at_most(self.count(args), at_least(limit, Int32(1)))

    @cute.jit
    def walk(self, args: DenseArgs):
        """The numbers of this block's work items, as (first, end, step)."""
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        return block // self.tile.blocks, self.count(args), blocks // self.tile.blocks

    def count(self, args: DenseArgs) -> Int32:
        """Items of a cluster in all; fewer than 2^31."""
        return args.plane.value * args.batches

    @cute.jit
    def item(self, args: DenseArgs, index: Int32) -> WorkItem:
        m0, n0, batch = self.place(args, index)
        return self.whole(args, m0, n0, batch)

    @cute.jit
    def place(self, args: DenseArgs, index: Int32):
        """(m0, n0, batch) of this block's tile in a cluster tile."""
        batch = args.plane.divide(index)
        within = index - batch * args.plane.value
        first = args.band.divide(within) * self.tile.raster
        rest = within - first * args.columns
        # The last band may have fewer rows.
        height, column = Int32(self.tile.raster), rest // self.tile.raster
        if args.rows - first < self.tile.raster:
            height, column = args.rest.value, args.rest.divide(rest)
        row = first + rest - column * height
        along_m, along_n = self.tile.cluster
        if cutlass.const_expr(self.tile.blocks > 1):
            rank = cute.arch.block_idx_in_cluster()
            row = row * along_m + rank % along_m
            column = column * along_n + rank // along_m
        return row * self.tile.bm, column * self.tile.bn, batch

    def whole(self, args: DenseArgs, m0: Int32, n0: Int32, batch: Int32) -> WorkItem:
        """The tile at (m0, n0) with all of K."""
        return WorkItem(
            m0=m0,
            m_valid=at_least(at_most(args.m - m0, Int32(self.tile.bm)), Int32(0)),
            n0=n0,
            n_valid=at_least(at_most(args.n - n0, Int32(self.tile.bn)), Int32(0)),
            batch=batch,
            group=Int32(0),
            k0=Int32(0),
            k_count=args.k,
            is_first=True,
            is_last=True,
        )


@cute.jit
def at_most(a: Int32, b: Int32) -> Int32:
    """The smaller of two numbers."""
    if b < a:
        a = b
    return a


@cute.jit
def at_least(a: Int32, b: Int32) -> Int32:
    """The larger of two numbers."""
    if b > a:
        a = b
    return a
