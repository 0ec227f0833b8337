"""TileStore: rounds subtiles and writes them to memory.

May import: the CuTe DSL, bits.py, shared.py, frame.py, staged.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import cpasync

from ..bits import float_bits
from ..convert import e2m1_word
from .lanes import choose
from .shared import store_matrices, store_narrow, store_words
from .staged import Staged


@dataclass(frozen=True)
class TileStore(Staged):
    """Rounds a subtile and writes it to C; the fields are Staged's.

    In mode "tma" the subtile goes to shared memory, free of bank conflicts, and from there
    asynchronously to C, so that the next tile's main loop overlaps.
    """

    def prepare(self, tensor: cute.Tensor):
        return self.mapped(tensor, cpasync.CopyBulkTensorTileS2GOp())

    @cute.jit
    def put(
        self,
        live: cutlass.Constexpr,
        frame: cutlass.Constexpr,
        values: cutlass.Constexpr,
        products: cutlass.Constexpr = False,
    ):
        """Store the subtile; values: FP32 numbers in the order of the frame's piece.

        products: they come from arithmetic, whose NaN has no sign.
        """
        if cutlass.const_expr(self.mode == "direct"):
            self.put_direct(live, frame, values)
        else:
            frame.gate.open(frame)
            base = self.buffer(live, frame)
            if cutlass.const_expr(self.format.bits == 16):
                self.stage_matrices(frame, values, base)
            elif cutlass.const_expr(self.format.bits == 32 and not self.lines.along_rows):
                self.stage_word_pairs(frame, values, base)
            else:
                self.stage_elements(frame, values, base, products)

    def stage_matrices(self, frame, values, base):
        """16 bits."""
        start, groups = self.matrices(frame, base)
        for group in groups:
            words = [
                self.format.pack(*(values[self.piece.index(i0, *m)] for i0 in (0, 1)))
                for m in group
            ]
            xor, add = self.lines.step(0, 0, group[0][1])
            store_matrices(start ^ xor if xor else start, words, self.lines.along_rows, add)

    def stage_word_pairs(self, frame, values, base):
        """32 bits, lines along columns: neighbours in one store."""
        piece, lines = self.piece, self.lines
        start, turned = self.turned(frame, base)
        for j in range(piece.columns // 8):
            for i1 in range(piece.halves):
                pair = [values[piece.index(i0, i1, j)] for i0 in (0, 1)]
                if turned is not None:
                    other = [values[piece.index(i0, i1, j ^ 2)] for i0 in (0, 1)]
                    pair = [choose(turned, y, x) for x, y in zip(pair, other, strict=True)]
                xor, add = lines.step(0, i1, j)
                store_words(start ^ xor if xor else start, [float_bits(x) for x in pair], add)

    def stage_elements(self, frame, values, base, products=False):
        """The widest units that a thread holds whole: two elements along columns, one along rows.

        4-bit elements along rows pair up with those of the neighbouring row's lane.
        """
        lines, form = self.lines, self.format
        along_rows = lines.along_rows
        row, column = frame.row, frame.column
        if form.bits == 4 and along_rows:
            row, column = row & ~1, column + (row & 1)
        start = base + lines.start(row, column)
        for i1, j, i0, word in units(self, frame, values, products=products):
            xor, add = lines.step(i0, i1, j)
            at = start ^ xor if xor else start
            if form.bits == 32:
                store_words(at, [word], add)
            else:
                store_narrow(at, word, form.bytes if along_rows or form.bits == 4 else 2, add)

    @cute.jit
    def put_direct(
        self, live: cutlass.Constexpr, frame: cutlass.Constexpr, values: cutlass.Constexpr
    ):
        """Element by element, where it exists."""
        form, piece = self.format, self.piece
        plane = live.args.tensor[None, None, frame.item.batch]
        paired = cutlass.const_expr(form.bits == 4 and piece.swapped)
        odd = frame.lane // 4 % 2 if cutlass.const_expr(paired) else 0
        m0 = frame.item.m0 + frame.m + frame.thread_m
        n0 = frame.item.n0 + frame.n + frame.thread_n
        for i1, j, i0, word in units(self, frame, values, single=True):
            at = cutlass.const_expr(piece.index(i0, i1, j))
            m, n = piece.place(at)
            if self.holds(frame, m + odd, n - odd):
                column = self.column_of(live, n0 + n - odd) // form.columns
                if cutlass.const_expr(form.bits == 32):
                    plane[m0 + m, column] = values[at]
                else:
                    mask = (1 << max(8, form.bits)) - 1
                    plane[m0 + m + odd, column] = form.word(word & mask)

    def holds(self, frame, m, n):
        return (frame.m_left > frame.thread_m + m) & (frame.n_left > frame.thread_n + n)

    @cute.jit
    def start(self, live: cutlass.Constexpr, frame: cutlass.Constexpr):
        """The stores that used the buffer before have read it; all stores of a subtile are one group."""
        if cutlass.const_expr(self.staged):
            if frame.warp == 0:
                cute.arch.cp_async_bulk_wait_group(self.fragments.depth - 1, read=True)

    @cute.jit
    def end(self, live: cutlass.Constexpr, frame: cutlass.Constexpr):
        if cutlass.const_expr(self.staged):
            for box in cutlass.range_constexpr(len(self.boxes)):
                if cutlass.const_expr(not self.concatenated):
                    self.send(live, frame, box)
                elif self.box_exists(frame, box):
                    self.send(live, frame, box)

    def send(self, live, frame, box: int):
        here, there = self.copies(live, frame, box)
        cute.copy(live.args.tma_atom, here, there)

    @cute.jit
    def finish(self, live: cutlass.Constexpr, thread):
        if cutlass.const_expr(self.staged):
            if (thread // 32) % 4 == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)


def units(store: TileStore, frame, values, single: bool = False, products: bool = False):
    """(i1, j, i0, word) of every stored unit of a thread, rounded; bits beyond the unit are anything.

    Pairs of columns together where `single` does not forbid it and lines run along columns.
    """
    piece, form = store.piece, store.format
    if form.bits == 4:
        yield from fp4_units(piece, frame, values, products)
        return
    for j in range(piece.columns // 8):
        for i1 in range(piece.halves):
            first, second = (values[piece.index(i0, i1, j)] for i0 in (0, 1))
            if form.bits == 32:
                yield i1, j, 0, float_bits(first)
                yield i1, j, 1, float_bits(second)
            elif not (single or store.lines.along_rows):
                yield i1, j, 0, form.pack(first, second)
            else:
                both = form.pack(first, second)
                yield i1, j, 0, both
                yield i1, j, 1, both >> form.bits


def fp4_units(piece, frame, values, products: bool):
    """`units` of 4-bit elements, which are converted by four units, the eight codes of a word.

    A unit is two columns of C: neighbours in a thread, or, in the swapped orientation, in lanes 4 apart.
    """
    order = [(i1, j) for j in range(piece.columns // 8) for i1 in range(piece.halves)]
    for first in range(0, len(order), 4):
        group = order[first : first + 4]
        codes = [values[piece.index(i0, *place)] for place in group for i0 in (0, 1)]
        word = Int32(e2m1_word(codes + [Float32(0.0)] * (8 - len(codes)), products))
        if piece.swapped:
            word = pair_rows(word, frame.lane)
        for k, place in enumerate(group):
            yield *place, 0, word >> (8 * k) if k else word


def pair_rows(word: Int32, lane) -> Int32:
    """In each byte: from row r, columns c and c+1, to rows r and r+1 of column c (even r) or c+1.

    r is the lane's row if that is even, else the one before; the first in the low half.
    """
    other = cute.arch.shuffle_sync_bfly(word, 4)
    odd = (lane >> 2) & 1
    low = choose(odd, other >> 4, word) & 0x0F0F0F0F
    high = choose(odd, word, other << 4) & ~0x0F0F0F0F
    return low | high
