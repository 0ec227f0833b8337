"""Device conversions of quantization, each bit-equal to formats.reference.

May import: the CuTe DSL, inline.py. Formats (`fmt`) are formats.spec.Format objects, which callers hand in.

PTX is spelled out where a rounding, a NaN rule or the treatment of subnormals matters, so that no
compiler setting decides it.
"""

from cutlass import Float32, Int32, Uint32
from cutlass.cutlass_dsl import dsl_user_op, select_

from .inline import asm

INF = 0x7F800000
FLOAT_MAX = 3.4028234663852886e38
E4M3_NAN = 0x7F
_CVT = {"float8_e4m3fn": "e4m3x2", "float8_e5m2": "e5m2x2"}


def _asm(result, operands, text, *, loc=None, ip=None):
    """One pure PTX block: $0 is the result, $1... the operands; l and h are scratch halves."""
    letter = {Float32: "f", Int32: "r", Uint32: "r"}
    constraints = ",".join(["=" + letter[result], *(letter[type(x)] for x in operands)])
    values = [x.ir_value(loc=loc, ip=ip) for x in operands]
    text = "{ .reg .b16 l, h; .reg .b32 t; .reg .f32 a, b, c; .reg .pred p; " + text + " }"
    return result(asm(result.mlir_type, values, text, constraints, side_effects=False))


def widen(word: Uint32, half: int, dtype: str) -> Float32:
    """Half 0 or 1 of a word of two 16-bit floats, exactly."""
    if dtype == "float16":
        return _widen_half(word, half)
    bits = word & Uint32(0xFFFF0000) if half else word << Uint32(16)
    return bits.bitcast(Float32)


@dsl_user_op
def _widen_half(word: Uint32, half: int, *, loc=None, ip=None) -> Float32:
    text = f"mov.b32 {{l, h}}, $1; cvt.f32.f16 $0, {'lh'[half]};"
    return _asm(Float32, [word], text, loc=loc, ip=ip)


@dsl_user_op
def max_magnitude(x: Float32, y: Float32, *, loc=None, ip=None) -> Float32:
    """max(|x|, |y|); NaN, without a sign, if either is."""
    text = "abs.f32 a, $1; abs.f32 b, $2; max.NaN.f32 $0, a, b;"
    return _asm(Float32, [x, y], text, loc=loc, ip=ip)


@dsl_user_op
def min_nan(x: Float32, y: Float32, *, loc=None, ip=None) -> Float32:
    return _asm(Float32, [Float32(x), Float32(y)], "min.NaN.f32 $0, $1, $2;", loc=loc, ip=ip)


@dsl_user_op
def multiply(x: Float32, y: Float32, *, loc=None, ip=None) -> Float32:
    """IEEE product: to nearest even, subnormals kept."""
    return _asm(Float32, [Float32(x), Float32(y)], "mul.rn.f32 $0, $1, $2;", loc=loc, ip=ip)


@dsl_user_op
def divide(x: Float32, y: Float32, *, loc=None, ip=None) -> Float32:
    """IEEE quotient: to nearest even, subnormals kept."""
    return _asm(Float32, [Float32(x), Float32(y)], "div.rn.f32 $0, $1, $2;", loc=loc, ip=ip)


@dsl_user_op
def reciprocal(x: Float32, *, loc=None, ip=None) -> Float32:
    return _asm(Float32, [x], "rcp.rn.f32 $0, $1;", loc=loc, ip=ip)


@dsl_user_op
def reciprocal_of_scale(x: Float32, *, loc=None, ip=None) -> Float32:
    """As `reciprocal`, without its way out for extreme numbers: for E4M3 scales, 2^-9 to 448 or 0."""
    text = (
        "rcp.approx.ftz.f32 a, $1; neg.f32 b, $1; fma.rn.f32 b, b, a, 0f3F800000; "
        "fma.rn.f32 b, a, b, a; setp.eq.f32 p, $1, 0f00000000; selp.f32 $0, a, b, p;"
    )
    return _asm(Float32, [x], text, loc=loc, ip=ip)


@dsl_user_op
def permute_bytes(x: Uint32, y: Uint32, selector: int, *, loc=None, ip=None) -> Uint32:
    return _asm(Uint32, [x, y], f"prmt.b32 $0, $1, $2, 0x{selector:04x};", loc=loc, ip=ip)


