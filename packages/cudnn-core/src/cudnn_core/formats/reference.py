"""The law: every conversion and quantizer in NumPy. Imports numpy, ml_dtypes, float_env, formats.*.

All arithmetic is IEEE FP32 with round-to-nearest-even and without flushing subnormals. For one
block of values x (widened exactly to FP32) and a norm constant nc (1 unless given):

    amax = max |x|                      NaN if any x is NaN
    s    = (amax * R) * nc              R = FP32(1 / max_value of the element type)
    q    = scale type of s              E8M0: up to a power of two, at most 2^127;
                                        E4M3: to nearest even, at most 448
    g    = min(nc * (1 / q), FLT_MAX)   NaN stays NaN; 1/0 is Inf
    code = element type of (x * g)      to nearest even, saturating

Decoded: code * q / nc. With a per-tensor scale p, nc = min(1 / |p|, FLT_MAX). These are also the
steps of the quantizing epilogues, so a fused op and `quantize` of its FP32 result agree.
"""

from functools import cache

import ml_dtypes
import numpy as np

from ..float_env import ieee_arithmetic
from . import layout
from .spec import E2M1, E4M3, FLOAT_MAX, ElementType, Format, Geometry, scale_magnitude

ENGINES = ("reference",)
DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
} | {name: np.dtype(name) for name in ("float16", "float32", "uint8", "int8")}


class numpy_ops:
    """What formats.layout needs of an array library."""

    atom_view = "logical"
    permute = staticmethod(np.transpose)
    contiguous = staticmethod(np.ascontiguousarray)

    @staticmethod
    def pad(array, rows, columns):
        return np.pad(array, ((0, 0), (0, rows), (0, columns)))


def dtype_name(x) -> str:
    return x.dtype.name


# --- conversions -------------------------------------------------------------------------------


@cache
def _boundaries(element: ElementType) -> np.ndarray:
    """For every code but the largest: the largest FP32 magnitude that still encodes to it or less.

    That is the midpoint to the next code when the code is even, for a tie goes to the even one,
    and the FP32 number just below the midpoint when it is odd.
    """
    values = np.array([element.magnitude(c) for c in range(element.max_code + 1)], np.float32)
    middle = (values[:-1] + values[1:]) / np.float32(2)
    odd = np.arange(element.max_code) % 2 == 1
    return np.where(odd, np.nextafter(middle, np.float32(0)), middle)


def encode(x: np.ndarray, element: ElementType) -> np.ndarray:
    """FP32 -> codes (one a byte): nearest even, saturating (Inf too), -0 kept.

    NaN becomes ``nan_code`` with a clear sign: 0x7F in FP8, +6 in E2M1.
    """
    x = np.asarray(x, np.float32)
    code = np.searchsorted(_boundaries(element), np.abs(x), side="left").astype(np.uint8)
    code |= np.signbit(x).astype(np.uint8) * np.uint8(element.sign_code)
    return np.where(np.isnan(x), np.uint8(element.nan_code), code)


@cache
def values(element: ElementType) -> np.ndarray:
    """The FP32 value of every code, sign bit included: 256 or 16 entries."""
    positive = [element.magnitude(c) for c in range(element.sign_code)]
    return np.array([*positive, *(-v for v in positive)], np.float32)


def decode(code: np.ndarray, element: ElementType) -> np.ndarray:
    """Codes (one a byte) -> their exact FP32 values."""
    return values(element)[code]


def e8m0_encode(x: np.ndarray) -> np.ndarray:
    """FP32 magnitude -> the code of the smallest power of two that is not below it.

    0 -> 0 (2^-127); above 2^127 and Inf -> 254; NaN -> 255.
    """
    bits = np.asarray(x, np.float32).view(np.uint32)
    exponent = bits >> np.uint32(23)
    mantissa = bits & np.uint32(0x7FFFFF)
    # 2^-127 is a subnormal FP32 number, 0x400000: at or below it the code is 0, above it 1.
    code = np.where(exponent == 0, mantissa > 0x400000, exponent + (mantissa != 0))
    code = np.minimum(code, 254)
    return np.where(bits > 0x7F800000, 255, code).astype(np.uint8)


@cache
def e8m0_values() -> np.ndarray:
    """2^(code - 127) for 0..254 (code 0 is subnormal in FP32), NaN for 255."""
    return np.array([scale_magnitude("float8_e8m0fnu", c) for c in range(256)], np.float32)


def scale_encode(s: np.ndarray, scale: str) -> np.ndarray:
    return e8m0_encode(s) if scale == "float8_e8m0fnu" else encode(s, E4M3)


def scale_values(scale: str) -> np.ndarray:
    """The FP32 value of all 256 scale bytes; the sign bit of an E4M3 scale is a sign."""
    return e8m0_values() if scale == "float8_e8m0fnu" else values(E4M3)


def pack_fp4(codes: np.ndarray) -> np.ndarray:
    """(..., K) codes -> (..., ceil(K/2)) bytes, the even element in the low nibble."""
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def unpack_fp4(data: np.ndarray) -> np.ndarray:
    """(..., B) bytes -> (..., 2B) codes."""
    pair = np.stack([data & np.uint8(0xF), data >> np.uint8(4)], axis=-1)
    return pair.reshape(*data.shape[:-1], 2 * data.shape[-1])


