"""Exact expansion of block-scaled elements (e4m3, e5m2, e2m1) to BF16.

May import: the CuTe DSL, bits.py. tests/hopper/decode_model.py mirrors this file in NumPy.

Every path rounds element * scale once, to the nearest even BF16.

    8-bit   Moving sign and fields of an element to their BF16 positions gives the element times
            2^-gap, subnormals included, because BF16 arithmetic honours its own subnormals. One
            product with 2^gap * scale, which is a BF16 number unless the scale is very large or
            NaN, finishes ordinary elements. `special` finds, for many elements at once, whether
            some element is NaN or Inf or some scale too large; then `pair_exactly` goes through the
            hardware's FP8 to FP16 conversion and an FP32 product, which serve every code.
    FP4     Two byte tables, of positive and of negative codes, give the low byte of 12 + element / 2,
            whose high byte is always the same; (12 + element / 2) * F - 12 F with F = 2 * scale is
            rounded once, and does the rest. Scales of which this makes no right F or 12 F
            (`unusual`) take two steps.

Decoding takes issue slots from the warps that feed the tensor core, so instructions count; logic
and byte permutations, at half rate, count twice.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Int32

from .bits import (
    add_by_product,
    e4m3_pair_to_bf16x2,
    fma_bf16x2,
    fp8_to_bf16,
    max3_u16x2,
    merge_masked,
    mul_bf16x2,
    opaque,
    permute,
    shift_left,
    spread,
)

# BF16 signs in both halves of a word, signs of four bytes, signs of four FP4 codes.
SIGNS = 0x80008000
BYTE_SIGNS = 0x80808080
CODE_SIGNS = 0x8888
# The low bytes of 12 + v/2 as BF16 for v of 0, 0.5, 1, 1.5, 2, 3, 4, 6, then for -v, four to a word;
# their high byte; 1.
TABLES = (0x4C484440, 0x70605850, 0x34383C40, 0x10202830, 0x41, 1)
# BF16 pairs: -12; what turns 12 + v/2 into v; what makes F and -12 F of e4m3 bits in BF16 position, 2^-120 of their
# value.
MINUS_12, TWO, MINUS_24 = 0xC140C140, 0x40004000, 0xC1C0C1C0
E4M3_DOUBLED, E4M3_MINUS_24 = 0x7C007C00, 0xFDC0FDC0
# Codes from here on are unusual: E8M0 too large for 12 F; e4m3 with a sign, or NaN.
FIRST_UNUSUAL = {"float8_e8m0fnu": 251, "float8_e4m3fn": 127}


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


def table_words() -> list[Int32]:
    """TABLES as they are."""
    return [Int32(signed(word)) for word in TABLES]


def pinned_tables(lane: Int32, positive: Int32) -> list[Int32]:
    """TABLES in registers, where they stay; positive: any number above 0 that is known at run time.

    Constants that the compiler recognizes it would rather make anew for each use.
    """
    zero = shift_left(lane | positive, -31)
    return [opaque(zero + word) for word in table_words()]


def raised_e2m1(codes: Int32, tables: list) -> tuple[Int32, Int32]:
    """The four FP4 codes in the lower half of a word, the first in the lowest bits, as 12 + v/2: two pairs of BF16.

    A code with a sign picks the sign of a table's byte, which is 0, in the one table and a byte in the other.
    """
    positive0, positive1, negative0, negative1, high, one = tables
    positive = permute(positive0, positive1, codes)
    negative = permute(negative0, negative1, codes ^ CODE_SIGNS)
    # Products have a pipe of their own, which is idle.
    low = add_by_product(positive, one, negative)
    return permute(low, high, Int32(0x4140)), permute(low, high, Int32(0x4342))


def lowered(pair: Int32) -> Int32:
    """v of 12 + v/2, exactly."""
    return fma_bf16x2(pair, Int32(TWO), Int32(signed(MINUS_24)))


def e2m1_to_bf16(word: Int32, tables: list) -> list[Int32]:
    """Eight FP4 codes, the first in the lowest bits, as four pairs of BF16."""
    halves = word, shift_left(word, -16)
    return [lowered(pair) for half in halves for pair in raised_e2m1(half, tables)]


@dataclass(frozen=True)
class Decoder:
    """An element format with its scale format.

    A raw stage is 64 bytes of a row. The tensor core takes 16 K elements a step; of them the four
    threads of a quad hold 2t, 2t+1 and 2t+8, 2t+9. Its share of a half a thread has in words:

        8-bit   word s is step s: elements 2t, 2t+8, 2t+1, 2t+9 (so that `expand` finds pairs)
        FP4     word s is step s: elements 2t, 2t+1, 2t+8, 2t+9 in its lower half
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

    @property
    def words(self) -> int:
        """Words of a thread's share of one row in 64 K elements."""
        return 4

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

    def pair_blocks(self, half: int, pair: int) -> tuple[int, int]:
        """The blocks of the two K steps of pair `pair` (32 elements) of half `half`."""
        first = 64 * half + 32 * pair
        return first // self.sf_vec, (first + 16) // self.sf_vec

    def unusual(self, codes: list) -> Boolean:
        """FP4: whether a byte of some word is a scale code of FIRST_UNUSUAL or more."""
        first = FIRST_UNUSUAL[self.scale]
        found = Int32(0)
        for word in codes:
            # Bytes without their top bit cannot carry into others.
            above = (word & 0x7F7F7F7F) + (-first % 128) * 0x01010101
            found = found | (above & word if first >= 128 else above | word)
        return (found & Int32(signed(BYTE_SIGNS))) != 0

    def factors(self, codes: list, half: int, pair: int) -> list:
        """What `pair_words` multiplies the two K steps of a pair with; of FP4: (F, -12 F).

        Two scales are made at once, neighbours along K.
        """
        made = []
        for block in self.pair_blocks(half, pair):
            # Bytes of both, each with zeros above.
            low = block % 4 // 2 * 2
            select = Int32(0x4040 + 0x0101 * low + 0x0100)
            both = permute(codes[block // 4], Int32(0), select)
            made.append(self.factor_of(both, block % 2))
        return made

    def pair_words(self, words: list, pair: int, factors, tables, seen: Int32) -> tuple:
        """Two K steps of a half: their four registers in the tensor core's order, scaled.

        tables: of FP4, pinned. Returns also `seen`, joined with what `special` needs to know (8-bit).
        """
        made = []
        for word, factor in zip(words[2 * pair : 2 * pair + 2], factors, strict=True):
            if self.bits == 8:
                lower, fields0 = self.format.expand(word, 0)
                upper, fields1 = self.format.expand(word, 1)
                seen = max3_u16x2(fields0, fields1, seen)
                made += [mul_bf16x2(lower, *factor), mul_bf16x2(upper, *factor)]
            else:
                made += [fma_bf16x2(v, *factor) for v in raised_e2m1(word, tables)]
        return made, seen

    def pair_exactly(self, words: list, half: int, pair: int, codes: list, tables) -> list:
        """As `pair_words`, for any elements and scales."""
        made, blocks = [], self.pair_blocks(half, pair)
        for word, block in zip(words[2 * pair : 2 * pair + 2], blocks, strict=True):
            if self.bits == 8:
                scale = self.exact_scale(codes, block)
                made += fp8_to_bf16(word, scale, fp8_kind(self.element), True)
                continue
            if self.scale == "float8_e4m3fn":
                factor = e4m3_pair_to_bf16x2(codes[block // 4], block % 4 // 2)[block % 2]
            else:
                factor = bf16_pair(self.exact_scale(codes, block))
            made += [mul_bf16x2(lowered(v), factor) for v in raised_e2m1(word, tables)]
        return made

    def factor_of(self, both: Int32, which: int) -> list:
        """What `neighbours` multiplies with; both: two scale codes, each in its half, of which one is meant."""
        if self.scale == "float8_e4m3fn":
            bits = both * 16
            words = [mul_bf16x2(bits, Int32(signed(x))) for x in (E4M3_DOUBLED, E4M3_MINUS_24)]
        else:
            gap = self.format.gap if self.bits == 8 else 1
            words = [both * 128 + Int32(gap * (0x10001 << 7))]
            if self.bits == 4:
                words.append(mul_bf16x2(words[0], Int32(signed(MINUS_12))))
        return [spread(word, which) for word in words]

    def neighbours(self, words: list, factor: list, tables, seen: Int32) -> tuple:
        """Eight elements that lie side by side, as four pairs of BF16, scaled; the rest as `pair_words`."""
        made = []
        if self.bits == 4:
            (word,) = words
            for codes in (word, shift_left(word, -16)):
                made += [fma_bf16x2(v, *factor) for v in raised_e2m1(codes, tables)]
            return made, seen
        for word in words:
            # Elements 0, 2, 1, 3, so that pairs are neighbours.
            turned = permute(word, Int32(0), Int32(0x3120))
            lower, fields0 = self.format.expand(turned, 0)
            upper, fields1 = self.format.expand(turned, 1)
            seen = max3_u16x2(fields0, fields1, seen)
            made += [mul_bf16x2(lower, *factor), mul_bf16x2(upper, *factor)]
        return made, seen

    def neighbours_exactly(
        self, words: list, code: Int32, order: Int32, which: int, tables
    ) -> list:
        """As `neighbours`, for any elements and scales; order: what makes `both` of the codes in a word."""
        both = permute(code, Int32(0), order)
        if self.scale == "float8_e4m3fn":
            code = permute(both, Int32(0), Int32(0x4420))
            factor = e4m3_pair_to_bf16x2(code, 0)[which]
            return [mul_bf16x2(v, factor) for v in e2m1_to_bf16(words[0], tables)]
        scale = fp32_scale(shift_left(both, -16 * which) & 0xFF)
        if self.bits == 8:
            return [
                v for word in words for v in fp8_to_bf16(word, scale, fp8_kind(self.element), False)
            ]
        return [mul_bf16x2(v, bf16_pair(scale)) for v in e2m1_to_bf16(words[0], tables)]

    def exact_scale(self, codes: list, block: int) -> Int32:
        """An E8M0 scale as FP32 bits."""
        return fp32_scale(shift_left(codes[block // 4], -8 * (block % 4)) & 0xFF)

    def scale_fields(self, codes: list) -> Int32:
        """8-bit elements: what a scale that is too large for a factor brings to `special`; codes: a word a row."""
        # Such a code maps to fields that are special.
        lift = (self.format.special - (255 - self.format.gap)) * 0x10001
        marks = [permute(word, Int32(0), Int32(0x4140)) + lift for word in codes]
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


def bf16_pair(scale: Int32) -> Int32:
    """The bits of an FP32 number with a short mantissa as BF16, in both halves of a word."""
    return shift_left(scale, -16) * 0x10001


@cute.jit
def fp32_scale(code: Int32) -> Int32:
    """An E8M0 code as FP32 bits."""
    bits = code << 23
    if ((code + 1) & 0xFE) == 0:
        bits = bits | 0x00400000
    return bits