# --- scales ------------------------------------------------------------------------------------


def e8m0_scale(amax: Float32, fmt, norm_constant=None):
    """(code, gain, is NaN) of a block: code = s rounded up, gain = nc * 2^(127 - code) with nc = 1 unless given."""
    s = multiply(amax, _constant(fmt.element.reciprocal_bits))
    if norm_constant is not None:
        s = multiply(s, norm_constant)
    s = s.bitcast(Uint32)
    # A sign, which a negative constant leaves, makes a NaN too.
    nan = s > Uint32(INF)
    code = (s + Uint32(0x7FFFFF)) >> Uint32(23)
    code = _select(code < Uint32(254), code, Uint32(254))
    code = _select(s > Uint32(0x400000), code, Uint32(0))
    # 2^-127, the gain of code 254, is a subnormal number.
    power = _select(code == Uint32(254), Uint32(0x400000), (Uint32(254) - code) << Uint32(23))
    code, gain = _select(nan, Uint32(255), code), power.bitcast(Float32)
    if norm_constant is not None:
        gain = min_nan(multiply(gain, norm_constant), Float32(FLOAT_MAX))
    return code, gain, nan


def e4m3_scale(amax: Float32, fmt, norm_constant=None):
    """(code, gain, is NaN) of a block: code = s to nearest, gain = nc / its value, at most FLT_MAX."""
    s = multiply(amax, _constant(fmt.element.reciprocal_bits))
    if norm_constant is not None:
        s = multiply(s, norm_constant)
    code = _select(s == s, e4m3_encode(s), Uint32(E4M3_NAN))
    gain = reciprocal_of_scale(e4m3_decode(code))
    if norm_constant is not None:
        gain = multiply(gain, norm_constant)
    gain = min_nan(gain, Float32(FLOAT_MAX))
    return code, gain, gain != gain


def norm_constant_of(per_tensor_scale: Float32) -> Float32:
    """min(1/|p|, FLT_MAX)."""
    return min_nan(
        reciprocal(max_magnitude(per_tensor_scale, per_tensor_scale)), Float32(FLOAT_MAX)
    )


def tensor_scale_of(amax: Float32) -> Float32:
    """min(amax, FLT_MAX) / (6 * 448)."""
    return divide(min_nan(amax, Float32(FLOAT_MAX)), Float32(6.0 * 448.0))


@dsl_user_op
def e4m3_encode(x: Float32, *, loc=None, ip=None) -> Uint32:
    text = "mov.f32 a, 0f00000000; cvt.rn.satfinite.e4m3x2.f32 l, a, $1; cvt.u32.u16 $0, l;"
    return _asm(Uint32, [x], text, loc=loc, ip=ip)


@dsl_user_op
def e4m3_decode(code: Uint32, *, loc=None, ip=None) -> Float32:
    text = "cvt.u16.u32 l, $1; cvt.rn.f16x2.e4m3x2 t, l; mov.b32 {l, h}, t; cvt.f32.f16 $0, l;"
    return _asm(Float32, [code], text, loc=loc, ip=ip)


# --- elements ----------------------------------------------------------------------------------


def encode_words(values: list, gain: Float32, nan, fmt) -> list:
    """Codes of value * gain, packed in order into words; a NaN block gives NaN codes."""
    per_word = 32 // fmt.element.bits
    encode = _fp4_word if fmt.is_fp4 else _fp8_word
    filled = sum(fmt.element.nan_code << (fmt.element.bits * i) for i in range(per_word))
    return [
        _select(nan, Uint32(filled), encode(values[i : i + per_word], gain, fmt))
        for i in range(0, len(values), per_word)
    ]


def _fp8_word(values: list, gain: Float32, fmt) -> Uint32:
    return _fp8x4(*(multiply(x, gain) for x in values), _CVT[fmt.element.name])


@dsl_user_op
def _fp8x4(a: Float32, b: Float32, c: Float32, d: Float32, kind: str, *, loc=None, ip=None):
    cvt = f"cvt.rn.satfinite.{kind}.f32"
    text = f"{cvt} l, $2, $1; {cvt} h, $4, $3; mov.b32 $0, {{l, h}};"
    return _asm(Uint32, [a, b, c, d], text, loc=loc, ip=ip)


