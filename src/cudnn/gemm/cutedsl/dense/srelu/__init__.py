"""`cudnn.gemm.cutedsl.dense.srelu`: upstream's path to GEMM + squared ReLU."""

from cudnn_core.lazy import attach
from cudnn_gemm_dense import NAMES, names_of

# Upstream's names in upstream's order; the canonical ones are served as well.
__all__ = ["GemmSreluSm100", "gemm_srelu_wrapper_sm100", "gemm_srelu_jax_sm100"]  # noqa: RUF022

__getattr__, __dir__ = attach(__name__, NAMES, only=names_of("srelu"))
