"""`cudnn.tensor_adapter`: upstream's path to tensor metadata. Needs no framework and no compiler."""

from cudnn_core.lazy import attach

NAMES = dict.fromkeys(("Device", "TensorDesc"), "cudnn_core.tensor_desc")

__getattr__, __dir__ = attach(__name__, NAMES)
