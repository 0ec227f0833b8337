"""GEMM + squared ReLU: C = alpha A B^T and D = prob * relu(C)^2, from the FP32 values.

Contract, NumPy reference, and the public wrapper, class and JAX entry. Imports no framework.
"""

from __future__ import annotations

from typing import Any

from cudnn_core.contract import Contract, Signature, dtype_attribute
from cudnn_core.dtypes import BFLOAT16, FLOAT32
from cudnn_core.op import OpClass
from cudnn_core.tuple_dict import TupleDict

from . import operands as parts
from .engines import operation

__all__ = [
    "GemmSrelu",
    "GemmSreluSm100",
    "gemm_srelu_jax",
    "gemm_srelu_jax_sm100",
    "gemm_srelu_wrapper",
    "gemm_srelu_wrapper_sm100",
]

CONTRACT = Contract(
    "dense/srelu",
    operands=(
        parts.A,
        parts.B,
        parts.SFA,
        parts.SFB,
        parts.PROB,
        parts.NORM_CONST,
        parts.output(
            "c_tensor", (*parts.WIDE, *parts.FP8), "c_dtype", "c_major", meaning="alpha A B^T"
        ),
        parts.output(
            "d_tensor",
            (*parts.WIDE, *parts.FP8, *parts.FP4),
            "d_dtype",
            "c_major",
            meaning="prob * relu(C)^2",
        ),
        parts.amax_of("d_tensor", 1, ("bfloat16", "float16", "float32")),
        parts.output_scale("sfd_tensor", "d_tensor"),
    ),
    attributes=(
        parts.major("c_major"),
        parts.stored_as("c_dtype", BFLOAT16, (*parts.WIDE, *parts.FP8)),
        parts.stored_as("d_dtype", BFLOAT16, (*parts.WIDE, *parts.FP8, *parts.FP4)),
        dtype_attribute("acc_dtype", FLOAT32, (FLOAT32,)),
        *parts.options((64, 128, 192, 256), (1, 2, 4, 8, 16)),
        *parts.PLACING,
    ),
    rules=(parts.check_sides, parts.check_quantized("d_tensor")),
    numbers=(parts.ALPHA,),
)


def reference(signature: Signature, *arguments: Any) -> None:
    """NumPy: C as the products' sum in FP64 rounded to FP32, times alpha; relu, square and prob in FP32."""
    import numpy as np

    from .reference import batch_first, join_amax, product, relu, store, store_output

    named = signature.named(arguments)
    x = product(signature, named)
    store(x, signature.operand("c_tensor"), named["c_tensor"])
    with np.errstate(all="ignore"):
        r = relu(x)
        d = r * r * batch_first(named["prob_tensor"])
    store_output(d, signature, named, "d_tensor", "sfd_tensor")
    join_amax(d, signature, named)


OP = operation(CONTRACT, reference)


