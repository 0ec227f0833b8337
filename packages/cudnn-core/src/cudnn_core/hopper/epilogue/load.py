"""Operands of epilogues: numbers, a vector along the rows of C, a tile.

May import: the CuTe DSL, convert.py, shared.py, lanes.py, frame.py, staged.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32
from cutlass.cute.nvgpu import cpasync
from cutlass.cutlass_dsl import select_

from ..bits import bits_float
from ..convert import widen
from .frame import Fragments, Resource, meet
from .lanes import choose
from .shared import copy_word, load_matrices, load_words, wait_copies
from .staged import Staged


@dataclass(frozen=True)
class Scalar(Resource):
    """A run-time FP32 number of the call."""

    def prepare(self, value: Float32):
        return value

    def get(self, live):
        return live.args


@dataclass(frozen=True)
class DeviceScalar(Resource):
    """One FP32 number in device memory, read once a kernel."""

    @cute.jit
    def prepare(self, tensor: cute.Tensor):
        return cute.make_tensor(tensor.iterator, cute.make_layout(1))

    def begin(self, args, buffers):
        state = cute.make_rmem_tensor(1, Float32)
        state[0] = args[0]
        return state

    def get(self, live):
        return live.state[0]


@dataclass(frozen=True)
class RowVector(Resource):
    """A number for each row of C, FP32 (M, 1, L) of any strides. Rows that do not exist give 0.

    It is fetched before the main loop: into registers in the normal orientation, where a thread has
    two rows of each 64-row block, and into shared memory, asynchronously, in the swapped one.
    """

    fragments: Fragments

    @property
    def shared(self) -> bool:
        return self.fragments.swapped

    def smem_bytes(self) -> int:
        tile = self.fragments.tile
        return tile.warpgroups * tile.columns * 4 if self.shared else 0

    def prepare(self, tensor: cute.Tensor):
        return tensor

    def allocate(self, smem):
        if not self.shared:
            return None
        return smem.allocate_array(Float32, self.smem_bytes() // 4, byte_alignment=16)

    def begin(self, args, buffers):
        if self.shared:
            return None
        return cute.make_rmem_tensor(2 * self.fragments.tile.m_blocks, Float32)

    @cute.jit
    def start_tile(self, live: cutlass.Constexpr, item: cutlass.Constexpr, thread):
        warp = cute.arch.make_warp_uniform(thread // 32)
        tile = self.fragments.tile
        if cutlass.const_expr(self.shared):
            for first in cutlass.range_constexpr(0, tile.columns, 128):
                at = first + thread % 128
                if at < tile.columns:
                    address = self.buffer(live, warp // 4) + 4 * at
                    exists = at < item.m_valid
                    m = item.m0 + Int32(select_(exists, at, Int32(0)))
                    there = live.args.iterator + cute.crd2idx((m, 0, item.batch), live.args.layout)
                    copy_word(address, there.toint(), Int32(exists))
        else:
            for i in cutlass.range_constexpr(2 * tile.m_blocks):
                frame = self.fragments.frame(item, warp, thread, i // 2 * self.fragments.per_block)
                m = frame.m + frame.thread_m + self.fragments.whole.half_rows * (i % 2)
                live.state[i] = Float32(0.0)
                if m < item.m_valid:
                    live.state[i] = live.args[item.m0 + m, 0, item.batch]

    def buffer(self, live, group):
        return live.buffers.toint() + group * (4 * self.fragments.tile.columns)

    def get(self, live, frame) -> list:
        """The row's number for each value of the frame's piece."""
        piece = frame.piece
        if not self.shared:
            block = frame.index // self.fragments.per_block
            return [live.state[2 * block + i // 2 % 2] for i in range(piece.count)]
        if frame.index == 0:
            wait_copies()
            meet(frame.group)
        start = self.buffer(live, frame.group) + 4 * (frame.m + frame.column)
        pairs = [
            [bits_float(w) for w in load_words(start, 2, 32 * j)] for j in range(piece.columns // 8)
        ]
        return [pairs[i // (2 * piece.halves)][i % 2] for i in range(piece.count)]


@dataclass(frozen=True)
class TileLoad(Staged):
    """Reads C-shaped (M, N, L) FP32, FP16 or BF16 by subtiles; the fields are Staged's.

    In mode "tma" the first `depth` subtiles of a tile are fetched before its main loop, the others
    as buffers come free. Elements that do not exist are 0.
    """

    def prepare(self, tensor: cute.Tensor):
        return self.mapped(tensor, cpasync.CopyBulkTensorTileG2SOp())

    def why_not(self) -> str | None:
        if self.format.bits < 16:
            return f"tiles of {self.dtype} cannot be loaded"
        return super().why_not()

    def smem_bytes(self) -> int:
        return super().smem_bytes() + (8 * self.barriers if self.staged else 0)

    @property
    def barriers(self) -> int:
        return self.fragments.depth * self.fragments.tile.warpgroups

    def allocate(self, smem):
        if not self.staged:
            return None
        barriers = smem.allocate_array(cutlass.Int64, self.barriers, byte_alignment=8)
        return super().allocate(smem), barriers

    def boxes_of(self, live):
        return live.buffers[0]

    def initialize(self, buffers):
        if self.staged:
            for i in range(self.barriers):
                cute.arch.mbarrier_init(buffers[1] + i, 1)

    def begin(self, args, buffers):
        if not self.staged:
            return None
        # Bit s: the phase that buffer s is in.
        state = cute.make_rmem_tensor(1, Int32)
        state[0] = Int32(0)
        return state

    @cute.jit
    def start_tile(self, live: cutlass.Constexpr, item: cutlass.Constexpr, thread):
        if cutlass.const_expr(self.staged):
            warp = cute.arch.make_warp_uniform(thread // 32)
            if warp % 4 == 0:
                for index in cutlass.range_constexpr(self.fragments.depth):
                    self.fetch(live, self.fragments.frame(item, warp, thread, index))

    @cute.jit
    def fetch(self, live: cutlass.Constexpr, frame: cutlass.Constexpr):
        """Warp 0: start to load a subtile."""
        barrier = live.buffers[1] + self.slot(frame)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.stage_bytes)
        for box in cutlass.range_constexpr(len(self.boxes)):
            here, there = self.copies(live, frame, box)
            cute.copy(live.args.tma_atom, there, here, tma_bar_ptr=barrier)

    @cute.jit
    def end(self, live: cutlass.Constexpr, frame: cutlass.Constexpr):
        following = cutlass.const_expr(frame.index + self.fragments.depth)
        if cutlass.const_expr(self.staged and following < self.fragments.count):
            thread = frame.lane
            warp = frame.group * 4
            self.fetch(live, self.fragments.frame(frame.item, warp, thread, following))

    def get(self, live, frame) -> list:
        """The subtile's FP32 values in the order of the frame's piece."""
        if not self.staged:
            return self.get_direct(live, frame)
        bit = frame.index % self.fragments.depth
        cute.arch.mbarrier_wait(live.buffers[1] + self.slot(frame), (live.state[0] >> bit) & 1)
        live.state[0] = live.state[0] ^ (1 << bit)
        base = self.buffer(live, frame)
        if self.format.bits == 16:
            return self.get_matrices(frame, base)
        if self.lines.along_rows:
            return self.get_words(frame, base)
        return self.get_word_pairs(frame, base)

    def get_matrices(self, frame, base) -> list:
        values = [None] * self.piece.count
        start, groups = self.matrices(frame, base)
        for group in groups:
            xor, add = self.lines.step(0, 0, group[0][1])
            words = load_matrices(
                start ^ xor if xor else start, len(group), self.lines.along_rows, add
            )
            for (i1, j), word in zip(group, words, strict=True):
                for i0 in (0, 1):
                    wide = widen(Uint32(word), i0, self.dtype)
                    values[self.piece.index(i0, i1, j)] = wide
        return values

    def get_words(self, frame, base) -> list:
        start = base + self.lines.start(frame.row, frame.column)
        values = []
        for i in range(self.piece.count):
            xor, add = self.lines.step(*self.piece.parts(i))
            values += [bits_float(w) for w in load_words(start ^ xor if xor else start, 1, add)]
        return values

    def get_word_pairs(self, frame, base) -> list:
        """Odd rows go through their columns in the order that keeps them out of even rows' banks."""
        start, turned = self.turned(frame, base)
        loaded = {}
        for j in range(self.piece.columns // 8):
            for i1 in range(self.piece.halves):
                xor, add = self.lines.step(0, i1, j)
                words = load_words(start ^ xor if xor else start, 2, add)
                loaded[i1, j] = [bits_float(w) for w in words]
        values = []
        for i in range(self.piece.count):
            i0, i1, j = self.piece.parts(i)
            value = loaded[i1, j][i0]
            if turned is not None:
                value = choose(turned, loaded[i1, j ^ 2][i0], value)
            values.append(value)
        return values

    def get_direct(self, live, frame) -> list:
        """From clamped places, so that no load waits for a branch."""
        plane = live.args.tensor[None, None, frame.item.batch]
        values = []
        for i in range(self.piece.count):
            m, n = self.piece.place(i)
            m = at_most(frame.m + frame.thread_m + m, frame.item.m_valid - 1)
            n = at_most(frame.n + frame.thread_n + n, frame.item.n_valid - 1)
            word = plane[frame.item.m0 + m, self.column_of(live, frame.item.n0 + n)]
            if self.format.bits == 16:
                word = widen(Uint32(word), 0, self.dtype)
            values.append(Float32(word))
        return frame.existing(values)


def at_most(a, b) -> Int32:
    return Int32(select_(Int32(b) < Int32(a), Int32(b), Int32(a)))
