"""Exact expansion of block-scaled elements (e4m3, e5m2, e2m1) to BF16.

May import: the CuTe DSL, bits.py. tests/hopper/decode_model.py mirrors this file in NumPy.

Every path rounds element * scale once, to the nearest even BF16.

    8-bit   Moving sign and fields of an element to their BF16 positions gives the element times
            2^-gap, subnormals included, because BF16 arithmetic honours its own subnormals. One
            product with 2^gap * scale, which is a BF16 number unless the scale is very large or
            NaN, finishes ordinary elements. `special` finds, for many elements at once, whether
            some element is NaN or Inf or some scale too large; then `pair_exactly` goes through the
            hardware's FP8 to FP16 conversion and an FP32 product, which serve every code.
    FP4     The same, with the codes i and i + 4 of a word in one pair, of which one product makes two
            shifted copies that do not overlap; in the expansion the two codes of a byte, by a product
            for signs and one for fields. One product with F = 2^126 * scale is left, or a power of two
            less (`lacking`). Scales that make no such F (`unusual`) take two steps, of 2^126 and of
            the scale.

Decoding takes issue slots from the warps that feed the tensor core, so instructions count; logic,
at half rate, counts twice, and byte permutations, it seems, more than that.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Int32

from .bits import (
    e4m3_pair_to_bf16x2,
    fp8_to_bf16,
    max3_u16x2,
    merge_masked,
    mul_bf16x2,
    permute,
    shift_left,
    spread,
)

# BF16 signs in both halves of a word, signs of four bytes.
SIGNS = 0x80008000
BYTE_SIGNS = 0x80808080
# What brings the signs, and the fields, of the two FP4 codes of a byte to BF16 positions; those fields; 2^126.
CODE_SIGNS, CODE_FIELDS = (1 << 12) + (1 << 24), (1 << 6) + (1 << 18)
FIELDS, RAISE = 0x01C001C0, 0x7E807E80
# The FP4 codes 0 and 4 of a word, and what brings a copy of each code's fields and one of its sign there.
PAIR, COPIES = 0x000F000F, (1 << 12) + (1 << 6)
# How many powers of two the main loop's FP4 values lack; sums get them back. For larger e4m3 scales F would overflow.
LACKING = {"float8_e8m0fnu": 0, "float8_e4m3fn": 8}
# Usual scale codes: from the first number up to below the second. F is finite, and e4m3 positive and not subnormal.
USUAL = {"float8_e8m0fnu": (0, 129), "float8_e4m3fn": (8, 127)}
# F of code c is c * 2^shift plus so much, in BF16 bits.
FACTORS = {"float8_e8m0fnu": (7, 126 << 7), "float8_e4m3fn": (4, 238 << 7)}


@dataclass(frozen=True)
class Element:
    """One element format.

    gap: as above. fields: exponent and mantissa at their BF16 positions. down: how far the fields
    of a byte in the upper half of a 16-bit lane move down. special: the fields from which on
    elements are NaN or Inf. FP4 needs none of them.
    """

    bits: int
    gap: int = 0
    fields: int = 0
    down: int = 0
    special: int = 0

    def expand(self, word: Int32, pair: int) -> tuple[Int32, Int32]:
        """8-bit: (bytes 0 and 2, or 1 and 3, times 2^-gap as BF16; the same without signs)."""
        sign, shift = (8, 8 - self.down) if pair == 0 else (0, -self.down)
        fields = shift_left(word, shift) & (self.fields * 0x10001)
        return merge_masked(shift_left(word, sign), SIGNS, fields), fields


ELEMENTS = {
    "float8_e4m3fn": Element(8, 120, 0x07F0, 4, 0x07F0),
    "float8_e5m2": Element(8, 112, 0x0FE0, 3, 0x0F80),
    "float4_e2m1fn": Element(4),
}


def signed(word: int) -> int:
    """A bit pattern as an Int32."""
    return word - (1 << 32) if word >> 31 else word


def low_e2m1(byte: Int32) -> Int32:
    """The two FP4 codes of a byte, times 2^-126, as a pair of BF16."""
    return merge_masked(byte * CODE_SIGNS, SIGNS, (byte * CODE_FIELDS) & FIELDS)


def e2m1_to_bf16(word: Int32) -> list[Int32]:
    """Eight FP4 codes, the first in the lowest bits, as four pairs of BF16."""
    return [raised(low_e2m1(shift_left(word, -8 * i) & 0xFF)) for i in range(4)]


def e2m1_pair(word: Int32, index: int) -> Int32:
    """Codes `index` and `index` + 4 of a word's eight, times 2^-126, as a pair of BF16."""
    near, odd = shift_left(word, -8 * (index // 2)), 4 * (index % 2)
    copies = (near & (PAIR << odd)) * (COPIES >> odd)
    return copies & Int32(signed(SIGNS | FIELDS))


def raised(pair: Int32, lacking: int = 0) -> Int32:
    """Times 2^126, or `lacking` powers of two less, exactly."""
    return mul_bf16x2(pair, Int32(RAISE - lacking * (0x10001 << 7)))


@dataclass(frozen=True)
class Decoder:
    """An element format with its scale format.

    A raw stage is 64 bytes of a row, of which each of the four threads of a quad has a quarter: four
    words. The tensor core takes 16 K elements a step; of them thread t holds 2t, 2t+1 and 2t+8, 2t+9.
    What the sum does not care about is which elements these are, as long as both sides agree; so they
    are those that lie together (`order`):

        8-bit   word s is step s: its bytes 0, 2 and 1, 3
        FP4     word q is steps 2q and 2q+1: its codes 0, 4 and 1, 5, then 2, 6 and 3, 7
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
    def tile_k(self) -> int:
        """K elements of a raw stage."""
        return 512 // self.bits

    def order(self) -> list[int]:
        """Which K element of a raw stage the tensor core takes at each place."""
        found = []
        for place in range(self.tile_k):
            step, within = divmod(place, 16)
            half, rest = divmod(within, 8)
            thread, second = divmod(rest, 2)
            share = self.tile_k // 4 * thread
            if self.bits == 8:
                found.append(share + 4 * step + half + 2 * second)
            else:
                word, odd = divmod(step, 2)
                found.append(share + 8 * word + 2 * odd + half + 4 * second)
        return found

    @property
    def halves(self) -> int:
        """Units of 64 K elements in a raw stage."""
        return self.tile_k // 64

    @property
    def blocks(self) -> int:
        """Scales of one row in a raw stage."""
        return self.tile_k // self.sf_vec

    @property
    def scale_pieces(self) -> int:
        """Raw stages that share a scale atom."""
        return max(1, 4 // self.blocks)

    @property
    def atoms_k(self) -> int:
        """Scale atoms (of four blocks) along K that a raw stage touches."""
        return max(1, self.blocks // 4)

    @property
    def neutral(self) -> int:
        """The scale code of 1."""
        return 127 if self.scale == "float8_e8m0fnu" else 0x38

    @property
    def share_blocks(self) -> int:
        """Scales of a thread's share of a row in a raw stage: one a half, or one."""
        return max(1, self.tile_k // 4 // self.sf_vec)

    def share_start(self, lane4: Int32) -> Int32:
        """The block with which the share of a quad's thread begins."""
        return lane4 * (self.tile_k // 4) // self.sf_vec

    @property
    def lacking(self) -> int:
        """Sums of decoded elements are to be multiplied by 2 to the power of this."""
        return LACKING[self.scale] if self.bits == 4 else 0

    def unusual(self, codes: list) -> Boolean:
        """FP4: whether a scale of some row is no usual one; codes: a word a row."""
        first, end = USUAL[self.scale]
        found = Int32(0)
        # Two rows a word. Bytes that are none are zeros, which are usual where rows have one code.
        for word in (a | shift_left(b, 16) for a, b in zip(codes[::2], codes[1::2], strict=True)):
            # Bytes without their top bit, or with it set, cannot carry into others.
            above = (word & 0x7F7F7F7F) + (-end % 128) * 0x01010101
            found = found | (above & word if end > 128 else above | word)
            if first:
                found = found | ~((word | Int32(signed(BYTE_SIGNS))) - first * 0x01010101)
        return (found & Int32(signed(BYTE_SIGNS))) != 0

    def factor(self, code: Int32, half: int) -> Int32:
        """What `pair_words` multiplies a half of a row's share with."""
        shift, base = (7, self.format.gap << 7) if self.bits == 8 else FACTORS[self.scale]
        if self.share_blocks == 1:
            return spread(code * (1 << shift) + Int32(base), 0)
        # Bytes of both, each with zeros above.
        both = permute(code, Int32(0), Int32(0x4140))
        return spread(both * (1 << shift) + Int32(base * 0x10001), half)

    def pair_words(self, words: list, half: int, pair: int, factor: Int32, seen: Int32) -> tuple:
        """Two K steps of a half: their four registers in the tensor core's order, scaled.

        words: a row's share. Returns also `seen`, joined with what `special` needs to know (8-bit).
        """
        made = []
        if self.bits == 4:
            made = [e2m1_pair(words[2 * half + pair], i) for i in range(4)]
        else:
            for word in words[2 * pair : 2 * pair + 2]:
                lower, fields0 = self.format.expand(word, 0)
                upper, fields1 = self.format.expand(word, 1)
                seen = max3_u16x2(fields0, fields1, seen)
                made += [lower, upper]
        return [mul_bf16x2(low, factor) for low in made], seen

    def pair_exactly(self, words: list, half: int, pair: int, code: Int32) -> list:
        """As `pair_words`, for any elements and scales."""
        if self.bits == 8:
            factor, kind = e8m0_pair(code), fp8_kind(self.element)
            two = words[2 * pair : 2 * pair + 2]
            values = [x for word in two for x in fp8_to_bf16(word, kind, True)]
            return [mul_bf16x2(x, factor) for x in values]
        which = half if self.share_blocks > 1 else 0
        if self.scale == "float8_e4m3fn":
            factor = e4m3_pair_to_bf16x2(code, 0)[which]
        else:
            factor = e8m0_pair(shift_left(code, -8 * which) & 0xFF)
        word = words[2 * half + pair]
        low = [raised(e2m1_pair(word, i), self.lacking) for i in range(4)]
        return [mul_bf16x2(x, factor) for x in low]

    def scale_fields(self, codes: list) -> Int32:
        """8-bit elements: what a scale that is too large for a factor brings to `special`; codes: a word a row."""
        # Such a code maps to fields that are special.
        lift = self.format.special - (255 - self.format.gap)
        marks = [word + lift for word in codes]
        seen = Int32(0)
        for i in range(0, len(marks), 2):
            seen = max3_u16x2(marks[i], marks[min(i + 1, len(marks) - 1)], seen)
        return seen

    def special(self, seen: Int32) -> Boolean:
        """8-bit elements: whether `pair_words` was wrong for some element or scale; seen: fields of all of them."""
        carry = (0x8000 - self.format.special) * 0x10001
        return ((seen + carry) & Int32(signed(SIGNS))) != 0


def fp8_kind(element: str) -> str:
    """The name of an 8-bit format in conversion instructions."""
    return "e4m3x2" if element == "float8_e4m3fn" else "e5m2x2"


@cute.jit
def e8m0_pair(code: Int32) -> Int32:
    """An E8M0 code as BF16, in both halves of a word."""
    pair = code * (0x10001 << 7)
    if ((code + 1) & 0xFE) == 0:
        # 2^-127 is subnormal, and all ones are NaN.
        pair = pair | 0x00400040
    return pair