# --- block quantization ------------------------------------------------------------------------


def quantize_blocks(x: np.ndarray, fmt: Format, norm_const=1.0):
    """FP32 (..., K) -> codes (..., K), one a byte, and scale bytes (..., ceil(K/block))."""
    k, v = x.shape[-1], fmt.block
    blocks = -(-k // v)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, blocks * v - k)])
    padded = padded.reshape(*x.shape[:-1], blocks, v)
    constant = np.float32(norm_const)
    reciprocal = np.uint32(fmt.element.reciprocal_bits).view(np.float32)
    with np.errstate(all="ignore"):
        amax = np.abs(padded).max(axis=-1)
        scale = scale_encode((amax * reciprocal) * constant, fmt.scale)
        inverse = np.float32(1) / scale_values(fmt.scale)[scale]
        gain = np.minimum(constant * inverse, np.float32(FLOAT_MAX))
        codes = encode(padded * gain[..., None], fmt.element)
    return codes.reshape(*x.shape[:-1], blocks * v)[..., :k], scale


def tensor_scale(x: np.ndarray) -> np.ndarray:
    """min(max |x|, FLT_MAX) / (6 * 448); 0 for an empty array."""
    amax = np.abs(x).max(initial=np.float32(0))
    return np.float32(min_nan(amax, FLOAT_MAX) / np.float32(E2M1.max_value * E4M3.max_value))


def norm_constant(per_tensor_scale) -> np.float32:
    with np.errstate(divide="ignore", over="ignore"):
        return np.float32(min_nan(np.float32(1) / np.abs(per_tensor_scale), FLOAT_MAX))


def min_nan(a, b):
    """The smaller one; NaN if either is."""
    return np.minimum(np.float32(a), np.float32(b))


# --- what formats.api calls --------------------------------------------------------------------


@ieee_arithmetic()
def quantize(x, fmt: Format, geo: Geometry, scale_layout: str, per_tensor_scale, engine=None):
    ordered = layout.canonical(numpy_ops, np.asarray(x), geo)
    wide = ordered.astype(np.float32)
    if per_tensor_scale is True:
        per_tensor_scale = tensor_scale(wide)
    constant = 1.0
    if per_tensor_scale is not None:
        per_tensor_scale = np.asarray(per_tensor_scale, np.float32).reshape(())
        constant = norm_constant(per_tensor_scale)
    codes, scale = quantize_blocks(wide, fmt, constant)
    data = pack_fp4(codes) if fmt.is_fp4 else codes
    if not fmt.is_fp4 and _rows_contiguous(x, geo):
        data = np.ascontiguousarray(data.swapaxes(1, 2)).swapaxes(1, 2)
    else:
        data = np.ascontiguousarray(data)
    return (
        layout.restore(numpy_ops, data.view(data_dtype(fmt)), geo, data.shape[-1]),
        # Laid out as bytes: as E8M0 numbers the padding zeros would turn into NaN.
        layout.present(numpy_ops, scale, geo, scale_layout).view(DTYPES[fmt.scale]),
        per_tensor_scale,
    )


def data_dtype(fmt: Format) -> np.dtype:
    return DTYPES["uint8" if fmt.is_fp4 else fmt.element.name]


def _rows_contiguous(x: np.ndarray, geo: Geometry) -> bool:
    """Whether the rows, not the contraction axis, are x's contiguous axis (an M-major operand)."""
    if len(geo.order) < 2 or geo.rows == 1 or geo.k == 1:
        return False
    return x.strides[geo.order[-2]] == x.itemsize != x.strides[geo.order[-1]]


@ieee_arithmetic()
def dequantize(data, scale, fmt: Format, geo: Geometry, scale_layout, per_tensor_scale, dtype):
    codes = layout.canonical(numpy_ops, np.asarray(data).view(np.uint8), geo)
    if fmt.is_fp4:
        codes = unpack_fp4(codes)[..., : geo.k]
    plain = layout.absorb(numpy_ops, np.asarray(scale).view(np.uint8), geo, scale_layout)
    factor = scale_values(fmt.scale)[plain].repeat(fmt.block, axis=-1)[..., : geo.k]
    with np.errstate(all="ignore"):
        x = decode(codes, fmt.element) * factor
        if per_tensor_scale is not None:
            x = x * np.asarray(per_tensor_scale, np.float32).reshape(())
        x = x.astype(DTYPES[dtype])
    return layout.restore(numpy_ops, x, geo, geo.k)


def pack_scales(plain, geo: Geometry, scale_layout: str):
    bytes_ = layout.canonical(numpy_ops, plain.view(np.uint8), geo)
    atoms = layout.pack(numpy_ops, bytes_).view(plain.dtype)
    return layout.present_atoms(numpy_ops, atoms, scale_layout)


def unpack_scales(scale, geo: Geometry):
    plain = layout.absorb(numpy_ops, scale.view(np.uint8), geo, "atom")
    return layout.restore(numpy_ops, np.ascontiguousarray(plain), geo, geo.k).view(scale.dtype)
