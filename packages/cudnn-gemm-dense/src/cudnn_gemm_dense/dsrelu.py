"""GEMM + the backward of squared ReLU: D = 2 prob C relu(G) and dprob = sum_n relu(G)^2 C, for G = alpha A B^T.

Contract, NumPy reference, and the public wrapper, class and JAX entry. Imports no framework.
"""

from __future__ import annotations

from typing import Any

from cudnn_core.contract import Column, Contract, Matrix, Signature, dtype_attribute
from cudnn_core.dtypes import BFLOAT16, FLOAT32
from cudnn_core.op import OpClass
from cudnn_core.tuple_dict import TupleDict

from . import operands as parts
from .engines import operation

__all__ = [
    "GemmDsrelu",
    "GemmDsreluSm100",
    "gemm_dsrelu_jax",
    "gemm_dsrelu_jax_sm100",
    "gemm_dsrelu_wrapper",
    "gemm_dsrelu_wrapper_sm100",
]

CONTRACT = Contract(
    "dense/dsrelu",
    operands=(
        parts.A,
        parts.B,
        Matrix(
            "c_tensor",
            ("M", "N", "L"),
            dtypes=parts.WIDE,
            majors={"n": "N", "m": "M"},
            shared=False,
            meaning="gradient that comes in",
        ),
        parts.SFA,
        parts.SFB,
        parts.PROB,
        parts.NORM_CONST,
        parts.output(
            "d_tensor",
            (*parts.WIDE, *parts.FP8, *parts.FP4),
            "d_dtype",
            "d_major",
            meaning="2 prob C relu(G)",
        ),
        Column(
            "dprob_tensor",
            ("M", "1", "L"),
            output=True,
            initial=0.0,
            meaning="prior + sum_n relu(G)^2 C",
        ),
        parts.amax_of("d_tensor", 1, ("bfloat16", "float16", "float32")),
        parts.output_scale("sfd_tensor", "d_tensor"),
    ),
    attributes=(
        parts.major("d_major"),
        parts.stored_as("d_dtype", BFLOAT16, (*parts.WIDE, *parts.FP8, *parts.FP4)),
        dtype_attribute("acc_dtype", FLOAT32, (FLOAT32,)),
        *parts.options((64, 128, 192, 256), (1, 2, 4, 8, 16)),
        *parts.PLACING,
    ),
    numbers=(parts.ALPHA,),
    rules=(parts.check_sides, parts.check_quantized("d_tensor")),
)


def reference(signature: Signature, *arguments: Any) -> None:
    """NumPy: G as the products' sum in FP64 rounded to FP32, times alpha; all else in FP32, sums of rows in FP64."""
    import numpy as np

    from .reference import batch_first, join_amax, product, relu, store_output

    named = signature.named(arguments)
    c = batch_first(named["c_tensor"]).astype(np.float32)
    with np.errstate(all="ignore"):
        r = relu(product(signature, named))
        d = (np.float32(2) * r) * (c * batch_first(named["prob_tensor"]))
        rows = (r * r * c).sum(axis=-1, keepdims=True, dtype=np.float64)
        dprob = batch_first(named["dprob_tensor"])
        dprob += rows.astype(np.float32)
    store_output(d, signature, named, "d_tensor", "sfd_tensor")
    join_amax(d, signature, named)


OP = operation(CONTRACT, reference)


def gemm_dsrelu_wrapper(
    a_tensor: Any,
    b_tensor: Any,
    c_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    prob_tensor: Any,
    alpha: float = 1.0,
    d_major: str = "n",
    d_dtype: Any = BFLOAT16,
    acc_dtype: Any = FLOAT32,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    norm_const_tensor: Any = None,
    sf_vec_size: int | tuple[int, int] = 16,
    vector_f32: bool = False,
    stream: Any = None,
    *,
    out_format: str | None = None,
) -> TupleDict:
    """D = 2 prob C relu(G) and dprob = sum_n relu(G)^2 C for G = alpha A B^T, allocated and returned.

    Formula, all in FP32; G is not stored::

        G[m,n,l] = alpha * sum_k A[m,k,l] SFA[m,k//v,l] * B[n,k,l] SFB[n,k//v,l];  r = max(G, 0)
        D[m,n,l] = convert((2 r) * (C[m,n,l] * prob[m,0,l]), d_dtype)
        dprob[m,0,l] = sum_n (r * r) * C[m,n,l]

    With the forward D = prob * relu(X)^2 these are dX and dprob, where the GEMM computes X again and C is the gradient
    that comes in.

    a_tensor, b_tensor, sfa_tensor, sfb_tensor, sf_vec_size: as in `gemm_swiglu_wrapper`; None for the scales of a side
        that has none. N is free.
    c_tensor: (M, N, L) float32, float16 or bfloat16, an input; N- or M-major.
    prob_tensor: (M, 1, L) float32, any strides, any sign.
    alpha: a number on the host, taken at run time. d_major: "n" (rows contiguous) or "m".
    d_dtype: float32, float16, bfloat16; FP8 with norm_const_tensor is MXFP8.
    out_format: "mxfp8", "mxfp4" or "nvfp4" quantizes D along its columns, as `cudnn.quantize` does. A wide d_dtype
        then stands for the format's elements; float8_e5m2 of MXFP8 and uint8, as the container of FP4, are kept.
        norm_const_tensor: one float32; values are multiplied by it first, and D * SFD / norm_const are the values.
    mma_tiler_mn, cluster_shape_mn: hints. vector_f32: accepted, without effect.

    Returns TupleDict(d_tensor (M, N, L), dprob_tensor (M, 1, L) float32, amax_tensor (1,): max |D| in FP32 if A is FP4
        and D is not quantized, else None, sfd_tensor or None: the logical view of D's scales).
    Numerics: block-scaled operands expand to BF16 exactly within its range; one RNE rounding at the store, saturating
        in FP8 and FP4. NaN reaches all that depends on it, through the relu too. dprob is summed in a fixed order: no
        atomics, the same bits every time.
    Raises: ValueError (shape, stride, dtype, combination), TypeError (not a tensor, no number), RuntimeError (no engine
        for the device). No sync, capturable after one warm call, bitwise repeatable. No derivative.
    Source: the derivative of `gemm_srelu_wrapper`'s D; which operand is which as in cuDNN Frontend 1.32.
    """
    hints = (acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size)
    d_dtype = parts.quantized_dtype(d_dtype, out_format)
    inputs = (a_tensor, b_tensor, c_tensor, sfa_tensor, sfb_tensor, prob_tensor, norm_const_tensor)
    return OP(inputs, (d_major, d_dtype, *hints, out_format), stream, (alpha,))


