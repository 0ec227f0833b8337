"""Causal depthwise convolution in one dimension, training and decoding.

May import `cudnn_core.lazy` only; names load when first used. `cudnn_causal_conv.compat` has the same operations under
the signatures of the Dao-AILab package causal-conv1d.
"""

from cudnn_core.lazy import attach

NAMES = {
    "causal_conv1d": "cudnn_causal_conv.conv1d",
    "causal_conv1d_backward": "cudnn_causal_conv.backward",
    "causal_conv1d_update": "cudnn_causal_conv.update",
}


def ops():
    """The operations that are built, for the command line: loads their contracts."""
    from cudnn_causal_conv import backward, conv1d, update

    return (conv1d.OP, backward.OP, update.OP)


__getattr__, __dir__ = attach(__name__, NAMES, submodules=("compat",))
