"""The lazy names of `cudnn_gemm_dense`, for type checkers and editors; a test compares them."""

from cudnn_gemm_dense.amax import GemmAmax as GemmAmax
from cudnn_gemm_dense.amax import GemmAmaxSm100 as GemmAmaxSm100
from cudnn_gemm_dense.amax import gemm_amax_jax as gemm_amax_jax
from cudnn_gemm_dense.amax import gemm_amax_jax_sm100 as gemm_amax_jax_sm100
from cudnn_gemm_dense.amax import gemm_amax_wrapper as gemm_amax_wrapper
from cudnn_gemm_dense.amax import gemm_amax_wrapper_sm100 as gemm_amax_wrapper_sm100

NAMES: dict[str, str]
COMING: dict[str, str]

def names_of(stem: str) -> tuple[str, ...]: ...
