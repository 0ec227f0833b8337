"""A bandwidth-bound kernel that writes operands out K-major, in a type in which they can meet.

May import: the CuTe DSL, arguments.py, bits.py, decode.py, operand.py, schedule.py, workspace.py.

Block-scaled elements become what the main loop's decoder makes of them: element * scale, rounded
once to BF16. All other conversions are exact: FP8 to BF16 or FP16, 16 bits and BF16 values to FP32;
any type to itself. What meets decoded weights is written in the order in which those are decoded,
with zeros up to a whole raw stage. One launch serves all operands of a product. A thread block of
256 threads works on a tile; every thread writes pieces of 8 elements, so that each warp fills whole
sectors of memory:

    K-major    128 rows, or 8, x 256 elements of K; a warp reads and writes 256 elements of a row
    MN-major   128 rows x 128 elements of K; a thread turns 8 x 8 elements around
"""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .arguments import DSL_TYPES
from .bits import (
    e4m3_pair_to_bf16x2,
    f16_to_f32,
    fp8_to_bf16,
    fp8_to_f16,
    load_global_u8,
    load_global_words,
    mul_bf16x2,
    permute,
    store_global,
)
from .decode import Decoder, e2m1_to_bf16, e8m0_pair, fp8_kind
from .operand import BlockScaledOperand
from .schedule import at_most
from .workspace import pitch

THREADS = 256
WARPS = THREADS // 32
TILE_ROWS = 128
# Elements of a piece.
PIECE = 8
# Rows whose loads a thread has in flight at once.
BATCH = 8
# Bytes between the scale codes of neighbouring rows, of 32 from a multiple of 32 on.
CODES_ROW = 16


@dataclass(frozen=True)
class ExpandArgs:
    """Run-time values: addresses, extents, and byte strides of the source."""

    source: Int64
    scales: Int64
    target: Int64
    rows: Int32
    k: Int32
    batches: Int32
    outer_stride: Int64
    batch_stride: Int64
    scale_strides: tuple


def bits_of(element: str) -> int:
    """The size of an element."""
    return DSL_TYPES[element].width