def _fp4_word(values: list, gain: Float32, fmt) -> Uint32:
    """Eight E2M1 codes, the first in the lowest nibble."""
    word = fp4_biased(values[7], gain)
    for x in values[6::-1]:
        word = word * Uint32(16) + fp4_biased(x, gain)
    # What the biases of the two lowest codes leave in the top byte; the others have left the word.
    word = word - Uint32((_BIAS * 17) & 0xFFFFFFFF)
    return word | _sign_nibbles([x.bitcast(Uint32) for x in values])


_BIAS = 0x4B000000  # 2^23


@dsl_user_op
def fp4_biased(x: Float32, gain: Float32, *, loc=None, ip=None) -> Uint32:
    """The E2M1 code, without sign, of p = |x| * gain, plus the bits of 2^23.

    A code is the concave function min(2p, p + 2, p/2 + 4, 7) at E2M1's values, and linear between
    them. Adding 2^23 rounds each line to an integer, ties to even, in one IEEE rounding; the
    minimum of rounded lines is the rounded minimum.
    """
    text = (
        "abs.f32 a, $1; mul.rn.f32 a, a, $2; "
        "fma.rn.f32 b, a, 0f40000000, 0f4B000000; add.rn.f32 c, a, 0f4B000002; min.f32 b, b, c; "
        "fma.rn.f32 c, a, 0f3F000000, 0f4B000004; min.f32 b, b, c; "
        "min.f32 b, b, 0f4B000007; mov.b32 $0, b;"
    )
    return _asm(Uint32, [x, gain], text, loc=loc, ip=ip)


def e2m1_word(values: list, products: bool = False) -> Uint32:
    """Eight E2M1 codes, the first in the lowest nibble: nearest even, saturating at 6; NaN gives +6.

    products: the values come from arithmetic, whose NaN has no sign; that saves an instruction each.
    """
    if not products:
        values = [_six_for_nan(x) for x in values]
    word = _e2m1_biased(values[7])
    for x in values[6::-1]:
        word = word * Uint32(16) + _e2m1_biased(x)
    word = word - Uint32((_BIAS * 17) & 0xFFFFFFFF)
    return word | _sign_nibbles([x.bitcast(Uint32) for x in values])


@dsl_user_op
def _six_for_nan(x: Float32, *, loc=None, ip=None) -> Float32:
    """min(x, 6), which is 6 for NaN."""
    return _asm(Float32, [x], "min.f32 $0, $1, 0f40C00000;", loc=loc, ip=ip)


@dsl_user_op
def _e2m1_biased(x: Float32, *, loc=None, ip=None) -> Uint32:
    """As `fp4_biased` without a gain; at most 6, so that the highest line needs no limit."""
    text = (
        "abs.f32 a, $1; min.f32 a, a, 0f40C00000; "
        "fma.rn.f32 b, a, 0f40000000, 0f4B000000; add.rn.f32 c, a, 0f4B000002; min.f32 b, b, c; "
        "fma.rn.f32 c, a, 0f3F000000, 0f4B000004; min.f32 b, b, c; mov.b32 $0, b;"
    )
    return _asm(Uint32, [x], text, loc=loc, ip=ip)


def _sign_nibbles(w: list) -> Uint32:
    """Bit 4i+3 is the sign bit of word i, for eight words."""
    even = [permute_bytes(w[i], w[i + 2], 0x0073) for i in (0, 4)]
    odd = [permute_bytes(w[i], w[i + 2], 0x0073) for i in (1, 5)]
    low = permute_bytes(even[0], even[1], 0x5410) >> Uint32(4)
    high = permute_bytes(odd[0], odd[1], 0x5410)
    return (low & Uint32(0x08080808)) | (high & Uint32(0x80808080))


def _constant(bits: int) -> Float32:
    return Uint32(bits).bitcast(Float32)


def _select(condition, x: Uint32, y: Uint32) -> Uint32:
    return Uint32(select_(condition, x, y))


def choose_word(condition, x: int, y: int) -> Uint32:
    return _select(condition, Uint32(x), Uint32(y))


def keep_word(x: Uint32, condition) -> Uint32:
    """x where the condition holds, otherwise 0."""
    return _select(condition, x, Uint32(0))


def keep(x: Float32, condition) -> Float32:
    return keep_word(x.bitcast(Uint32), condition).bitcast(Float32)