class GemmDsrelu(OpClass):
    """GEMM + squared-ReLU backward into the caller's tensors: see `gemm_dsrelu_wrapper` for formula, shapes, dtypes.

    sample_dprob: (M, 1, L) float32; `execute` adds to its content. sample_sfd is there if D is FP8 (MXFP8) or
    out_format is given. sample_amax: any one-element float32, accumulates max(prior content, 0, max |D|). `execute`
    without alpha takes the constructor's.
    """

    op = OP

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_c: Any,
        sample_d: Any,
        sample_dprob: Any,
        sample_sfa: Any,
        sample_sfb: Any,
        sample_prob: Any,
        sample_sfd: Any = None,
        sample_amax: Any = None,
        sample_norm_const: Any = None,
        alpha: float = 1.0,
        acc_dtype: Any = FLOAT32,
        mma_tiler_mn: tuple[int, int] | None = None,
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int | tuple[int, int] = 16,
        vector_f32: bool = False,
        *,
        out_format: str | None = None,
    ) -> None:
        samples = {
            "sample_a": sample_a,
            "sample_b": sample_b,
            "sample_c": sample_c,
            "sample_sfa": sample_sfa,
            "sample_sfb": sample_sfb,
            "sample_prob": sample_prob,
            "sample_norm_const": sample_norm_const,
            "sample_d": sample_d,
            "sample_dprob": sample_dprob,
            "sample_amax": sample_amax,
            "sample_sfd": sample_sfd,
        }
        self._numbers = CONTRACT.parse_numbers((alpha,))
        hints = {"mma_tiler_mn": mma_tiler_mn, "cluster_shape_mn": cluster_shape_mn}
        options = {"acc_dtype": acc_dtype, "sf_vec_size": sf_vec_size, "out_format": out_format}
        super().__init__(samples, hints | options)

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        c_tensor: Any,
        d_tensor: Any,
        dprob_tensor: Any,
        sfa_tensor: Any,
        sfb_tensor: Any,
        prob_tensor: Any,
        sfd_tensor: Any = None,
        amax_tensor: Any = None,
        norm_const_tensor: Any = None,
        alpha: float | None = None,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write d_tensor, accumulate dprob_tensor and amax_tensor; asynchronous on the stream.

        workspace: as `GemmAmax.execute` says.
        """
        numbers = self._numbers if alpha is None else CONTRACT.parse_numbers((alpha,))
        read = (a_tensor, b_tensor, c_tensor, sfa_tensor, sfb_tensor)
        factors = (prob_tensor, norm_const_tensor)
        written = (d_tensor, dprob_tensor, amax_tensor, sfd_tensor)
        self._run(read + factors + written, current_stream, numbers, workspace)


def gemm_dsrelu_jax(
    a_tensor: Any,
    b_tensor: Any,
    c_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    prob_tensor: Any,
    alpha: float = 1.0,
    d_dtype: Any = BFLOAT16,
    acc_dtype: Any = FLOAT32,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int | tuple[int, int] = 16,
    vector_f32: bool = False,
    *,
    norm_const_tensor: Any = None,
    out_format: str | None = None,
) -> tuple[Any, ...]:
    """(d, dprob) of JAX arrays, eager or traced; (d, dprob, sfd) if D is quantized. See `gemm_dsrelu_wrapper`.

    a_tensor (M, K, 1), b_tensor (N, K, 1), c_tensor (M, N, 1) row-major (FP4: uint8, (rows, K/2, 1)); scales
    (1, R, Q, 32, 4, 4); prob and dprob (M, 1, 1). d is (M, N, 1) (FP4: uint8, (M, N/2, 1)). `jax.vmap` gives batches.
    Everything but the arrays is static, alpha too. Not differentiable. Raises as the wrapper does.
    """
    hints = (acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size)
    d_dtype = parts.quantized_dtype(d_dtype, out_format)
    attributes = ("n", d_dtype, *hints, out_format, *parts.WITHOUT_AMAX)
    inputs = (a_tensor, b_tensor, c_tensor, sfa_tensor, sfb_tensor, prob_tensor, norm_const_tensor)
    d, dprob, _, sfd = OP.call_jax(inputs, attributes, (alpha,))
    return (d, dprob) if sfd is None else (d, dprob, sfd)


gemm_dsrelu_wrapper_sm100 = gemm_dsrelu_wrapper
gemm_dsrelu_jax_sm100 = gemm_dsrelu_jax


class GemmDsreluSm100(GemmDsrelu):
    """`GemmDsrelu` under upstream's name."""
