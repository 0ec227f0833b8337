"""Hopper kernels: block quantization and the amax of a whole array. Imports the DSL, hopper.convert, formats.*.

A block of threads takes 128 rows by `tile_k` elements of one batch: a whole number of 512-byte
scale atoms. Its scale bytes gather in shared memory and leave 16 at a time.

vector   Lane j of a warp takes `chunk` elements (32 bytes of x) at K offset j * chunk; the 1, 2 or
         4 lanes that share a block exchange their maxima. Four rows' loads are in flight per
         thread. Addresses past the edge are clamped, so that no load waits for a branch.
strided  Thread j takes row j and whole blocks, element by element: any strides, and coalesced when
         rows are the contiguous axis.

Both are memory-bound: x is read once and nothing else but codes and scales is written.
"""

import cutlass
import cutlass.cute as cute
from cuda.bindings import driver
from cutlass import Float32, Int32, Int64, Uint8, Uint32

from ...hopper import convert
from .config import TILE_ROWS, AmaxConfig, QuantizeConfig

_DTYPES = {
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "float32": cutlass.Float32,
}
GMEM = cute.AddressSpace.gmem


class Tile:
    """Where this thread is: its block's batch, first row and first K, and its own lanes."""

    def __init__(self, config, shape):
        self.config = config
        self.rows, self.k = shape[1], shape[2]
        self.row_tiles = (self.rows + TILE_ROWS - 1) // TILE_ROWS
        self.k_tiles = (self.k + config.tile_k - 1) // config.tile_k
        block, _, _ = cute.arch.block_idx()
        self.thread, _, _ = cute.arch.thread_idx()
        self.k_tile = block % self.k_tiles
        rest = block // self.k_tiles
        self.row_tile = rest % self.row_tiles
        self.batch = rest // self.row_tiles

    def chunk(self, step, flight: int):
        """(row within the tile, K offset within the tile) of this thread's next chunk."""
        config = self.config
        if config.path == "strided":
            return self.thread, step * config.chunk
        warp, lane = self.thread // 32, self.thread % 32
        row = (step * (config.threads // 32) + warp) * config.rows_in_flight + flight
        return row, lane * config.chunk


def load_chunk(x, tile: Tile, row, k):
    """`chunk` elements as FP32, zeros past the edge, and whether the first one exists."""
    config = tile.config
    inside = (row < tile.rows) & (k < tile.k)
    safe_row = cutlass.min(row, tile.rows - 1)
    base = Int64(tile.batch) * Int64(x.stride[0]) + Int64(safe_row) * Int64(x.stride[1])
    if cutlass.const_expr(config.path == "vector"):
        values = _load_words(x, base + Int64(cutlass.min(k, tile.k - config.chunk)), config)
        return values, inside
    values = []
    for i in range(config.chunk):
        at = cutlass.min(k + i, tile.k - 1)
        word = x.iterator + (base + Int64(at) * Int64(x.stride[2]))
        value = Float32(cute.make_tensor(word, cute.make_layout(1))[0])
        values.append(convert.keep(value, (row < tile.rows) & (k + i < tile.k)))
    return values, inside


def _load_words(x, offset, config):
    """32 bytes in two 16-byte loads, widened."""
    address = (x.iterator + offset).toint()
    words = []
    for i in range(2):
        source = cute.make_ptr(Uint32, address + 16 * i, GMEM, assumed_align=16)
        held = cute.make_rmem_tensor(4, Uint32)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout(4)), held)
        words += [held[j] for j in range(4)]
    if config.in_dtype == "float32":
        return [word.bitcast(Float32) for word in words]
    return [convert.widen(word, half, config.in_dtype) for word in words for half in (0, 1)]


def chunk_amax(values, inside):
    """max |x| of a chunk; 0 if it lies outside."""
    amax = convert.max_magnitude(values[0], values[1])
    for value in values[2:]:
        amax = convert.max_magnitude(amax, value)
    return convert.keep(amax, inside)


