"""`cudnn.gemm.cutedsl.dense.proj_rope_mxfp8`: upstream's path to projection + RoPE + MXFP8."""

from cudnn_core.lazy import attach
from cudnn_proj_rope import COMING, NAMES

__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING)
