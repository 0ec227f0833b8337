"""A block-scaled GEMM whose epilogue stores C and reduces max |C|: the pieces put together.

May import: the CuTe DSL and this folder.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .config import BlockScaledGemm
from .decoded import DecodedBody
from .epilogue import AmaxReduce, Epilogue, TileStore
from .gemm import HopperGemm
from .operand import BlockScaledOperand
from .schedule import DenseSchedule
from .tile import SHARED_MEMORY
from .tile import why_not as tile_why_not

DSL_TYPES = {
    "float32": cutlass.Float32,
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "float8_e4m3fn": cutlass.Float8E4M3FN,
    "float8_e5m2": cutlass.Float8E5M2,
    "float8_e8m0fnu": cutlass.Float8E8M0FNU,
    "float4_e2m1fn": cutlass.Float4E2M1FN,
    "uint8": cutlass.Uint8,
    "int8": cutlass.Int8,
}


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
    triples = {(8, "float8_e8m0fnu", 32), (4, "float8_e8m0fnu", 16), (4, "float8_e8m0fnu", 32)}
    triples.add((4, "float8_e4m3fn", 16))
    widths = {"float8_e4m3fn": 8, "float8_e5m2": 8, "float4_e2m1fn": 4}
    for name in (config.a_dtype, config.b_dtype):
        if name not in widths:
            return f"{name} is not a block-scaled element format"
        if (widths[name], config.sf_dtype, config.sf_vec) not in triples:
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
    a_first, b_first = config.a_major == "m", config.b_major == "n"
    aligned = config.c_store == "tma"
    args = [
        _fake_matrix(config, m, k, config.a_dtype, config.a_container, a_first),
        _fake_matrix(config, n, k, config.b_dtype, config.b_container, b_first),
        _fake_scales(config, config.sfa_container, config.sfa_form),
        _fake_scales(config, config.sfb_container, config.sfb_form),
        _fake_matrix(
            config, m, n, config.c_dtype, config.c_container, config.c_major == "m", aligned
        ),
    ]
    make = cute.runtime.make_fake_tensor
    if config.amax == "global":
        shape, strides = (1, 1, 1), tuple(cute.sym_int64() for _ in range(3))
    else:
        shape, strides = (cute.sym_int32(), 1, 1), (1, cute.sym_int64(), cute.sym_int64())
    args.append(make(cutlass.Float32, shape, strides, assumed_align=4))
    args += [Int32(1), cute.runtime.make_fake_stream()]
    return args


def _fake_matrix(config, rows, columns, dtype, container, first_contiguous, aligned=True):
    """(rows, columns, L), or (L, rows, columns), with one contiguous mode and dynamic strides.

    The generated host code checks what is declared here: extents that must agree, strides that must be multiples of
    16 bytes for the tensor copy engine, the alignment of the base address. Without batches the last extent is 1, and
    its stride, which then means nothing, goes unchecked.
    """
    packed = dtype == "float4_e2m1fn"
    element = DSL_TYPES[dtype if container == "native" else container]
    if packed and container == "uint8":
        # Half as many bytes as codes; the extents of other tensors count codes.
        columns = cute.sym_int32()
    elif packed:
        columns = cute.sym_int32(divisibility=2)
    # Native FP4 counts codes, and an address needs whole bytes.
    unit = 2 if element.width == 4 else 1
    quantum = 128 // element.width if aligned else unit
    outer = cute.sym_int64(divisibility=quantum)
    if config.batched:
        batch, batch_stride = cute.sym_int32(), cute.sym_int64(divisibility=quantum)
    else:
        batch, batch_stride = 1, cute.sym_int64(divisibility=unit)
    shape = [rows, columns, batch]
    stride = [1, outer, batch_stride] if first_contiguous else [outer, 1, batch_stride]
    if config.batch == "outer":
        shape, stride = [shape[2], *shape[:2]], [stride[2], *stride[:2]]
    align = 16 if aligned else max(1, element.width // 8)
    return cute.runtime.make_fake_tensor(element, tuple(shape), tuple(stride), assumed_align=align)


def _fake_scales(config, container, form):
    """Either view of the atoms; the strides between atoms are dynamic."""
    element = DSL_TYPES[config.sf_dtype if container == "native" else container]
    r, q, batches = cute.sym_int32(), cute.sym_int32(), cute.sym_int32() if config.batched else 1
    sr, sq, sl = cute.sym_int64(), cute.sym_int64(), cute.sym_int64()
    if form == "logical":
        shape, stride = (32, 4, r, 4, q, batches), (16, 4, sr, 1, sq, sl)
    else:
        shape, stride = (batches, r, q, 32, 4, 4), (sl, sr, sq, 16, 4, 1)
    return cute.runtime.make_fake_tensor(element, shape, stride, assumed_align=16)


def expected_instructions(config: BlockScaledGemm) -> tuple[str, ...]:
    """What the machine code must contain."""
    store = ("UTMASTG",) if config.c_store == "tma" else ()
    return ("HGMMA", "UTMALDG", "UBLKCP", *store)
