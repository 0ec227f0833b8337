"""The GEMM that stores C and reduces max |C|: a product of any two sides with that epilogue.

May import the CuTe DSL and cudnn_core.hopper; loaded only to compile.
"""

from dataclasses import replace

import cutlass.cute as cute

from cudnn_core.hopper import arguments
from cudnn_core.hopper.epilogue import AmaxReduce, Epilogue, Fragments, TileStore

from . import product
from .config import GemmAmaxConfig
from .epilogues import store_amax
from .product import Multiply


def epilogue_of(config: GemmAmaxConfig) -> Epilogue:
    """Store C, reduce max |C|."""
    tile = config.product.tile
    fragments = Fragments(tile, glu=config.product.glu)
    # The main loop has better use for the shared memory and the registers that wide subtiles would take.
    width = fragments.width
    if config.c_dtype == "float32" or tile.warpgroups > 2:
        width = min(32, width)
    if config.c_store == "direct":
        width = min(16, width)
    fragments = replace(fragments, width=width, depth=2 if tile.warpgroups <= 2 else 1)
    store = TileStore(
        fragments,
        config.c_dtype,
        config.c_major,
        config.c_store,
        config.c_container,
        config.product.batch,
    )
    resources = (("c", store), ("amax", AmaxReduce(config.amax == "per_batch")))
    return Epilogue(fragments, resources, store_amax)


def fitted(config: GemmAmaxConfig) -> GemmAmaxConfig:
    """With rings as deep as there is room for."""
    for made in product.shorter(config.product):
        tried = replace(config, product=made)
        if product.why_not(made, epilogue_of(tried)) is None:
            return tried
    return config


def why_not(config: GemmAmaxConfig) -> str | None:
    """The reason why no kernel can be built for the configuration, or None."""
    if config.c_dtype == "float4_e2m1fn" and config.c_major != "n":
        return "FP4 outputs must be N-major"
    config = fitted(config)
    return product.why_not(config.product, epilogue_of(config))


def kernel(config: GemmAmaxConfig):
    """The host function to compile: f(a, b[, sfa][, sfb], c, amax[, workspace], blocks, stream).

    Scales as the sides have them; the workspace as config.scratch and kernels.regions say. blocks: how many thread
    blocks may be resident, a multiprocessor each. Empty problems (M, N, K or L of 0) are the caller's to settle before
    the call.
    """
    reason = why_not(config)
    if reason is not None:
        raise NotImplementedError(reason)
    config = fitted(config)
    epilogue = epilogue_of(config)
    multiply = Multiply(config.product, epilogue)
    names = (*multiply.inputs, "c", "amax", *multiply.scratch)
    (_, store), (_, reduce) = epilogue.resources

    @cute.jit
    def gemm_amax(*arguments):
        *tensors, blocks, stream = arguments
        named = dict(zip(names, tensors, strict=True))
        operands, regions = multiply.prepare(named, blocks, stream)
        c = store.prepare(named["c"])
        results = (c, reduce.prepare(named["amax"]))
        multiply.launch(operands, regions, c.tensor.shape[2], results, blocks, stream)

    return gemm_amax


def fake_args(config: GemmAmaxConfig) -> list:
    """Symbolic arguments for cute.compile, in the order of the host function."""
    config = fitted(config)
    multiply = Multiply(config.product, epilogue_of(config))
    m, n, k = cute.sym_int32(), cute.sym_int32(), cute.sym_int32(divisibility=2)
    return [
        *multiply.fake_inputs(m, n, k),
        arguments.matrix(
            m,
            n,
            config.c_dtype,
            config.c_container,
            "first" if config.c_major == "m" else "second",
            aligned=config.c_store == "tma",
            batched=config.product.batched,
            batch=config.product.batch,
        ),
        arguments.scalar(per_batch=config.amax == "per_batch"),
        *multiply.fake_scratch(),
        *arguments.launch(),
    ]


def expected_instructions(config: GemmAmaxConfig) -> tuple[str, ...]:
    """What the machine code must contain."""
    config = fitted(config)
    store = ("UTMASTG",) if config.c_store == "tma" else ()
    return (*Multiply(config.product, epilogue_of(config)).expected_instructions(), *store)
