"""Block-scaled formats as data: element types, scale types, block lengths. Imports stdlib, float_env."""

import struct
from dataclasses import dataclass, replace
from operator import index

from ..float_env import ieee_arithmetic

FLOAT_MAX = 3.4028234663852886e38
SMALLEST = 2.0**-149  # positive FP32 number
SCALE_LAYOUTS = ("atom", "logical", "physical", "plain")
INPUT_DTYPES = ("float16", "bfloat16", "float32")
OUTPUT_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ElementType:
    """A narrow float: sign, exponent, ``mantissa_bits`` of mantissa; encoded from FP32.

    ``max_code`` encodes ``max_value``, the largest finite magnitude, and is where encoding
    saturates. ``nan_code`` is what NaN encodes to (E2M1 has no NaN: +6).
    """

    name: str
    bits: int
    mantissa_bits: int
    min_exponent: int
    max_value: float
    max_code: int
    nan_code: int

    @property
    def sign_code(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def reciprocal_bits(self) -> int:
        """FP32 bit pattern of R = FP32(1 / max_value), the constant of the quantization rule."""
        return float_bits(1.0 / self.max_value)

    @property
    def codes_per_byte(self) -> int:
        return 8 // self.bits

    def magnitude(self, code: int) -> float:
        """The exact value of a code without its sign bit; NaN and Inf codes included."""
        exponent, mantissa = divmod(code, 1 << self.mantissa_bits)
        if code > self.max_code:
            # E5M2 keeps IEEE's Inf just above its largest finite code; E4M3 has only NaN there.
            return float("inf") if self.name == "float8_e5m2" and mantissa == 0 else float("nan")
        fraction = mantissa / (1 << self.mantissa_bits) + (exponent > 0)
        return fraction * 2.0 ** (max(exponent - 1, 0) + self.min_exponent)


@ieee_arithmetic()
def float_bits(value: float) -> int:
    """The FP32 bit pattern of a non-negative number in range, Inf or NaN; to nearest even."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


E4M3 = ElementType("float8_e4m3fn", 8, 3, -6, 448.0, 0x7E, 0x7F)
E5M2 = ElementType("float8_e5m2", 8, 2, -14, 57344.0, 0x7B, 0x7F)
E2M1 = ElementType("float4_e2m1fn", 4, 1, 0, 6.0, 7, 7)


@dataclass(frozen=True)
class Format:
    """Elements of one narrow type sharing one scale per ``block`` along the contraction axis."""

    name: str
    element: ElementType
    scale: str
    blocks: tuple[int, ...]
    block: int

    @property
    def is_fp4(self) -> bool:
        return self.element.bits == 4

    @property
    def scale_is_e8m0(self) -> bool:
        return self.scale == "float8_e8m0fnu"


def scale_magnitude(scale: str, code: int) -> float:
    """|value| of a scale byte."""
    if scale == "float8_e8m0fnu":
        return 2.0 ** (code - 127) if code < 255 else float("nan")
    return E4M3.magnitude(code & 0x7F)


FORMATS = {
    "mxfp8": Format("mxfp8", E4M3, "float8_e8m0fnu", (32,), 32),
    "mxfp8_e5m2": Format("mxfp8_e5m2", E5M2, "float8_e8m0fnu", (32,), 32),
    "mxfp4": Format("mxfp4", E2M1, "float8_e8m0fnu", (32, 16), 32),
    "nvfp4": Format("nvfp4", E2M1, "float8_e4m3fn", (16,), 16),
}
ALIASES = {"mxfp8_e4m3": "mxfp8"}


def resolve(format, sf_vec_size=None) -> Format:
    """The Format that a name (or a Format) and an optional block length mean, else ValueError."""
    if not isinstance(format, Format):
        if not isinstance(format, str):
            raise TypeError(f"format: expected a name, one of {names()}, got {_kind(format)}")
        found = FORMATS.get(ALIASES.get(format, format))
        if found is None:
            raise ValueError(f"format: expected one of {names()}, got {format!r}")
        format = found
    if sf_vec_size is None:
        return format
    if integer("sf_vec_size", sf_vec_size) not in format.blocks:
        legal = " or ".join(map(str, format.blocks))
        raise ValueError(f"sf_vec_size: {format.name} takes {legal}, got {sf_vec_size!r}")
    return replace(format, block=int(sf_vec_size))


def integer(argument: str, value):
    """`value` where it is an integer of any type, but no bool; `TypeError` naming the argument."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # first, because torch.compile passes symbolic ones
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise TypeError(f"{argument}: expected an integer, got {value!r}")


def names() -> str:
    return ", ".join(repr(name) for name in (*FORMATS, *ALIASES))


def _kind(value) -> str:
    return type(value).__name__


@dataclass(frozen=True)
class Geometry:
    """Which axes of an array are batch, rows and contraction, and how many blocks that makes.

    ``order`` lists the axes as (batch..., row, contraction); a 1-D array has no row axis. The
    canonical form of every array here is (L, rows, K), C-contiguous, with L the product of the
    batch extents.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    block: int

    @property
    def k(self) -> int:
        return self.shape[self.order[-1]]

    @property
    def rows(self) -> int:
        return self.shape[self.order[-2]] if len(self.order) > 1 else 1

    @property
    def batch(self) -> int:
        product = 1
        for axis in self.order[:-2]:
            product *= self.shape[axis]
        return product

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    @property
    def physical(self) -> tuple[int, ...]:
        """Shape of the 128x4 atoms: (L, ceil(rows/128), ceil(blocks/4), 32, 4, 4)."""
        return (self.batch, -(-self.rows // 128), -(-self.blocks // 4), 32, 4, 4)

    @property
    def logical(self) -> tuple[int, ...]:
        batch, row_atoms, block_atoms = self.physical[:3]
        return (32, 4, row_atoms, 4, block_atoms, batch)

    @property
    def inverse(self) -> tuple[int, ...]:
        """The permutation that undoes ``order``."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))

    def with_k(self, extent: int) -> tuple[int, ...]:
        """The array's shape with another extent along the contraction axis."""
        axis = self.order[-1]
        return (*self.shape[:axis], extent, *self.shape[axis + 1 :])

    def ordered(self, extent: int) -> tuple[int, ...]:
        """``with_k(extent)`` permuted to (batch..., row, contraction)."""
        shape = self.with_k(extent)
        return tuple(shape[axis] for axis in self.order)


def geometry(name: str, shape, axis: int, row_axis: int | None, block: int) -> Geometry:
    """Reads an array's axes.

    ``axis`` is the contraction axis. ``row_axis`` may be left out: for the last axis it is the one
    before; otherwise a matrix has only one other axis, and three axes are the GEMM operand's
    (rows, K, L) or (K, rows, L). What remains are batch axes, in order.
    """
    shape = tuple(shape)
    ndim = len(shape)
    if ndim == 0:
        raise ValueError(f"{name}: expected at least one axis, got a 0-d array")
    axis = _normalize("axis", name, axis, ndim)
    if ndim == 1:
        return Geometry(shape, (0,), block)
    if row_axis is None:
        row_axis = _default_row_axis(name, axis, ndim)
    row_axis = _normalize("row_axis", name, row_axis, ndim)
    if row_axis == axis:
        raise ValueError(f"row_axis: expected another axis than axis={axis}, got the same")
    batch = tuple(i for i in range(ndim) if i not in (axis, row_axis))
    return Geometry(shape, (*batch, row_axis, axis), block)


def _default_row_axis(name: str, axis: int, ndim: int) -> int:
    if axis == ndim - 1:
        return ndim - 2
    if ndim <= 3:
        return 1 - axis
    raise ValueError(
        f"row_axis: needed when {name} has {ndim} axes and axis={axis} is not the last"
    )


def _normalize(argument: str, name: str, axis, ndim: int) -> int:
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise TypeError(f"{argument}: expected an integer, got {_kind(axis)}")
    axis = axis.__index__()
    if not -ndim <= axis < ndim:
        raise ValueError(f"{argument}: {name} has {ndim} axes, got {axis}")
    return axis % ndim
