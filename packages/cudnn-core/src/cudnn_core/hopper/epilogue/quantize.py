"""Quantize: block-scaled outputs, blocks along the rows of C.

May import: the CuTe DSL, convert.py, shared.py, lanes.py, frame.py, store.py.

Codes and scales are those of `cudnn.quantize` of the FP32 values, bit for bit: the arithmetic is
convert.py's. In the normal orientation a block is four lanes of one row. In the swapped one it is
some fragment rows of one column: lanes, then warps, exchange their maxima through shared memory, and
one thread a block makes its scale.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint16, Uint32
from cutlass.cutlass_dsl import select_

from .. import convert
from ..bits import bits_float, float_bits
from .frame import Live, Resource, meet
from .lanes import across_quad, across_rows
from .shared import load_words, store_words
from .store import TileStore

# Rows and blocks of an atom of scales.
ATOM_ROWS, ATOM_BLOCKS = 128, 4
NAN = 0x7FC00000


@dataclass(frozen=True)
class ScaleArgs:
    """Run-time values: the scale bytes, (atom row, atom column, batch) strides, and extents.

    rows, blocks: which scales exist; atom_rows, atom_blocks: which have a byte.
    """

    bytes: cute.Pointer
    strides: tuple
    rows: Int32
    blocks: Int32
    atom_rows: Int32
    atom_blocks: Int32


@dataclass(frozen=True)
class Quantize(Resource):
    """Rounds values to `format` (formats.spec.Format: element, scale type, block) and stores both.

    store: the TileStore of the codes. scale_view: "logical" (32, 4, R, 4, Q, L) or "physical"
    (L, R, Q, 32, 4, 4). Scale bytes of rows and blocks that do not exist are 0.
    """

    store: TileStore
    format: Any
    scale_view: str = "logical"

    staged = True

    @property
    def fragments(self):
        return self.store.fragments

    @property
    def per_piece(self) -> int:
        """Blocks along the columns of C in a subtile."""
        return self.store.piece.n // self.format.block

    @property
    def warps(self) -> int:
        """Swapped: warps that share a block."""
        piece = self.store.piece
        return max(1, self.format.block // (piece.warp_rows))

    def why_not(self) -> str | None:
        piece = self.store.piece
        if self.store.dtype != self.format.element.name:
            return f"{self.format.name} has elements of {self.format.element.name}"
        if piece.n % self.format.block:
            return f"subtiles of {piece.n} columns break blocks of {self.format.block}"
        return self.store.why_not()

    def smem_bytes(self) -> int:
        return self.store.smem_bytes() + self.fragments.tile.warpgroups * self.exchange_bytes

    @property
    def exchange_bytes(self) -> int:
        """Swapped, a warpgroup: a maximum for each warp and column, a gain for each block and column."""
        if not self.fragments.swapped:
            return 0
        return 4 * (4 + self.per_piece) * self.store.piece.columns

    @cute.jit
    def prepare(self, data: cute.Tensor, scale: cute.Tensor):
        stored = self.store.prepare(data)
        if cutlass.const_expr(self.scale_view == "logical"):
            r, q, l = 2, 4, 5
        else:
            r, q, l = 1, 2, 0
        n = Int32(stored.tensor.shape[1]) * self.store.format.columns
        scales = ScaleArgs(
            cute.recast_ptr(scale.iterator, dtype=Uint8),
            tuple(Int64(scale.stride[mode]) for mode in (r, q, l)),
            Int32(stored.tensor.shape[0]),
            (n + self.format.block - 1) // self.format.block,
            Int32(scale.shape[r]) * ATOM_ROWS,
            Int32(scale.shape[q]) * ATOM_BLOCKS,
        )
        return stored, scales

    def allocate(self, smem):
        staging = self.store.allocate(smem)
        if not self.fragments.swapped:
            return staging, None
        count = self.fragments.tile.warpgroups * self.exchange_bytes // 4
        return staging, smem.allocate_array(Float32, count, byte_alignment=16)

    def stored(self, live) -> Live:
        return Live(live.args[0], live.buffers[0], None)

    def start(self, live, frame):
        self.store.start(self.stored(live), frame)

    def end(self, live, frame):
        self.store.end(self.stored(live), frame)

    def finish(self, live, thread):
        self.store.finish(self.stored(live), thread)

    def put(self, live, frame, values, norm_constant=None):
        """Quantize and store the subtile. norm_constant: FP32, a factor of scales and of gains."""
        piece, block = frame.piece, self.format.block
        if piece.swapped:
            # A thread's rows of each of its columns.
            sets = [
                [piece.index(i0, i1, j) for i1 in range(piece.halves)]
                for j in range(piece.columns // 8)
                for i0 in (0, 1)
            ]
        else:
            # A thread's share of each block, row by row.
            sets = [
                [
                    piece.index(i0, i1, b * block // 8 + j)
                    for j in range(block // 8)
                    for i0 in (0, 1)
                ]
                for i1 in range(2)
                for b in range(self.per_piece)
            ]
        maxima = [magnitude([values[at] for at in members]) for members in sets]
        if self.fragments.swapped:
            gains = self.gains_of_columns(live, frame, maxima, norm_constant)
        else:
            gains = self.gains_of_rows(live, frame, maxima, norm_constant)
        scaled = [convert.multiply(value, gain) for value, gain in zip(values, gains, strict=True)]
        self.store.put(self.stored(live), frame, scaled, True)

    def scale(self, amax, norm_constant):
        """(code, gain) of a block; a NaN block has a NaN gain."""
        make = convert.e8m0_scale if self.format.scale_is_e8m0 else convert.e4m3_scale
        code, gain, nan = make(amax, self.format, norm_constant)
        return code, bits_float(Int32(select_(nan, Int32(NAN), float_bits(gain))))

    def gains_of_rows(self, live, frame, maxima, norm_constant) -> list:
        """Normal: every lane of a quad makes the scales of its rows; two of them store one row each."""
        piece = frame.piece
        codes, gains = [], []
        for i, amax in enumerate(maxima):
            whole = across_quad(amax, convert.max_magnitude)
            code, gain = self.scale(whole, norm_constant)
            exists = frame.n_left > i % self.per_piece * self.format.block
            codes.append(convert.keep_word(code, exists))
            gains.append(gain)
        self.store_rows(live, frame, (codes[: self.per_piece], codes[self.per_piece :]))
        found = []
        for i in range(piece.count):
            _, i1, j = piece.parts(i)
            found.append(gains[i1 * self.per_piece + 8 * j // self.format.block])
        return found

    @cute.jit
    def store_rows(
        self, live: cutlass.Constexpr, frame: cutlass.Constexpr, codes: cutlass.Constexpr
    ):
        """Lane 0 of a quad stores the codes of its first row, lane 1 of its second."""
        args = live.args[1]
        second = frame.lane & 1
        m = frame.thread_m + 8 * second
        row = frame.item.m0 + frame.m + m
        column = (frame.item.n0 + frame.n) // self.format.block
        at_once = cutlass.const_expr(min(self.per_piece, ATOM_BLOCKS))
        if (frame.lane & 2) == 0:
            for b in cutlass.range_constexpr(0, self.per_piece, at_once):
                word = Uint32(0)
                for k in cutlass.range_constexpr(at_once):
                    mine = select_(second != 0, codes[1][b + k], codes[0][b + k])
                    word = word | (Uint32(mine) << Uint32(8 * k))
                word = convert.keep_word(word, m < frame.m_left)
                self.store_codes(args, frame.item.batch, row, column + b, word, at_once)

    @cute.jit
    def store_codes(self, args, batch, row, block, word, count: cutlass.Constexpr):
        """`count` codes of neighbouring blocks of a row, where there are bytes for them."""
        if (row < args.atom_rows) & (block < args.atom_blocks):
            self.write(self.address(args, batch, row, block), word, count)

    def write(self, address, word, count: int):
        kind = {1: Uint8, 2: Uint16, 4: Uint32}[count]
        at = cute.recast_ptr(address, dtype=kind)
        cute.make_tensor(at, cute.make_layout(1))[0] = kind(word)

    def address(self, args, batch, row, block):
        row_stride, block_stride, batch_stride = args.strides
        offset = Int64(batch) * batch_stride + Int64(row >> 7) * row_stride
        offset = offset + Int64(block >> 2) * block_stride
        return args.bytes + (offset + Int64((row & 31) * 16 + ((row >> 5) & 3) * 4 + (block & 3)))

    def gains_of_columns(self, live, frame, maxima, norm_constant) -> list:
        """Swapped: maxima of warps meet in shared memory, scales are made there once."""
        piece = frame.piece
        maxima, first = across_rows(maxima, frame.lane, convert.max_magnitude)
        base = live.buffers[1].toint() + frame.group * self.exchange_bytes
        column = frame.column + (first >> 1) * 8 + (first & 1)
        start = base + 4 * (frame.warp * piece.columns + column)
        for c, value in enumerate(maxima):
            store_words(start, [float_bits(value)], 4 * (8 * (c // 2) + c % 2))
        meet(frame.group)
        gains = base + 4 * 4 * piece.columns
        self.make_scales(live, frame, base, gains, norm_constant)
        meet(frame.group)
        block = frame.warp // self.warps
        start = gains + 4 * (block * piece.columns + frame.column)
        pairs = [
            [bits_float(w) for w in load_words(start, 2, 32 * j)] for j in range(piece.columns // 8)
        ]
        return [pairs[piece.parts(i)[2]][piece.parts(i)[0]] for i in range(piece.count)]

    @cute.jit
    def make_scales(
        self,
        live: cutlass.Constexpr,
        frame: cutlass.Constexpr,
        base,
        gains,
        norm_constant: cutlass.Constexpr,
    ):
        """A thread makes the scale of one (block, column), or of several."""
        columns, block = frame.piece.columns, self.format.block
        count = cutlass.const_expr(self.per_piece * columns)
        for first in cutlass.range_constexpr(0, count, 128):
            at = first + frame.warp * 32 + frame.lane
            if at < count:
                b, column = at // columns, at % columns
                start = base + 4 * (b * self.warps * columns + column)
                found = [load_words(start, 1, 4 * w * columns)[0] for w in range(self.warps)]
                code, gain = self.scale(magnitude([bits_float(w) for w in found]), norm_constant)
                store_words(gains + 4 * at, [float_bits(gain)], 0)
                exists = (column < frame.m_left) & (b * block < frame.n_left)
                row = frame.item.m0 + frame.m + column
                blocks = (frame.item.n0 + frame.n) // block + b
                word = convert.keep_word(code, exists)
                self.store_codes(live.args[1], frame.item.batch, row, blocks, word, 1)

    @cute.jit
    def end_tile(self, live: cutlass.Constexpr, item: cutlass.Constexpr, thread):
        """Zeros in the atoms' bytes that no tile covers: behind the last row and the last block."""
        tile, args = self.fragments.tile, live.args[1]
        blocks = cutlass.const_expr(tile.bn // (2 if self.store.half else 1) // self.format.block)
        if cutlass.const_expr(tile.bm % ATOM_ROWS or blocks % ATOM_BLOCKS):
            first = item.n0 // (tile.bn // blocks)
            below, right = item.m0 + tile.bm, first + blocks
            end = right
            if right >= args.blocks:
                end = args.atom_blocks
                self.clear(args, item, thread, item.m0, below, right, end)
            if below >= args.rows:
                self.clear(args, item, thread, below, args.atom_rows, first, end)

    @cute.jit
    def clear(self, args, item: cutlass.Constexpr, thread, row0, row1, block0, block1):
        """Zeros for rows row0 .. row1-1 by blocks block0 .. block1-1, where there are bytes."""
        wide = block1 - block0
        if wide > 0:
            for at in cutlass.range(thread % 128, (row1 - row0) * wide, 128, unroll=1):
                row, block = row0 + at // wide, block0 + at % wide
                self.store_codes(args, item.batch, row, block, Uint32(0), 1)


def magnitude(values: list):
    """max |value|, NaN if any is."""
    largest = convert.max_magnitude(values[0], values[-1])
    for value in values[1:-1]:
        largest = convert.max_magnitude(largest, value)
    return largest
