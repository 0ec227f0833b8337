"""NumPy mathematics shared by the dense ops: operands, products, storing, quantizing, maxima. Imports NumPy only.

Arrays here are (L, rows, columns) FP32; `named` maps operand names to an executable's arrays, batch last.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from cudnn_core.contract import OperandPlan, Signature
from cudnn_core.formats import layout
from cudnn_core.formats import reference as formats
from cudnn_core.formats.spec import E2M1, E4M3, E5M2, Format

from .operands import FORMAT_SCALES, vec_of

ELEMENTS = {"float8_e4m3fn": E4M3, "float8_e5m2": E5M2, "float4_e2m1fn": E2M1}
Named = Mapping[str, np.ndarray]


def to_bf16(x: np.ndarray) -> np.ndarray:
    """FP32 rounded to BF16's values (nearest even, overflow to Inf), as FP32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def side_values(signature: Signature, named: Named, side: int) -> np.ndarray:
    """(L, rows, K): the left (0) or the right (1) operand as it is multiplied.

    Block-scaled elements times their scales are rounded once to BF16, as the tensor core gets them; all else is exact.
    """
    name, scale = (("a_tensor", "sfa_tensor"), ("b_tensor", "sfb_tensor"))[side]
    data = batch_first(named[name])
    operand = signature.operand(name)
    if operand.dtype not in ELEMENTS:
        return data.astype(np.float32)
    # Strided views first become dense: a byte view needs a contiguous last axis.
    codes = np.ascontiguousarray(data).view(np.uint8)
    if operand.dtype == "float4_e2m1fn":
        codes = formats.unpack_fp4(codes)
    elements = formats.decode(codes, ELEMENTS[operand.dtype])
    if not signature.has(scale):
        return elements
    factor = factors(
        signature.operand(scale), named[scale], elements.shape, vec_of(signature, side)
    )
    with np.errstate(all="ignore"):
        return to_bf16(elements * factor)


def factors(plan: OperandPlan, scale: np.ndarray, shape: tuple[int, ...], vec: int) -> np.ndarray:
    """The scale of every element of (L, rows, K). Scale padding is not read."""
    _, rows, k = shape
    plain = plain_scales(scale, plan.major, rows=rows, blocks=-(-k // vec))
    return np.repeat(formats.scale_values(plan.dtype)[plain], vec, axis=-1)[..., :k]


def plain_scales(scale: np.ndarray, form: str, rows: int, blocks: int) -> np.ndarray:
    """(L, rows, blocks) bytes out of the 128x4 atoms, in either view."""
    atoms = scale.view(np.uint8)
    physical = atoms.transpose(layout.TO_PHYSICAL) if form == "logical" else atoms
    return layout.unpack(formats.numpy_ops, physical, rows, blocks)


def product(signature: Signature, named: Named) -> np.ndarray:
    """(L, M, N): products of the operands' values summed in FP64, rounded once to FP32; times alpha if there is one."""
    left, right = (side_values(signature, named, side) for side in (0, 1))
    with np.errstate(all="ignore"):
        wide = left.astype(np.float64) @ right.astype(np.float64).swapaxes(1, 2)
        acc = wide.astype(np.float32)
        return np.float32(named["alpha"]) * acc if "alpha" in named else acc


def batch_first(x: np.ndarray) -> np.ndarray:
    """(rows, columns, L) seen as (L, rows, columns)."""
    return np.moveaxis(x, -1, 0)


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0) that keeps NaN."""
    return np.where(x <= 0, np.float32(0), x)


def store(x: np.ndarray, operand: OperandPlan, out: np.ndarray) -> None:
    """Convert (L, M, N) FP32 to the output's type and write it: nearest even, FP8 and FP4 saturate."""
    if operand.dtype == "float32":
        values = x
    elif operand.dtype in ELEMENTS:
        values = formats.encode(x, ELEMENTS[operand.dtype])
        values = formats.pack_fp4(values) if operand.dtype == "float4_e2m1fn" else values
        out = out.view(np.uint8)
    else:
        with np.errstate(all="ignore"):
            values = x.astype(formats.DTYPES[operand.dtype])
    out[...] = np.moveaxis(values, 0, -1)


def store_output(
    x: np.ndarray, signature: Signature, named: Named, matrix: str, scale: str
) -> None:
    """Convert and write the output `matrix`, quantized where it has scales.

    Quantized, it is what `cudnn.quantize` makes of x along its columns, times norm_const before, bit for bit.
    """
    plan = signature.operand(matrix)
    if not signature.has(scale):
        store(x, plan, named[matrix])
        return
    dtype, block = FORMAT_SCALES[signature.attribute("out_format")]
    fmt = Format("", ELEMENTS[plan.dtype], dtype.name, (block,), block)
    norm_const = named.get("norm_const_tensor", np.ones(1, np.float32)).reshape(())
    codes, scales = formats.quantize_blocks(x, fmt, norm_const)
    data = formats.pack_fp4(codes) if fmt.is_fp4 else codes
    named[matrix].view(np.uint8)[...] = np.moveaxis(data, 0, -1)
    atoms = layout.pack(formats.numpy_ops, scales)
    if signature.operand(scale).major == "logical":
        atoms = atoms.transpose(layout.TO_LOGICAL)
    named[scale].view(np.uint8)[...] = atoms


def update_amax(amax: np.ndarray, x: np.ndarray, per_batch: bool) -> None:
    """amax = max(prior, +0, max |x|), all compared as signed integers: NaN wins, negative priors lose."""
    bits = np.abs(x).view(np.int32)
    axes = (1, 2) if per_batch else None
    largest = bits.max(axis=axes, initial=0).reshape(amax.shape)
    amax[...] = np.maximum(amax.view(np.int32), largest).view(np.float32)


def join_amax(x: np.ndarray, signature: Signature, named: Named) -> None:
    """`update_amax` of the call's amax, if it has one."""
    if signature.has("amax_tensor"):
        per_batch = signature.attribute("amax") == "per_batch"
        update_amax(named["amax_tensor"], x, per_batch)
