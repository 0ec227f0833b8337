"""Causal depthwise convolution in one dimension, training and decoding.

Nothing is built yet: every name raises NotImplementedError saying so. May import
`cudnn_core.lazy` only.
"""

from cudnn_core.lazy import attach

NAMES = {}

COMING = dict.fromkeys(
    ("causal_conv1d", "causal_conv1d_update"),
    "the causal 1-D convolution is coming to the package cudnn-causal-conv",
)

__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING)
