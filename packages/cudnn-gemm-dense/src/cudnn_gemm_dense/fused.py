"""Products with an activation behind them - SwiGLU, squared ReLU and its backward - as one kernel each.

May import the CuTe DSL, cudnn_core.hopper and formats.spec; loaded only to compile.
"""

from dataclasses import replace

import cutlass
import cutlass.cute as cute

from cudnn_core.formats.spec import FORMATS
from cudnn_core.hopper import arguments
from cudnn_core.hopper.epilogue import (
    AmaxReduce,
    DeviceScalar,
    Epilogue,
    Fragments,
    Quantize,
    RowSum,
    RowVector,
    Scalar,
    TileLoad,
    TileStore,
)
from cudnn_core.hopper.tile import ROOMY_SUMS

from . import epilogues, product
from .config import FusedConfig
from .product import Multiply

FUNCTIONS = {
    "swiglu": epilogues.glu_silu,
    "srelu": epilogues.squared_relu,
    "dsrelu": epilogues.squared_relu_backward,
}
# The output that is quantized, and measured by amax.
RESULT = {"swiglu": "c", "srelu": "d", "dsrelu": "d"}
# Staging that an epilogue may have, from the best: (widest subtile, buffers of a warpgroup).
STAGINGS = ((64, 2), (32, 2), (64, 1), (32, 1), (16, 1))
# The same where a thread's sums leave few registers to what it makes of them.
NARROW_STAGINGS = ((32, 2), (64, 2), (32, 1), (64, 1), (16, 1))


def epilogue_of(config: FusedConfig, width: int = 64, depth: int = 2) -> Epilogue:
    """The op's function with the resources that this configuration has, in the order of the kernel's tensors."""
    fragments = Fragments(config.product.tile, glu=config.product.glu)
    fragments = replace(fragments, width=min(width, fragments.width), depth=depth)
    resources = {"alpha": Scalar()}
    for name in config.order:
        if name in ("ab12", "c", "d"):
            resources[name] = tile_of(config, fragments, name)
        elif name == "prob":
            resources[name] = RowVector(fragments)
        elif name == "dprob":
            resources[name] = RowSum(fragments, accumulate=True)
        elif name == "norm_const":
            resources[name] = DeviceScalar()
        elif name == "amax":
            resources[name] = AmaxReduce(config.amax == "per_batch")
    return Epilogue(fragments, tuple(resources.items()), FUNCTIONS[config.op])


def tile_of(config: FusedConfig, fragments: Fragments, name: str):
    """The resource of a tensor of C's shape: loaded if it comes in, quantized if it has scales."""
    stored = config.stored(name)
    result = name == RESULT[config.op]
    kind = TileLoad if config.op == "dsrelu" and not result else TileStore
    tile = kind(
        fragments,
        stored.dtype,
        stored.major,
        stored.store,
        stored.container,
        config.product.batch,
        half=config.op == "swiglu" and result,
    )
    if not result or config.out_format is None:
        return tile
    return Quantize(tile, FORMATS[config.out_format], config.scale_form)


def fitted(config: FusedConfig) -> tuple[FusedConfig, Epilogue] | str:
    """The configuration with as many stages, and the epilogue with as much staging, as there is room for; or why not.

    The main loop has better use for shared memory: stages are given up last.
    """
    first, crowded = None, config.product.tile.sums > ROOMY_SUMS
    for made in product.shorter(config.product):
        tried = replace(config, product=made)
        for width, depth in NARROW_STAGINGS if crowded else STAGINGS:
            epilogue = epilogue_of(tried, width, depth)
            reason = product.why_not(tried.product, epilogue)
            if reason is None:
                return tried, epilogue
            first = first or reason
    return first


def why_not(config: FusedConfig) -> str | None:
    """The reason why no kernel can be built for the configuration, or None."""
    found = fitted(config)
    return found if isinstance(found, str) else None


