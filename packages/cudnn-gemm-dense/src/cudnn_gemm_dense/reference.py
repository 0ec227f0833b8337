"""NumPy mathematics shared by the dense ops: expansion of operands, products, storing, amax. Imports NumPy only."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from cudnn_core.contract import OperandPlan, Signature
from cudnn_core.formats import layout
from cudnn_core.formats import reference as formats
from cudnn_core.formats.spec import E2M1, E4M3, E5M2

ELEMENTS = {"float8_e4m3fn": E4M3, "float8_e5m2": E5M2, "float4_e2m1fn": E2M1}


def to_bf16(x: np.ndarray) -> np.ndarray:
    """FP32 rounded to BF16's values (nearest even, overflow to Inf), as FP32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def expand(
    operand: OperandPlan, data: np.ndarray, scales: OperandPlan, scale: np.ndarray, vec: int
):
    """(L, rows, K) FP32: element times scale, rounded once to BF16, as the tensor core gets it.

    data: (rows, K, L) in its container (FP4: (rows, K/2, L) bytes). Scale padding is not read.
    """
    element = ELEMENTS[operand.dtype]
    codes = np.moveaxis(data, -1, 0)
    # Strided views first become dense: a byte view needs a contiguous last axis.
    codes = np.ascontiguousarray(codes).view(np.uint8)
    if operand.dtype == "float4_e2m1fn":
        codes = formats.unpack_fp4(codes)
    plain = plain_scales(scale, scales.major, rows=codes.shape[1], blocks=-(-codes.shape[2] // vec))
    factor = formats.scale_values(scales.dtype)[plain]
    factor = np.repeat(factor, vec, axis=-1)[..., : codes.shape[2]]
    with np.errstate(all="ignore"):
        return to_bf16(formats.decode(codes, element) * factor)


def plain_scales(scale: np.ndarray, form: str, rows: int, blocks: int) -> np.ndarray:
    """(L, rows, blocks) bytes out of the 128x4 atoms, in either view."""
    atoms = scale.view(np.uint8)
    physical = atoms.transpose(layout.TO_PHYSICAL) if form == "logical" else atoms
    return layout.unpack(formats.numpy_ops, physical, rows, blocks)


def block_scaled_matmul(signature: Signature, a, b, sfa, sfb) -> np.ndarray:
    """(L, M, N) FP32: products of the expanded operands summed in FP64, rounded once."""
    vec = signature.attribute("sf_vec_size")
    left = expand(signature.operand("a_tensor"), a, signature.operand("sfa_tensor"), sfa, vec)
    right = expand(signature.operand("b_tensor"), b, signature.operand("sfb_tensor"), sfb, vec)
    with np.errstate(all="ignore"):
        product = left.astype(np.float64) @ right.astype(np.float64).swapaxes(1, 2)
        return product.astype(np.float32)


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


def update_amax(amax: np.ndarray, x: np.ndarray, per_batch: bool) -> None:
    """amax = max(prior, +0, max |x|), all compared as signed integers: NaN wins, negative priors lose."""
    bits = np.abs(x).view(np.int32)
    axes = (1, 2) if per_batch else None
    largest = bits.max(axis=axes, initial=0).reshape(amax.shape)
    amax[...] = np.maximum(amax.view(np.int32), largest).view(np.float32)
