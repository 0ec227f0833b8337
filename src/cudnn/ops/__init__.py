"""`cudnn.ops`: operations that upstream keeps out of the top level, the convolutions first.

May import `cudnn_core.lazy` and the packages' tables of names; needs no framework.
"""

import sys
from types import ModuleType

import cudnn
import cudnn_attention
import cudnn_causal_conv
from cudnn_core.lazy import attach

NAMES = {**cudnn_causal_conv.NAMES}

_NVFP4 = (
    "conversions with upstream's signature are coming to the package cudnn-core; "
    "cudnn.quantize(x, 'nvfp4') does the work today"
)

COMING = {
    **{
        name: why
        for name, why in cudnn_attention.COMING.items()
        if name.startswith("block_sparse_attention_")
    },
    **dict.fromkeys(
        ("block_sparse_attention_forward_jax", "block_sparse_attention_backward_jax"),
        cudnn_attention.COMING["BSA"],
    ),
    **dict.fromkeys(
        (
            "Nvfp4BlockScaleQuantizer",
            "Nvfp4BlockScaleDequantizer",
            "nvfp4_block_scale_quantize",
            "nvfp4_block_scale_dequantize",
        ),
        _NVFP4,
    ),
    **dict.fromkeys(
        ("causal_conv1d_nwh", "b2b_causal_conv1d", "fft_causal_conv1d"), cudnn.NOT_PLANNED
    ),
}

__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING)


class _Ops(ModuleType):
    """A package in which a function may have the name of a submodule, as `causal_conv1d` does."""

    def __setattr__(self, name, value):
        # The import system binds each submodule to its name in the package; the function keeps the name.
        if not (name in NAMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Ops
