"""The lazy names of `cudnn_core`, for type checkers and editors; a test compares them with NAMES."""

from cudnn_core.api_base import APIBase as APIBase
from cudnn_core.device_info import DeviceInfo as DeviceInfo
from cudnn_core.formats import dequantize as dequantize
from cudnn_core.formats import pack_scales as pack_scales
from cudnn_core.formats import quantize as quantize
from cudnn_core.formats import unpack_scales as unpack_scales
from cudnn_core.tensor_desc import TensorDesc as TensorDesc
from cudnn_core.tuple_dict import TupleDict as TupleDict

__version__: str
NAMES: dict[str, str]
