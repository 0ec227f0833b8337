"""Exact expansion of block-scaled elements (e4m3, e5m2, e2m1) to BF16, as bit operations.

May import: the CuTe DSL, bits.py. tests/hopper/decode_model.py mirrors this file in NumPy.

Every element format is a sign, a few exponent bits and a few mantissa bits, so moving them to the
BF16 positions gives the element times 2^-gap, subnormals included, because BF16 arithmetic honours
its own subnormals. Multiplying by 2^gap * scale then gives the rounded product at once. Two things
do not fit that single multiplication, and take an exact path instead: scales so large that
2^gap * scale overflows, and elements that are NaN or Inf. FP4 multiplies twice and needs no such
path: its scales use the whole range, and it has no special elements.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .bits import merge_masked, mul_bf16x2, shift_left

SIGNS = 0x80008000


def twice(half):
    """The same 16 bits in both halves of a word."""
    return half * 0x10001


@dataclass(frozen=True)
class Element:
    """One element format: `gap` as above, `field` the mask of exponent and mantissa in BF16.

    drop: how far the fields of a byte in the upper half of a 16-bit lane move down (8-bit only).
    special_mask, special_one: adding special_one to byte & special_mask sets bit 7 exactly for
    elements that are NaN or Inf.
    """

    name: str
    bits: int
    gap: int
    field: int
    drop: int = 0
    special_mask: int = 0
    special_one: int = 0

    @property
    def has_special(self) -> bool:
        return self.special_one != 0

    @property
    def pairs_per_word(self) -> int:
        return 16 // self.bits

    @property
    def elements_per_chunk(self) -> int:
        """Elements in 16 bytes."""
        return 128 // self.bits

    def expand(self, word: Int32, pair: int) -> Int32:
        """Two elements of a word times 2^-gap, as BF16.

        8-bit: pair 0 holds bytes 0 and 2, pair 1 bytes 1 and 3. FP4: pair i holds nibbles i, i+4.
        """
        if self.bits == 8:
            sign, field = (8, 8 - self.drop) if pair == 0 else (0, -self.drop)
        else:
            sign, field = 12 - 4 * pair, 6 - 4 * pair
        fields = shift_left(word, field) & twice(self.field)
        return merge_masked(shift_left(word, sign), SIGNS, fields)

    def special(self, word: Int32) -> Int32:
        """Nonzero in a bit of 0x80808080 when an element of the word is NaN or Inf."""
        mask, one = self.special_mask * 0x01010101, self.special_one * 0x01010101
        return (word & Int32(mask)) + Int32(one)


ELEMENTS = {
    "float8_e4m3fn": Element("float8_e4m3fn", 8, 120, 0x07F0, 4, 0x7F, 0x01),
    "float8_e5m2": Element("float8_e5m2", 8, 112, 0x0FE0, 3, 0x7C, 0x04),
    "float4_e2m1fn": Element("float4_e2m1fn", 4, 126, 0x01C0),
}


def power_of_two(exponent: int) -> int:
    """The BF16 bits of 2^exponent, in both halves of a word."""
    return twice((exponent + 127) << 7)


@dataclass(frozen=True)
class ScaleFormat:
    """One scale format. neutral: the code of 1, read in place of padding."""

    name: str
    neutral: int

    @cute.jit
    def exact(self, code: Int32) -> Int32:
        """The scale as BF16, in both halves of a word; NaN codes give NaN."""
        if cutlass.const_expr(self.name == "float8_e8m0fnu"):
            bits = code << 7
            # 2^-127 is a BF16 subnormal; code 255 would read as Inf.
            if code == 0:
                bits = Int32(0x0040)
            if code == 255:
                bits = Int32(0x7FC0)
            return bits * 0x10001
        e4m3 = ELEMENTS["float8_e4m3fn"]
        fields = (code & 0x7F) << 4
        bits = ((code & 0x80) << 8) | fields
        value = mul_bf16x2(bits * 0x10001, Int32(power_of_two(e4m3.gap)))
        if fields == e4m3.field:
            value = Int32(0x7FC07FC0)
        return value


SCALES = {
    "float8_e8m0fnu": ScaleFormat("float8_e8m0fnu", 127),
    "float8_e4m3fn": ScaleFormat("float8_e4m3fn", 0x38),
}


@dataclass(frozen=True)
class Decoder:
    """An element format with its scale format: what both sides of a GEMM share.

    A K tile is 64 bytes of a row; the thread that owns chunk t of a row holds bytes 16t to 16t+15.
    The tensor core sums over K in any order, so the two sides only have to agree which element
    meets which K position: `pair` is that agreement.
    """

    element: Element
    scale: ScaleFormat
    sf_vec: int

    @property
    def tile_k(self) -> int:
        """K elements in the 64 bytes of a raw stage."""
        return 4 * self.element.elements_per_chunk

    @property
    def halves(self) -> int:
        """BF16 stages of 64 K elements that one raw stage makes."""
        return self.tile_k // 64

    @property
    def blocks(self) -> int:
        """Scales of one row in a raw stage."""
        return self.tile_k // self.sf_vec

    @property
    def atoms_k(self) -> int:
        """Scale atoms (of four blocks) along K that a raw stage touches."""
        return max(1, self.blocks // 4)

    @property
    def scales_per_chunk(self) -> int:
        return max(1, self.element.elements_per_chunk // self.sf_vec)

    def word_of(self, half: int, step: int) -> int:
        """Which word of a chunk feeds K step `step` (of 16) in BF16 stage `half`."""
        return step if self.element.bits == 8 else 2 * half + step // 2

    def scale_of(self, half: int) -> int:
        """Which of a chunk's scales belongs to BF16 stage `half`."""
        return half if self.scales_per_chunk == 2 else 0

    def pair(self, word: Int32, step: int, upper: int) -> Int32:
        """Unscaled elements of K positions 8*upper + {2t, 2t+1} of K step `step`."""
        index = upper if self.element.bits == 8 else 2 * (step % 2) + upper
        return self.element.expand(word, index)

    @property
    def single(self) -> bool:
        """Whether one multiplication serves every ordinary element and scale."""
        return self.element.has_special

    @cute.jit
    def multiplier(self, code: Int32) -> Int32:
        """What `scaled` takes for a scale code."""
        if cutlass.const_expr(self.single):
            return (code + self.element.gap) * (0x10001 << 7)
        return self.scale.exact(code)

    def code_is_special(self, code: Int32) -> Int32:
        """Bit 7 set when 2^gap * scale leaves BF16's range, or the scale is NaN."""
        # code <= 254 - gap is fine, and codes end at 255: so bit 8 of the sum decides.
        return (code + (256 - (255 - self.element.gap))) >> 1

    def scaled(self, x: Int32, multiplier: Int32) -> Int32:
        """RNE_bf16(element * scale) for two ordinary elements."""
        if self.single:
            return mul_bf16x2(x, multiplier)
        return mul_bf16x2(mul_bf16x2(x, Int32(power_of_two(self.element.gap))), multiplier)

    def factor(self, code: Int32, exact: bool) -> Int32:
        """What `apply` takes for a scale code."""
        return code if exact else self.multiplier(code)

    def apply(self, x: Int32, factor: Int32, exact: bool) -> Int32:
        """Two elements times their scale, by the path chosen at compile time."""
        return self.scaled_exact(x, factor) if exact else self.scaled(x, factor)

    @cute.jit
    def scaled_exact(self, x: Int32, code: Int32) -> Int32:
        """RNE_bf16(element * scale) for any two elements and any scale code."""
        value = mul_bf16x2(x, Int32(power_of_two(self.element.gap)))
        for half in cutlass.range_constexpr(2):
            bits = (x >> (16 * half)) & 0xFFFF
            fields = bits & self.element.field
            keep = Int32((-0x10000, 0xFFFF)[half])
            if cutlass.const_expr(self.element.name == "float8_e4m3fn"):
                if fields == self.element.field:
                    value = (value & keep) | (Int32(0x7FC0) << (16 * half))
            else:
                # Exponent 31: mantissa 0 is Inf, with its sign, anything else NaN.
                if fields >= 0x0F80:
                    special = (bits & 0x8000) | 0x7F80
                    if fields > 0x0F80:
                        special = Int32(0x7FC0)
                    value = (value & keep) | (special << (16 * half))
        return mul_bf16x2(value, self.scale.exact(code))
