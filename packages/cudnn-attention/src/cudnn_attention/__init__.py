"""Block-sparse attention, flex attention, and the backward pass of NVFP4-QAT attention.

Nothing is built yet: every name raises NotImplementedError saying so. May import
`cudnn_core.lazy` only.
"""

from cudnn_core.lazy import attach

NAMES = {}

_BLOCK_SPARSE = "block-sparse attention is coming to the package cudnn-attention"
_FLEX = "flex attention is coming to the package cudnn-attention"
_QAT = "the backward pass of NVFP4-QAT attention is coming to the package cudnn-attention"

COMING = {
    "BSA": _BLOCK_SPARSE,
    "block_sparse_attention": _BLOCK_SPARSE,
    "block_sparse_attention_forward": _BLOCK_SPARSE,
    "block_sparse_attention_fp8_forward": _BLOCK_SPARSE,
    "block_sparse_attention_backward": _BLOCK_SPARSE,
    "flex_attention": _FLEX,
    "FlexAttentionFwd": _FLEX,
    "FlexAttentionBwd": _FLEX,
    "create_mask_plan": _FLEX,
    "flex_attn_func": _FLEX,
    "Nvfp4AttentionQatBackward": _QAT,
    "nvfp4_attention_qat_backward": _QAT,
}

__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING)
