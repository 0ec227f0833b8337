"""`cudnn.api_base`: upstream's path to the class API. Needs no framework and no compiler."""

from cudnn_core.lazy import attach

NAMES = {
    "APIBase": "cudnn_core.api_base",
    "TensorDesc": "cudnn_core.tensor_desc",
    "Device": "cudnn_core.tensor_desc",
    "TupleDict": "cudnn_core.tuple_dict",
    "check_buffers_disjoint": "cudnn_core.api_base",
    "warn_experimental_api_once": "cudnn_core.api_base",
    "_reset_experimental_api_warning_registry": "cudnn_core.api_base",
}

__getattr__, __dir__ = attach(__name__, NAMES)
