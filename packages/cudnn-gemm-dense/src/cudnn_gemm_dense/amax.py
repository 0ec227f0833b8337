"""GEMM + amax: C = A B^T of operands of any format, and the largest absolute value of the FP32 result.

Contract, NumPy reference, and the public wrapper, class and JAX entry. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_core.contract import (
    Contract,
    ScalarTensor,
    Signature,
    block_sizes,
    choice,
    dtype_attribute,
    tile_hint,
)
from cudnn_core.dtypes import FLOAT32
from cudnn_core.errors import mismatch
from cudnn_core.op import OpClass
from cudnn_core.tuple_dict import TupleDict

from .engines import operation
from .operands import (
    FP4,
    FP4_NAME,
    FP8,
    SFA,
    SFB,
    WIDE,
    A,
    B,
    check_sides,
    major,
    output,
    stored_as,
)

__all__ = [
    "GemmAmax",
    "GemmAmaxSm100",
    "gemm_amax_jax",
    "gemm_amax_jax_sm100",
    "gemm_amax_wrapper",
    "gemm_amax_wrapper_sm100",
]

OUTPUTS = (*WIDE, *FP8, *FP4)


def _fp4_results(signature: Signature, dims: Mapping[str, int]) -> None:
    """FP4 without scales holds only what FP4 inputs may give."""
    a, c = signature.operand("a_tensor"), signature.operand("c_tensor")
    if c.dtype == FP4_NAME and a.dtype != FP4_NAME:
        raise ValueError(
            mismatch("c_tensor", "an FP4 result only from FP4 inputs", f"inputs {a.dtype}")
        )


CONTRACT = Contract(
    "dense/amax",
    operands=(
        A,
        B,
        SFA,
        SFB,
        output("c_tensor", OUTPUTS, "c_dtype", "c_major", meaning="A B^T in c_dtype"),
        ScalarTensor(
            "amax_tensor",
            (),
            output=True,
            initial=float("-inf"),
            per_batch_from="amax",
            meaning="max(prior, 0, max |A B^T|) of the FP32 result",
        ),
    ),
    attributes=(
        major("c_major"),
        stored_as("c_dtype", FLOAT32, OUTPUTS),
        dtype_attribute("acc_dtype", FLOAT32, (FLOAT32,)),
        tile_hint("mma_tiler_mn", None, ((128, 256), (128, 256))),
        tile_hint("cluster_shape_mn", None, ((1, 2, 4), (1, 2, 4))),
        block_sizes("sf_vec_size", 32, (16, 32)),
        choice("batch", "last", ("last", "outer")),
        choice("amax", "global", ("global", "per_batch")),
    ),
    rules=(check_sides, _fp4_results),
)


def reference(signature: Signature, *arguments: Any) -> None:
    """NumPy: products of the operands' values summed in FP64, one rounding to FP32, one to C."""
    from .reference import join_amax, product, store

    named = signature.named(arguments)
    acc = product(signature, named)
    store(acc, signature.operand("c_tensor"), named["c_tensor"])
    join_amax(acc, signature, named)


OP = operation(CONTRACT, reference)


def gemm_amax_wrapper(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    c_major: str = "n",
    c_dtype: Any = FLOAT32,
    acc_dtype: Any = FLOAT32,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int | tuple[int, int] = 32,
    stream: Any = None,
) -> TupleDict:
    """C = A B^T and amax = max |A B^T| of operands of any format, allocated and returned.

    Formula, for v = sf_vec_size, all sums in FP32; a side without scales has none in it::

        acc[m,n,l] = sum_k A[m,k,l] SFA[m,k//v,l] * B[n,k,l] SFB[n,k//v,l]
        c_tensor = convert(acc, c_dtype);  amax_tensor = max(0, max |acc|)

    a_tensor: (M, K, L), float8_e4m3fn, float8_e5m2, bfloat16, float16, float32, or FP4 packed two to a byte along K
        (float4_e2m1fn_x2, or uint8; shape (M, K/2, L)). K-major, or M-major but for FP4. Strides are multiples of 16
        bytes. b_tensor: (N, K, L), of its own dtype (float32 goes with float32); K-major, or N-major but for FP4.
    sfa_tensor, sfb_tensor: block scales in the 128x4 atom layout, as the view (32, 4, R, 4, Q, L) or as contiguous
        (L, R, Q, 32, 4, 4), R = ceil(rows/128), Q = ceil(K/(4 v)). Padding is ignored. MXFP8: float8_e8m0fnu, v = 32;
        MXFP4: float8_e8m0fnu, v = 32 or 16; NVFP4: float8_e4m3fn, v = 16. int8 is read as float8_e8m0fnu. None: 16-bit,
        float32 or FP8 elements without scales. sf_vec_size: v, or a pair (A's, B's).
    c_major: "n" (rows contiguous) or "m". c_dtype: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2; with FP4
        inputs also float4_e2m1fn or uint8 (packed along N, "n" only).
    mma_tiler_mn, cluster_shape_mn: hints, (128|256, 128|256) and (1|2|4, 1|2|4); None lets the engine choose.
    stream: None is the framework's current stream; an int handle, CUstream, torch.cuda.Stream or ``__cuda_stream__``.

    Returns TupleDict(c_tensor (M, N, L), amax_tensor (1, 1, 1) float32).
    Numerics: block-scaled operands expand to BF16, exactly while element times scale lies in [2^-133, BF16's maximum];
        one RNE rounding at the store, saturating for FP8 and FP4. NaN reaches every output that depends on it, amax
        included.
    Raises: ValueError (shape, stride, dtype, combination), TypeError (not a tensor), RuntimeError (no engine for the
        device). No sync, capturable after one warm call, bitwise repeatable. No derivative.
    Source: cuDNN Frontend 1.32; block formats of OCP Microscaling 1.0, and NVFP4.
    """
    attributes = (c_major, c_dtype, acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size)
    return OP((a_tensor, b_tensor, sfa_tensor, sfb_tensor), attributes, stream)


