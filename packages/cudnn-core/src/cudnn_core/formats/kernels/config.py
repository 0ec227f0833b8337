"""What selects a compiled quantization kernel: frozen, hashable. Imports formats.spec."""

from dataclasses import dataclass

from ..spec import FORMATS, Format, resolve

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
TILE_ROWS = 128


@dataclass(frozen=True)
class QuantizeConfig:
    """Everything compile-time; extents, strides of outer axes and pointers are run-time.

    in_dtype: float16, bfloat16 or float32.
    format, block: a name of formats.spec.FORMATS and its block length.
    path: "vector" (K contiguous, K a multiple of 16, rows 16-byte aligned) or "strided" (any).
    scale_layout: "atom" (flat 512-byte atoms) or "plain" ((L, rows, blocks), contiguous).
    tensor_scale: "none", "given" (read from the device), or "computed" (from an amax on the
        device, which a kernel compiled from AmaxConfig leaves there).
    """

    in_dtype: str
    format: str
    block: int
    path: str
    scale_layout: str
    tensor_scale: str

    @property
    def fmt(self) -> Format:
        return resolve(FORMATS[self.format], self.block)

    @property
    def chunk(self) -> int:
        """Elements a thread takes at once, contiguous along K."""
        if self.path == "strided":
            return self.block
        return 32 // ELEMENT_BYTES[self.in_dtype]

    @property
    def threads(self) -> int:
        return 256 if self.path == "vector" else TILE_ROWS

    @property
    def rows_in_flight(self) -> int:
        """Rows whose loads a thread issues before it uses the first."""
        return 4 if self.path == "vector" else 1

    @property
    def steps(self) -> int:
        """Rounds a thread makes over its tile."""
        if self.path == "strided":
            return 4
        return TILE_ROWS // (self.threads // 32 * self.rows_in_flight)

    @property
    def tile_k(self) -> int:
        return 4 * self.block if self.path == "strided" else 32 * self.chunk

    @property
    def tile_blocks(self) -> int:
        return self.tile_k // self.block


@dataclass(frozen=True)
class AmaxConfig:
    """The pass over x that a computed per-tensor scale needs; fields as in QuantizeConfig."""

    in_dtype: str
    path: str
    block: int = 32

    chunk = QuantizeConfig.chunk
    threads = QuantizeConfig.threads
    rows_in_flight = QuantizeConfig.rows_in_flight
    steps = QuantizeConfig.steps
    tile_k = QuantizeConfig.tile_k
