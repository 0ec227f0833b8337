"""How FP32 results are converted and laid out in the storage formats of outputs.

May import: the CuTe DSL, bits.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from .bits import bits_float, float_bits, round_pair


@cute.jit
def e2m1_code(x: Float32) -> Int32:
    """The FP4 code: nearest even, saturating at 6; NaN gives +6."""
    bits = float_bits(x)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    magnitude = bits & 0x7FFFFFFF
    # As integers, everything beyond 6.0 saturates: larger numbers, Inf and NaN.
    if magnitude > 0x40C00000:
        magnitude = Int32(0x40C00000)
    # From 1 on: round to one mantissa bit, and count (exponent, mantissa) from 0.5's exponent.
    code = ((magnitude + 0x1FFFFF + ((magnitude >> 22) & 1)) >> 22) - 252
    if magnitude < 0x3F800000:
        # Below 1, codes are halves: adding 2^22, whose last place is a half, rounds to them.
        code = float_bits(bits_float(magnitude) + Float32(4194304.0)) & 7
    if not nan:
        code = code | ((bits >> 28) & 8)
    return code


@dataclass(frozen=True)
class StorageFormat:
    """An output format. word: the DSL type that one stored unit is moved as (FP4: two codes)."""

    name: str
    bits: int
    pair_kind: str = ""

    @property
    def word(self):
        return {32: cutlass.Float32, 16: cutlass.Uint16, 8: cutlass.Uint8, 4: cutlass.Uint8}[
            self.bits
        ]

    @property
    def bytes(self) -> int:
        """Bytes of one stored unit."""
        return max(1, self.bits // 8)

    @property
    def columns(self) -> int:
        """Columns in one stored unit."""
        return 2 if self.bits == 4 else 1

    @cute.jit
    def pack(self, first: Float32, second: Float32) -> Int32:
        """Two neighbours, rounded, in the low bits of a word, the first lowest (not for FP32)."""
        if cutlass.const_expr(self.bits == 4):
            return e2m1_code(first) | (e2m1_code(second) << 4)
        return round_pair(first, second, self.pair_kind)


STORAGE = {
    "float32": StorageFormat("float32", 32),
    "float16": StorageFormat("float16", 16, "f16x2"),
    "bfloat16": StorageFormat("bfloat16", 16, "bf16x2"),
    "float8_e4m3fn": StorageFormat("float8_e4m3fn", 8, "e4m3x2"),
    "float8_e5m2": StorageFormat("float8_e5m2", 8, "e5m2x2"),
    "float4_e2m1fn": StorageFormat("float4_e2m1fn", 4),
}