def gemm_srelu_wrapper(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    prob_tensor: Any,
    alpha: float = 1.0,
    c_major: str = "n",
    c_dtype: Any = BFLOAT16,
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
    """C = alpha A B^T and D = prob * relu(alpha A B^T)^2, allocated and returned.

    Formula, all in FP32::

        x[m,n,l] = alpha * sum_k A[m,k,l] SFA[m,k//v,l] * B[n,k,l] SFB[n,k//v,l]
        C = convert(x, c_dtype)
        D = convert(max(x, 0)^2 * prob[m,0,l], d_dtype)

    a_tensor, b_tensor, sfa_tensor, sfb_tensor, sf_vec_size: as in `gemm_swiglu_wrapper`; None for the scales of a side
        that has none. N is free.
    prob_tensor: (M, 1, L) float32, any strides, any sign.
    alpha: a number on the host, taken at run time. c_major: "n" (rows contiguous) or "m", of C and D.
    c_dtype: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2.
    d_dtype: float32, float16, bfloat16; FP8 with norm_const_tensor is MXFP8.
    out_format: "mxfp8", "mxfp4" or "nvfp4" quantizes D along its columns, as `cudnn.quantize` does. A wide d_dtype
        then stands for the format's elements; float8_e5m2 of MXFP8 and uint8, as the container of FP4, are kept.
        norm_const_tensor: one float32; values are multiplied by it first, and D * SFD / norm_const are the values.
    mma_tiler_mn, cluster_shape_mn: hints. vector_f32: accepted, without effect.

    Returns TupleDict(c_tensor (M, N, L), d_tensor (M, N, L), amax_tensor (1,): max |D| in FP32 if A is FP4 and D is not
        quantized, else None, sfd_tensor or None: the logical view of D's scales).
    Numerics: block-scaled operands expand to BF16 exactly within its range; D and amax come from the FP32 values, not
        from rounded C; one RNE rounding at each store, saturating in FP8 and FP4. NaN reaches all that depends on it,
        through the relu too.
    Raises: ValueError (shape, stride, dtype, combination), TypeError (not a tensor, no number), RuntimeError (no engine
        for the device). No sync, capturable after one warm call, bitwise repeatable. No derivative.
    Source: squared ReLU of So et al. 2021 (arXiv:2109.08668); prob, layouts and rounding of cuDNN Frontend 1.32.
    """
    d_dtype = parts.quantized_dtype(d_dtype, out_format)
    hints = (acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size)
    inputs = (a_tensor, b_tensor, sfa_tensor, sfb_tensor, prob_tensor, norm_const_tensor)
    return OP(inputs, (c_major, c_dtype, d_dtype, *hints, out_format), stream, (alpha,))


class GemmSrelu(OpClass):
    """GEMM + squared ReLU into the caller's tensors: see `gemm_srelu_wrapper` for formula, shapes and dtypes.

    sample_sfd is there if D is FP8 (MXFP8) or out_format is given. sample_amax: any one-element float32, accumulates
    max(prior content, 0, max |D|). `execute` without alpha takes the constructor's.
    """

    op = OP

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_c: Any,
        sample_d: Any,
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
        self._numbers = CONTRACT.parse_numbers((alpha,))
        samples = {
            "sample_a": sample_a,
            "sample_b": sample_b,
            "sample_sfa": sample_sfa,
            "sample_sfb": sample_sfb,
            "sample_prob": sample_prob,
            "sample_norm_const": sample_norm_const,
            "sample_c": sample_c,
            "sample_d": sample_d,
            "sample_amax": sample_amax,
            "sample_sfd": sample_sfd,
        }
        options = {"acc_dtype": acc_dtype, "sf_vec_size": sf_vec_size, "out_format": out_format}
        hints = {"mma_tiler_mn": mma_tiler_mn, "cluster_shape_mn": cluster_shape_mn}
        super().__init__(samples, options | hints)

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        c_tensor: Any,
        d_tensor: Any,
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
        """Write the outputs, accumulate amax_tensor; asynchronous on the stream.

        workspace: as `GemmAmax.execute` says.
        """
        numbers = self._numbers if alpha is None else CONTRACT.parse_numbers((alpha,))
        inputs = (a_tensor, b_tensor, sfa_tensor, sfb_tensor, prob_tensor, norm_const_tensor)
        outputs = (c_tensor, d_tensor, amax_tensor, sfd_tensor)
        self._run(inputs + outputs, current_stream, numbers, workspace)


def gemm_srelu_jax(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    prob_tensor: Any,
    alpha: float = 1.0,
    c_dtype: Any = BFLOAT16,
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
    """(c, d) of JAX arrays, eager or traced; (c, d, sfd) if D is quantized. See `gemm_srelu_wrapper`.

    a_tensor (M, K, 1), b_tensor (N, K, 1) row-major (FP4: uint8, (rows, K/2, 1)); scales (1, R, Q, 32, 4, 4); prob
    (M, 1, 1). c and d are (M, N, 1) (FP4: uint8, (M, N/2, 1)). `jax.vmap` gives batches. Everything but the arrays is
    static, alpha too. Not differentiable. Raises as the wrapper does.
    """
    d_dtype = parts.quantized_dtype(d_dtype, out_format)
    hints = (acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size)
    attributes = ("n", c_dtype, d_dtype, *hints, out_format, *parts.WITHOUT_AMAX)
    inputs = (a_tensor, b_tensor, sfa_tensor, sfb_tensor, prob_tensor, norm_const_tensor)
    c, d, _, sfd = OP.call_jax(inputs, attributes, (alpha,))
    return (c, d) if sfd is None else (c, d, sfd)


gemm_srelu_wrapper_sm100 = gemm_srelu_wrapper
gemm_srelu_jax_sm100 = gemm_srelu_jax


class GemmSreluSm100(GemmSrelu):
    """`GemmSrelu` under upstream's name."""
