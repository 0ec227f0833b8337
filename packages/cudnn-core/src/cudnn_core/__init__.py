"""Contracts, engines, formats and the Hopper device-code library of the cudnn kernels.

May import `cudnn_core.lazy` only; names load when first used.
"""

from cudnn_core.lazy import attach

__version__ = "0.1.0"

NAMES = {
    "APIBase": "cudnn_core.api_base",
    "DeviceInfo": "cudnn_core.device_info",
    "TensorDesc": "cudnn_core.tensor_desc",
    "TupleDict": "cudnn_core.tuple_dict",
    "dequantize": "cudnn_core.formats",
    "pack_scales": "cudnn_core.formats",
    "quantize": "cudnn_core.formats",
    "unpack_scales": "cudnn_core.formats",
}

__getattr__, __dir__ = attach(__name__, NAMES)
