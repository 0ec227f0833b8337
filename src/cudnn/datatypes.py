"""`cudnn.datatypes`: upstream's path to the dtype conversions."""

from cudnn_core.lazy import attach

NAMES = {
    "torch_to_cudnn_data_type": "cudnn_core.dtypes",
    "_torch_to_cudnn_data_type": "cudnn_core.dtypes:torch_to_cudnn_data_type",
}

__getattr__, __dir__ = attach(__name__, NAMES)
