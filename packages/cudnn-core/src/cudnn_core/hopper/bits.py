"""Single machine instructions that device code of this folder is built from.

May import: the CuTe DSL, inline.py.

Arithmetic helpers carry no side effects, so the compiler may move, merge and drop them. Shared
memory helpers take 32-bit byte addresses and keep their order relative to barriers.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from .inline import asm, load, vector


@dsl_user_op
def mul_bf16x2(a: Int32, b: Int32, *, loc=None, ip=None) -> Int32:
    """Two BF16 products, each rounded to nearest even; subnormals are honoured."""
    words = [Int32(a).ir_value(loc=loc, ip=ip), Int32(b).ir_value(loc=loc, ip=ip)]
    return Int32(asm(T.i32(), words, "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", side_effects=False))


@dsl_user_op
def spread(word: Int32, half: cutlass.Constexpr, *, loc=None, ip=None) -> Int32:
    """One half of a word in both, which costs nothing where BF16 arithmetic takes it."""
    chosen = ("l", "h")[half]
    text = f"{{\n.reg .b16 l, h;\nmov.b32 {{l, h}}, $1;\nmov.b32 $0, {{{chosen}, {chosen}}};\n}}"
    return Int32(
        asm(T.i32(), [Int32(word).ir_value(loc=loc, ip=ip)], text, "=r,r", side_effects=False)
    )


@dsl_user_op
def shift_left(a: Int32, count: cutlass.Constexpr, *, loc=None, ip=None) -> Int32:
    """a << count; written apart from Python's operator so that negative counts shift right."""
    words = [Int32(a).ir_value(loc=loc, ip=ip)]
    if count == 0:
        return Int32(words[0])
    op = f"shl.b32 $0, $1, {count};" if count > 0 else f"shr.u32 $0, $1, {-count};"
    return Int32(asm(T.i32(), words, op, "=r,r", side_effects=False))


@dsl_user_op
def merge_masked(a: Int32, mask: cutlass.Constexpr, b: Int32, *, loc=None, ip=None) -> Int32:
    """(a & mask) | b in one instruction."""
    words = [Int32(a).ir_value(loc=loc, ip=ip), Int32(b).ir_value(loc=loc, ip=ip)]
    # 0xEA is the truth table of (x & y) | z.
    text = f"lop3.b32 $0, $1, {mask}, $2, 0xEA;"
    return Int32(asm(T.i32(), words, text, "=r,r,r", side_effects=False))


@dsl_user_op
def max3_u16x2(a: Int32, b: Int32, c: Int32, *, loc=None, ip=None) -> Int32:
    """The greatest of three, in each half of a word, unsigned; one instruction on Hopper."""
    operands = [Int32(v).ir_value(loc=loc, ip=ip) for v in (a, b, c)]
    text = "{\n.reg .b32 t;\nmax.u16x2 t, $1, $2;\nmax.u16x2 $0, t, $3;\n}"
    return Int32(asm(T.i32(), operands, text, "=r,r,r,r", side_effects=False))


def opaque(value: Int32) -> Int32:
    """The same value, which the compiler can no longer derive from anything else.

    It stays in a register, where ptxas would rather recompute it in every round of a loop.
    """
    return cute.arch.shuffle_sync(value, cute.arch.lane_idx())


@dsl_user_op
def permute(a: Int32, b: Int32, selector: Int32, *, loc=None, ip=None) -> Int32:
    """Four of the bytes of b:a, by four hexadecimal digits from the lowest; b's bytes are 4 to 7."""
    operands = [Int32(v).ir_value(loc=loc, ip=ip) for v in (a, b, selector)]
    return Int32(asm(T.i32(), operands, "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", side_effects=False))


