"""quantize, dequantize, pack_scales, unpack_scales for every array library.

Imports adapters, formats.spec; the implementation for an array's library is imported when it is called.
"""

from math import inf

from ..adapters import adapter_of
from ..dtypes import as_dtype
from ..tuple_dict import TupleDict
from .spec import (
    FLOAT_MAX,
    INPUT_DTYPES,
    OUTPUT_DTYPES,
    SCALE_LAYOUTS,
    SMALLEST,
    Format,
    geometry,
    integer,
    resolve,
)

_SCALE_BYTES = ("uint8", "int8")


def quantize(
    x,
    format,
    *,
    axis=-1,
    scale_layout="atom",
    per_tensor_scale=None,
    sf_vec_size=None,
    row_axis=None,
    engine=None,
) -> TupleDict:
    """Narrow floats with one scale per block of ``sf_vec_size`` elements along ``axis``.

    For one block, in FP32 (nearest even, no flushing; R = FP32(1/448) for e4m3, FP32(1/57344) for
    e5m2, FP32(1/6) for e2m1; nc = min(1/|p|, FLT_MAX) with a per-tensor scale p, otherwise 1)::

        s    = (max|x| * R) * nc
        q    = s rounded up to a power of two (E8M0), or to the nearest even E4M3 number
        g    = min(nc * (1/q), FLT_MAX)
        code = round(x * g)            nearest even, saturating

    ==============  ========  =====  ==================  ==========================
    format          elements  scale  sf_vec_size         names of cuDNN and others
    ==============  ========  =====  ==================  ==========================
    ``mxfp8``       e4m3fn    E8M0   32                  MXFP8 (also ``mxfp8_e4m3``)
    ``mxfp8_e5m2``  e5m2      E8M0   32                  MXFP8, e5m2 elements
    ``mxfp4``       e2m1fn    E8M0   32 (default) or 16  MXFP4
    ``nvfp4``       e2m1fn    E4M3   16                  NVFP4
    ==============  ========  =====  ==================  ==========================

    Special values: a block with a NaN has a NaN scale (255, or 0x7F in E4M3) and every code of it
    is NaN (0x7F; +6 in e2m1). A block with an Inf has the largest scale (254, or 0x7E) and codes by
    the formula. A block of zeros has scale 0, its zeros keep their signs. The last block along
    ``axis`` may be partial. Any extent may be 0. NumPy, PyTorch (CPU, CUDA) and JAX give the same
    bits.

    Args:
        x: float16, bfloat16 or float32 array. With the default ``axis`` (K,), (rows, K) or
            (..., rows, K). With ``axis=1`` a GEMM operand (rows, K, L); with ``axis=0`` (K, rows)
            or (K, rows, L). Any strides.
        format: a name of the table.
        axis: the contraction axis.
        scale_layout: ``"atom"``, the 128x4 atoms as a GEMM of x's library takes them: the view
            (32, 4, R, 4, Q, L) in NumPy and PyTorch, the array (L, R, Q, 32, 4, 4) in JAX, which
            has no strides; R = ceil(rows/128), Q = ceil(blocks/4), bytes of rows and blocks that
            do not exist are 0. ``"logical"`` and ``"physical"`` name one of the two.
            ``"plain"``: x's axes with ceil(K/sf_vec_size) in place of K.
        per_tensor_scale: for ``nvfp4``. True: min(max|x|, FLT_MAX) / (6 * 448) of the whole array.
            Or the number itself (positive), as a float or a one-element array. Decoded values are
            code * scale * per_tensor_scale.
        sf_vec_size: block length, where the format leaves a choice.
        row_axis: which axis counts rows, if not the one told above.
        engine: None chooses: ``"hopper"`` (the kernel) for CUDA tensors, ``"reference"`` for NumPy
            and for PyTorch's CPU tensors, ``"jax"``. ``"torch"`` asks for PyTorch operations, on
            any device.

    Returns:
        TupleDict ``data, scale, per_tensor_scale``. ``data`` has x's axes. FP8 is the library's
        dtype, contiguous along K, or along the rows if x is (an M-major operand). FP4 is two codes
        a byte along ``axis``, the first in the low nibble, extent ceil(K/2): float4_e2m1fn_x2 in
        PyTorch (uint8 before 2.8), uint8 elsewhere. Batches are outermost in memory, so
        ``axis=1`` gives a GEMM's compact strides (K, 1, rows*K). ``per_tensor_scale``: 0-d FP32, or
        None if not asked for.

    Raises:
        ValueError: dtype, format, axis, option; TypeError: x is no array; RuntimeError: no kernel
        for this device; ImportError: the kernel's compiler is missing.

    A matrix as a GEMM operand (L = 1)::

        q = cudnn.quantize(x, "mxfp8")                      # x: (M, K)
        a, sfa = q["data"][:, :, None], q["scale"]          # (M, K, 1), (32, 4, R, 4, Q, 1)

    Source: OCP Microscaling Formats 1.0, with scales rounded up as cuDNN's quantizers do.
    """
    fmt = resolve(format, sf_vec_size)
    implementation = _implementation("x", x)
    _check_input_dtype(implementation.dtype_name(x))
    _check_choice("scale_layout", scale_layout, SCALE_LAYOUTS)
    if engine is not None:
        _check_choice("engine", engine, implementation.ENGINES)
    geo = geometry("x", x.shape, axis, row_axis, fmt.block)
    per_tensor_scale = _per_tensor(per_tensor_scale, fmt, framework_of(x))
    data, scale, tensor_scale = implementation.quantize(
        x, fmt, geo, scale_layout, per_tensor_scale, engine
    )
    return TupleDict(data=data, scale=scale, per_tensor_scale=tensor_scale)


