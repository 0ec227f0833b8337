"""The lazy names of `cudnn_gemm_dense`, for type checkers and editors; a test compares them."""

from cudnn_gemm_dense.amax import GemmAmax as GemmAmax
from cudnn_gemm_dense.amax import GemmAmaxSm100 as GemmAmaxSm100
from cudnn_gemm_dense.amax import gemm_amax_jax as gemm_amax_jax
from cudnn_gemm_dense.amax import gemm_amax_jax_sm100 as gemm_amax_jax_sm100
from cudnn_gemm_dense.amax import gemm_amax_wrapper as gemm_amax_wrapper
from cudnn_gemm_dense.amax import gemm_amax_wrapper_sm100 as gemm_amax_wrapper_sm100
from cudnn_gemm_dense.dsrelu import GemmDsrelu as GemmDsrelu
from cudnn_gemm_dense.dsrelu import GemmDsreluSm100 as GemmDsreluSm100
from cudnn_gemm_dense.dsrelu import gemm_dsrelu_jax as gemm_dsrelu_jax
from cudnn_gemm_dense.dsrelu import gemm_dsrelu_jax_sm100 as gemm_dsrelu_jax_sm100
from cudnn_gemm_dense.dsrelu import gemm_dsrelu_wrapper as gemm_dsrelu_wrapper
from cudnn_gemm_dense.dsrelu import gemm_dsrelu_wrapper_sm100 as gemm_dsrelu_wrapper_sm100
from cudnn_gemm_dense.srelu import GemmSrelu as GemmSrelu
from cudnn_gemm_dense.srelu import GemmSreluSm100 as GemmSreluSm100
from cudnn_gemm_dense.srelu import gemm_srelu_jax as gemm_srelu_jax
from cudnn_gemm_dense.srelu import gemm_srelu_jax_sm100 as gemm_srelu_jax_sm100
from cudnn_gemm_dense.srelu import gemm_srelu_wrapper as gemm_srelu_wrapper
from cudnn_gemm_dense.srelu import gemm_srelu_wrapper_sm100 as gemm_srelu_wrapper_sm100
from cudnn_gemm_dense.swiglu import GemmSwiglu as GemmSwiglu
from cudnn_gemm_dense.swiglu import GemmSwigluSm100 as GemmSwigluSm100
from cudnn_gemm_dense.swiglu import gemm_swiglu_jax as gemm_swiglu_jax
from cudnn_gemm_dense.swiglu import gemm_swiglu_jax_sm100 as gemm_swiglu_jax_sm100
from cudnn_gemm_dense.swiglu import gemm_swiglu_wrapper as gemm_swiglu_wrapper
from cudnn_gemm_dense.swiglu import gemm_swiglu_wrapper_sm100 as gemm_swiglu_wrapper_sm100

STEMS: tuple[str, ...]
NAMES: dict[str, str]

def names_of(stem: str) -> tuple[str, ...]: ...
