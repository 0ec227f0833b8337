"""GEMM + amax: C = A B^T of block-scaled operands, and the largest absolute value of the FP32 result.

Contract, NumPy reference, Hopper composition and the public wrapper, class and JAX entry. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_core.contract import (
    Contract,
    Matrix,
    Problem,
    ScalarTensor,
    ScaleFactor,
    Signature,
    choice,
    dtype_attribute,
    tile_hint,
)
from cudnn_core.dtypes import (
    BFLOAT16,
    FLOAT4_E2M1FN,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    UINT8,
)
from cudnn_core.engine import HopperEngine, ReferenceEngine
from cudnn_core.errors import mismatch
from cudnn_core.op import Op, OpClass
from cudnn_core.plan import Plan
from cudnn_core.tuple_dict import TupleDict

from .config import RECIPES

__all__ = [
    "GemmAmax",
    "GemmAmaxSm100",
    "gemm_amax_jax",
    "gemm_amax_jax_sm100",
    "gemm_amax_wrapper",
    "gemm_amax_wrapper_sm100",
]

OPERANDS = (FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT4_E2M1FN, UINT8)
OUTPUTS = (FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT4_E2M1FN, UINT8)
SCALES = (FLOAT8_E8M0FNU, FLOAT8_E4M3FN)


def _pairing(signature: Signature, dims: Mapping[str, int]) -> None:
    """Both sides in one format, scales included, and an output that the inputs allow."""
    a, b, sfa, sfb, c = (
        signature.operand(n)
        for n in ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "c_tensor")
    )
    if b.dtype != a.dtype:
        raise ValueError(mismatch("b_tensor", f"dtype {a.dtype} (a_tensor's)", b.dtype))
    if sfb.dtype != sfa.dtype:
        raise ValueError(mismatch("sfb_tensor", f"dtype {sfa.dtype} (sfa_tensor's)", sfb.dtype))
    fp4, vec = a.dtype == FLOAT4_E2M1FN.name, signature.attribute("sf_vec_size")
    if (a.dtype, sfa.dtype, vec) not in RECIPES.values():
        legal = "float8_e8m0fnu scales with sf_vec_size 32"
        if fp4:
            legal = "float8_e8m0fnu scales with sf_vec_size 16 or 32, or float8_e4m3fn with 16"
        raise ValueError(
            mismatch("sf_vec_size", f"{legal} for {a.dtype}", f"{sfa.dtype} with {vec}")
        )
    if c.dtype == FLOAT4_E2M1FN.name and not fp4:
        raise ValueError(
            mismatch("c_tensor", "an FP4 result only from FP4 inputs", f"inputs {a.dtype}")
        )


CONTRACT = Contract(
    "dense/amax",
    operands=(
        Matrix(
            "a_tensor",
            ("M", "K", "L"),
            dtypes=OPERANDS,
            majors={"k": "K", "m": "M"},
            fp4_major="k",
            aligned=True,
            meaning="left operand",
        ),
        Matrix(
            "b_tensor",
            ("N", "K", "L"),
            dtypes=OPERANDS,
            majors={"k": "K", "n": "N"},
            fp4_major="k",
            aligned=True,
            meaning="right operand, transposed",
        ),
        ScaleFactor("sfa_tensor", ("M", "K", "L"), dtypes=SCALES, int8_is_e8m0=True),
        ScaleFactor("sfb_tensor", ("N", "K", "L"), dtypes=SCALES, int8_is_e8m0=True),
        Matrix(
            "c_tensor",
            ("M", "N", "L"),
            output=True,
            dtypes=OUTPUTS,
            majors={"n": "N", "m": "M"},
            fp4_major="n",
            dtype_from="c_dtype",
            major_from="c_major",
            meaning="A B^T in c_dtype",
        ),
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
        choice("c_major", "n", ("n", "m"), of_output=True),
        dtype_attribute("c_dtype", FLOAT32, OUTPUTS, of_output=True),
        dtype_attribute("acc_dtype", FLOAT32, (FLOAT32,)),
        tile_hint("mma_tiler_mn", None, ((128, 256), (128, 256))),
        tile_hint("cluster_shape_mn", None, ((1, 2, 4), (1, 2, 4))),
        choice("sf_vec_size", 32, (16, 32)),
        choice("batch", "last", ("last", "outer")),
        choice("amax", "global", ("global", "per_batch")),
    ),
    rules=(_pairing,),
)


def reference(signature: Signature, a, b, sfa, sfb, c, amax) -> None:
    """NumPy: operands expanded to BF16 as on the GPU, products summed in FP64, one rounding to FP32, one to C."""
    from .reference import block_scaled_matmul, store, update_amax

    acc = block_scaled_matmul(signature, a, b, sfa, sfb)
    store(acc, signature.operand("c_tensor"), c)
    update_amax(amax, acc, per_batch=signature.attribute("amax") == "per_batch")


def configure(problem: Problem):
    """The kernel configuration of a problem: operands as bound, the tile from the extents."""
    from .kernels import block_scaled_config

    return block_scaled_config(problem)


def source(plan: Plan):
    """What the compile cache needs to build the kernel of a plan."""
    from .kernels import block_scaled_source

    return block_scaled_source(plan)


def examples(everything: bool):
    """(label, problem) of the kernels that `cudnn compile` makes."""
    from . import kernels

    return kernels.examples(CONTRACT, everything)


OP = Op(
    CONTRACT,
    engines=(ReferenceEngine(reference), HopperEngine(configure, source)),
    namespace="cudnn_gemm_dense",
    short_name="gemm_amax",
    examples=examples,
)


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
    sf_vec_size: int = 32,
    stream: Any = None,
) -> TupleDict:
    """C = A B^T of block-scaled operands and amax = max |A B^T|, allocated and returned.

    Formula, for v = sf_vec_size, all sums in FP32::

        acc[m,n,l] = sum_k A[m,k,l] SFA[m,k//v,l] * B[n,k,l] SFB[n,k//v,l]
        c_tensor = convert(acc, c_dtype);  amax_tensor = max(0, max |acc|)

    a_tensor: (M, K, L), float8_e4m3fn, float8_e5m2, or FP4 packed two to a byte along K (float4_e2m1fn_x2, or uint8;
        shape (M, K/2, L)). K-major, or M-major for FP8. Strides are multiples of 16 bytes.
    b_tensor: (N, K, L), dtype of a_tensor; K-major, or N-major for FP8.
    sfa_tensor, sfb_tensor: block scales in the 128x4 atom layout, as the view (32, 4, R, 4, Q, L) or as contiguous
        (L, R, Q, 32, 4, 4), R = ceil(rows/128), Q = ceil(K/(4 v)). Padding is ignored. MXFP8: float8_e8m0fnu, v = 32;
        MXFP4: float8_e8m0fnu, v = 32 or 16; NVFP4: float8_e4m3fn, v = 16. int8 is read as float8_e8m0fnu.
    c_major: "n" (rows contiguous) or "m". c_dtype: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2; with FP4
        inputs also float4_e2m1fn or uint8 (packed along N, "n" only).
    mma_tiler_mn, cluster_shape_mn: hints, (128|256, 128|256) and (1|2|4, 1|2|4); None lets the engine choose.
    stream: None is the framework's current stream; an int handle, CUstream, torch.cuda.Stream or ``__cuda_stream__``.

    Returns TupleDict(c_tensor (M, N, L), amax_tensor (1, 1, 1) float32).
    Numerics: operands expand to BF16, exactly while element times scale lies in [2^-133, BF16's maximum]; one RNE
        rounding at the store, saturating for FP8 and FP4. NaN reaches every output that depends on it, amax included.
    Raises: ValueError (shape, stride, dtype, combination), TypeError (not a tensor), RuntimeError (no engine for the
        device). Launch: one kernel (and one fill of amax), no sync, capturable after one warm call, bitwise repeatable.
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
        sf_vec_size: int = 32,
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
    ) -> None:
        """Write c_tensor and accumulate amax_tensor; asynchronous on the stream."""
        self._run(
            (a_tensor, b_tensor, sfa_tensor, sfb_tensor, c_tensor, amax_tensor), current_stream
        )


def gemm_amax_jax(
    a_tensor: Any,
    b_tensor: Any,
    sfa_tensor: Any,
    sfb_tensor: Any,
    c_dtype: Any = FLOAT32,
    acc_dtype: Any = FLOAT32,
    mma_tiler_mn: tuple[int, int] | None = None,
    cluster_shape_mn: tuple[int, int] | None = None,
    sf_vec_size: int = 32,
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