@dataclass(frozen=True)
class Expand:
    """Writes one operand out as `target`: "bfloat16", "float16", "float32" or the operand's own type.

    meets: None, or what decodes the other side: K then has its order (BF16 only).
    few: whether there are so few rows that a block has one for each warp, so as to use many multiprocessors (K-major).
    """

    operand: BlockScaledOperand
    target: str = "bfloat16"
    meets: Decoder | None = None
    few: bool = False

    @property
    def bits(self) -> int:
        return bits_of(self.operand.element)

    @property
    def target_bytes(self) -> int:
        return bits_of(self.target) // 8

    @property
    def tile_rows(self) -> int:
        return WARPS if self.few and self.operand.contiguous == "k" else TILE_ROWS

    @property
    def tile_k(self) -> int:
        return 256 if self.operand.contiguous == "k" else 128

    @property
    def batch(self) -> int:
        """Rows whose loads a thread has in flight at once."""
        return min(BATCH, self.tile_rows // WARPS)

    @cute.jit
    def prepare(self, tensor: cute.Tensor, scales, target: cute.Pointer):
        """On the host: (run-time values, the bytes at `target` as (rows, K, L)), to expand `tensor`.

        scales: None where elements have none.
        """
        operand = self.operand
        mn, k, batches = (0, 1, 2) if operand.batch == "last" else (1, 2, 0)
        # Strides and extents count elements, or the bytes of packed pairs.
        packed = cutlass.const_expr(self.bits == 4 and operand.container == "uint8")
        codes = cutlass.const_expr(2 if packed else 1)
        rows, depth = Int32(tensor.shape[mn]), Int32(tensor.shape[k]) * codes
        count = Int32(tensor.shape[batches])
        outer = k if operand.contiguous == "mn" else mn
        scale_address, scale_strides = Int64(0), (Int64(0), Int64(0), Int64(0))
        if cutlass.const_expr(scales is not None):
            scale_address = scales.iterator.toint()
            modes = (2, 4, 5) if operand.sf_form == "logical" else (1, 2, 0)
            scale_strides = tuple(Int64(scales.stride[i]) for i in modes)
            if Int32(scales.shape[modes[2]]) == 1:
                # Like an operand, scales with one batch serve every batch.
                scale_strides = (*scale_strides[:2], Int64(0))
        args = ExpandArgs(
            source=tensor.iterator.toint(),
            scales=scale_address,
            target=target.toint(),
            rows=rows,
            k=depth,
            batches=count,
            outer_stride=Int64(tensor.stride[outer]) * codes * self.bits // 8,
            batch_stride=Int64(tensor.stride[batches]) * codes * self.bits // 8,
            scale_strides=scale_strides,
        )
        line = cute.assume(Int64(pitch(depth)), divby=128)
        made = cute.make_tensor(
            cute.recast_ptr(target, dtype=DSL_TYPES[self.target]),
            cute.make_layout((rows, self.depth(args), count), stride=(line, 1, line * rows)),
        )
        return args, made

    def tiles(self, args: ExpandArgs) -> Int32:
        """Tiles of one batch."""
        return (args.rows + self.tile_rows - 1) // self.tile_rows * self.tiles_k(args)

    def depth(self, args: ExpandArgs) -> Int32:
        """Elements of K that are written."""
        return args.k if self.meets is None else pitch(args.k)

    def tiles_k(self, args: ExpandArgs) -> Int32:
        return (self.depth(args) + self.tile_k - 1) // self.tile_k

    def blocks(self, args: ExpandArgs) -> Int32:
        return self.tiles(args) * args.batches

    @cute.jit
    def work(self, args: ExpandArgs, block: Int32):
        """Tile number `block` of all batches, by a thread block."""
        thread, _, _ = cute.arch.thread_idx()
        batch = block // self.tiles(args)
        block = block - batch * self.tiles(args)
        row0 = block // self.tiles_k(args) * self.tile_rows
        k0 = block % self.tiles_k(args) * self.tile_k
        places = self.places(args, batch)
        if cutlass.const_expr(self.operand.contiguous == "k"):
            warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
            for i in cutlass.range_constexpr(self.tile_rows // (WARPS * self.batch)):
                row = row0 + warp + WARPS * self.batch * i
                self.lines(args, places, row, k0, WARPS)
        else:
            # A warp lies 4 pieces along K and 8 along rows, the 8 warps 4 along K and 2 along rows.
            k = k0 + (thread % 4 + thread // 64 * 4) * PIECE
            row = row0 + (thread // 4 % 8 + thread // 32 % 2 * 8) * PIECE
            if (row < args.rows) & (k < self.depth(args)):
                self.square(args, places, row, k)

    @cute.jit
    def places(self, args: ExpandArgs, batch: Int32):
        """Where a batch of the source, of its scales and of the target begins."""
        source = args.source + batch * args.batch_stride
        if args.batches == 1:
            # Its stride may be anything.
            source = args.source
        target = args.target + Int64(batch) * args.rows * pitch(args.k) * self.target_bytes
        return source, args.scales + batch * args.scale_strides[2], target

    def piece(self, lane: Int32) -> Int32:
        """Which piece of 32 a lane has: neighbours in the result where K has another order."""
        if self.meets is None:
            return lane
        count = self.meets.tile_k // 4 // PIECE
        return lane // (4 * count) * (4 * count) + lane % 4 * count + lane // 4 % count

    @property
    def scaled(self) -> bool:
        """Whether scales are read."""
        return self.operand.scale is not None and self.target != self.operand.element

    def scale_at(self, args, scales, row, atom):
        """The address of the first of four scale codes of a row, which atom number `atom` along K holds."""
        r, q, _ = args.scale_strides
        return scales + (row // 128) * r + atom * q + (row % 32) * CODES_ROW + row // 32 % 4 * 4

    @cute.jit
    def lines(self, args, places, row, k0, step: cutlass.Constexpr):
        """A warp: 256 elements of K from k0 on of `batch` rows, `step` apart, as far as they exist.

        places: of a batch, here and below.
        """
        if row + step * (self.batch - 1) < args.rows:
            self.rows(args, places, row, k0, step, self.batch)
        else:
            self.one_by_one(args, places, row, args.rows, k0, step)

    @cute.jit
    def one_by_one(self, args, places, row, end, k0, step: cutlass.Constexpr):
        """A warp: 256 elements of K from k0 on of every `step`-th row up to `end`."""
        for line in cutlass.range(row, end, step, unroll=1):
            self.rows(args, places, line, k0, step, 1)

    @cute.jit
    def rows(self, args, places, row, k0, step: cutlass.Constexpr, count: cutlass.Constexpr):
        """A warp: 256 elements of K from k0 on of `count` rows, `step` apart."""
        words = self.words(count)
        at, codes_at, line, k, block = self.reach(args, places, row, k0, step, count)
        codes = self.fetch(at, step * args.outer_stride, codes_at, words)
        self.finish(args, line, self.line(args, Int64(0), step), k, block, words, codes)

    @property
    def width(self) -> int:
        """Words of a piece."""
        return PIECE * self.bits // 32

    def words(self, count: int) -> cute.Tensor:
        """Registers for a lane's piece of each of `count` rows."""
        return cute.make_rmem_tensor((self.width, count), Int32)

    @cute.jit
    def reach(self, args, places, row, k0, step: cutlass.Constexpr, count: cutlass.Constexpr):
        """A lane's part of 256 elements of K from k0 on of `count` rows, `step` apart.

        (where its piece of the first row and its scale codes are, the first row of the result, the first K element of
        its piece, which scale that has of those that the warp has of a row)
        """
        source, scales, target = places
        lane = cute.arch.lane_idx()
        # Beyond the end the last piece is written again.
        k = at_most(k0 + self.piece(lane) * PIECE, self.depth(args) - PIECE)
        inside = at_most(k, args.k - PIECE)
        at = source + row * args.outer_stride + Int64(inside) * self.bits // 8
        codes_at, block = scales, Int32(0)
        if cutlass.const_expr(self.scaled):
            # Lane r + 8 q has the four of row r from the q-th of those atoms that cover the 256 elements.
            depth = cutlass.const_expr(4 * self.operand.sf_vec)
            atom = at_most(k0 // depth + lane // BATCH, (args.k - 1) // depth)
            codes_at = self.scale_at(args, scales, row + step * (lane % count), atom)
            block = (inside - k0) // self.operand.sf_vec
        return at, codes_at, self.line(args, target, row), k, block

    @cute.jit
    def fetch(self, at: Int64, stride: Int64, codes_at: Int64, words) -> Int32:
        """A warp: load a lane's piece of each row into `words`; scale codes that the warp has in common."""
        width = self.width
        for i in cutlass.range_constexpr(words.shape[1]):
            loaded = load_global_words(at, width)
            for w in cutlass.range_constexpr(width):
                words[w, i] = loaded[w]
            at += stride
        codes = Int32(0)
        if cutlass.const_expr(self.scaled):
            (codes,) = load_global_words(codes_at, 1)
        return codes

    @cute.jit
    def finish(self, args, line: Int64, stride: Int64, k, block, words, codes: Int32):
        """A warp: expand what `fetch` has loaded, and store it, from row `line` of the result on."""
        width = self.width
        for i in cutlass.range_constexpr(words.shape[1]):
            code = Int32(127)
            if cutlass.const_expr(self.scaled):
                four = cute.arch.shuffle_sync(codes, i + block // 4 * BATCH)
                code = (four >> (block % 4 * 8)) & 0xFF
            made = self.expand([words[w, i] for w in range(width)], code)
            self.store(args, line, k, made)
            line += stride

    @cute.jit
    def square(self, args, places, row, k):
        """8 rows by 8 elements of K of an operand whose rows are contiguous."""
        source, scales, target = places
        width = self.width
        words = self.words(PIECE)
        for i in cutlass.range_constexpr(PIECE):
            depth = at_most(k + i, args.k - 1)
            at = source + depth * args.outer_stride + Int64(row) * self.bits // 8
            loaded = load_global_words(at, width)
            for w in cutlass.range_constexpr(width):
                words[w, i] = loaded[w]
        codes = [Int32(127)] * PIECE
        if cutlass.const_expr(self.scaled):
            # Eight rows from a multiple of 8 on.
            block = at_most(k, args.k - 1) // self.operand.sf_vec
            scale = self.scale_at(args, scales, row, block // 4) + block % 4
            codes = [load_global_u8(scale + CODES_ROW * i) for i in range(PIECE)]
        lines = [line for w in range(width) for line in self.turned(words, w)]
        for i in cutlass.range_constexpr(PIECE):
            if row + i < args.rows:
                line = self.line(args, target, row + i)
                self.store(args, line, k, self.expand(lines[i], codes[i]))

    def turned(self, words, w: int) -> list:
        """The rows that share words number w: for each, its elements along K."""
        column = [words[w, i] for i in range(PIECE)]
        if self.bits == 32:
            return [column]
        if self.bits == 16:
            pairs = [column[i : i + 2] for i in range(0, PIECE, 2)]
            return [[permute(*p, Int32(select)) for p in pairs] for select in (0x5410, 0x7632)]
        left, right = transposed(column[:4]), transposed(column[4:])
        return [[left[i], right[i]] for i in range(4)]

    def line(self, args, target, row) -> Int64:
        """Where a row of the result begins."""
        return target + Int64(row) * pitch(args.k) * self.target_bytes

    def store(self, args, line: Int64, k, piece: list):
        """Eight elements of the row that begins at `line`."""
        if self.meets is None:
            for first in range(0, len(piece), 4):
                store_global(line + k * self.target_bytes + 4 * first, piece[first : first + 4])
            return
        words = [self.existing(args, word, k + 2 * i) for i, word in enumerate(piece)]
        share = self.meets.tile_k // 4
        thread, within = k % self.meets.tile_k // share, k % share
        place = k // self.meets.tile_k * self.meets.tile_k + 4 * within + 2 * thread
        order = self.meets.order()
        for at in range(0, self.meets.tile_k, 2):
            first, second = order[at : at + 2]
            if first < PIECE:
                halves = Int32(0x7632 if first % 2 else 0x5410)
                pair = permute(words[first // 2], words[second // 2], halves)
                store_global(line + 2 * (place + at), [pair])

    @cute.jit
    def existing(self, args: ExpandArgs, word: Int32, k: Int32) -> Int32:
        """Elements k and k + 1, or zeros beyond the end."""
        if k >= args.k:
            word = Int32(0)
        elif k + 1 >= args.k:
            word = word & 0xFFFF
        return word

    def expand(self, words: list, code: Int32) -> list:
        """Eight elements under one scale, as words of the target."""
        element = self.operand.element
        if element == self.target:
            return words
        if element == "float16":
            return [v for word in words for v in f16_to_f32(word)]
        if self.target == "float16":
            return [v for word in words for v in fp8_to_f16(word, fp8_kind(element))]
        values = words if element == "bfloat16" else self.to_bf16(words, code)
        if self.target == "bfloat16":
            return values
        return [v for word in values for v in (word << 16, word & -0x10000)]

    def to_bf16(self, words: list, code: Int32) -> list:
        """Eight 8-bit or 4-bit elements times a scale."""
        if self.bits == 8:
            kind = fp8_kind(self.operand.element)
            values = [v for word in words for v in fp8_to_bf16(word, kind, False)]
            # Without scales it is 1.
            return (
                values
                if self.operand.scale is None
                else [mul_bf16x2(v, e8m0_pair(code)) for v in values]
            )
        if self.operand.scale == "float8_e4m3fn":
            factor, _ = e4m3_pair_to_bf16x2(code, 0)
        else:
            factor = e8m0_pair(code)
        return [mul_bf16x2(v, factor) for v in e2m1_to_bf16(words[0])]


@dataclass(frozen=True)
class Expansion:
    """One launch that writes out several operands."""

    sides: tuple[Expand, ...]

    @cute.jit
    def launch(self, args, stream: cuda.CUstream):
        """On the host; args: what each side's `prepare` returned first."""
        blocks = Int32(0)
        for i in cutlass.range_constexpr(len(self.sides)):
            blocks += self.sides[i].blocks(args[i])
        self.kernel(args).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, args):
        # A kernel that follows may set itself up, and waits before it reads.
        cute.arch.griddepcontrol_launch_dependents()
        block, _, _ = cute.arch.block_idx()
        for i in cutlass.range_constexpr(len(self.sides)):
            count = self.sides[i].blocks(args[i])
            if (block >= 0) & (block < count):
                self.sides[i].work(args[i], block)
            block -= count


def transposed(words: list) -> list:
    """Word i of the result holds byte i of each word."""
    made = []
    for select in (0x5140, 0x7362):
        first, second = (permute(*words[i : i + 2], Int32(select)) for i in (0, 2))
        made += [permute(first, second, Int32(0x5410)), permute(first, second, Int32(0x7632))]
    return made
