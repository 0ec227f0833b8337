"""The lazy names of `cudnn`, for type checkers and editors; a test compares them with NAMES."""

from cudnn import api_base as api_base
from cudnn import datatypes as datatypes
from cudnn import discrete_grouped_gemm as discrete_grouped_gemm
from cudnn import gemm as gemm
from cudnn import grouped_gemm as grouped_gemm
from cudnn import jax as jax
from cudnn import ops as ops
from cudnn import tensor_adapter as tensor_adapter
from cudnn import torch as torch
from cudnn_core import APIBase as APIBase
from cudnn_core import DeviceInfo as DeviceInfo
from cudnn_core import TensorDesc as TensorDesc
from cudnn_core import TupleDict as TupleDict
from cudnn_core import dequantize as dequantize
from cudnn_core import pack_scales as pack_scales
from cudnn_core import quantize as quantize
from cudnn_core import unpack_scales as unpack_scales
from cudnn_core.device_info import device_info as device_info
from cudnn_gemm_dense import GemmAmax as GemmAmax
from cudnn_gemm_dense import GemmAmaxSm100 as GemmAmaxSm100
from cudnn_gemm_dense import GemmDsrelu as GemmDsrelu
from cudnn_gemm_dense import GemmDsreluSm100 as GemmDsreluSm100
from cudnn_gemm_dense import GemmSrelu as GemmSrelu
from cudnn_gemm_dense import GemmSreluSm100 as GemmSreluSm100
from cudnn_gemm_dense import GemmSwiglu as GemmSwiglu
from cudnn_gemm_dense import GemmSwigluSm100 as GemmSwigluSm100
from cudnn_gemm_dense import gemm_amax_jax as gemm_amax_jax
from cudnn_gemm_dense import gemm_amax_jax_sm100 as gemm_amax_jax_sm100
from cudnn_gemm_dense import gemm_amax_wrapper as gemm_amax_wrapper
from cudnn_gemm_dense import gemm_amax_wrapper_sm100 as gemm_amax_wrapper_sm100
from cudnn_gemm_dense import gemm_dsrelu_jax as gemm_dsrelu_jax
from cudnn_gemm_dense import gemm_dsrelu_jax_sm100 as gemm_dsrelu_jax_sm100
from cudnn_gemm_dense import gemm_dsrelu_wrapper as gemm_dsrelu_wrapper
from cudnn_gemm_dense import gemm_dsrelu_wrapper_sm100 as gemm_dsrelu_wrapper_sm100
from cudnn_gemm_dense import gemm_srelu_jax as gemm_srelu_jax
from cudnn_gemm_dense import gemm_srelu_jax_sm100 as gemm_srelu_jax_sm100
from cudnn_gemm_dense import gemm_srelu_wrapper as gemm_srelu_wrapper
from cudnn_gemm_dense import gemm_srelu_wrapper_sm100 as gemm_srelu_wrapper_sm100
from cudnn_gemm_dense import gemm_swiglu_jax as gemm_swiglu_jax
from cudnn_gemm_dense import gemm_swiglu_jax_sm100 as gemm_swiglu_jax_sm100
from cudnn_gemm_dense import gemm_swiglu_wrapper as gemm_swiglu_wrapper
from cudnn_gemm_dense import gemm_swiglu_wrapper_sm100 as gemm_swiglu_wrapper_sm100

__version__: str
NAMES: dict[str, str]
COMING: dict[str, str]
NOT_PLANNED: str
SUBMODULES: tuple[str, ...]
UNPLANNED: dict[str, str]
