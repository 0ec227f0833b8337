"""The one epilogue mechanism, and its resources.

May import: the CuTe DSL, bits.py, storage.py, tile.py.

An epilogue is a function of the FP32 accumulator in logical (m, n) coordinates and of named
resources. It is called once for each subtile: 64 rows by `width` columns of C, held by one consumer
warpgroup, as the accumulator fragment lies: value i0 + 2*i1 + 4*j of a thread is row
16*warp + lane//4 + 8*i1 and column 8*j + 2*(lane%4) + i0 of the subtile.

A resource owns its run-time arguments (`prepare`, on the host), its shared memory (`allocate`), its
registers (`begin`, once a kernel), what it does for a subtile (a method of its own, called by the
function), and `end_tile` and `finish`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from .bits import (
    float_bits,
    store_shared_u8,
    store_shared_u16,
    store_shared_words,
)
from .storage import STORAGE
from .tile import TileConfig

SUBTILE_ROWS = 64


class Live(NamedTuple):
    """A resource on the device: its arguments, shared memory and registers."""

    args: Any
    buffers: Any
    state: Any


class Frame(NamedTuple):
    """Where a subtile lies. thread counts the consumer threads; row0, column0 are in the tile."""

    item: Any
    thread: Int32
    row0: Int32
    column0: int
    index: int

    @property
    def lane(self):
        return self.thread % 32

    @property
    def warp(self):
        return (self.thread // 32) % 4

    @property
    def row(self):
        """The thread's first row within the subtile; its second is 8 below."""
        return self.warp * 16 + self.lane // 4

    @property
    def column(self):
        """The thread's first column within the subtile; each pair's next is 8 further."""
        return 2 * (self.lane % 4)


