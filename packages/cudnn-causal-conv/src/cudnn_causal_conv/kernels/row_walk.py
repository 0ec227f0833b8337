"""How the backward over token-contiguous rows divides its work: lanes to rows, warps to channels and chunks.

Imports the DSL.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .config import CHUNK as TOKENS
from .config import ELEMENT_BYTES, ROW_BLOCKS, ROW_WARPS, VECTOR_BYTES

# Rows that share a warp, at most: see `fold_of`.
MOST_ROWS = 8


class Numbers(NamedTuple):
    """fold: log2 of the lanes that share a row. team: log2 of the warps that share channels. spare: the largest skew of
    a row of x. per_row: chunks of a row. share: chunks of a warp, whole rows if more than one.
    """

    splits: Int32
    fold: Int32
    team: Int32
    spare: Int32
    per_row: Int32
    share: Int32


class Walk:
    """Where this thread is: its channel, its place among the lanes of a row, its warp's chunks."""

    def __init__(self, x, numbers, runs, margin):
        self.batches, self.channels, self.tokens = x.shape
        fold, self.spare, self.per_row = numbers.fold, numbers.spare, numbers.per_row
        self.lanes, self.team = Int32(1) << fold, numbers.team
        thread, _, _ = cute.arch.thread_idx()
        tile, self.split, _ = cute.arch.block_idx()
        self.thread, self.warp = thread, thread // 32
        whole = thread % 32
        # Of the rows that share the warp.
        self.group, self.rows = whole >> fold, Int32(32) >> fold
        self.lane = whole & (self.lanes - 1)
        self.peer = (whole - self.lane) + ((self.lane + 1) & (self.lanes - 1))
        self.tile = tile * ((self.rows * ROW_WARPS) >> self.team)
        row = self.tile + (self.warp >> self.team) * self.rows + self.group
        self.exists = row < self.channels
        # Lanes without a channel keep the warp whole; they store nothing.
        self.channel = cutlass.min(row, self.channels - 1)
        self.step, self.own = self.lanes * TOKENS, self.lane * TOKENS
        self.reach = self.step * runs
        # The runs of a row whose tokens all exist, `margin` of them after the run too.
        self.plain_first = cutlass.min(self.spare, 1)
        self.plain_end = cutlass.max(self.tokens - margin, 0) >> (fold + 3)
        total = self.batches * self.per_row
        part = (self.split << self.team) + (self.warp & ((1 << self.team) - 1))
        self.first = cutlass.min(part * numbers.share, total)
        self.end = cutlass.min(self.first + numbers.share, total)


def skew_of(walk, address, dtype):
    """Tokens of a row that its first 16 bytes leave out."""
    low = Int32(address & Int64(VECTOR_BYTES - 1))
    return cutlass.min(low // ELEMENT_BYTES[dtype], walk.spare)


@cute.jit
def fold_of(tokens, runs: cutlass.Constexpr):
    """log2 of the lanes that share a row: fewer where rows are short, so that none idles."""
    fold = Int32(5)
    if tokens <= 16 * TOKENS * runs:
        fold = Int32(4)
    if tokens <= 8 * TOKENS * runs:
        fold = Int32(3)
    if tokens <= 4 * TOKENS * runs:
        fold = Int32(2)
    return fold


@cute.jit
def team_of(batches, teams):
    """log2 of the warps that share channels: so many that each has whole rows, and more where channels are few.

    teams: as many as there are to be.
    """
    team = Int32(0)
    if batches % 2 == 0 or batches >= 8 or teams < 4 * ROW_BLOCKS:
        team = Int32(1)
    if batches % 4 == 0 or batches >= 16 or teams < 2 * ROW_BLOCKS:
        team = Int32(2)
    return team