class QuantizeKernel:
    """Codes and scales of x; see formats.reference for the arithmetic."""

    def __init__(self, config: QuantizeConfig):
        self.config = config
        self.fmt = config.fmt

    @cute.jit
    def none(self, x_tensor, data_tensor, scale_tensor, stream: driver.CUstream):
        self._launch(x_tensor, data_tensor, scale_tensor, None, None, stream)

    @cute.jit
    def given(self, x_tensor, data_tensor, scale_tensor, per_tensor_scale, stream: driver.CUstream):
        self._launch(x_tensor, data_tensor, scale_tensor, None, per_tensor_scale, stream)

    @cute.jit
    def computed(
        self,
        x_tensor,
        data_tensor,
        scale_tensor,
        amax_tensor,
        per_tensor_scale,
        stream: driver.CUstream,
    ):
        self._launch(x_tensor, data_tensor, scale_tensor, amax_tensor, per_tensor_scale, stream)

    @cute.jit
    def _launch(self, x, data, scale, amax, tensor_scale, stream):
        self._kernel(x, data, scale, amax, tensor_scale).launch(
            grid=[grid_size(self.config, x.shape), 1, 1],
            block=[self.config.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def _kernel(self, x: cute.Tensor, data: cute.Tensor, scale: cute.Tensor, amax, tensor_scale):
        config = self.config
        tile = Tile(config, x.shape)
        staged = cute.make_tensor(
            cute.arch.alloc_smem(Uint8, TILE_ROWS * config.tile_blocks, alignment=16),
            cute.make_layout(TILE_ROWS * config.tile_blocks),
        )
        constant = self._norm_constant(tile, amax, tensor_scale)
        for step in cutlass.range(config.steps, unroll=1):
            self._step(x, data, staged, tile, constant, step)
        cute.arch.sync_threads()
        if cutlass.const_expr(config.scale_layout == "atom"):
            self._store_atoms(scale, staged, tile)
        else:
            self._store_plain(scale, staged, tile)

    @cute.jit
    def _norm_constant(self, tile, amax, tensor_scale):
        constant = None
        if cutlass.const_expr(tensor_scale is not None):
            if cutlass.const_expr(amax is not None):
                per_tensor = convert.tensor_scale_of(amax[0].bitcast(Float32))
                block, _, _ = cute.arch.block_idx()
                if block == 0 and tile.thread == 0:
                    tensor_scale[0] = per_tensor
                constant = convert.norm_constant_of(per_tensor)
            else:
                constant = convert.norm_constant_of(tensor_scale[0])
        return constant

    @cute.jit
    def _step(self, x, data, staged, tile, constant, step):
        """Loads `rows_in_flight` chunks, then quantizes each."""
        config = self.config
        flights = []
        for flight in cutlass.range_constexpr(config.rows_in_flight):
            row, k = tile.chunk(step, flight)
            values, inside = load_chunk(
                x, tile, tile.row_tile * TILE_ROWS + row, tile.k_tile * config.tile_k + k
            )
            flights.append((row, k, values, inside))
        for flight in cutlass.range_constexpr(config.rows_in_flight):
            self._quantize_chunk(data, staged, tile, constant, *flights[flight])

    @cute.jit
    def _quantize_chunk(self, data, staged, tile, constant, row, k, values, inside):
        config, fmt = self.config, self.fmt
        amax = chunk_amax(values, inside)
        lanes = config.block // config.chunk
        for distance in cutlass.range_constexpr(lanes.bit_length() - 1):
            other = cute.arch.shuffle_sync_bfly(amax, 1 << distance)
            amax = convert.max_magnitude(amax, other)
        if cutlass.const_expr(fmt.scale_is_e8m0):
            code, gain, nan = convert.e8m0_scale(amax, fmt)
        else:
            code, gain, nan = convert.e4m3_scale(amax, fmt, constant)
        # Bytes of blocks that do not exist are 0, whatever the per-tensor scale is.
        code = convert.keep_word(code, inside)
        block = k // config.block
        if tile.thread % lanes == 0:
            staged[self._staged_at(row, block)] = Uint8(code)
        words = convert.encode_words(values, gain, nan, fmt)
        at_row = tile.row_tile * TILE_ROWS + row
        at_k = tile.k_tile * config.tile_k + k
        if inside:
            if cutlass.const_expr(config.path == "vector"):
                self._store_words(data, words, tile, at_row, at_k)
            else:
                self._store_bytes(data, words, tile, at_row, at_k)

    def _staged_at(self, row, block):
        if self.config.scale_layout == "plain":
            return row * self.config.tile_blocks + block
        return (block // 4) * 512 + (row % 32) * 16 + (row // 32) * 4 + block % 4

    @cute.jit
    def _store_words(self, data, words, tile, row, k):
        per_byte = self.fmt.element.codes_per_byte
        offset = Int64(tile.batch) * Int64(data.stride[0]) + Int64(row) * Int64(data.stride[1])
        address = (data.iterator + (offset + Int64(k // per_byte))).toint()
        count = len(words)
        held = cute.make_rmem_tensor(count, Uint32)
        for i in cutlass.range_constexpr(count):
            held[i] = words[i]
        target = cute.make_ptr(Uint32, address, GMEM, assumed_align=4 * count)
        cute.autovec_copy(held, cute.make_tensor(target, cute.make_layout(count)))

    @cute.jit
    def _store_bytes(self, data, words, tile, row, k):
        per_byte = self.fmt.element.codes_per_byte
        offset = Int64(tile.batch) * Int64(data.stride[0]) + Int64(row) * Int64(data.stride[1])
        first = k // per_byte
        for i in cutlass.range_constexpr(4 * len(words)):
            byte = (words[i // 4] >> Uint32(8 * (i % 4))) & Uint32(0xFF)
            if cutlass.const_expr(per_byte == 2):
                # An odd K leaves the last high nibble empty, in a NaN block too.
                byte = byte & convert.choose_word(k + 2 * i + 1 < tile.k, 0xFF, 0x0F)
            if k + per_byte * i < tile.k:
                target = data.iterator + (offset + Int64(first + i) * Int64(data.stride[2]))
                cute.make_tensor(target, cute.make_layout(1))[0] = Uint8(byte)

    @cute.jit
    def _store_atoms(self, scale, staged, tile):
        """Whole atoms, 16 bytes a thread; atoms past the last block do not exist."""
        config = self.config
        atoms = (tile.k + 4 * config.block - 1) // (4 * config.block)
        first = tile.k_tile * (config.tile_blocks // 4)
        pieces = TILE_ROWS * config.tile_blocks // 16
        for turn in cutlass.range_constexpr((pieces + config.threads - 1) // config.threads):
            piece = turn * config.threads + tile.thread
            atom = first + piece // 32
            if piece < pieces and atom < atoms:
                row_atom = Int64(tile.batch) * Int64(tile.row_tiles) + Int64(tile.row_tile)
                at = (row_atom * Int64(atoms) + Int64(atom)) * 512 + Int64((piece % 32) * 16)
                source = cute.make_ptr(
                    Uint32,
                    (staged.iterator + piece * 16).toint(),
                    cute.AddressSpace.smem,
                    assumed_align=16,
                )
                target = cute.make_ptr(
                    Uint32, (scale.iterator + at).toint(), GMEM, assumed_align=16
                )
                held = cute.make_rmem_tensor(4, Uint32)
                cute.autovec_copy(cute.make_tensor(source, cute.make_layout(4)), held)
                cute.autovec_copy(held, cute.make_tensor(target, cute.make_layout(4)))

    @cute.jit
    def _store_plain(self, scale, staged, tile):
        config = self.config
        blocks = (tile.k + config.block - 1) // config.block
        for turn in cutlass.range(TILE_ROWS * config.tile_blocks // config.threads, unroll=1):
            piece = turn * config.threads + tile.thread
            row = tile.row_tile * TILE_ROWS + piece // config.tile_blocks
            block = tile.k_tile * config.tile_blocks + piece % config.tile_blocks
            if row < tile.rows and block < blocks:
                at_row = Int64(tile.batch) * Int64(tile.rows) + Int64(row)
                target = scale.iterator + (at_row * Int64(blocks) + Int64(block))
                cute.make_tensor(target, cute.make_layout(1))[0] = staged[piece]


class AmaxKernel:
    """The FP32 word of max |x|, NaN included, as an integer maximum into amax_tensor[0]."""

    def __init__(self, config: AmaxConfig):
        self.config = config

    @cute.jit
    def amax(self, x_tensor, amax_tensor, stream: driver.CUstream):
        self._kernel(x_tensor, amax_tensor).launch(
            grid=[grid_size(self.config, x_tensor.shape), 1, 1],
            block=[self.config.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def _kernel(self, x: cute.Tensor, amax: cute.Tensor):
        config = self.config
        tile = Tile(config, x.shape)
        largest = Float32(0.0)
        for step in cutlass.range(config.steps, unroll=1):
            found = self._step(x, tile, step)
            largest = convert.max_magnitude(largest, found)
        word = cute.arch.warp_redux_sync(largest.bitcast(Int32), "max")
        if tile.thread % 32 == 0:
            cute.arch.atomic_max(amax.iterator.llvm_ptr, word, sem="relaxed", scope="gpu")

    @cute.jit
    def _step(self, x, tile, step):
        config = self.config
        found = []
        for flight in cutlass.range_constexpr(config.rows_in_flight):
            row, k = tile.chunk(step, flight)
            found.append(
                load_chunk(
                    x, tile, tile.row_tile * TILE_ROWS + row, tile.k_tile * config.tile_k + k
                )
            )
        largest = chunk_amax(*found[0])
        for chunk in found[1:]:
            largest = convert.max_magnitude(largest, chunk_amax(*chunk))
        return largest


def grid_size(config, shape):
    """Blocks of threads; at least one, for a launch of none is an error."""
    row_tiles = (shape[1] + TILE_ROWS - 1) // TILE_ROWS
    k_tiles = (shape[2] + config.tile_k - 1) // config.tile_k
    return shape[0] * row_tiles * k_tiles


def _fake(dtype, rank: int, align: int, inner=1):
    shape = tuple(cute.sym_int() for _ in range(rank))
    stride = (*(cute.sym_int64() for _ in range(rank - 1)), inner)
    return cute.runtime.make_fake_tensor(dtype, shape, stride=stride, assumed_align=align)


def _fake_x(config):
    dtype = _DTYPES[config.in_dtype]
    if config.path == "vector":
        return _fake(dtype, 3, 16)
    return _fake(dtype, 3, dtype.width // 8, cute.sym_int64())


def build_quantize(config: QuantizeConfig):
    """(jit function, fake arguments) for cute.compile; parameters as QuantizeKernel's methods."""
    if config.path == "vector":
        data = _fake(Uint8, 3, 16)
    else:
        data = _fake(Uint8, 3, 1, cute.sym_int64())
    if config.scale_layout == "atom":
        scale = _fake(Uint8, 1, 16)
    else:
        scale = _fake(Uint8, 3, 1)
    number = [_fake(Float32, 1, 4)] * (config.tensor_scale != "none")
    amax = [_fake(Int32, 1, 4)] * (config.tensor_scale == "computed")
    function = getattr(QuantizeKernel(config), config.tensor_scale)
    stream = cute.runtime.make_fake_stream()
    return function, [_fake_x(config), data, scale, *amax, *number, stream]


def build_amax(config: AmaxConfig):
    """(jit function, fake arguments) of the pass that leaves max |x| on the device."""
    stream = cute.runtime.make_fake_stream()
    return AmaxKernel(config).amax, [_fake_x(config), _fake(Int32, 1, 4), stream]