def fp8_to_bf16(
    word: Int32, kind: cutlass.Constexpr, interleaved: cutlass.Constexpr
) -> tuple[Int32, Int32]:
    """The four bytes of a word, which are FP8, as two pairs of BF16, exactly.

    kind: "e4m3x2" or "e5m2x2". The pairs are bytes 0, 1 and 2, 3, or, interleaved, 0, 2 and 1, 3.
    """
    second, third = (2, 1) if interleaved else (1, 2)
    text = f"""{{
.reg .b16 l, h, x0, x1, x2, x3;
.reg .b32 lo, hi;
.reg .f32 f0, f1, f2, f3;
mov.b32 {{l, h}}, $2;
cvt.rn.f16x2.{kind} lo, l;
cvt.rn.f16x2.{kind} hi, h;
mov.b32 {{x0, x1}}, lo;
mov.b32 {{x2, x3}}, hi;
cvt.f32.f16 f0, x0;
cvt.f32.f16 f1, x1;
cvt.f32.f16 f2, x2;
cvt.f32.f16 f3, x3;
cvt.rn.bf16x2.f32 $0, f{second}, f0;
cvt.rn.bf16x2.f32 $1, f3, f{third};
}}"""
    return _two_words(word, text)


@dsl_user_op
def _two_words(word: Int32, text: cutlass.Constexpr, *, loc=None, ip=None) -> tuple[Int32, Int32]:
    struct = ir.Type.parse("!llvm.struct<(i32, i32)>")
    packed = asm(
        struct, [Int32(word).ir_value(loc=loc, ip=ip)], text, "=r,=r,r", side_effects=False
    )
    return tuple(Int32(llvm.extractvalue(T.i32(), packed, [i])) for i in range(2))


def fp8_to_f16(word: Int32, kind: str) -> tuple[Int32, Int32]:
    """The four bytes of a word as two pairs of FP16; kind: "e4m3x2" or "e5m2x2"."""
    text = f"""{{
.reg .b16 l, h;
mov.b32 {{l, h}}, $2;
cvt.rn.f16x2.{kind} $0, l;
cvt.rn.f16x2.{kind} $1, h;
}}"""
    return _two_words(word, text)


def f16_to_f32(word: Int32) -> tuple[Int32, Int32]:
    """A pair of FP16 as the bits of two FP32."""
    text = """{
.reg .b16 l, h;
.reg .f32 f0, f1;
mov.b32 {l, h}, $2;
cvt.f32.f16 f0, l;
cvt.f32.f16 f1, h;
mov.b32 $0, f0;
mov.b32 $1, f1;
}"""
    return _two_words(word, text)


def e4m3_pair_to_bf16x2(word: Int32, half: int) -> tuple[Int32, Int32]:
    """Two e4m3 bytes of a word (half 0: the lower ones) as BF16, each in both halves of a word."""
    text = f"""{{
.reg .b16 l, h, x0, x1;
.reg .b32 w;
.reg .f32 f0, f1;
mov.b32 {{l, h}}, $2;
cvt.rn.f16x2.e4m3x2 w, {"l" if half == 0 else "h"};
mov.b32 {{x0, x1}}, w;
cvt.f32.f16 f0, x0;
cvt.f32.f16 f1, x1;
cvt.rn.bf16x2.f32 $0, f0, f0;
cvt.rn.bf16x2.f32 $1, f1, f1;
}}"""
    return _two_words(word, text)


@dsl_user_op
def _load_shared(address: Int32, suffix: cutlass.Constexpr, *, loc=None, ip=None) -> Int32:
    operands = [Int32(address).ir_value(loc=loc, ip=ip)]
    return Int32(asm(T.i32(), operands, f"ld.shared.{suffix} $0, [$1];", "=r,r"))


def load_shared_u8(address: Int32) -> Int32:
    """One byte of shared memory, zero-extended."""
    return _load_shared(address, "u8")


def load_shared_u16(address: Int32) -> Int32:
    """Two bytes of shared memory, zero-extended."""
    return _load_shared(address, "u16")