def pieces(config: FusedConfig) -> tuple[FusedConfig, Multiply]:
    """The fitted configuration and its product with an epilogue; NotImplementedError if there is none."""
    found = fitted(config)
    if isinstance(found, str):
        raise NotImplementedError(found)
    config, epilogue = found
    more = ("row_sums",) if "dprob" in config.order else ()
    return config, Multiply(config.product, epilogue, more)


def kernel(config: FusedConfig):
    """The host function to compile: f(*tensors of `order`[, workspace], alpha, blocks, stream).

    The workspace as config.scratch and kernels.regions say. blocks: how many thread blocks may be resident, a
    multiprocessor each. Empty problems (M, N, K or L of 0) are the caller's to settle before the call.
    """
    config, multiply = pieces(config)
    names = (*config.order, *multiply.scratch, "alpha")
    resources, result = multiply.epilogue.resources, RESULT[config.op]
    outer = config.product.batch == "outer"
    scales = next((name for name in ("sfc", "sfd") if name in config.order), None)

    def prepared(name, resource, named, operands, regions):
        """What the resource's `prepare` returns."""
        if isinstance(resource, Quantize):
            return resource.prepare(named[name], named[scales])
        if name in ("prob", "dprob"):
            column = rows_first(named[name]) if outer else named[name]
            if name == "prob":
                return resource.prepare(column)
            return resource.prepare(column, regions["row_sums"], operands.n)
        return resource.prepare(named[name])

    @cute.jit
    def gemm_fused(*arguments):
        *given, blocks, stream = arguments
        named = dict(zip(names, given, strict=True))
        operands, regions = multiply.prepare(named, blocks, stream)
        results = tuple(prepared(name, r, named, operands, regions) for name, r in resources)
        batches = named[result].shape[0 if cutlass.const_expr(outer) else 2]
        multiply.launch(operands, regions, batches, results, blocks, stream)

    return gemm_fused


@cute.jit
def rows_first(column: cute.Tensor):
    """(L, M, 1) seen as (M, 1, L)."""
    shape, stride = column.shape, column.stride
    layout = cute.make_layout(
        (shape[1], shape[2], shape[0]), stride=(stride[1], stride[2], stride[0])
    )
    return cute.make_tensor(column.iterator, layout)


def fake_args(config: FusedConfig) -> list:
    """Symbolic arguments for cute.compile, in the order of the host function."""
    config, multiply = pieces(config)
    m, n, k = cute.sym_int32(), cute.sym_int32(), cute.sym_int32(divisibility=2)
    sides = dict(zip(multiply.inputs, multiply.fake_inputs(m, n, k), strict=True))
    made = [sides[x] if x in sides else fake_tensor(config, x, m, n) for x in config.order]
    return [*made, *multiply.fake_scratch(), cutlass.Float32(1), *arguments.launch()]


def fake_tensor(config: FusedConfig, name: str, m, n):
    """The symbolic tensor of an operand that is no side of the product."""
    batched, batch = config.product.batched, config.product.batch
    if name in ("prob", "dprob"):
        return arguments.column(m, batched=batched, batch=batch)
    if name == "norm_const":
        return arguments.scalar(per_batch=False, rank=1)
    if name == "amax":
        rank = 3 if config.op == "swiglu" else 1
        return arguments.scalar(per_batch=config.amax == "per_batch", rank=rank)
    if name in ("sfc", "sfd"):
        scale = FORMATS[config.out_format].scale
        return arguments.scales(scale, "native", config.scale_form, batched)
    stored = config.stored(name)
    return arguments.matrix(
        m,
        cute.sym_int32() if config.op == "swiglu" and name == "c" else n,
        stored.dtype,
        stored.container,
        "first" if stored.major == "m" else "second",
        aligned=stored.store == "tma",
        batched=batched,
        batch=batch,
    )


def expected_instructions(config: FusedConfig) -> tuple[str, ...]:
    """What the machine code must contain."""
    config, multiply = pieces(config)
    stores = [config.stored(RESULT[config.op]).store]
    return (*multiply.expected_instructions(), *(("UTMASTG",) if "tma" in stores else ()))
