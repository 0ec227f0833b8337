"""`cudnn.jax`: the bridge to CuTe DSL kernels, and every operation's JAX entry by its short name.

Needs JAX to be installed (ImportError otherwise); imports it when a name is first used.
"""

import cudnn
from cudnn_core.lazy import attach, require

require(__name__, "jax")

_BRIDGE = (
    "TensorSpec",
    "call",
    "gemm_operand_spec",
    "neg_inf_init",
    "row_major_desc",
    "sf_atom_spec",
    "zeros_init",
)
_SUFFIX = "_jax"

NAMES = {
    **dict.fromkeys(_BRIDGE, "cudnn_core.jax_bridge"),
    **{
        name.removesuffix(_SUFFIX): f"{home}:{name}"
        for name, home in cudnn.NAMES.items()
        if name.endswith(_SUFFIX)
    },
}

COMING = {
    **{
        name.removesuffix(_SUFFIX): why
        for name, why in cudnn.COMING.items()
        if name.endswith(_SUFFIX)
    },
    "block_sparse_attention": cudnn.COMING["BSA"],
    "kimi_delta_attention": cudnn.NOT_PLANNED,
}

__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING)
