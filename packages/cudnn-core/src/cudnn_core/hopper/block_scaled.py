"""A block-scaled GEMM whose epilogue stores C and reduces max |C|: the pieces put together.

May import: the CuTe DSL and this folder.
"""

from dataclasses import dataclass, field

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from .decoded import DecodedBody
from .epilogue import AmaxReduce, Epilogue, TileStore
from .gemm import HopperGemm
from .operand import BlockScaledOperand
from .schedule import DenseSchedule
from .tile import SHARED_MEMORY, TileConfig
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


@dataclass(frozen=True)
class BlockScaledGemm:
    """Every compile-time property of the kernel; the object is the compile key.

    Dtypes are names. a_container, b_container, c_container: "native" or "uint8" (packed FP4).
    sf_container: "native", "uint8" or "int8". sfa_form, sfb_form: "logical" (32,4,R,4,Q,L) or
    "physical" (L,R,Q,32,4,4). c_store: "tma" needs a 16-byte aligned C whose strides are multiples
    of 16 bytes; "direct" takes any. batch: "last" for (M,K,L) or "outer" for (L,M,K). amax:
    "global" writes one number, "per_batch" L of them.
    """

    a_dtype: str
    b_dtype: str
    sf_dtype: str
    sf_vec: int
    c_dtype: str = "float32"
    a_container: str = "native"
    b_container: str = "native"
    c_container: str = "native"
    sf_container: str = "native"
    a_major: str = "k"
    b_major: str = "k"
    c_major: str = "n"
    sfa_form: str = "logical"
    sfb_form: str = "logical"
    c_store: str = "tma"
    batch: str = "last"
    amax: str = "global"
    tile: TileConfig = field(default_factory=TileConfig)

    @property
    def a_operand(self) -> BlockScaledOperand:
        return BlockScaledOperand(
            self.a_dtype, self.sf_dtype, self.sf_vec, "k" if self.a_major == "k" else "mn",
            self.a_container, self.sfa_form, self.batch,
        )

    @property
    def b_operand(self) -> BlockScaledOperand:
        return BlockScaledOperand(
            self.b_dtype, self.sf_dtype, self.sf_vec, "k" if self.b_major == "k" else "mn",
            self.b_container, self.sfb_form, self.batch,
        )

    @property
    def body(self) -> DecodedBody:
        return DecodedBody(self.tile, self.a_operand, self.b_operand)

    @property
    def epilogue(self) -> Epilogue:
        store = TileStore(
            self.tile, self.c_dtype, self.c_major, self.c_store, self.c_container, self.batch
        )
        reduce = AmaxReduce(self.amax == "per_batch")
        return Epilogue(
            self.tile, (("c", store), ("amax", reduce)), store_and_reduce, store.width
        )


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
    if "mn" in (config.a_operand.contiguous, config.b_operand.contiguous):
        if "float4_e2m1fn" in (config.a_dtype, config.b_dtype):
            return "FP4 operands must be K-major"
    if config.c_dtype == "float4_e2m1fn" and config.c_major != "n":
        return "FP4 outputs must be N-major"
    reason = config.body.why_not()
    if reason is not None:
        return reason
    if config.body.smem_bytes() + config.epilogue.smem_bytes() + 4096 > SHARED_MEMORY:
        return "the rings and the output staging need more shared memory than there is"
    return None


def kernel(config: BlockScaledGemm):
    """The host function to compile: f(a, b, sfa, sfb, c, amax, stream).

    Empty problems (M, N, K or L of 0) are the caller's to settle before the call.
    """
    reason = why_not(config)
    if reason is not None:
        raise NotImplementedError(reason)
    epilogue = config.epilogue
    gemm = HopperGemm(config.tile, config.body, DenseSchedule(config.tile), epilogue)
    store, reduce = epilogue.resources[0][1], epilogue.resources[1][1]

    @cute.jit
    def block_scaled_gemm(
        a_tensor: cute.Tensor,
        b_tensor: cute.Tensor,
        sfa_tensor: cute.Tensor,
        sfb_tensor: cute.Tensor,
        c_tensor: cute.Tensor,
        amax_tensor: cute.Tensor,
        stream: cuda.CUstream,
    ):
        a = config.a_operand.prepare(a_tensor, sfa_tensor, config.tile.bm)
        b = config.b_operand.prepare(b_tensor, sfb_tensor, config.tile.bn)
        c = store.prepare(c_tensor)
        amax = reduce.prepare(amax_tensor)
        schedule = gemm.schedule.prepare(a.extent, b.extent, a.k, c.tensor.shape[2])
        gemm.launch(a, b, schedule, (c, amax), stream)

    return block_scaled_gemm


def fake_args(config: BlockScaledGemm) -> list:
    """Symbolic arguments for cute.compile, in the order of the host function."""
    m, n, k = cute.sym_int32(), cute.sym_int32(), cute.sym_int32(divisibility=2)
    args = [
        _fake_matrix(config, m, k, config.a_dtype, config.a_container, config.a_major == "m"),
        _fake_matrix(config, n, k, config.b_dtype, config.b_container, config.b_major == "n"),
        _fake_scales(config, config.sfa_form),
        _fake_scales(config, config.sfb_form),
        _fake_matrix(
            config, m, n, config.c_dtype, config.c_container, config.c_major == "m",
            aligned=config.c_store == "tma",
        ),
    ]
    make = cute.runtime.make_fake_tensor
    if config.amax == "global":
        strides = tuple(cute.sym_int64() for _ in range(3))
        args.append(make(cutlass.Float32, (1, 1, 1), strides, assumed_align=4))
    else:
        args.append(make(cutlass.Float32, (cute.sym_int32(),), (1,), assumed_align=4))
    args.append(cute.runtime.make_fake_stream())
    return args


def _fake_matrix(config, rows, columns, dtype, container, first_contiguous, aligned=True):
    """(rows, columns, L), or (L, rows, columns), with one contiguous mode and dynamic strides."""
    packed = dtype == "float4_e2m1fn"
    if packed and container == "uint8":
        # Half as many bytes as codes; the extents of other tensors count codes.
        columns = cute.sym_int32()
    elif packed:
        columns = cute.sym_int32(divisibility=2)
    stride = [cute.sym_int64(divisibility=2 if packed else 1) for _ in range(3)]
    stride[0 if first_contiguous else 1] = 1
    shape = [rows, columns, cute.sym_int32()]
    if config.batch == "outer":
        shape, stride = [shape[2], *shape[:2]], [stride[2], *stride[:2]]
    element = DSL_TYPES[dtype if container == "native" else container]
    align = 16 if aligned else max(1, element.width // 8)
    return cute.runtime.make_fake_tensor(
        element, tuple(shape), tuple(stride), assumed_align=align
    )


def _fake_scales(config, form):
    element = DSL_TYPES[config.sf_dtype if config.sf_container == "native" else config.sf_container]
    r, q, batches = cute.sym_int32(), cute.sym_int32(), cute.sym_int32()
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
