"""The block-scaled GEMM that stores C and reduces max |C|: core's Hopper pieces put together.

May import the CuTe DSL and cudnn_core.hopper; loaded only to compile.
"""

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Int32

from cudnn_core.hopper import arguments
from cudnn_core.hopper.decoded import DecodedBody
from cudnn_core.hopper.epilogue import AmaxReduce, Epilogue, TileStore
from cudnn_core.hopper.gemm import HopperGemm
from cudnn_core.hopper.operand import BlockScaledOperand
from cudnn_core.hopper.schedule import DenseSchedule
from cudnn_core.hopper.tile import SHARED_MEMORY
from cudnn_core.hopper.tile import why_not as tile_why_not

from .config import RECIPES, BlockScaledGemm


def operands(config: BlockScaledGemm) -> tuple[BlockScaledOperand, BlockScaledOperand]:
    """The two sides of the product."""
    a = BlockScaledOperand(
        element=config.a_dtype,
        scale=config.sf_dtype,
        sf_vec=config.sf_vec,
        contiguous="k" if config.a_major == "k" else "mn",
        container=config.a_container,
        sf_form=config.sfa_form,
        batch=config.batch,
    )
    b = BlockScaledOperand(
        element=config.b_dtype,
        scale=config.sf_dtype,
        sf_vec=config.sf_vec,
        contiguous="k" if config.b_major == "k" else "mn",
        container=config.b_container,
        sf_form=config.sfb_form,
        batch=config.batch,
    )
    return a, b


def epilogue_of(config: BlockScaledGemm) -> Epilogue:
    """Store C, reduce max |C|."""
    store = TileStore(
        config.tile,
        config.c_dtype,
        config.c_major,
        config.c_store,
        config.c_container,
        config.batch,
    )
    resources = (("c", store), ("amax", AmaxReduce(config.amax == "per_batch")))
    return Epilogue(config.tile, resources, store_and_reduce, store.width)


def store_and_reduce(accumulator, frame, c, amax) -> None:
    """C = convert(acc); amax = max |acc|, of the FP32 values."""
    reduce, reduced = amax
    reduce.add(reduced, frame, accumulator)
    store, stored = c
    store.put(stored, frame, accumulator)


def why_not(config: BlockScaledGemm) -> str | None:
    """The reason why no kernel can be built for the configuration, or None."""
    reason = tile_why_not(config.tile)
    if reason is not None:
        return reason
    for name in (config.a_dtype, config.b_dtype):
        if (name, config.sf_dtype, config.sf_vec) not in RECIPES.values():
            return f"{name} does not go with {config.sf_dtype} scales of {config.sf_vec} elements"
    a, b = operands(config)
    if "mn" in (a.contiguous, b.contiguous):
        if "float4_e2m1fn" in (config.a_dtype, config.b_dtype):
            return "FP4 operands must be K-major"
    if config.c_dtype == "float4_e2m1fn" and config.c_major != "n":
        return "FP4 outputs must be N-major"
    body = DecodedBody(config.tile, a, b)
    reason = body.why_not()
    if reason is not None:
        return reason
    if body.smem_bytes() + epilogue_of(config).smem_bytes() + 4096 > SHARED_MEMORY:
        return "the rings and the output staging need more shared memory than there is"
    return None


def kernel(config: BlockScaledGemm):
    """The host function to compile: f(a, b, sfa, sfb, c, amax, blocks, stream).

    blocks: how many thread blocks may be resident, a multiprocessor each.
    Empty problems (M, N, K or L of 0) are the caller's to settle before the call.
    """
    reason = why_not(config)
    if reason is not None:
        raise NotImplementedError(reason)
    epilogue = epilogue_of(config)
    a_operand, b_operand = operands(config)
    body = DecodedBody(config.tile, a_operand, b_operand)
    gemm = HopperGemm(config.tile, body, DenseSchedule(config.tile), epilogue)
    store, reduce = epilogue.resources[0][1], epilogue.resources[1][1]

    @cute.jit
    def block_scaled_gemm(
        a_tensor: cute.Tensor,
        b_tensor: cute.Tensor,
        sfa_tensor: cute.Tensor,
        sfb_tensor: cute.Tensor,
        c_tensor: cute.Tensor,
        amax_tensor: cute.Tensor,
        blocks: Int32,
        stream: cuda.CUstream,
    ):
        a = a_operand.prepare(a_tensor, sfa_tensor, config.tile.bm)
        b = b_operand.prepare(b_tensor, sfb_tensor, config.tile.bn)
        c = store.prepare(c_tensor)
        amax = reduce.prepare(amax_tensor)
        schedule = gemm.schedule.prepare(a.extent, b.extent, a.k, c.tensor.shape[2])
        gemm.launch(a, b, schedule, (c, amax), blocks, stream)

    return block_scaled_gemm


def fake_args(config: BlockScaledGemm) -> list:
    """Symbolic arguments for cute.compile, in the order of the host function."""
    m, n, k = cute.sym_int32(), cute.sym_int32(), cute.sym_int32(divisibility=2)
    placing = {"batched": config.batched, "batch": config.batch}
    return [
        arguments.matrix(
            m,
            k,
            config.a_dtype,
            config.a_container,
            "first" if config.a_major == "m" else "second",
            **placing,
        ),
        arguments.matrix(
            n,
            k,
            config.b_dtype,
            config.b_container,
            "first" if config.b_major == "n" else "second",
            **placing,
        ),
        arguments.scales(config.sf_dtype, config.sfa_container, config.sfa_form, config.batched),
        arguments.scales(config.sf_dtype, config.sfb_container, config.sfb_form, config.batched),
        arguments.matrix(
            m,
            n,
            config.c_dtype,
            config.c_container,
            "first" if config.c_major == "m" else "second",
            aligned=config.c_store == "tma",
            **placing,
        ),
        arguments.scalar(per_batch=config.amax == "per_batch"),
        Int32(1),
        cute.runtime.make_fake_stream(),
    ]


def expected_instructions(config: BlockScaledGemm) -> tuple[str, ...]:
    """What the machine code must contain."""
    store = ("UTMASTG",) if config.c_store == "tma" else ()
    return ("HGMMA", "UTMALDG", "UBLKCP", *store)
