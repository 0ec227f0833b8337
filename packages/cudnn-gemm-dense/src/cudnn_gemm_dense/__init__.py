"""Dense block-scaled GEMM fusions: amax, SwiGLU, sReLU, dsReLU.

May import `cudnn_core.lazy` only; names load when first used.
"""

from cudnn_core.lazy import attach


def names_of(stem):
    """Canonical and upstream names of the fused GEMM `gemm_<stem>`: class, wrapper, JAX entry."""
    camel = f"Gemm{stem.capitalize()}"
    plain = (camel, f"gemm_{stem}_wrapper", f"gemm_{stem}_jax")
    return (*plain, f"{camel}Sm100", f"{plain[1]}_sm100", f"{plain[2]}_sm100")


NAMES = dict.fromkeys(names_of("amax"), "cudnn_gemm_dense.amax")

COMING = {
    name: f"the dense {title} fusion is coming to the package cudnn-gemm-dense"
    for stem, title in (
        ("swiglu", "GEMM + SwiGLU"),
        ("srelu", "GEMM + squared ReLU"),
        ("dsrelu", "GEMM + squared-ReLU backward"),
    )
    for name in names_of(stem)
}


def ops():
    """The operations that are built, for the command line: loads their contracts."""
    from cudnn_gemm_dense import amax

    return (amax.OP,)


__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING)
