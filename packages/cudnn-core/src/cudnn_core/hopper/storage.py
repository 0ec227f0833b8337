"""How FP32 results are converted and laid out in the storage formats of outputs.

May import: the CuTe DSL, bits.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from .bits import round_pair


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
        """Two neighbours, rounded, in the low bits of a word, the first lowest (8 and 16 bits)."""
        return round_pair(first, second, self.pair_kind)


STORAGE = {
    "float32": StorageFormat("float32", 32),
    "float16": StorageFormat("float16", 16, "f16x2"),
    "bfloat16": StorageFormat("bfloat16", 16, "bf16x2"),
    "float8_e4m3fn": StorageFormat("float8_e4m3fn", 8, "e4m3x2"),
    "float8_e5m2": StorageFormat("float8_e5m2", 8, "e5m2x2"),
    "float4_e2m1fn": StorageFormat("float4_e2m1fn", 4),
}