@dsl_user_op
def load_shared_v4(address: Int32, *, loc=None, ip=None) -> tuple[Int32, Int32, Int32, Int32]:
    """Sixteen bytes of shared memory as four words."""
    operands = [Int32(address).ir_value(loc=loc, ip=ip)]
    return tuple(load(Int32, 4, operands, "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "r"))


@dsl_user_op
def store_shared_v4(
    address: Int32, w0: Int32, w1: Int32, w2: Int32, w3: Int32, *, loc=None, ip=None
) -> None:
    """Sixteen bytes to shared memory."""
    operands = [Int32(v).ir_value(loc=loc, ip=ip) for v in (address, w0, w1, w2, w3)]
    asm(None, operands, "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", "r,r,r,r,r")


@dsl_user_op
def load_global_u8(address, *, loc=None, ip=None) -> Int32:
    """One byte of global memory that the kernel does not write, zero-extended."""
    operands = [cutlass.Int64(address).ir_value(loc=loc, ip=ip)]
    return Int32(asm(T.i32(), operands, "ld.global.nc.u8 $0, [$1];", "=r,l", side_effects=False))


def load_global_words(address, count: int) -> tuple:
    """One, two, four or eight words that the kernel reads once and does not write."""
    if count > 4:
        return _load_global(address, 4) + load_global_words(address + 16, count - 4)
    return _load_global(address, count)


@dsl_user_op
def _load_global(address, count: cutlass.Constexpr, *, loc=None, ip=None) -> tuple:
    operands = [cutlass.Int64(address).ir_value(loc=loc, ip=ip)]
    size = f".v{count}" if count > 1 else ""
    text = f"ld.global.nc.L1::no_allocate{size}.b32 {vector(0, count)}, [${count}];"
    return tuple(load(Int32, count, operands, text, "l", side_effects=False))


@dsl_user_op
def store_global(address, words: list, *, loc=None, ip=None) -> None:
    """One, two or four words to global memory."""
    operands = [cutlass.Int64(address).ir_value(loc=loc, ip=ip)]
    operands += [Int32(v).ir_value(loc=loc, ip=ip) for v in words]
    count = len(words)
    size = f".v{count}" if count > 1 else ""
    text = f"st.global{size}.b32 [$0], {vector(1, count)};"
    asm(None, operands, text, ",".join(["l"] + ["r"] * count))


@dsl_user_op
def float_bits(x: Float32, *, loc=None, ip=None) -> Int32:
    """The bit pattern of an FP32 number."""
    return Int32(llvm.bitcast(T.i32(), Float32(x).ir_value(loc=loc, ip=ip), loc=loc, ip=ip))


@dsl_user_op
def bits_float(word: Int32, *, loc=None, ip=None) -> Float32:
    """The FP32 number of a bit pattern."""
    return Float32(llvm.bitcast(T.f32(), Int32(word).ir_value(loc=loc, ip=ip), loc=loc, ip=ip))


@dsl_user_op
def round_pair(lo: Float32, hi: Float32, kind: cutlass.Constexpr, *, loc=None, ip=None) -> Int32:
    """Two FP32 numbers rounded to nearest even; `lo` lands in the low half or byte.

    kind: "bf16x2", "f16x2" (overflow to Inf) or "e4m3x2", "e5m2x2" (saturating, NaN kept).
    """
    values = [Float32(v).ir_value(loc=loc, ip=ip) for v in (lo, hi)]
    if kind in ("bf16x2", "f16x2"):
        return Int32(
            asm(T.i32(), values, f"cvt.rn.{kind}.f32 $0, $2, $1;", "=r,f,f", side_effects=False)
        )
    text = f"{{\n.reg .b16 p;\ncvt.rn.satfinite.{kind}.f32 p, $2, $1;\ncvt.u32.u16 $0, p;\n}}"
    return Int32(asm(T.i32(), values, text, "=r,f,f", side_effects=False))


@dsl_user_op
def bulk_load(
    destination: Int32, source, count: Int32, barrier: Int32, *, loc=None, ip=None
) -> None:
    """Contiguous bytes from global to shared memory, counted on an mbarrier.

    One thread issues it. Source, destination and count are multiples of 16 bytes.
    """
    operands = [
        Int32(destination).ir_value(loc=loc, ip=ip),
        cutlass.Int64(source).ir_value(loc=loc, ip=ip),
        Int32(count).ir_value(loc=loc, ip=ip),
        Int32(barrier).ir_value(loc=loc, ip=ip),
    ]
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    asm(None, operands, text, "r,l,r,r")
