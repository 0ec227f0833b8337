"""GEMM + SwiGLU: AB12 = alpha A B^T, and C = up * silu(gate) of its columns.

Contract, NumPy reference, and the public wrapper, class and JAX entry. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_core.contract import Contract, Derived, Signature, choice, dtype_attribute
from cudnn_core.dtypes import FLOAT16, FLOAT32
from cudnn_core.errors import mismatch
from cudnn_core.op import OpClass
from cudnn_core.tuple_dict import TupleDict

from . import operands as parts
from .engines import operation

__all__ = [
    "GemmSwiglu",
    "GemmSwigluSm100",
    "gemm_swiglu_jax",
    "gemm_swiglu_jax_sm100",
    "gemm_swiglu_wrapper",
    "gemm_swiglu_wrapper_sm100",
]

# Columns of AB12 that are up, then as many that are gate, and so on.
GROUP = 32


def _stores_ab12(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
    return attributes["ab12_dtype"] is not None


def _pairs_of_columns(signature: Signature, dims: Mapping[str, int]) -> None:
    """Every up column has its gate column."""
    interleaved = signature.attribute("glu_layout") == "interleaved"
    unit = 2 * GROUP if interleaved else 2
    if dims["N"] % unit != 0:
        why = "32 up columns, then 32 gate columns" if interleaved else "an up and a gate half"
        raise ValueError(
            mismatch("b_tensor", f"N a multiple of {unit} ({why})", f"N = {dims['N']}")
        )


def _accumulator(signature: Signature, dims: Mapping[str, int]) -> None:
    """FP16 sums are for FP16 and plain FP8 operands (where FP32 sums are as good as theirs and better)."""
    if signature.attribute("acc_dtype") == FLOAT32:
        return
    scaled = signature.has("sfa_tensor") or signature.has("sfb_tensor")
    for name in ("a_tensor", "b_tensor"):
        dtype = signature.operand(name).dtype
        if scaled or dtype not in (FLOAT16.name, *parts.FP8_NAMES):
            expected = "float32 (float16 goes with float16 and FP8 operands without scales)"
            came = f"float16 with {name} {dtype}{' and block scales' if scaled else ''}"
            raise ValueError(mismatch("acc_dtype", expected, came))


CONTRACT = Contract(
    "dense/swiglu",
    operands=(
        parts.A,
        parts.B,
        parts.SFA,
        parts.SFB,
        parts.NORM_CONST,
        parts.output(
            "ab12_tensor",
            (*parts.WIDE, *parts.FP8),
            "ab12_dtype",
            "c_major",
            optional=True,
            by_default=_stores_ab12,
            meaning="alpha A B^T, columns as B's rows",
        ),
        parts.output(
            "c_tensor",
            (*parts.WIDE, *parts.FP8, *parts.FP4),
            "c_dtype",
            "c_major",
            dims=("M", "N/2", "L"),
            majors={"n": "N/2", "m": "M"},
            meaning="up * silu(gate)",
        ),
        parts.output_scale("sfc_tensor", "c_tensor", "N/2"),
        parts.amax_of("c_tensor", 3, ("bfloat16",)),
    ),
    attributes=(
        parts.major("c_major"),
        parts.stored_as("ab12_dtype", FLOAT32, (*parts.WIDE, *parts.FP8), optional=True),
        parts.stored_as("c_dtype", FLOAT16, (*parts.WIDE, *parts.FP8, *parts.FP4)),
        dtype_attribute("acc_dtype", FLOAT32, (FLOAT32, FLOAT16)),
        *parts.options(tuple(range(32, 257, 32)), (1, 2, 4, 8, 16)),
        choice("glu_layout", "interleaved", ("interleaved", "concatenated")),
        *parts.PLACING,
    ),
    rules=(parts.check_sides, _pairs_of_columns, _accumulator, parts.check_quantized("c_tensor")),
    numbers=(parts.ALPHA,),
    derived=(Derived("N/2", "N", lambda n: n // 2),),
)


def reference(signature: Signature, *arguments: Any) -> None:
    """NumPy: AB12 as the products' sum in FP64 rounded to FP32, times alpha; C in FP64, rounded to FP32."""
    from .reference import join_amax, product, store, store_output

    named = signature.named(arguments)
    ab12 = product(signature, named)
    if signature.has("ab12_tensor"):
        store(ab12, signature.operand("ab12_tensor"), named["ab12_tensor"])
    c = swiglu(*halves(ab12, signature.attribute("glu_layout")))
    store_output(c, signature, named, "c_tensor", "sfc_tensor")
    join_amax(c, signature, named)