@dataclass(frozen=True)
class AmaxReduce:
    """max |value| over all valid elements, joined into FP32 memory.

    The sign is cleared and bits are compared as signed integers, so NaN is kept and any negative
    prior content loses. Integer maxima do not depend on order: the result is deterministic.
    per_batch: one result for each batch, else one in all.
    """

    per_batch: bool = False

    @cute.jit
    def prepare(self, tensor: cute.Tensor):
        return cute.make_tensor(cute.recast_ptr(tensor.iterator, dtype=Int32), cute.make_layout(1))

    def allocate(self, smem, tile: TileConfig):
        return None

    def begin(self):
        state = cute.make_rmem_tensor(1, Int32)
        state[0] = Int32(0)
        return state

    @cute.jit
    def add(self, live: cutlass.Constexpr, frame: cutlass.Constexpr, values):
        """Take the subtile's valid elements in."""
        best = live.state[0]
        rows_left = frame.item.m_valid - frame.row0 - frame.row
        columns_left = frame.item.n_valid - frame.column0 - frame.column
        count = cutlass.const_expr(cute.size(values))
        width = cutlass.const_expr(count * 2)
        if (frame.item.m_valid - frame.row0 >= SUBTILE_ROWS) & (
            frame.item.n_valid - frame.column0 >= width
        ):
            for i in cutlass.range_constexpr(count):
                best = integer_max(best, float_bits(values[i]) & 0x7FFFFFFF)
        else:
            for i in cutlass.range_constexpr(count):
                i0, i1, j = i % 2, (i // 2) % 2, i // 4
                if (rows_left > 8 * i1) & (columns_left > 8 * j + i0):
                    best = integer_max(best, float_bits(values[i]) & 0x7FFFFFFF)
        live.state[0] = best

    @cute.jit
    def flush(self, live: cutlass.Constexpr, index: Int32):
        best = cute.arch.warp_redux_sync(live.state[0], "max")
        with cute.arch.elect_one():
            cute.arch.atomic_max(live.args.iterator + index, best, sem="relaxed", scope="gpu")
        live.state[0] = Int32(0)

    @cute.jit
    def end_tile(self, live: cutlass.Constexpr, item: cutlass.Constexpr):
        if cutlass.const_expr(self.per_batch):
            self.flush(live, item.batch)

    @cute.jit
    def finish(self, live: cutlass.Constexpr, thread):
        if cutlass.const_expr(not self.per_batch):
            self.flush(live, Int32(0))


@cute.jit
def integer_max(a: Int32, b: Int32) -> Int32:
    if b > a:
        a = b
    return a


@dataclass(frozen=True)
class TileStoreArgs:
    """Run-time values of TileStore: the whole output and, for TMA, its tensor map."""

    tensor: cute.Tensor
    tma_atom: Any
    tma_tensor: Any


@dataclass(frozen=True)
class TileStore:
    """Rounds the subtile and writes it to C (M, N, L).

    dtype: a name of STORAGE. contiguous: "n" or "m" (FP4: "n"). mode: "tma" stages the subtile in
    shared memory and stores asynchronously, so that the next tile's main loop overlaps (strides of
    16-byte multiples); "direct" stores single elements under predicates, for any strides.
    batch: whether L is the "last" or the "outer" mode.
    """

    tile: TileConfig
    dtype: str
    contiguous: str
    mode: str
    container: str
    batch: str

    @property
    def format(self):
        return STORAGE[self.dtype]

    @property
    def width(self) -> int:
        """Columns of a subtile."""
        return 32 if self.format.bits == 32 or self.mode == "direct" else 64

    @property
    def units(self) -> int:
        return self.width // self.format.columns

    @property
    def depth(self) -> int:
        """Staging buffers of a warpgroup: two, if the subtiles of a tile alternate evenly."""
        return 2 if self.tile.m_blocks * self.tile.bn // self.width % 2 == 0 else 1

    @property
    def inner_bytes(self) -> int:
        """Bytes of a staged line along the contiguous mode."""
        if self.contiguous == "n":
            return self.units * self.format.bytes
        return min(128, SUBTILE_ROWS * self.format.bytes)

    @property
    def stage_bytes(self) -> int:
        return SUBTILE_ROWS * self.units * self.format.bytes

    def smem_bytes(self) -> int:
        return 0 if self.mode == "direct" else self.stage_bytes * self.depth * self.tile.warpgroups

    def smem_layout(self):
        kinds = warpgroup.SmemLayoutAtomKind
        if self.contiguous == "n":
            kind = {128: kinds.K_SW128, 64: kinds.K_SW64, 32: kinds.K_SW32}[self.inner_bytes]
        else:
            kind = {128: kinds.MN_SW128, 64: kinds.MN_SW64}[self.inner_bytes]
        atom = warpgroup.make_smem_layout_atom(kind, self.format.word)
        shape = (SUBTILE_ROWS, self.units, self.depth * self.tile.warpgroups)
        return cute.tile_to_shape(
            atom, shape, order=(0, 1, 2) if self.contiguous == "n" else (1, 0, 2)
        )

    @cute.jit
    def prepare(self, tensor: cute.Tensor):
        m, n, batches = (0, 1, 2) if self.batch == "last" else (1, 2, 0)
        # Native FP4 tensors count codes, everything here counts stored units.
        unit = cutlass.const_expr(2 if self.dtype == "float4_e2m1fn" else 1)
        unit = cutlass.const_expr(unit if self.container == "native" else 1)
        align = cutlass.const_expr(16 // self.format.bytes if self.mode == "tma" else 1)
        strides = []
        for mode, keep in ((m, "m"), (n, "n"), (batches, "")):
            if cutlass.const_expr(keep == self.contiguous):
                strides.append(1)
            else:
                strides.append(
                    self.unit_stride(tensor.shape[mode], tensor.stride[mode], unit, align)
                )
        columns = Int32(tensor.shape[n]) // unit
        units = cute.make_tensor(
            cute.recast_ptr(tensor.iterator, dtype=self.format.word),
            cute.make_layout(
                (Int32(tensor.shape[m]), columns, Int32(tensor.shape[batches])),
                stride=tuple(strides),
            ),
        )
        if cutlass.const_expr(self.mode == "direct"):
            return TileStoreArgs(units, None, None)
        tma_atom, tma_tensor = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            units,
            cute.slice_(self.smem_layout(), (None, None, 0)),
            (SUBTILE_ROWS, self.units),
        )
        return TileStoreArgs(units, tma_atom, tma_tensor)

    @cute.jit
    def unit_stride(self, extent, stride, unit: cutlass.Constexpr, align: cutlass.Constexpr):
        """Strides of extents of 1 mean nothing, and must not reach the tensor map."""
        value = Int64(stride) // unit
        if Int32(extent) == 1:
            value = Int64(align)
        return cute.assume(value, divby=align)

    def allocate(self, smem, tile: TileConfig):
        if self.mode == "direct":
            return None
        layout = self.smem_layout()
        return smem.allocate_tensor(self.format.word, layout.outer, 1024, swizzle=layout.inner)

    def begin(self):
        return None

    @cute.jit
    def put(self, live: cutlass.Constexpr, frame: cutlass.Constexpr, values):
        """Store the subtile."""
        if cutlass.const_expr(self.mode == "direct"):
            self.put_direct(live, frame, values)
        else:
            self.put_staged(live, frame, values)

    @cute.jit
    def put_staged(self, live: cutlass.Constexpr, frame: cutlass.Constexpr, values):
        group = frame.thread // 128
        barrier = cutlass.pipeline.NamedBarrier(barrier_id=1 + group, num_threads=128)
        slot = group * self.depth + frame.index % self.depth
        if frame.warp == 0:
            # The store that used this buffer before has read it.
            cute.arch.cp_async_bulk_wait_group(self.depth - 1, read=True)
        barrier.arrive_and_wait()
        base = live.buffers.iterator.toint() + slot * self.stage_bytes
        if cutlass.const_expr(self.contiguous == "n"):
            self.stage_rows(frame, values, base)
        else:
            self.stage_columns(frame, values, base)
        cute.arch.fence_proxy("async.shared", space="cta")
        barrier.arrive_and_wait()
        if frame.warp == 0:
            plane = live.args.tma_tensor[None, None, frame.item.batch]
            corner = (
                frame.item.m0 + frame.row0,
                (frame.item.n0 + frame.column0) // self.format.columns,
            )
            target = cute.local_tile(
                cute.domain_offset(corner, plane), (SUBTILE_ROWS, self.units), (0, 0)
            )
            staged, target = cpasync.tma_partition(
                live.args.tma_atom,
                0,
                cute.make_layout(1),
                cute.group_modes(live.buffers, 0, 2),
                cute.group_modes(target, 0, 2),
            )
            cute.copy(live.args.tma_atom, staged[None, slot], target)
            cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def stage_rows(self, frame: cutlass.Constexpr, values, base):
        """Row-major lines; 16-byte pieces are xored as the tensor map's swizzle expects."""
        form = self.format
        inner = self.inner_bytes
        for i1 in cutlass.range_constexpr(2):
            row = frame.row + 8 * i1
            line = base + row * inner
            xor = (((row * inner) >> 7) & (inner // 16 - 1)) << 4
            for j in cutlass.range_constexpr(self.width // 8):
                v0, v1 = values[2 * i1 + 4 * j], values[1 + 2 * i1 + 4 * j]
                at = line + (((8 * j + frame.column) // form.columns * form.bytes) ^ xor)
                if cutlass.const_expr(form.bits == 32):
                    store_shared_words(at, [float_bits(v0), float_bits(v1)])
                elif cutlass.const_expr(form.bits == 16):
                    store_shared_words(at, [form.pack(v0, v1)])
                elif cutlass.const_expr(form.bits == 8):
                    store_shared_u16(at, form.pack(v0, v1))
                else:
                    store_shared_u8(at, form.pack(v0, v1))

    @cute.jit
    def stage_columns(self, frame: cutlass.Constexpr, values, base):
        """Column-major lines of at most 128 bytes; longer columns are split into boxes."""
        form = self.format
        inner = self.inner_bytes
        rows_in = cutlass.const_expr(inner // form.bytes)
        for i in cutlass.range_constexpr(self.width // 2):
            i0, i1, j = i % 2, (i // 2) % 2, i // 4
            row = frame.row + 8 * i1
            column = 8 * j + frame.column + i0
            line = base + (row // rows_in) * (self.width * inner) + column * inner
            xor = (((column * inner) >> 7) & (inner // 16 - 1)) << 4
            at = line + (((row % rows_in) * form.bytes) ^ xor)
            if cutlass.const_expr(form.bits == 32):
                store_shared_words(at, [float_bits(values[i])])
            elif cutlass.const_expr(form.bits == 16):
                store_shared_u16(at, form.pack(values[i], values[i]))
            else:
                store_shared_u8(at, form.pack(values[i], values[i]))

    @cute.jit
    def put_direct(self, live: cutlass.Constexpr, frame: cutlass.Constexpr, values):
        form = self.format
        rows_left = frame.item.m_valid - frame.row0 - frame.row
        columns_left = frame.item.n_valid - frame.column0 - frame.column
        row = frame.item.m0 + frame.row0 + frame.row
        column = frame.item.n0 + frame.column0 + frame.column
        plane = live.args.tensor[None, None, frame.item.batch]
        for i in cutlass.range_constexpr(self.width // 2 // form.columns):
            i0, i1, j = (0, i % 2, i // 2) if form.columns == 2 else (i % 2, (i // 2) % 2, i // 4)
            if (rows_left > 8 * i1) & (columns_left > 8 * j + i0):
                at = (row + 8 * i1, (column + 8 * j + i0) // form.columns)
                value = values[i0 + 2 * i1 + 4 * j]
                if cutlass.const_expr(form.bits == 32):
                    plane[at] = value
                elif cutlass.const_expr(form.columns == 2):
                    plane[at] = form.word(form.pack(value, values[1 + 2 * i1 + 4 * j]) & 0xFF)
                else:
                    mask = (1 << form.bits) - 1
                    plane[at] = form.word(form.pack(value, value) & mask)

    def end_tile(self, live, item):
        return None

    @cute.jit
    def finish(self, live: cutlass.Constexpr, thread):
        if cutlass.const_expr(self.mode == "tma"):
            if (thread // 32) % 4 == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)


@dataclass(frozen=True)
class Epilogue:
    """Named resources and the function that uses them.

    function(accumulator, frame, **handles) where each handle is (resource, live). width: columns
    of a subtile.
    """

    tile: TileConfig
    resources: tuple[tuple[str, Any], ...]
    function: Any
    width: int

    def smem_bytes(self) -> int:
        return sum(getattr(r, "smem_bytes", lambda: 0)() for _, r in self.resources)

    def allocate(self, smem) -> tuple:
        return tuple(r.allocate(smem, self.tile) for _, r in self.resources)

    def begin(self, args: tuple, buffers: tuple) -> tuple:
        """Once a kernel, by the consumer threads."""
        return tuple(
            Live(args[i], buffers[i], r.begin()) for i, (_, r) in enumerate(self.resources)
        )

    @cute.jit
    def run(self, lives: cutlass.Constexpr, item: cutlass.Constexpr, accumulators, thread):
        """One tile, by the consumer threads, when its sums are complete."""
        tile = self.tile
        per_row = cutlass.const_expr(tile.bn // self.width)
        count = cutlass.const_expr(self.width // 2)
        for block in cutlass.range_constexpr(tile.m_blocks):
            row0 = (thread // 128) * (64 * tile.m_blocks) + 64 * block
            for c in cutlass.range_constexpr(per_row):
                values = cute.make_rmem_tensor(count, Float32)
                for i in cutlass.range_constexpr(count):
                    values[i] = accumulators[block][c * count + i]
                frame = Frame(item, thread, row0, c * self.width, block * per_row + c)
                handles = {
                    name: (resource, live)
                    for (name, resource), live in zip(self.resources, lives, strict=True)
                }
                self.function(values, frame, **handles)
        for i in cutlass.range_constexpr(len(self.resources)):
            self.resources[i][1].end_tile(lives[i], item)

    @cute.jit
    def finish(self, lives: cutlass.Constexpr, thread):
        """Once a kernel, after the last tile."""
        for i in cutlass.range_constexpr(len(self.resources)):
            self.resources[i][1].finish(lives[i], thread)
