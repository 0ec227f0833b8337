"""Guarded access to global memory by address, and the raw words that values are moved as. Imports the DSL and core.

An access whose condition is false touches no memory; such a load gives zeros. Guards are predicates, not branches,
so that the loads of a thread stay together.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32
from cutlass.cutlass_dsl import T, dsl_user_op

from cudnn_core.hopper.bits import round_pair
from cudnn_core.hopper.convert import permute_bytes, widen
from cudnn_core.hopper.inline import asm, load, vector

from .config import ELEMENT_BYTES, VECTOR_BYTES

PAIRS = {"bfloat16": "bf16x2", "float16": "f16x2"}


@dsl_user_op
def load_words(
    address: Int64,
    count: int,
    valid: Boolean,
    constant: bool = True,
    *,
    loc=None,
    ip=None,
) -> list:
    """1, 2 or 4 consecutive words. constant: nobody writes them during the kernel.

    Without cache hints, here and in stores: with them, long rows took 4 to 5 % longer (H200, 2026-12).
    """
    operands = [Int64(address).ir_value(loc=loc, ip=ip), Boolean(valid).ir_value(loc=loc, ip=ip)]
    suffix = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[count]
    zeros = " ".join(f"mov.b32 ${i}, 0;" for i in range(count))
    text = (
        f"{{ .reg .pred p; .reg .b64 a; mov.pred p, ${count + 1}; mov.b64 a, ${count}; {zeros} "
        f"@p ld.global{'.nc' * constant}.{suffix} {vector(0, count)}, [a]; }}"
    )
    return load(Uint32, count, operands, text, "l,b")


@dsl_user_op
def store_words(address: Int64, words: list, valid: Boolean, *, loc=None, ip=None) -> None:
    """1, 2 or 4 consecutive words."""
    count = len(words)
    operands = [Int64(address).ir_value(loc=loc, ip=ip), Boolean(valid).ir_value(loc=loc, ip=ip)]
    operands += [Uint32(word).ir_value(loc=loc, ip=ip) for word in words]
    suffix = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[count]
    text = f"@$1 st.global.{suffix} [$0], {vector(2, count)};"
    asm(None, operands, text, ",".join(["l", "b"] + ["r"] * count))


@dsl_user_op
def load_bits(address: Int64, dtype: str, valid: Boolean, *, loc=None, ip=None) -> Uint32:
    """The bits of one element, zero-extended; cached, for neighbours read the same lines."""
    operands = [Int64(address).ir_value(loc=loc, ip=ip), Boolean(valid).ir_value(loc=loc, ip=ip)]
    if ELEMENT_BYTES[dtype] == 4:
        text = (
            "{ .reg .pred p; .reg .b64 a; mov.pred p, $2; mov.b64 a, $1; mov.b32 $0, 0; "
            "@p ld.global.b32 $0, [a]; }"
        )
    else:
        text = (
            "{ .reg .pred p; .reg .b64 a; .reg .b16 h; mov.pred p, $2; mov.b64 a, $1; "
            "mov.b16 h, 0; @p ld.global.b16 h, [a]; cvt.u32.u16 $0, h; }"
        )
    return Uint32(asm(T.i32(), operands, text, "=r,l,b"))


@dsl_user_op
def store_bits(
    address: Int64, bits: Uint32, dtype: str, valid: Boolean, *, loc=None, ip=None
) -> None:
    """One element from the low bits of a word."""
    operands = [
        Int64(address).ir_value(loc=loc, ip=ip),
        Boolean(valid).ir_value(loc=loc, ip=ip),
        Uint32(bits).ir_value(loc=loc, ip=ip),
    ]
    if ELEMENT_BYTES[dtype] == 4:
        text = "@$1 st.global.b32 [$0], $2;"
    else:
        text = "{ .reg .b16 h; cvt.u16.u32 h, $2; @$1 st.global.b16 [$0], h; }"
    asm(None, operands, text, "l,b,r")


def load_int(address: Int64, valid) -> Int32:
    """An int32 of an index array."""
    return load_bits(address, "float32", valid).bitcast(Int32)


def float_of(bits: Uint32, dtype: str) -> Float32:
    """The FP32 value of an element's bits."""
    return bits.bitcast(Float32) if dtype == "float32" else widen(bits, 0, dtype)


def bits_of(value: Float32, dtype: str) -> Uint32:
    """The bits of an element, rounded to nearest even."""
    if dtype == "float32":
        return value.bitcast(Uint32)
    return Uint32(round_pair(value, Float32(0.0), PAIRS[dtype]))


def floats_of(words: list, dtype: str) -> list:
    """The FP32 values of packed words, in order."""
    if dtype == "float32":
        return [word.bitcast(Float32) for word in words]
    return [widen(word, half, dtype) for word in words for half in (0, 1)]


def words_of(values: list, dtype: str) -> list:
    """FP32 values rounded to nearest even and packed, the first in the lowest half."""
    if dtype == "float32":
        return [value.bitcast(Uint32) for value in values]
    pairs = zip(values[::2], values[1::2], strict=True)
    return [Uint32(round_pair(low, high, PAIRS[dtype])) for low, high in pairs]


def pack_bits(bits: list, dtype: str) -> list:
    """Elements' bits as packed words."""
    if dtype == "float32":
        return bits
    pairs = zip(bits[::2], bits[1::2], strict=True)
    return [permute_bytes(low, high, 0x5410) for low, high in pairs]


def unpack_bits(words: list, dtype: str) -> list:
    """Packed words as elements' bits, zero-extended."""
    if dtype == "float32":
        return list(words)
    zero = Uint32(0)
    return [permute_bytes(w, zero, selector) for w in words for selector in (0x4410, 0x4432)]


def address(tensor: cute.Tensor, *coordinates) -> Int64:
    """Where an element lies, in 64 bits; coordinates past the given ones are 0."""
    offset = Int64(0)
    for coordinate, stride in zip(coordinates, tensor.stride, strict=False):
        offset = offset + Int64(coordinate) * Int64(stride)
    return tensor.iterator.toint() + offset * (tensor.element_type.width // 8)


@cute.jit
def constant_words(base: Int64, count: cutlass.Constexpr, dtype: cutlass.Constexpr, valid: Boolean):
    """`count` consecutive elements, packed, that other threads read too; an odd one is packed with itself.

    Wide loads where the address is a multiple of what `count` elements allow, else element by element.
    """
    each = ELEMENT_BYTES[dtype]
    granule = min(VECTOR_BYTES, count * each & -(count * each))
    size = (count * each + 3) // 4
    held = cute.make_rmem_tensor(size, Uint32)
    wide = (base & Int64(granule - 1)) == 0
    if cutlass.const_expr(granule < 4):
        wide = Boolean(False)
    if wide:
        words = []
        for i in cutlass.range_constexpr(count * each // max(granule, 4)):
            words += load_words(base + granule * i, max(granule // 4, 1), valid)
        for i in cutlass.range_constexpr(len(words)):
            held[i] = words[i]
    else:
        found = [load_bits(base + each * i, dtype, valid) for i in range(count)]
        packed = pack_bits(found + found[-1:] * (len(found) % 2), dtype)
        for i in cutlass.range_constexpr(size):
            held[i] = packed[i]
    return [held[i] for i in range(size)]


def constant_floats(base: Int64, count: int, dtype: str, valid: Boolean) -> list:
    """`constant_words` in FP32."""
    return floats_of(constant_words(base, count, dtype, valid), dtype)[:count]