class GemmAmax(OpClass):
    """GEMM + amax into the caller's tensors: see `gemm_amax_wrapper` for formula, shapes and dtypes.

    sample_c gives C's dtype and major; sample_amax is one float32 (any rank up to 3). The amax buffer accumulates:
    amax = max(prior content, 0, max |A B^T|), priors compared as signed integers, so -inf and any negative lose.
    """

    op = OP

    def __init__(
        self,
        sample_a: Any,
        sample_b: Any,
        sample_sfa: Any,
        sample_sfb: Any,
        sample_c: Any,
        sample_amax: Any,
        acc_dtype: Any = FLOAT32,
        mma_tiler_mn: tuple[int, int] | None = None,
        cluster_shape_mn: tuple[int, int] | None = None,
        sf_vec_size: int | tuple[int, int] = 32,
    ) -> None:
        samples = {
            "sample_a": sample_a,
            "sample_b": sample_b,
            "sample_sfa": sample_sfa,
            "sample_sfb": sample_sfb,
            "sample_c": sample_c,
            "sample_amax": sample_amax,
        }
        options = {
            "acc_dtype": acc_dtype,
            "mma_tiler_mn": mma_tiler_mn,
            "cluster_shape_mn": cluster_shape_mn,
            "sf_vec_size": sf_vec_size,
        }
        super().__init__(samples, options)

    def execute(
        self,
        a_tensor: Any,
        b_tensor: Any,
        sfa_tensor: Any,
        sfb_tensor: Any,
        c_tensor: Any,
        amax_tensor: Any,
        current_stream: Any = None,
        *,
        workspace: Any = None,
    ) -> None:
        """Write c_tensor and accumulate amax_tensor; asynchronous on the stream.

        workspace: scratch memory of at least `workspace_size` bytes, uint8 or another dtype of operands, contiguous,
        its address a multiple of 256, no operand's memory, for no other call at the same time; None: allocated by the
        call. On a GPU it is compared with the operands when it is first seen, and at later calls only where other
        tensors shared its memory then: of a view made later and given as an operand nothing is said.
        """
        tensors = (a_tensor, b_tensor, sfa_tensor, sfb_tensor, c_tensor, amax_tensor)
        self._run(tensors, current_stream, workspace=workspace)


def gemm_amax_jax(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    c_dtype: Any = FLOAT32,
    acc_dtype: Any = FLOAT32,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int | tuple[int, int] = 32,
) -> tuple[Any, Any]:
    """(c, amax) of JAX arrays, eager or traced: the JAX entry of `gemm_amax_wrapper`.

    a_tensor (M, K, 1), b_tensor (N, K, 1) row-major (FP4: uint8, (M, K/2, 1)); scales (1, R, Q, 32, 4, 4).
    Returns c (M, N, 1) in c_dtype (FP4: uint8, (M, N/2, 1)) and amax (1, 1, 1) float32. `jax.vmap` gives batches, with
    one amax each. Everything but the arrays is static. Not differentiable. Raises as the wrapper does.
    """
    attributes = ("n", c_dtype, acc_dtype, mma_tiler_mn, cluster_shape_mn, sf_vec_size)
    return OP.call_jax((a_tensor, b_tensor, sfa_tensor, sfb_tensor), attributes)


gemm_amax_wrapper_sm100 = gemm_amax_wrapper
gemm_amax_jax_sm100 = gemm_amax_jax


class GemmAmaxSm100(GemmAmax):
    """`GemmAmax` under upstream's name."""
