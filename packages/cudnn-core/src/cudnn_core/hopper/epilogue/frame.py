"""Where values lie: the fragments that consumers hold, and their places in C.

May import: the CuTe DSL, tile.py.

A warpgroup holds 64 fragment rows by some fragment columns. Value i0 + 2*i1 + 4*j of a thread is
fragment row 16*warp + lane//4 + 8*i1 and fragment column 8*j + 2*(lane%4) + i0. In the normal
orientation fragment rows and columns are rows m and columns n of C, in the swapped one n and m.

A GLU pairs column 64b + i of the product (up) with column 64b + 32 + i (gate); C has half as many.
Normal fragments hold both in one thread, as j and j + 4. Swapped fragments do too because the body
maps fragment rows 16w + r and 16w + 8 + r (r < 8) to columns 8w + r and 32 + 8w + r.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cutlass_dsl import select_

from ..tile import TileConfig

# Columns of one half of a GLU pair.
GLU_COLUMNS = 32
# Named barriers BARRIER + w: the threads of consumer warpgroup w.
BARRIER = 1


def meet(group) -> None:
    """The barrier of a consumer warpgroup."""
    cute.arch.barrier(barrier_id=BARRIER + group, number_of_threads=128)


@dataclass(frozen=True)
class Fragments:
    """How consumer warpgroups hand a tile over: in subtiles of 64 fragment rows by `width` columns.

    depth: staging buffers of a warpgroup; a store may still read the others while one is filled.
    glu: None, or where the halves of a pair lie in the columns of the product: "interleaved" in
    blocks of 32, or "concatenated", all up columns before all gate columns (the loader interleaves
    them, so that tiles look the same).
    """

    tile: TileConfig
    width: int = 0
    depth: int = 2
    glu: str | None = None

    def __post_init__(self):
        if not self.width:
            object.__setattr__(self, "width", self.default_width())
        while self.count % self.depth:
            # The subtiles of one tile must leave the buffers as they found them.
            object.__setattr__(self, "depth", self.depth - 1)

    def default_width(self) -> int:
        """Fragment columns of a subtile: 64, or the largest power of two that divides the tile's."""
        return next(w for w in (64, 32, 16, 8) if self.tile.columns % w == 0)

    @property
    def per_block(self) -> int:
        """Subtiles of a 64-row block."""
        return self.tile.columns // self.width

    @property
    def count(self) -> int:
        """Subtiles of a warpgroup in one tile."""
        return self.tile.m_blocks * self.per_block

    @property
    def swapped(self) -> bool:
        return self.tile.orientation == "swapped"

    @property
    def whole(self) -> "Piece":
        """A subtile of the product."""
        if self.swapped and self.glu is not None:
            return Piece(64, self.width, 2, 8, GLU_COLUMNS, True)
        return Piece(64, self.width, 2, 16, 8, self.swapped)

    @property
    def half(self) -> "Piece":
        """What a GLU makes of it."""
        if self.swapped:
            return Piece(32, self.width, 1, 8, 0, True)
        return replace(self.whole, columns=self.width // 2)

    def frame(self, item, warp, thread, index: int) -> "Frame":
        """Where subtile number `index` of this thread's warpgroup lies; warp: of all consumers."""
        tile = self.tile
        block, part = divmod(index, self.per_block)
        group = warp // 4
        row = group % tile.sharers * (64 * tile.m_blocks) + 64 * block
        column = part * self.width
        m, n = (column, row) if self.swapped else (row, column)
        return Frame(self, self.whole, item, group, warp % 4, thread % 32, m, n, index)

    def why_not(self) -> str | None:
        if self.tile.columns % self.width:
            return f"subtiles of {self.width} columns do not make {self.tile.columns}"
        if self.glu is not None and not self.swapped and self.width % (2 * GLU_COLUMNS):
            return f"subtiles of {self.width} columns break GLU pairs"
        return None


@dataclass(frozen=True)
class Piece:
    """The shape of a subtile: value i0 + 2*i1 + 2*halves*j of a thread is fragment row

        warp*warp_rows + lane//4 + half_rows*i1     (i1 < halves)

    and fragment column 8*j + 2*(lane%4) + i0.
    """

    rows: int
    columns: int
    halves: int
    warp_rows: int
    half_rows: int
    swapped: bool

    @property
    def count(self) -> int:
        """Values of a thread."""
        return self.rows * self.columns // 128

    @property
    def m(self) -> int:
        """Extent along the rows of C."""
        return self.columns if self.swapped else self.rows

    @property
    def n(self) -> int:
        """Extent along the columns of C."""
        return self.rows if self.swapped else self.columns

    def index(self, i0: int, i1: int, j: int) -> int:
        """The number of a value."""
        return i0 + 2 * i1 + 2 * self.halves * j

    def parts(self, i: int) -> tuple[int, int, int]:
        """(i0, i1, j) of value i."""
        return i % 2, i // 2 % self.halves, i // (2 * self.halves)

    def place(self, i: int) -> tuple[int, int]:
        """(row, column) of C of value i, counted from the thread's first."""
        i0, i1, j = self.parts(i)
        row, column = self.half_rows * i1, 8 * j + i0
        return (column, row) if self.swapped else (row, column)


class Frame(NamedTuple):
    """Where a subtile lies in the tile and in C.

    m, n: its corner in the tile; index: its number among the warpgroup's subtiles of the tile.
    group: the warpgroup; warp: of the four of the warpgroup. gate: see `Gate`.
    """

    fragments: Fragments
    piece: Piece
    item: Any
    group: Int32
    warp: Int32
    lane: Int32
    m: Any
    n: Any
    index: int
    gate: Any = None

    @property
    def row(self):
        """The thread's first fragment row within the subtile."""
        return self.warp * self.piece.warp_rows + self.lane // 4

    @property
    def column(self):
        """The thread's first fragment column within the subtile."""
        return 2 * (self.lane % 4)

    @property
    def thread_m(self):
        """The thread's first row of C, counted from the subtile's corner."""
        return self.column if self.piece.swapped else self.row

    @property
    def thread_n(self):
        return self.row if self.piece.swapped else self.column

    @property
    def m_left(self):
        """Valid rows of C from the subtile's corner on."""
        return self.item.m_valid - self.m

    @property
    def n_left(self):
        return self.item.n_valid - self.n

    def exists(self, i: int):
        """Whether value i is a valid element of C."""
        m, n = self.piece.place(i)
        return (self.m_left > self.thread_m + m) & (self.n_left > self.thread_n + n)

    def existing(self, values: list) -> list:
        """The values, 0 for those that do not exist."""
        return [
            Float32(select_(self.exists(i), value, Float32(0.0))) for i, value in enumerate(values)
        ]

    def pairs(self) -> list[tuple[int, int]]:
        """(up, gate): numbers of the values that make each value of `half`, in its order."""
        if self.piece.swapped:
            return [
                (i0 + 4 * j, i0 + 4 * j + 2)
                for j in range(self.piece.columns // 8)
                for i0 in (0, 1)
            ]
        up = [i for i in range(self.piece.count) if i // 4 % 8 < 4]
        return [(i, i + 16) for i in up]

    def half(self) -> "Frame":
        """The subtile of C that a GLU makes of this one."""
        item = self.item._replace(n0=self.item.n0 // 2, n_valid=self.item.n_valid // 2)
        return self._replace(piece=self.fragments.half, item=item, n=self.n // 2)


class Gate:
    """Opens the staging buffers of a subtile when the first value is stored, and not before: until then
    threads compute while the copy engine still reads what they stored last."""

    def __init__(self, handles, group):
        self.handles = handles
        self.group = group
        self.is_open = False

    def open(self, frame) -> None:
        """All threads of the warpgroup, at one place in the code."""
        if not self.is_open:
            self.is_open = True
            for handle in self.handles:
                handle.start(frame)
            meet(self.group)


class Live(NamedTuple):
    """A resource on the device: its arguments, shared memory and registers."""

    args: Any
    buffers: Any
    state: Any


class Handle(NamedTuple):
    """A resource in the hands of an epilogue function: handle.method(...) is resource.method(live, ...)."""

    resource: Any
    live: Live

    def __getattr__(self, name: str):
        method = getattr(self.resource, name)
        return lambda *args: method(self.live, *args)


class Resource:
    """What every resource may have; the defaults do nothing.

    On the host: prepare(...) makes the run-time arguments, conclude(args, stream) may launch a kernel behind
    the main one. On the device, by consumer threads unless said
    otherwise, in this order:

        allocate    its shared memory, from the block's allocator (all threads)
        initialize  by one thread, before the block's barrier
        begin       its registers; once a kernel
        start_tile  before a tile's main loop: loads that should be there when it ends
        start       before a subtile's first value is staged; a warpgroup barrier follows
        end         after a subtile and, if any resource is `staged`, a barrier; by warp 0 of the warpgroup
        end_tile    after the last subtile
        finish      once a kernel, after the last tile
    """

    staged = False

    def smem_bytes(self) -> int:
        return 0

    def allocate(self, smem):
        return None

    def initialize(self, buffers):
        return None

    def begin(self, args, buffers):
        return None

    def start_tile(self, live, item, thread):
        return None

    def start(self, live, frame):
        return None

    def end(self, live, frame):
        return None

    def end_tile(self, live, item, thread):
        return None

    def finish(self, live, thread):
        return None

    def conclude(self, args, stream):
        return None
