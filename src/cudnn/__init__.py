"""Fused low-precision GPU kernels for transformers: every public name of the cudnn packages.

May import `cudnn_core.lazy` and the packages' tables of names; nothing heavier. A name loads what
it needs when it is first used.
"""

import cudnn_attention
import cudnn_core
import cudnn_gemm_dense
import cudnn_gemm_grouped
import cudnn_proj_rope
from cudnn_core import __version__ as __version__
from cudnn_core.lazy import attach

NAMES = {
    **cudnn_core.NAMES,
    # Not a name of cudnn_core, where the module of that name stands.
    "device_info": "cudnn_core.device_info",
    **cudnn_gemm_dense.NAMES,
    **cudnn_gemm_grouped.NAMES,
    **cudnn_proj_rope.NAMES,
    **cudnn_attention.NAMES,
}

SUBMODULES = (
    "api_base",
    "datatypes",
    "discrete_grouped_gemm",
    "gemm",
    "grouped_gemm",
    "jax",
    "ops",
    "tensor_adapter",
    "torch",
)

NOT_PLANNED = "it exists in NVIDIA's cuDNN Frontend, and no package of this project has planned it"
UNPLANNED = dict.fromkeys(
    (
        "NSA",
        "TailRoPEForward",
        "tail_rope",
        "VisionRoPEBackward",
        "vision_rope_backward_wrapper",
        "RopeQDQInplace",
        "rope_qdq_inplace",
    ),
    NOT_PLANNED,
)

COMING = {
    **cudnn_gemm_grouped.COMING,
    **cudnn_proj_rope.COMING,
    **cudnn_attention.COMING,
    **UNPLANNED,
}

__getattr__, __dir__ = attach(
    __name__,
    NAMES,
    submodules=SUBMODULES,
    needs={"jax": "jax", "torch": "torch"},
    coming=COMING,
)