def halves(ab12: Any, layout: str) -> tuple[Any, Any]:
    """(up, gate), each (L, M, N/2), of (L, M, N)."""
    batches, rows, columns = ab12.shape
    if layout == "concatenated":
        return ab12[..., : columns // 2], ab12[..., columns // 2 :]
    paired = ab12.reshape(batches, rows, columns // (2 * GROUP), 2, GROUP)
    flat = (batches, rows, columns // 2)
    return paired[..., 0, :].reshape(flat), paired[..., 1, :].reshape(flat)


def swiglu(up: Any, gate: Any) -> Any:
    """up * gate / (1 + exp(-gate)) in FP64, rounded to FP32."""
    import numpy as np

    up, gate = up.astype(np.float64), gate.astype(np.float64)
    with np.errstate(all="ignore"):
        return (up * (gate / (1.0 + np.exp(-gate)))).astype(np.float32)


OP = operation(CONTRACT, reference)


def gemm_swiglu_wrapper(
    a_tensor: Any,
    b_tensor: Any,
    alpha: float = 1.0,
    c_major: str = "n",
    ab12_dtype: Any = FLOAT32,
    c_dtype: Any = FLOAT16,
    acc_dtype: Any = FLOAT32,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    norm_const_tensor: Any = None,
    sf_vec_size: int | tuple[int, int] = 16,
    vector_f32: bool = False,
    ab12_stages: int = 4,
    stream: Any = None,
    *,
    glu_layout: str = "interleaved",
    out_format: str | None = None,
) -> TupleDict:
    """AB12 = alpha A B^T and C = up * silu(gate) of its columns, allocated and returned.

    Formula, all in FP32, for b = 0 .. N/64-1 and i = 0..31::

        AB12[m,n,l] = alpha * sum_k A[m,k,l] SFA[m,k//v,l] * B[n,k,l] SFB[n,k//v,l]
        up, gate = AB12[m, 64b + i, l], AB12[m, 64b + 32 + i, l]
        C[m, 32b + i, l] = up * gate / (1 + exp(-gate))

    With glu_layout="concatenated", up are AB12's columns 0 .. N/2-1 and gate the other half.

    a_tensor: (M, K, L); K- or M-major (FP4: K-major). b_tensor: (N, K, L); K- or N-major (FP4: K-major). Each side on
        its own is float16, bfloat16, float8_e4m3fn, float8_e5m2 (with or without scales), or FP4 packed along K
        (float4_e2m1fn_x2 or uint8, (rows, K/2, L)) with scales; float32 goes with float32. Strides are multiples of 16
        bytes. N is a multiple of 64, or of 2 if concatenated.
    sfa_tensor, sfb_tensor: block scales as in `gemm_amax_wrapper`; None for a side that has none.
    sf_vec_size: elements in a block, or a pair (A's, B's). MXFP8: 32; MXFP4: 32 or 16; NVFP4: 16.
    alpha: a number on the host, taken at run time. c_major: "n" (rows contiguous) or "m", of AB12 and C.
    ab12_dtype: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2; None: AB12 is not stored.
    c_dtype: float32, float16, bfloat16; FP8 with norm_const_tensor is MXFP8.
    out_format: "mxfp8", "mxfp4" or "nvfp4" quantizes C along its columns, as `cudnn.quantize` does. A wide c_dtype
        then stands for the format's elements; float8_e5m2 of MXFP8 and uint8, as the container of FP4, are kept.
        norm_const_tensor: one float32; values are multiplied by it first, and C * SFC / norm_const are the values.
    mma_tiler_mn, cluster_shape_mn: hints. vector_f32, ab12_stages: accepted, without effect. acc_dtype: float16 (for
        float16 and plain FP8 operands) is accepted; sums are FP32 anyway.

    Returns TupleDict(ab12_tensor (M, N, L) or None, c_tensor (M, N/2, L), sfc_tensor or None: the logical view of C's
        scales, amax_tensor (1, 1, 1): max |C| in FP32 if A is FP4 and C bfloat16, else None).
    Numerics: block-scaled operands expand to BF16 exactly within its range; C and amax come from the FP32 values, not
        from rounded AB12; one RNE rounding at each store, saturating in FP8 and FP4. NaN reaches all that depends on
        it. gate = -Inf gives NaN, as 0 * Inf.
    Raises: ValueError (shape, stride, dtype, combination), TypeError (not a tensor, no number), RuntimeError (no engine
        for the device), NotImplementedError (on a GPU: concatenated halves that are not whole groups of 32 columns).
        No sync, capturable after one warm call, bitwise repeatable. No derivative.
    Source: SwiGLU of Shazeer 2020 (arXiv:2002.05202); layouts and rounding of cuDNN Frontend 1.32.
    """
    c_dtype = parts.quantized_dtype(c_dtype, out_format)
    hints = (acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size)
    attributes = (c_major, ab12_dtype, c_dtype, *hints, out_format, glu_layout)
    inputs = (a_tensor, b_tensor, sfa_tensor, sfb_tensor, norm_const_tensor)
    return OP(inputs, attributes, stream, (alpha,))


class GemmSwiglu(OpClass):
    """GEMM + SwiGLU into the caller's tensors: see `gemm_swiglu_wrapper` for formula, shapes and dtypes.

    sample_ab12 may be None: AB12 is not stored. sample_sfc is there if C is FP8 (MXFP8) or out_format is given.
    sample_amax: any one-element float32, accumulates max(prior content, 0, max |C|). `execute` has its own alpha, 1
    unless given; the constructor's is only checked, as upstream has it.
    """

    op = OP

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_ab12: Any,
        sample_c: Any,
        alpha: float = 1.0,
        acc_dtype: Any = FLOAT32,
        mma_tiler_mn: tuple[int, int] | None = None,
        cluster_shape_mn: tuple[int, int] | None = None,
        sample_sfa: Any = None,
        sample_sfb: Any = None,
        sample_amax: Any = None,
        sample_sfc: Any = None,
        sample_norm_const: Any = None,
        sf_vec_size: int | tuple[int, int] = 16,
        vector_f32: bool = False,
        ab12_stages: int = 4,
        *,
        glu_layout: str = "interleaved",
        out_format: str | None = None,
    ) -> None:
        CONTRACT.parse_numbers((alpha,))
        samples = {
            "sample_a": sample_a,
            "sample_b": sample_b,
            "sample_sfa": sample_sfa,
            "sample_sfb": sample_sfb,
            "sample_norm_const": sample_norm_const,
            "sample_ab12": sample_ab12,
            "sample_c": sample_c,
            "sample_sfc": sample_sfc,
            "sample_amax": sample_amax,
        }
        options = {
            "acc_dtype": acc_dtype,
            "mma_tiler_mn": mma_tiler_mn,
            "cluster_shape_mn": cluster_shape_mn,
            "sf_vec_size": sf_vec_size,
            "glu_layout": glu_layout,
            "out_format": out_format,
        }
        super().__init__(samples, options)

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        ab12_tensor: Any,
        c_tensor: Any,
        sfa_tensor: Any = None,
        sfb_tensor: Any = None,
        amax_tensor: Any = None,
        sfc_tensor: Any = None,
        norm_const_tensor: Any = None,
        alpha: float = 1.0,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write the outputs, accumulate amax_tensor; asynchronous on the stream.

        workspace: as `GemmAmax.execute` says.
        """
        numbers = (alpha,) if type(alpha) is float else CONTRACT.parse_numbers((alpha,))
        inputs = (a_tensor, b_tensor, sfa_tensor, sfb_tensor, norm_const_tensor)
        outputs = (ab12_tensor, c_tensor, sfc_tensor, amax_tensor)
        self._run(inputs + outputs, current_stream, numbers, workspace)


def gemm_swiglu_jax(
    a_tensor: Any,
    b_tensor: Any,
    alpha: float = 1.0,
    ab12_dtype: Any = FLOAT32,
    c_dtype: Any = FLOAT16,
    acc_dtype: Any = FLOAT32,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    sfa_tensor: Any = None,
    sfb_tensor: Any = None,
    sf_vec_size: int | tuple[int, int] = 16,
    vector_f32: bool = False,
    ab12_stages: int = 4,
    *,
    norm_const_tensor: Any = None,
    glu_layout: str = "interleaved",
    out_format: str | None = None,
) -> tuple[Any, ...]:
    """(ab12, c) of JAX arrays, eager or traced; (ab12, c, sfc) if C is quantized. See `gemm_swiglu_wrapper`.

    a_tensor (M, K, 1), b_tensor (N, K, 1) row-major (FP4: uint8, (rows, K/2, 1)); scales (1, R, Q, 32, 4, 4).
    ab12 (M, N, 1), None with ab12_dtype=None; c (M, N/2, 1) (FP4: uint8, (M, N/4, 1)). `jax.vmap` gives batches.
    Everything but the arrays is static, alpha too. Not differentiable. Raises as the wrapper does.
    """
    c_dtype = parts.quantized_dtype(c_dtype, out_format)
    hints = (acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size)
    attributes = ("n", ab12_dtype, c_dtype, *hints, out_format, glu_layout, *parts.WITHOUT_AMAX)
    inputs = (a_tensor, b_tensor, sfa_tensor, sfb_tensor, norm_const_tensor)
    ab12, c, sfc, _ = OP.call_jax(inputs, attributes, (alpha,))
    return (ab12, c) if sfc is None else (ab12, c, sfc)


gemm_swiglu_wrapper_sm100 = gemm_swiglu_wrapper
gemm_swiglu_jax_sm100 = gemm_swiglu_jax


class GemmSwigluSm100(GemmSwiglu):
    """`GemmSwiglu` under upstream's name."""
