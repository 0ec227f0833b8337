"""`cudnn.gemm.cutedsl.dense.amax`: upstream's path to GEMM + amax."""

from cudnn_core.lazy import attach
from cudnn_gemm_dense import NAMES, names_of

# Upstream's names in upstream's order; the canonical ones are served as well.
__all__ = ["GemmAmaxSm100", "gemm_amax_wrapper_sm100", "gemm_amax_jax_sm100"]  # noqa: RUF022

__getattr__, __dir__ = attach(__name__, NAMES, only=names_of("amax"))
