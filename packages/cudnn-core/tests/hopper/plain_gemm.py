"""A GEMM without any operation: the plain body with a stored result, for tests and measurements.

May import the CuTe DSL and cudnn_core.hopper.
"""

from dataclasses import dataclass, field
from pathlib import Path

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cudnn_core.cache import KernelSource
from cudnn_core.hopper import arguments
from cudnn_core.hopper.epilogue import Epilogue, Fragments, TileStore
from cudnn_core.hopper.gemm import HopperGemm
from cudnn_core.hopper.matrix import MatrixOperand
from cudnn_core.hopper.plain import PlainBody
from cudnn_core.hopper.schedule import DenseSchedule
from cudnn_core.hopper.stream import StreamSchedule
from cudnn_core.hopper.tile import SHARED_MEMORY, TileConfig
from cudnn_core.hopper.tile import why_not as tile_why_not


@dataclass(frozen=True)
class PlainGemm:
    """C (M, N, L) = A (M, K, L) times B (N, K, L), transposed; majors name the contiguous modes."""

    a: str = "bfloat16"
    b: str = "bfloat16"
    c: str = "bfloat16"
    a_major: str = "k"
    b_major: str = "k"
    c_major: str = "n"
    c_store: str = "tma"
    batched: bool = False
    glu: bool = False
    # Whether the kernel is told that K is 0.
    no_k: bool = False
    # Whether a SwiGLU of C, half as wide, is stored too.
    swiglu: bool = False
    # Staging buffers of a warpgroup.
    depth: int = 2
    # None: whole tiles; else stream-K with at least so many units of 128 K elements a block.
    stream: int | None = None
    tile: TileConfig = field(default_factory=TileConfig)


def pieces(config: PlainGemm):
    """(body, epilogue)."""
    along_m, along_n = config.tile.cluster
    a = MatrixOperand(config.a, "k" if config.a_major == "k" else "mn", sharers=along_n)
    b = MatrixOperand(
        config.b, "k" if config.b_major == "k" else "mn", glu=config.glu, sharers=along_m
    )
    glu = "interleaved" if config.swiglu else None
    fragments = Fragments(config.tile, depth=config.depth, glu=glu)
    c = TileStore(fragments, config.c, config.c_major, config.c_store)
    if not config.swiglu:
        return PlainBody(config.tile, a, b), Epilogue(fragments, (("c", c),), store_only)
    half = TileStore(fragments, config.c, config.c_major, config.c_store, half=True)
    return PlainBody(config.tile, a, b), Epilogue(fragments, (("c", c), ("half", half)), swiglu)


def store_only(sums, frame, c) -> None:
    """C = convert(sums)."""
    c.put(frame, sums)


def swiglu(sums, frame, c, half) -> None:
    """C = convert(sums), and up * silu(gate); for measurements, so no function is exact."""
    c.put(frame, sums)
    values = []
    for up, gate in frame.pairs():
        power = cute.arch.exp2(sums[gate] * Float32(-1.4426950408889634))
        values.append(sums[up] * sums[gate] * cute.arch.rcp_approx(Float32(1.0) + power))
    half.put(frame.half(), values)


def why_not(config: PlainGemm) -> str | None:
    body, epilogue = pieces(config)
    reason = tile_why_not(config.tile) or body.why_not() or epilogue.why_not()
    if reason is None and body.smem_bytes() + epilogue.smem_bytes() + 2048 > SHARED_MEMORY:
        return "more shared memory than there is"
    return reason


def kernel(config: PlainGemm):
    """The host function to compile: f(a, b, c, half, partials, flags, blocks, stream)."""
    reason = why_not(config)
    if reason is not None:
        raise NotImplementedError(reason)
    body, epilogue = pieces(config)
    schedule = DenseSchedule(config.tile)
    if config.stream is not None:
        schedule = StreamSchedule(config.tile, least=config.stream)
    gemm = HopperGemm(config.tile, body, schedule, epilogue)
    store = epilogue.resources[0][1]

    @cute.jit
    def plain_gemm(
        a_tensor: cute.Tensor,
        b_tensor: cute.Tensor,
        c_tensor: cute.Tensor,
        half_tensor: cute.Tensor,
        partials: cute.Tensor,
        flags: cute.Tensor,
        blocks: Int32,
        stream: cuda.CUstream,
    ):
        a = body.a.prepare(a_tensor, config.tile.bm)
        b = body.b.prepare(b_tensor, config.tile.bn)
        c = store.prepare(c_tensor)
        outputs = (c,)
        if cutlass.const_expr(config.swiglu):
            outputs = (c, epilogue.resources[1][1].prepare(half_tensor))
        k = Int32(0) if config.no_k else a.k
        extents = (a.extent, b.extent, k, c.tensor.shape[2])
        if cutlass.const_expr(config.stream is None):
            work = schedule.prepare(*extents)
        else:
            work = schedule.prepare(*extents, partials, flags, blocks)
        gemm.launch(a, b, work, outputs, blocks, stream)

    return plain_gemm


def fake_args(config: PlainGemm) -> list:
    """Symbolic arguments for cute.compile, in the order of the host function."""
    m, n, k = cute.sym_int32(), cute.sym_int32(), cute.sym_int32()

    def matrix(rows, columns, dtype, first, aligned=True):
        return arguments.matrix(
            rows,
            columns,
            dtype,
            "native",
            "first" if first else "second",
            batched=config.batched,
            aligned=aligned,
        )

    c_first, c_aligned = config.c_major == "m", config.c_store == "tma"
    return [
        matrix(m, k, config.a, config.a_major == "m"),
        matrix(n, k, config.b, config.b_major == "n"),
        matrix(m, n, config.c, c_first, c_aligned),
        matrix(m, cute.sym_int32(), config.c, c_first, c_aligned),
        arguments.workspace(),
        arguments.workspace(),
        Int32(1),
        cute.runtime.make_fake_stream(),
    ]


def source(config: PlainGemm) -> KernelSource:
    """What the compile cache builds the kernel from."""
    return KernelSource(
        "plain_gemm",
        key=config,
        build=lambda: (kernel(config), fake_args(config), ""),
        sources=(Path(__file__),),
    )
