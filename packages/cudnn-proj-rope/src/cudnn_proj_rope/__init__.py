"""Projection GEMM + RoPE + MXFP8 quantization in one kernel.

Nothing is built yet: every name raises NotImplementedError saying so. May import
`cudnn_core.lazy` only.
"""

from cudnn_core.lazy import attach

NAMES = {}

COMING = dict.fromkeys(
    (
        "GemmProjRopeMxfp8Bf16In",
        "GemmProjRopeMxfp8Mxfp8In",
        "gemm_proj_rope_mxfp8_wrapper",
        "gemm_proj_rope_mxfp8_jax",
        "GemmProjRopeMxfp8Bf16InSm100",
        "GemmProjRopeMxfp8Mxfp8InSm100",
        "gemm_proj_rope_mxfp8_wrapper_sm100",
        "gemm_proj_rope_mxfp8_jax_sm100",
    ),
    "the projection + RoPE + MXFP8 fusion is coming to the package cudnn-proj-rope",
)

__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING)
