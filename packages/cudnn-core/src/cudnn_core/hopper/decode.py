"""Exact expansion of block-scaled elements (e4m3, e5m2, e2m1) to BF16.

May import: the CuTe DSL, bits.py. tests/hopper/decode_model.py mirrors this file in NumPy.

Every path rounds element * scale once, to the nearest even BF16.

Moving sign and fields of an element to their BF16 positions gives the element times 2^-gap,
subnormals included, because BF16 arithmetic honours its own subnormals.

    8-bit   One product with 2^gap * scale, which is a BF16 number unless the scale is very large or
            NaN, finishes ordinary elements. `special` finds, for many elements at once, whether
            some element is NaN or Inf or some scale too large; then `exact_step` goes through the
            hardware's FP8 to FP16 conversion and an FP32 product, which serve every code.
    FP4     Two products, with 2^126 (exact) and with the scale, serve every code.

Decoding takes issue slots from the warps that feed the tensor core, so instructions count.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from .bits import (
    e4m3_to_bf16x2,
    fp8_to_bf16_pairs,
    max3_u16x2,
    merge_masked,
    mul_bf16x2,
    shift_left,
)

# Constants in both halves of a word: BF16 signs, and 2^126.
SIGNS = 0x80008000
TWO_TO_126 = 0x7E807E80


@dataclass(frozen=True)
class Element:
    """One element format.

    gap: as above. fields: exponent and mantissa at their BF16 positions. down: how far the fields
    of a byte in the upper half of a 16-bit lane move down (8-bit). special: the fields from which
    on elements are NaN or Inf (8-bit).
    """

    bits: int
    gap: int
    fields: int
    down: int = 0
    special: int = 0

    def expand(self, word: Int32, pair: int) -> tuple[Int32, Int32]:
        """(two elements times 2^-gap as BF16, the same without signs).

        8-bit: pair 0 holds bytes 0 and 2, pair 1 bytes 1 and 3. FP4: pair i holds nibbles i, i+4.
        """
        if self.bits == 8:
            sign, shift = (8, 8 - self.down) if pair == 0 else (0, -self.down)
        else:
            sign, shift = 12 - 4 * pair, 6 - 4 * pair
        fields = shift_left(word, shift) & (self.fields * 0x10001)
        return merge_masked(shift_left(word, sign), SIGNS, fields), fields


ELEMENTS = {
    "float8_e4m3fn": Element(8, 120, 0x07F0, 4, 0x07F0),
    "float8_e5m2": Element(8, 112, 0x0FE0, 3, 0x0F80),
    "float4_e2m1fn": Element(4, 126, 0x01C0),
}


@dataclass(frozen=True)
class Decoder:
    """An element format with its scale format: what both sides of a GEMM share.

    A K tile is 64 bytes of a row; the thread that owns chunk t of a row holds bytes 16t to 16t+15.
    The tensor core sums over K in any order, so the two sides only have to agree which element
    meets which K position: `step` is that agreement.
    """

    element: str
    scale: str
    sf_vec: int

    @property
    def format(self) -> Element:
        return ELEMENTS[self.element]

    @property
    def bits(self) -> int:
        return self.format.bits

    @property
    def chunk_elements(self) -> int:
        """Elements in 16 bytes."""
        return 128 // self.bits

    @property
    def tile_k(self) -> int:
        """K elements in the 64 bytes of a raw stage."""
        return 4 * self.chunk_elements

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
        return max(1, self.chunk_elements // self.sf_vec)

    @property
    def neutral(self) -> int:
        """The scale code of 1."""
        return 127 if self.scale == "float8_e8m0fnu" else 0x38

    def scale_of(self, half: int) -> int:
        """Which of a chunk's scales belongs to BF16 stage `half`."""
        return half if self.scales_per_chunk == 2 else 0

    @cute.jit
    def exact_factor(self, code: Int32) -> Int32:
        """The scale as FP32 bits (8-bit elements) or as a pair of BF16 (FP4)."""
        if cutlass.const_expr(self.scale == "float8_e4m3fn"):
            return e4m3_to_bf16x2(code)
        # Code 0 is the subnormal 2^-127, and 255, NaN, would read as Inf: both take one more bit.
        bits = code << 7
        if ((code + 1) & 0xFE) == 0:
            bits = bits | 0x40
        return bits << 16 if cutlass.const_expr(self.bits == 8) else bits * 0x10001

    def factor(self, code: Int32) -> Int32:
        """What `step` takes for a scale code."""
        if self.bits == 8:
            return code * (0x10001 << 7) + self.format.gap * (0x10001 << 7)
        return self.exact_factor(code)

    def step(self, chunk: list, half: int, step: int, factor: Int32, seen: Int32) -> tuple:
        """A chunk's share of K step `step` (16 elements) of BF16 stage `half`.

        Returns the words of K positions 2t, 2t+1 and 2t+8, 2t+9 of the step, scaled, and `seen`
        joined with what `special` needs to know of them.
        """
        if self.bits == 8:
            lower, fields0 = self.format.expand(chunk[step], 0)
            upper, fields1 = self.format.expand(chunk[step], 1)
            seen = max3_u16x2(fields0, fields1, seen)
            return mul_bf16x2(lower, factor), mul_bf16x2(upper, factor), seen
        word = chunk[2 * half + step // 2]
        pairs = [self.format.expand(word, 2 * (step % 2) + upper)[0] for upper in range(2)]
        lower, upper = (mul_bf16x2(mul_bf16x2(x, Int32(TWO_TO_126)), factor) for x in pairs)
        return lower, upper, seen

    def exact_step(self, chunk: list, step: int, factor: Int32) -> tuple[Int32, Int32]:
        """8-bit elements: as `step`, with an exact factor, for any elements and scales."""
        kind = "e4m3x2" if self.element == "float8_e4m3fn" else "e5m2x2"
        return fp8_to_bf16_pairs(chunk[step], factor, kind)

    def special(self, seen: Int32, codes: list) -> Boolean:
        """8-bit elements: whether `step` was wrong for some element or scale."""
        # A code that is too large for `factor` maps to fields that are special.
        limit = 255 - self.format.gap
        marks = [code + (self.format.special - limit) for code in codes]
        for i in range(0, len(marks), 2):
            seen = max3_u16x2(marks[i], marks[min(i + 1, len(marks) - 1)], seen)
        carry = (0x8000 - self.format.special) * 0x10001
        return ((seen + carry) & Int32(-0x7FFF8000)) != 0