def dequantize(
    data,
    scale,
    format,
    *,
    axis=-1,
    scale_layout="atom",
    per_tensor_scale=None,
    dtype="float32",
    size=None,
    sf_vec_size=None,
    row_axis=None,
):
    """element * scale [* per_tensor_scale], each product rounded once to FP32, then to ``dtype``.

    Every code and every scale byte is legal; the first product is exact unless it exceeds FP32's
    range (Inf: inputs above 3e38 may have been rounded up to that). E8M0 code 255 and E4M3
    0x7F/0xFF are NaN, E8M0 code 0 is 2^-127; the sign bit of an E4M3 scale is a sign.

    Args:
        data: codes as `quantize` returns them; FP4 as bytes of two codes.
        scale: any layout `quantize` can return, as the scale dtype or uint8 (or int8 for E8M0).
            The two views of atoms are told apart by shape. Padding bytes are ignored.
        size: K, when FP4 data holds an odd number of elements.
        dtype: float32 (default), bfloat16 or float16, in any spelling.

    Other arguments and the axes are those of `quantize`. Raises ValueError for a wrong dtype,
    shape or option, naming the argument.
    """
    fmt = resolve(format, sf_vec_size)
    implementation = _implementation("data", data)
    _check_same_library("data", data, "scale", scale)
    _check_data_dtype(implementation.dtype_name(data), fmt)
    _check_scale_dtype(implementation.dtype_name(scale), fmt)
    _check_choice("scale_layout", scale_layout, SCALE_LAYOUTS)
    name = as_dtype(dtype).name
    _check_choice("dtype", name, OUTPUT_DTYPES)
    geo = geometry("data", data.shape, axis, row_axis, fmt.block)
    held = geo.k * fmt.element.codes_per_byte
    size = held if size is None else integer("size", size)
    if -(-size // fmt.element.codes_per_byte) != geo.k:
        raise ValueError(f"size: data holds {held} elements along axis {axis}, got {size}")
    geo = geometry("data", geo.with_k(size), axis, row_axis, fmt.block)
    per_tensor_scale = _per_tensor(per_tensor_scale, fmt, framework_of(data), computed=False)
    return implementation.dequantize(data, scale, fmt, geo, scale_layout, per_tensor_scale, name)


def pack_scales(scale, *, axis=-1, row_axis=None, scale_layout="atom"):
    """Plain scales, one byte per (row, block), into 128x4 atoms; padding bytes are 0.

    ``scale``: (blocks,), (rows, blocks), (..., rows, blocks), or (rows, blocks, L) with ``axis=1``;
    ``axis`` counts blocks. Any one-byte dtype, which is kept. ``scale_layout``: ``"atom"``,
    ``"logical"`` (32, 4, R, 4, Q, L) or ``"physical"`` (L, R, Q, 32, 4, 4), as in `quantize`.
    """
    implementation = _implementation("scale", scale)
    _check_bytes("scale", implementation.dtype_name(scale))
    _check_choice("scale_layout", scale_layout, SCALE_LAYOUTS[:3])
    geo = geometry("scale", scale.shape, axis, row_axis, 1)
    return implementation.pack_scales(scale, geo, scale_layout)


def unpack_scales(scale, shape, *, axis=-1, row_axis=None):
    """128x4 atoms, in either view, back into plain scales of ``shape``; inverse of `pack_scales`.

    ``shape``: that of the plain scales, for example (rows, blocks); ``axis`` counts blocks.
    """
    implementation = _implementation("scale", scale)
    _check_bytes("scale", implementation.dtype_name(scale))
    if isinstance(shape, str) or not hasattr(shape, "__iter__"):
        raise TypeError(f"shape: expected the shape of plain scales, got {shape!r}")
    shape = tuple([integer("shape", extent) for extent in shape])
    if any([extent < 0 for extent in shape]):
        raise ValueError(f"shape: expected extents of 0 or more, got {shape}")
    return implementation.unpack_scales(scale, geometry("shape", shape, axis, row_axis, 1))


def framework_of(x) -> str:
    """The library x belongs to: numpy, torch, jax, or unknown for what holds no data of these."""
    adapter = adapter_of(x)
    return "unknown" if adapter is None or adapter.name == "metadata" else adapter.name


def _implementation(name: str, x):
    framework = framework_of(x)
    if framework == "unknown":
        raise TypeError(
            f"{name}: expected a NumPy, PyTorch or JAX array, got {type(x).__module__}."
            f"{type(x).__qualname__}"
        )
    # Statements rather than import_module: torch.compile traces through them.
    if framework == "torch":
        from . import torch_impl as implementation
    elif framework == "jax":
        from . import jax_impl as implementation
    else:
        from . import reference as implementation
    return implementation


def _check_same_library(name: str, x, other_name: str, other):
    expected, got = framework_of(x), framework_of(other)
    if expected != got:
        raise TypeError(f"{other_name}: expected a {expected} array like {name}, got {got}")


def _check_input_dtype(got: str):
    if got not in INPUT_DTYPES:
        raise ValueError(f"x: expected dtype {_either(INPUT_DTYPES)}, got {got}")


def _check_data_dtype(got: str, fmt: Format):
    if fmt.is_fp4:
        if got == "float4_e2m1fn":
            raise ValueError(
                "data: unpacked float4_e2m1fn, one code a byte; expected uint8 with two codes a "
                "byte, as cudnn.quantize returns"
            )
        expected = ("float4_e2m1fn_x2", "uint8")
    else:
        expected = (fmt.element.name, "uint8")
    if got not in expected:
        raise ValueError(f"data: {fmt.name} expects dtype {_either(expected)}, got {got}")


def _check_scale_dtype(got: str, fmt: Format):
    expected = (fmt.scale, *(_SCALE_BYTES if fmt.scale_is_e8m0 else _SCALE_BYTES[:1]))
    if got not in expected:
        raise ValueError(f"scale: {fmt.name} expects dtype {_either(expected)}, got {got}")


def _check_bytes(name: str, got: str):
    expected = ("float8_e8m0fnu", "float8_e4m3fn", *_SCALE_BYTES)
    if got not in expected:
        raise ValueError(f"{name}: expected dtype {_either(expected)}, got {got}")


def _check_choice(name: str, got, expected):
    if not isinstance(got, str) or got not in expected:
        raise ValueError(f"{name}: expected {_either(map(repr, expected))}, got {got!r}")


def _either(options) -> str:
    *first, last = options
    return f"{', '.join(first)} or {last}" if first else last


def _per_tensor(given, fmt: Format, framework: str, computed=True):
    """None, True, a Python float, or a one-element array; anything else is refused."""
    if given is None or given is False:
        return None
    if fmt.scale_is_e8m0:
        raise ValueError(f"per_tensor_scale: only nvfp4 has one, got format {fmt.name!r}")
    if given is True:
        if computed:
            return True
        raise ValueError("per_tensor_scale: expected the scale that quantize returned, got True")
    if framework_of(given) != "unknown":
        if framework_of(given) != framework:
            raise TypeError(
                f"per_tensor_scale: expected a {framework} array like the other, got "
                f"{framework_of(given)}"
            )
        count = 1
        for extent in given.shape:
            count *= extent
        if count != 1:
            raise ValueError(
                f"per_tensor_scale: expected one element, got shape {tuple(given.shape)}"
            )
        return given
    try:
        number = float(given)
    except OverflowError:
        number = inf
    except (TypeError, ValueError):
        raise TypeError(
            f"per_tensor_scale: expected None, True, a number or an array, got "
            f"{type(given).__name__}"
        ) from None
    if not SMALLEST <= number <= FLOAT_MAX:
        raise ValueError(f"per_tensor_scale: expected a positive finite FP32 number, got {given}")
    return number
