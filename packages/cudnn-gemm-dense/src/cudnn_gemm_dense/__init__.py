"""Dense block-scaled GEMM fusions: amax, SwiGLU, sReLU, dsReLU.

May import `cudnn_core.lazy` only; names load when first used.
"""

from cudnn_core.lazy import attach


def names_of(stem):
    """Canonical and upstream names of the fused GEMM `gemm_<stem>`: class, wrapper, JAX entry."""
    camel = f"Gemm{stem.capitalize()}"
    plain = (camel, f"gemm_{stem}_wrapper", f"gemm_{stem}_jax")
    return (*plain, f"{camel}Sm100", f"{plain[1]}_sm100", f"{plain[2]}_sm100")


STEMS = ("amax", "swiglu", "srelu", "dsrelu")

NAMES = {name: f"cudnn_gemm_dense.{stem}" for stem in STEMS for name in names_of(stem)}


def ops():
    """The operations that are built, for the command line: loads their contracts."""
    from cudnn_gemm_dense import amax, dsrelu, srelu, swiglu

    return tuple(module.OP for module in (amax, swiglu, srelu, dsrelu))


__getattr__, __dir__ = attach(__name__, NAMES)
