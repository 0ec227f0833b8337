"""NumPy model of the device's conversions, operation for operation.

May import numpy. Mirrors cudnn_core/hopper/decode.py, the bit operations it uses, and the FP4
rounding of storage.py, on integer arrays that stand for registers; floating-point steps are rounded
exactly.
"""

from dataclasses import dataclass

import numpy as np

U32 = np.uint32
BF16_MAX = 2.0**127 * (2 - 2.0**-7)


def round_bf16(x):
    """float64 to the nearest even BF16 value, subnormals and overflow included, as float64."""
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(x)
        # The last place of a BF16 number; subnormals all have 2^-133.
        place = np.exp2(np.maximum(exponent - 1, -126) - 7.0)
        rounded = np.rint(x / place) * place
        rounded = np.where(np.abs(rounded) > BF16_MAX, np.copysign(np.inf, x), rounded)
    return np.where(np.isfinite(x), rounded, x)


def bf16_value(half):
    """The float64 value of 16 bits."""
    return (half.astype(U32) << U32(16)).view(np.float32).astype(np.float64)


def mul_bf16(a, b):
    """The product of two BF16 numbers given as bits, rounded once, as float64."""
    with np.errstate(all="ignore"):
        return round_bf16(bf16_value(a) * bf16_value(b))


def bf16_bits(value):
    """The bits of BF16 values given as float64."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(np.float32).view(U32) >> U32(16)


@dataclass(frozen=True)
class Element:
    """As the device's class of this name."""

    bits: int
    gap: int = 0
    fields: int = 0
    down: int = 0
    special: int = 0

    def expand(self, word, pair):
        """(low half, high half) of what the device's `expand` returns, and of its fields."""
        sign, shift = (8, 8 - self.down) if pair == 0 else (0, -self.down)
        fields = shifted(word, shift) & U32(self.fields * 0x10001)
        value = (shifted(word, sign) & U32(0x80008000)) | fields
        return halves(value), halves(fields)

    def positions(self, pair):
        """Which elements of a word land in the low and the high half."""
        return (pair, pair + 2)


ELEMENTS = {
    "float8_e4m3fn": Element(8, 120, 0x07F0, 4, 0x07F0),
    "float8_e5m2": Element(8, 112, 0x0FE0, 3, 0x0F80),
    "float4_e2m1fn": Element(4),
}
CODE_SIGNS, CODE_FIELDS = (1 << 12) + (1 << 24), (1 << 6) + (1 << 18)
PAIR, COPIES = 0x000F000F, (1 << 12) + (1 << 6)
FIELDS, RAISE = 0x01C001C0, 0x7E80
LACKING = {"float8_e8m0fnu": 0, "float8_e4m3fn": 8}
USUAL = {"float8_e8m0fnu": (0, 129), "float8_e4m3fn": (8, 127)}
FACTORS = {"float8_e8m0fnu": (7, 126 << 7), "float8_e4m3fn": (4, 238 << 7)}


def low_e2m1(byte):
    """(low half, high half): the two FP4 codes of a byte, times 2^-126."""
    fields = (byte * U32(CODE_FIELDS)) & U32(FIELDS)
    return halves(((byte * U32(CODE_SIGNS)) & U32(0x80008000)) | fields)


def e2m1_pair(word, index):
    """(low half, high half): codes `index` and `index` + 4 of a word, times 2^-126."""
    near, odd = shifted(word, -8 * (index // 2)), 4 * (index % 2)
    copies = (near & U32(PAIR << odd)) * U32(COPIES >> odd)
    return halves(copies & U32(0x80008000 | FIELDS))


def raised(low, lacking=0):
    """Times 2^126, or `lacking` powers of two less, as float64."""
    return mul_bf16(low, U32(RAISE - (lacking << 7)))


def unusual(codes, scale):
    """Whether the device takes two steps because of a byte of a word of scale codes."""
    first, end = USUAL[scale]
    above = (codes & U32(0x7F7F7F7F)) + U32((-end % 128) * 0x01010101)
    found = above & codes if end > 128 else above | codes
    if first:
        found = found | ~((codes | U32(0x80808080)) - U32(first * 0x01010101))
    return (found & U32(0x80808080)) != 0


def fp4_factor(codes, scale):
    """BF16 bits of F of usual scale codes."""
    shift, base = FACTORS[scale]
    return (codes << U32(shift)) + U32(base)


def shifted(word, count):
    return word << U32(count) if count >= 0 else word >> U32(-count)


def halves(word):
    return word & U32(0xFFFF), word >> U32(16)


def fast_factor(element, code):
    """BF16 bits of 2^gap * scale, as one half of the device's multiplication."""
    word = code.astype(U32) * U32(0x10001 << 7) + U32(element.gap * (0x10001 << 7))
    return halves(word)[0]


def exact_factor(code):
    """BF16 bits of an E8M0 scale."""
    bits = code.astype(U32) << U32(7)
    return np.where(((code.astype(U32) + 1) & 0xFE) == 0, bits | U32(0x40), bits)


def is_special(element, fields, code):
    """Whether the device takes the exact path because of these fields or this scale code."""
    marks = code.astype(np.int64) + (element.special - (255 - element.gap))
    seen = np.maximum(fields.astype(np.int64), marks)
    return ((seen + (0x8000 - element.special)) & 0x8000) != 0


def e2m1_code(x):
    """The FP4 code of FP32 numbers."""
    bits = x.view(np.int32)
    magnitude = np.minimum(bits & 0x7FFFFFFF, 0x40C00000)
    code = ((magnitude + 0x1FFFFF + ((magnitude >> 22) & 1)) >> 22) - 252
    small = (magnitude.view(np.float32) + np.float32(4194304.0)).view(np.int32) & 7
    code = np.where(magnitude < 0x3F800000, small, code)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, code, code | ((bits >> 28) & 8))
