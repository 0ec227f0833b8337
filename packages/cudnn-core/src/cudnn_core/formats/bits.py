"""Integer forms of the FP32 arithmetic of quantization, shared by PyTorch and JAX.

Imports formats.spec.

Arrays are int32 holding FP32 magnitudes (sign bit cleared). `ops` is the library's namespace:
where, clamp, like(value, array), take(table, index), bits_of_integer. No floating-point arithmetic
happens here, so a library or compiler that flushes subnormals (XLA on CPU does), divides
approximately or contracts cannot change a bit. formats.reference is the law these are tested by.
"""

from functools import cache

from .spec import E4M3, float_bits, scale_magnitude

INF = 0x7F800000
FLOAT_MAX = INF - 1
NAN = 0x7FC00000
_HIDDEN = 0x800000
_MANTISSA = _HIDDEN - 1


def significand(ops, magnitude):
    """(e, s) with value = s * 2^(e - 150) and 2^23 <= s < 2^24, subnormals normalized.

    Zero gives 2^-276, which every rounding to a narrow element takes to zero.
    """
    subnormal = magnitude < _HIDDEN
    # A subnormal is an integer times 2^-149; as a float of its own that integer is normalized.
    normal = ops.where(subnormal, ops.bits_of_integer(magnitude), magnitude)
    zero = ops.like(0, magnitude)
    exponent = (normal >> 23) - ops.where(subnormal, zero + 149, zero)
    return exponent, (normal & _MANTISSA) | _HIDDEN


def round_shift(value, shift):
    """value >> shift, to nearest even; 1 <= shift, value + 2^(shift-1) < 2^31."""
    return ((value >> shift) & 1) + value + ((1 << (shift - 1)) - 1) >> shift


def multiply(ops, a, b):
    """IEEE FP32 product of two magnitudes: nearest even, subnormals, Inf, NaN included."""
    exponent_a, sig_a = significand(ops, a)
    exponent_b, sig_b = significand(ops, b)
    high_a, low_a, high_b, low_b = sig_a >> 12, sig_a & 0xFFF, sig_b >> 12, sig_b & 0xFFF
    middle = high_a * low_b + low_a * high_b
    low = low_a * low_b + ((middle & 0xFFF) << 12)
    high = high_a * high_b + (middle >> 12) + (low >> 24)
    low = low & 0xFFFFFF
    # The product is high * 2^24 + low in [2^46, 2^48); keep its top 26 bits and a sticky bit.
    zero = ops.like(0, high)
    one = zero + 1
    kept = (high << 3) | ((low >> 22) << 1) | ops.where((low & 0x3FFFFF) != 0, one, zero)
    carried = kept >> 26
    exponent = exponent_a + exponent_b - 127 + carried
    shift = 2 + carried + ops.clamp(1 - exponent, 0, 26)
    rounded = (ops.clamp(exponent - 1, 0, 254) << 23) + round_shift(kept, ops.clamp(shift, 2, 28))
    product = ops.clamp(rounded, 0, INF)
    some_zero, some_inf = (a == 0) | (b == 0), (a == INF) | (b == INF)
    nan = (a > INF) | (b > INF) | (some_zero & some_inf)
    product = ops.where(some_zero, zero, ops.where(some_inf, zero + INF, product))
    return ops.where(nan, zero + NAN, product)


def encode(ops, magnitude, negative, power, element):
    """Codes of +-magnitude * 2^power: nearest even, saturating; NaN to nan_code, sign cleared."""
    exponent, sig = significand(ops, magnitude)
    above = exponent + power - (127 + element.min_exponent)
    drop = 23 - element.mantissa_bits
    kept = round_shift(sig, ops.clamp(drop - above, drop, 25))
    code = (ops.clamp(above, 0, 255) << element.mantissa_bits) + kept
    code = ops.clamp(code, 0, element.max_code)
    zero = ops.like(0, code)
    code = ops.where(magnitude == INF, zero + element.max_code, code)
    code = code | ops.where(negative, zero + element.sign_code, zero)
    return ops.where(magnitude > INF, zero + element.nan_code, code)


def e8m0_round_up(ops, magnitude):
    """Codes of the smallest power of two not below the value: 0..254, NaN to 255."""
    zero = ops.like(0, magnitude)
    code = ops.clamp((ops.clamp(magnitude, 0, INF) + _MANTISSA) >> 23, 0, 254)
    code = ops.where(magnitude <= _HIDDEN // 2, zero, code)
    return ops.where(magnitude > INF, zero + 255, code)


def quantize_blocks(ops, word, fmt, constant):
    """FP32 words (..., blocks, v) and nc's magnitude or None -> codes (like word), scale bytes."""
    magnitude = word & 0x7FFFFFFF
    amax = ops.maximum_last(magnitude)
    zero = ops.like(0, amax)
    s = multiply(ops, amax, zero + fmt.element.reciprocal_bits)
    if constant is not None:
        s = multiply(ops, s, zero + constant)
    if fmt.scale_is_e8m0 and constant is None:
        scale = e8m0_round_up(ops, s)
        power = (127 - scale)[..., None]
        # A NaN scale makes every product NaN.
        scaled = ops.where((scale == 255)[..., None], zero[..., None] + NAN, magnitude)
    else:
        scale = encode_scale(ops, s, fmt)
        gain = ops.take(inverse_scales(fmt.scale), scale)
        if constant is not None:
            gain = multiply(ops, gain, zero + constant)
        gain = ops.where(gain == INF, zero + FLOAT_MAX, gain)
        scaled, power = multiply(ops, magnitude, gain[..., None]), 0
    return encode(ops, scaled, word < 0, power, fmt.element), scale


def encode_scale(ops, s, fmt):
    if fmt.scale_is_e8m0:
        return e8m0_round_up(ops, s)
    return encode(ops, s, s < 0, 0, E4M3)


@cache
def inverse_scales(scale: str) -> tuple[int, ...]:
    """FP32 words of 1/q for the 256 scale bytes taken as magnitudes; Inf where q is 0."""
    values = [scale_magnitude(scale, code) for code in range(256)]
    return tuple(float_bits(1.0 / value if value else float("inf")) for value in values)


def pack_fp4(codes):
    """(..., 2B) codes -> (..., B) bytes, the even element in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)
