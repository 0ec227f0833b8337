"""Tiles of C that pass through shared memory: boxes of the tensor copy engine, and who stores where.

May import: the CuTe DSL, storage.py, frame.py.

A staging buffer holds one subtile as boxes. A box is lines of at most 128 bytes along C's contiguous
mode; the 16-byte chunks of a line are xored with the line's number, as the engine's swizzle has it.
Whether a line runs along fragment rows or fragment columns, a thread's places differ from its first
one by an exclusive or and a sum that are known at compile time: `Places`.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from ..storage import STORAGE
from .frame import GLU_COLUMNS, Fragments, Piece, Resource

LINE_BYTES = 128


@dataclass(frozen=True)
class Lines:
    """How a buffer holds a piece. Bytes; `bits` of an element.

    along_rows: lines run along fragment rows (and one line is a fragment column) or the reverse.
    span: elements in a line; the piece has as many boxes as spans along a line's direction.
    """

    piece: Piece
    bits: int
    along_rows: bool
    span: int

    @property
    def line_bytes(self) -> int:
        return self.span * self.bits // 8

    @property
    def lines(self) -> int:
        """Lines of a box."""
        return self.piece.columns if self.along_rows else self.piece.rows

    @property
    def box_bytes(self) -> int:
        return self.lines * self.line_bytes

    @property
    def boxes(self) -> int:
        return (self.piece.rows if self.along_rows else self.piece.columns) // self.span

    def swizzle(self, line):
        """What the 16-byte chunks of a line are xored with, in bytes."""
        chunks = self.line_bytes // 16
        # A pattern spans 8 chunks of 128 bytes, whatever a line's length.
        return ((line * self.line_bytes >> 7) & (chunks - 1)) << 4

    def start(self, row, column):
        """The byte of fragment (row, column) in the buffer; both may be run-time numbers.

        With 4-bit elements, `row` or `column` along the line counts from an even one.
        """
        position, line = (row, column) if self.along_rows else (column, row)
        # Spans are powers of two, and nothing here is negative: shifts, where // would ask for the sign.
        box = position >> (self.span.bit_length() - 1)
        inside = (position & (self.span - 1)) * self.bits >> 3
        return box * self.box_bytes + line * self.line_bytes + (inside ^ self.swizzle(line))

    def step(self, i0: int, i1: int, j: int) -> tuple[int, int]:
        """(exclusive or, sum) that lead from a thread's first value to value (i0, i1, j).

        They hold for any thread whose first fragment column is even, below 8, and whose first
        fragment row is below 8 more than a multiple of `warp_rows`: then its bits and the steps'
        are apart, both in the position along a line and in the line's number as far as it swizzles.
        """
        row, column = self.piece.half_rows * i1, 8 * j + i0
        position, line = (row, column) if self.along_rows else (column, row)
        box, inside = divmod(position, self.span)
        xor = (inside * self.bits // 8) ^ self.swizzle(line)
        return xor, box * self.box_bytes + line * self.line_bytes


@dataclass(frozen=True)
class StagedArgs:
    """Run-time values of a staged tensor: the whole of it and, for TMA, its tensor map."""

    tensor: cute.Tensor
    tma_atom: Any
    tma_tensor: Any


@dataclass(frozen=True)
class Staged(Resource):
    """A tensor (M, N, L) of C's extents, or half as wide, that is read or written by subtiles.

    dtype: a name of STORAGE. contiguous: "n" or "m" (FP4: "n"). mode: "tma" goes through shared
    memory and needs a 16-byte aligned base and strides of 16-byte multiples, stores also an extent
    of whole 16-byte chunks along the contiguous mode (the copy engine writes no less); "direct" moves
    single elements under predicates, for any strides and extents. container: "native", or "uint8" for packed FP4.
    batch: whether L is the "last" or the "outer" mode. half: whether it has the columns that a GLU
    makes of the product's.
    """

    fragments: Fragments
    dtype: str
    contiguous: str = "n"
    mode: str = "tma"
    container: str = "native"
    batch: str = "last"
    half: bool = False

    @property
    def staged(self) -> bool:
        return self.mode == "tma"

    @property
    def format(self):
        return STORAGE[self.dtype]

    @property
    def piece(self) -> Piece:
        return self.fragments.half if self.half else self.fragments.whole

    @property
    def concatenated(self) -> bool:
        """Whether neighbours in the tile lie half a row apart in the tensor."""
        return self.fragments.glu == "concatenated" and not self.half

    @property
    def lines(self) -> Lines:
        along_n = self.contiguous == "n"
        span = min(LINE_BYTES * 8 // self.format.bits, self.piece.n if along_n else self.piece.m)
        if self.concatenated and along_n:
            span = min(span, GLU_COLUMNS)
        return Lines(self.piece, self.format.bits, along_n == self.piece.swapped, span)

    @property
    def box(self) -> tuple[int, int]:
        """Extents of a box along m and n, in stored units."""
        if self.contiguous == "n":
            return self.piece.m, self.lines.span // self.format.columns
        n = GLU_COLUMNS if self.concatenated else self.piece.n
        return self.lines.span, n

    @property
    def boxes(self) -> list[tuple[int, int]]:
        """Corners of the subtile's boxes, (m, n) in elements, as they lie in a buffer."""
        box_m, box_n = self.box[0], self.box[1] * self.format.columns
        return [
            (m, n) for m in range(0, self.piece.m, box_m) for n in range(0, self.piece.n, box_n)
        ]

    @property
    def stage_bytes(self) -> int:
        return self.piece.rows * self.piece.columns * self.format.bits // 8

    def smem_bytes(self) -> int:
        buffers = self.fragments.depth * self.fragments.tile.warpgroups
        return self.stage_bytes * buffers if self.staged else 0

    def why_not(self) -> str | None:
        """The reason why no kernel can be built, or None."""
        if self.format.bits == 4 and self.contiguous != "n":
            return "FP4 tensors must be N-major"
        if self.staged and self.lines.line_bytes < 16:
            return (
                f"{self.dtype} subtiles have lines of {self.lines.line_bytes} bytes, 16 are needed"
            )
        return None

    def smem_layout(self):
        """All boxes of all buffers, as the copy engine sees them: (box m, box n, box)."""
        kinds = warpgroup.SmemLayoutAtomKind
        along_n = self.contiguous == "n"
        names = {128: "SW128", 64: "SW64", 32: "SW32", 16: "INTER"}
        kind = getattr(kinds, f"{'K' if along_n else 'MN'}_{names[self.lines.line_bytes]}")
        atom = warpgroup.make_smem_layout_atom(kind, self.format.word)
        count = self.fragments.depth * self.fragments.tile.warpgroups * len(self.boxes)
        return cute.tile_to_shape(
            atom, (*self.box, count), order=(0, 1, 2) if along_n else (1, 0, 2)
        )

    def allocate(self, smem):
        if not self.staged:
            return None
        layout = self.smem_layout()
        return smem.allocate_tensor(self.format.word, layout.outer, 1024, swizzle=layout.inner)

    @cute.jit
    def units(self, tensor: cute.Tensor):
        """The tensor as (M, N, L) of stored units, with strides that say what is known of them."""
        m, n, batches = (0, 1, 2) if self.batch == "last" else (1, 2, 0)
        # Native FP4 tensors count codes, everything here counts stored units.
        unit = cutlass.const_expr(2 if self.dtype == "float4_e2m1fn" else 1)
        unit = cutlass.const_expr(unit if self.container == "native" else 1)
        align = cutlass.const_expr(16 // self.format.bytes if self.staged else 1)
        strides = []
        for mode, keep in ((m, "m"), (n, "n"), (batches, "")):
            if cutlass.const_expr(keep == self.contiguous):
                strides.append(1)
            else:
                strides.append(
                    self.unit_stride(tensor.shape[mode], tensor.stride[mode], unit, align)
                )
        columns = Int32(tensor.shape[n]) // unit
        return cute.make_tensor(
            cute.recast_ptr(tensor.iterator, dtype=self.format.word),
            cute.make_layout(
                (Int32(tensor.shape[m]), columns, Int32(tensor.shape[batches])),
                stride=tuple(strides),
            ),
        )

    @cute.jit
    def unit_stride(self, extent, stride, unit: cutlass.Constexpr, align: cutlass.Constexpr):
        """Strides of extents of 1 mean nothing, and must not reach the tensor map."""
        value = Int64(stride) // unit
        if Int32(extent) == 1:
            value = Int64(align)
        return cute.assume(value, divby=align)

    @cute.jit
    def mapped(self, tensor: cute.Tensor, operation: cutlass.Constexpr):
        """Run-time arguments: `units`, and the tensor map of a copy operation."""
        units = self.units(tensor)
        if cutlass.const_expr(not self.staged):
            return StagedArgs(units, None, None)
        one = cute.slice_(self.smem_layout(), (None, None, 0))
        atom, mapped = cpasync.make_tiled_tma_atom(operation, units, one, self.box)
        return StagedArgs(units, atom, mapped)

    def matrices(self, frame, base) -> tuple[Any, list]:
        """How 16-bit fragments move as 8x8 matrices, up to four at once: this lane's address for
        the first, and groups of (i1, j); a group's address differs by the step of its first j.

        Lane l addresses line l % 8 of matrix l // 8.
        """
        piece, lines = self.piece, self.lines
        order = [(i1, j) for j in range(piece.columns // 8) for i1 in range(piece.halves)]
        most = 4 if lines.along_rows else min(4, piece.halves * lines.line_bytes // 16)
        at_once = next(n for n in (4, 2, 1) if n <= most and len(order) % n == 0)
        matrix, within = frame.lane >> 3, frame.lane & 7
        i1, j = matrix & (piece.halves - 1), matrix >> (piece.halves - 1)
        # Lanes beyond the group's matrices are not asked.
        j = j & (max(1, at_once // piece.halves) - 1)
        row, column = frame.warp * piece.warp_rows + i1 * piece.half_rows, 8 * j
        if lines.along_rows:
            column = column + within
        else:
            row = row + within
        groups = [order[i : i + at_once] for i in range(0, len(order), at_once)]
        return base + lines.start(row, column), groups

    def turned(self, frame, base) -> tuple[Any, Any]:
        """For 32-bit pairs in lines along columns: this lane's first address, and whether the
        lane's row goes through its columns j as j ^ 2. None where there are too few to do so.

        Rows apart by one would otherwise meet in the same banks.
        """
        start = base + self.lines.start(frame.row, frame.column)
        if self.lines.span < 32:
            return start, None
        odd = (frame.lane >> 2) & 1
        return start ^ (odd << 6), odd

    def boxes_of(self, live):
        """The staging memory."""
        return live.buffers

    def slot(self, frame):
        """The buffer of a subtile."""
        depth = self.fragments.depth
        return frame.group * depth + frame.index % depth

    def buffer(self, live, frame):
        """Its shared-memory address."""
        return self.boxes_of(live).iterator.toint() + self.slot(frame) * self.stage_bytes

    def own(self, frame):
        """The frame in this tensor's columns."""
        return frame if frame.piece == self.piece else frame.half()

    def box_exists(self, frame, box: int):
        """Whether a box has columns of its own; behind the last up column the gate columns begin.

        The copy engine leaves out what lies outside of the tensor by itself.
        """
        return self.boxes[box][1] < frame.n_left

    def corner(self, live, frame, box: int):
        """Where box number `box` of the subtile lies in the tensor, (m, n) in elements."""
        frame = self.own(frame)
        m, n = self.boxes[box]
        at_m, at_n = frame.item.m0 + frame.m + m, frame.item.n0 + frame.n
        if not self.concatenated:
            return at_m, at_n + n
        gate, block = n // GLU_COLUMNS % 2, n // (2 * GLU_COLUMNS)
        return at_m, at_n // 2 + GLU_COLUMNS * block + gate * (live.args.tensor.shape[1] // 2)

    def column_of(self, live, n):
        """The tensor's column of column n of the product."""
        if not self.concatenated:
            return n
        gate, within = n // GLU_COLUMNS % 2, n // (2 * GLU_COLUMNS) * GLU_COLUMNS + n % GLU_COLUMNS
        return within + gate * (live.args.tensor.shape[1] // 2)

    @cute.jit
    def copies(self, live: cutlass.Constexpr, frame: cutlass.Constexpr, box: cutlass.Constexpr):
        """(shared memory, tensor) of one box, as the copy engine's atom takes them."""
        plane = live.args.tma_tensor[None, None, frame.item.batch]
        m, n = self.corner(live, frame, box)
        there = cute.local_tile(
            cute.domain_offset((m, n // self.format.columns), plane), self.box, (0, 0)
        )
        here, there = cpasync.tma_partition(
            live.args.tma_atom,
            0,
            cute.make_layout(1),
            cute.group_modes(self.boxes_of(live), 0, 2),
            cute.group_modes(there, 0, 2),
        )
        return here[None, self.slot(frame) * len(self.boxes) + box], there
