"""Grouped (mixture-of-experts) GEMM fusions, packed and discrete, and their weight gradients.

Nothing is built yet: every name raises NotImplementedError saying so. May import
`cudnn_core.lazy` only.
"""

from cudnn_core.lazy import attach

_PACKED = (
    "",
    "Swiglu",
    "Dswiglu",
    "Srelu",
    "Dsrelu",
    "Quant",
    "Glu",
    "GluHadamard",
    "GluHadamardQuant",
    "Dglu",
    "Wgrad",
)
_DISCRETE = ("Swiglu", "Dswiglu")

# Upstream's JAX entries that carry another suffix than `_jax_sm100`.
_JAX_FORWARD = ("quant", "srelu", "glu_hadamard", "glu_hadamard_quant")


def _snake(camel):
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in camel)


def _names(family, fusions):
    for fusion in fusions:
        stem = f"{_snake(family)[1:]}{_snake(fusion)}"
        for plain in (f"{family}{fusion}", f"{stem}_wrapper", f"{stem}_jax"):
            yield plain
            yield f"{plain}Sm100" if plain[0].isupper() else f"{plain}_sm100"


PACKED = (
    *_names("GroupedGemm", _PACKED),
    *(f"grouped_gemm_{stem}_jax_forward" for stem in _JAX_FORWARD),
    "get_grouped_gemm_wgrad_workspace_size",
    "get_grouped_gemm_wgrad_workspace_size_sm100",
)
DISCRETE = tuple(_names("DiscreteGroupedGemm", _DISCRETE))

NAMES = {}

COMING = dict.fromkeys(
    (*PACKED, *DISCRETE),
    "grouped (mixture-of-experts) GEMM fusions are coming to the package cudnn-gemm-grouped",
)
# These two live in the grouped package upstream, never at the top level.
PLANS = dict.fromkeys(("PreparedGroupedGemm", "prepare_grouped_gemm"), next(iter(COMING.values())))

__getattr__, __dir__ = attach(__name__, NAMES, coming={**COMING, **PLANS})
