"""Exact expansion of block-scaled elements (e4m3, e5m2, e2m1) to BF16.

May import: the CuTe DSL, bits.py. tests/hopper/decode_model.py mirrors this file in NumPy.

Both ways round element * scale once, to the nearest even BF16, for every code and scale:

    8-bit   the hardware's conversion to FP16, which holds every e4m3 and e5m2 value, then FP32,
            where the product with a power of two is exact (2^-127 * 2^-16 is a subnormal), then
            BF16. NaN and Inf need no care.
    FP4     sign and fields moved to their BF16 positions give the element times 2^-126, BF16
            subnormals included; times 2^126 it is exact, and the product with the scale rounds.

Decoding shares the issue slots with the tensor core's feeding, so instructions count: three for an
8-bit element, three for an FP4 element.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .bits import (
    fp8_to_bf16_pairs,
    merge_masked,
    mul_bf16x2,
    e4m3_to_bf16x2,
    shift_left,
)

# In both halves of a word: BF16 signs, e2m1's exponent and mantissa in BF16, and 2^126.
SIGNS = 0x80008000
E2M1_FIELDS = 0x01C001C0
TWO_TO_126 = 0x7E807E80


def expand_e2m1(word: Int32, pair: int) -> Int32:
    """Nibbles `pair` and `pair` + 4 of a word, times 2^-126, as two BF16 numbers."""
    fields = shift_left(word, 6 - 4 * pair) & E2M1_FIELDS
    return merge_masked(shift_left(word, 12 - 4 * pair), SIGNS, fields)


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
    def bits(self) -> int:
        return 4 if self.element == "float4_e2m1fn" else 8

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
    def factor(self, code: Int32) -> Int32:
        """What `step` takes for a scale code: FP32 bits (8-bit), or a pair of BF16 (FP4)."""
        if cutlass.const_expr(self.scale == "float8_e4m3fn"):
            return e4m3_to_bf16x2(code)
        # Code 0 is the subnormal 2^-127, and 255, NaN, would read as Inf: both take one more bit.
        bits = code << 7
        if ((code + 1) & 0xFE) == 0:
            bits = bits | 0x40
        return bits << 16 if cutlass.const_expr(self.bits == 8) else bits * 0x10001

    def step(self, chunk: list, half: int, step: int, factor: Int32) -> tuple[Int32, Int32]:
        """A chunk's share of K step `step` (16 elements) of BF16 stage `half`.

        The words hold K positions 2t, 2t+1 and 2t+8, 2t+9 of the step, scaled.
        """
        if self.bits == 8:
            kind = "e4m3x2" if self.element == "float8_e4m3fn" else "e5m2x2"
            return fp8_to_bf16_pairs(chunk[step], factor, kind)
        word = chunk[2 * half + step // 2]
        pairs = (expand_e2m1(word, 2 * (step % 2) + upper) for upper in range(2))
        return tuple(mul_bf16x2(mul_bf16x2(x, Int32(TWO_TO_126)), factor) for x in pairs)
