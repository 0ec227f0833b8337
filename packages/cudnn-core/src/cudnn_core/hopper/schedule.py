"""Schedules: which tile a thread block works on next.

May import: the CuTe DSL, tile.py.

A schedule is the host's `prepare` (run-time values from the problem) and two device functions: how
many items there are, and item number i. Blocks take items i, i + grid, i + 2*grid, ...; every role
of a block walks the same sequence, so nothing is communicated.
"""

from dataclasses import dataclass
from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Int32

from .tile import TileConfig


class WorkItem(NamedTuple):
    """One partial or whole output tile.

    Rows m0 .. m0+m_valid-1 and columns n0 .. n0+n_valid-1 of C (at most a tile) in `batch`; K
    elements k0 .. k0+k_count-1. k_count = 0 means a tile of zeros. is_first and is_last mark the
    first and the last item of a tile whose K range is split.
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
class DenseArgs:
    """Run-time values of DenseSchedule."""

    m: Int32
    n: Int32
    k: Int32
    batches: Int32


@dataclass(frozen=True)
class DenseSchedule:
    """All tiles of a batched (M, N) output, each with the whole of K.

    Within a batch, `raster` tile rows are walked together, column by column, so that blocks which
    run at the same time share operand tiles in the L2 cache.
    """

    tile: TileConfig

    def prepare(self, m: Int32, n: Int32, k: Int32, batches: Int32) -> DenseArgs:
        return DenseArgs(m, n, k, batches)

    def count(self, args: DenseArgs) -> Int32:
        """Items in all; fewer than 2^31."""
        rows = (args.m + self.tile.bm - 1) // self.tile.bm
        columns = (args.n + self.tile.bn - 1) // self.tile.bn
        return rows * columns * args.batches

    @cute.jit
    def item(self, args: DenseArgs, index: Int32) -> WorkItem:
        rows = (args.m + self.tile.bm - 1) // self.tile.bm
        columns = (args.n + self.tile.bn - 1) // self.tile.bn
        batch = index // (rows * columns)
        within = index - batch * (rows * columns)
        band = within // (self.tile.raster * columns)
        first = band * self.tile.raster
        # The last band may have fewer rows.
        height = at_most(rows - first, Int32(self.tile.raster))
        rest = within - first * columns
        column = rest // height
        m0 = (first + rest - column * height) * self.tile.bm
        n0 = column * self.tile.bn
        return WorkItem(
            m0=m0,
            m_valid=at_most(args.m - m0, Int32(self.tile.bm)),
            n0=n0,
            n_valid=at_most(args.n - n0, Int32(self.tile.bn)),
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
