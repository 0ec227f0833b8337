"""Epilogue resources alone on the device, bit for bit: fragments come from memory, not from a main loop.

May import torch, numpy, cudnn_core.testing.epilogue and the NumPy law of the formats.
"""

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest

from cudnn_core.formats import layout, reference
from cudnn_core.formats.spec import E2M1, E4M3, E5M2, FORMATS, resolve
from cudnn_core.hopper.tile import TileConfig
from cudnn_core.testing.tiers import why_no_hopper

pytestmark = pytest.mark.gpu

GUARD = 0xA5
NORMAL = TileConfig(bm=128, bn=128)
SWAPPED = TileConfig(bm=128, bn=128, orientation="swapped")


@dataclass(frozen=True)
class StoreCase:
    """TileStore of x, or of the up halves of its GLU pairs."""

    dtype: str
    contiguous: str
    tile: TileConfig
    mode: str = "tma"
    glu: str | None = None
    half: bool = False
    m: int = 200
    n: int = 192
    l: int = 2
    width: int = 0
    depth: int = 2
    batch: str = "last"


@pytest.fixture(scope="session", autouse=True)
def kernels(request):
    """The kernels of all collected cases, compiled side by side."""
    if why_no_hopper() is None:
        from cudnn_core.testing.epilogue import precompile_items

        precompile_items(request.session.items)


def special_values(shape, seed=0):
    """FP32 of all magnitudes; NaN of several kinds, Inf, zeros of both signs, subnormals and ties among them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    x *= np.exp2(rng.integers(-12, 12, shape)).astype(np.float32)
    words = [
        0x7FC00000,
        0xFFC00000,
        0x7F800001,
        0x7F800000,
        0xFF800000,
        0,
        0x80000000,
        1,
        0x807FFFFF,
    ]
    ties = [
        0.25,
        -0.75,
        1.25,
        1.75,
        2.5,
        3.5,
        5.0,
        6.0,
        448.0,
        464.0,
        57344.0,
        61440.0,
        1e30,
        65520.0,
    ]
    pool = np.concatenate([np.array(words, np.uint32).view(np.float32), np.array(ties, np.float32)])
    places = rng.random(shape) < 0.1
    x[places] = rng.choice(pool, places.sum())
    return x


def stored(x, dtype):
    """The bytes of FP32 numbers in an output format, as unsigned integers; FP4 two codes a byte."""
    elements = {"float8_e4m3fn": E4M3, "float8_e5m2": E5M2, "float4_e2m1fn": E2M1}
    if dtype in elements:
        codes = reference.encode(x, elements[dtype])
        return reference.pack_fp4(codes) if dtype == "float4_e2m1fn" else codes
    if dtype == "float32":
        return x.view(np.uint32)
    with np.errstate(all="ignore"):
        narrow = x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    return narrow.view(np.uint16)


def equal(got, want, dtype):
    """Bit equality, but for the payloads of NaN."""
    kinds = {
        "float32": np.float32,
        "float16": np.float16,
        "bfloat16": ml_dtypes.bfloat16,
    }
    if dtype in kinds:
        both = [np.isnan(v.view(kinds[dtype]).astype(np.float32)) for v in (got, want)]
        np.testing.assert_array_equal(*both)
        got, want = (np.where(both[0], 0, v) for v in (got, want))
    np.testing.assert_array_equal(got, want)


class Output:
    """(m, units, l) of a dtype in guarded memory, as a torch tensor with a contiguous mode."""

    def __init__(self, dtype, m, n, l, contiguous, batch="last", aligned=True):
        import torch

        self.size = {"float32": 4, "float16": 2, "bfloat16": 2}.get(dtype, 1)
        units = n // 2 if dtype == "float4_e2m1fn" else n
        outer, inner = (m, units) if contiguous == "n" else (units, m)
        # The copy engine wants strides of 16-byte multiples, the direct path any.
        pad = 16 + -inner % 16 if aligned else 3
        self.inner, self.contiguous = inner, contiguous
        self.memory = torch.full(
            (l, outer, (inner + pad) * self.size), GUARD, dtype=torch.uint8, device="cuda"
        )
        native = torch.uint8 if dtype == "float4_e2m1fn" else getattr(torch, dtype)
        view = self.memory.view(native)[..., :inner]
        self.tensor = view.permute(1, 2, 0) if contiguous == "n" else view.permute(2, 1, 0)
        if batch == "outer":
            self.tensor = self.tensor.permute(2, 0, 1)

    def bits(self):
        """(l, m, units) unsigned integers; nothing between the rows was written."""
        memory = self.memory.cpu().numpy()
        kept = self.inner * self.size
        touched = np.argwhere(memory[..., kept:] != GUARD)
        assert not len(touched), f"bytes (l, line, byte) behind the lines: {touched[:9].tolist()}"
        bits = np.ascontiguousarray(memory[..., :kept]).view(f"u{self.size}")
        return bits if self.contiguous == "n" else bits.swapaxes(1, 2)


def interleaved(x, glu):
    """The product's columns as tiles see them -> as the output has them."""
    if glu != "concatenated":
        return x
    up, gate = halves(x)
    return np.concatenate([up, gate], axis=-1)


def halves(x):
    """(up, gate) columns of GLU pairs."""
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 64, 2, 32)
    return (pairs[..., k, :].reshape(*x.shape[:-1], -1) for k in (0, 1))


def up_only(values, frame, out):
    out.put(frame.half(), [values[up] for up, _ in frame.pairs()])


def plain(values, frame, out):
    out.put(frame, values)


def store_harness(case, made=False):
    import cutlass.cute as cute

    from cudnn_core.hopper import arguments
    from cudnn_core.hopper.epilogue import Epilogue, Fragments, TileStore
    from cudnn_core.testing.epilogue import Harness

    fragments = Fragments(case.tile, case.width, case.depth, case.glu)
    container = "uint8" if case.dtype == "float4_e2m1fn" else "native"
    store = TileStore(
        fragments, case.dtype, case.contiguous, case.mode, container, case.batch, case.half
    )
    epilogue = Epilogue(fragments, (("out", store),), up_only if case.half else plain)
    assert epilogue.why_not() is None
    out = arguments.matrix(
        cute.sym_int32(),
        cute.sym_int32(),
        case.dtype,
        container,
        "first" if case.contiguous == "m" else "second",
        batched=True,
        batch=case.batch,
        aligned=case.mode == "tma",
    )
    return Harness(epilogue, [(0,)], made), [out]


def check_store(case):
    import torch

    harness, slots = store_harness(case)
    call = harness.compile(slots, case, __file__)
    x = special_values((case.l, case.m, case.n))
    n = case.n // 2 if case.half else case.n
    aligned = case.mode == "tma"
    out = Output(case.dtype, case.m, n, case.l, case.contiguous, case.batch, aligned)
    device = torch.from_numpy(x).cuda().permute(1, 2, 0)
    stream = torch.cuda.current_stream().cuda_stream
    call(device, [out.tensor], blocks=3, stream=stream)
    torch.cuda.synchronize()
    want = next(halves(x)) if case.half else interleaved(x, case.glu)
    equal(out.bits(), stored(np.ascontiguousarray(want), case.dtype), case.dtype)


DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")


def store_cases():
    """Every dtype, direction of lines, GLU layout and shape of subtiles, not all of their products."""
    # The copy engine stores whole 16-byte chunks: 208 rows.
    m_major = {"contiguous": "m", "m": 208}
    cases = []
    for tile in (NORMAL, SWAPPED):
        case = StoreCase("bfloat16", "n", tile)
        cases += [
            case,
            replace(case, dtype="float32"),
            replace(case, dtype="float32", **m_major),
            replace(case, dtype="float8_e4m3fn"),
            replace(case, dtype="float4_e2m1fn"),
            replace(case, dtype="float4_e2m1fn", mode="direct", m=77, n=70),
            replace(case, glu="interleaved", half=True),
            replace(case, glu="concatenated"),
        ]
    swapped = StoreCase("bfloat16", "m", SWAPPED, m=208)
    return [
        *cases,
        StoreCase("float8_e5m2", "m", NORMAL, m=208),
        StoreCase("float16", "m", NORMAL, m=208),
        StoreCase("float8_e4m3fn", "n", SWAPPED, glu="interleaved", half=True),
        replace(swapped, glu="concatenated", mode="direct", m=77),
        StoreCase("bfloat16", "n", replace(NORMAL, bm=64, pingpong=True), depth=1, batch="outer"),
        StoreCase("bfloat16", "n", NORMAL, glu="interleaved", half=True, width=128),
        StoreCase("bfloat16", "n", replace(SWAPPED, bm=24), m=40),
    ]


@pytest.mark.parametrize("case", store_cases(), ids=str)
def test_store(case):
    check_store(case)


@dataclass(frozen=True)
class QuantizeCase:
    """Quantize of x, or of the up halves of its GLU pairs; with norm constants, which one kernel takes in turn."""

    recipe: str
    block: int
    tile: TileConfig
    half: bool = False
    constants: tuple[float, ...] = ()
    view: str = "logical"
    m: int = 200
    n: int = 192
    l: int = 2
    width: int = 0


def quantize_harness(case, made=False):
    import cutlass
    import cutlass.cute as cute

    from cudnn_core.hopper import arguments
    from cudnn_core.hopper.epilogue import DeviceScalar, Epilogue, Fragments, Quantize, TileStore
    from cudnn_core.testing.epilogue import Harness

    fmt = resolve(FORMATS[case.recipe], case.block)
    fragments = Fragments(case.tile, case.width, glu="interleaved" if case.half else None)
    container = "uint8" if fmt.is_fp4 else "native"
    store = TileStore(fragments, fmt.element.name, "n", "tma", container, half=case.half)
    quantize = Quantize(store, fmt, case.view)

    def function(values, frame, out, constant=None):
        if case.half:
            values, frame = [values[up] for up, _ in frame.pairs()], frame.half()
        out.put(frame, values, None if constant is None else constant.get())

    resources, takes = [("out", quantize)], [(0, 1)]
    if case.constants:
        resources.append(("constant", DeviceScalar()))
        takes.append((2,))
    epilogue = Epilogue(fragments, tuple(resources), function)
    assert epilogue.why_not() is None
    out = arguments.matrix(
        cute.sym_int32(),
        cute.sym_int32(),
        fmt.element.name,
        container,
        "second",
        batched=True,
    )
    constant = cute.runtime.make_fake_tensor(cutlass.Float32, (1,), (1,), assumed_align=4)
    scales = arguments.scales(fmt.scale, "uint8", case.view, True)
    return Harness(epilogue, takes, made), [out, scales, constant]


def check_quantize(case):
    import torch

    harness, slots = quantize_harness(case)
    call = harness.compile(slots, case, __file__)
    fmt = resolve(FORMATS[case.recipe], case.block)
    x = special_values((case.l, case.m, case.n))
    # Blocks of zeros, tiny blocks, and blocks without NaN and Inf.
    ordinary = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    plain_rows = np.arange(case.m) % 3 != 0
    x[:, plain_rows] = ordinary[:, plain_rows]
    x[:, 1::7] = 0
    x[:, 4::16] *= np.float32(1e-38)
    x[:, 7::16] *= np.float32(3e38)
    n = case.n // 2 if case.half else case.n
    want = np.ascontiguousarray(next(halves(x)) if case.half else x)
    device = torch.from_numpy(x).cuda().permute(1, 2, 0)
    for constant in map(np.float32, case.constants or (1.0,)):
        codes, scale = reference.quantize_blocks(want, fmt, constant)
        data = reference.pack_fp4(codes) if fmt.is_fp4 else codes
        out, scales = quantized(call, case, fmt, device, n, constant)
        wanted = layout.pack(reference.numpy_ops, scale)
        np.testing.assert_array_equal(scales, wanted, err_msg=f"scales, constant {constant}")
        np.testing.assert_array_equal(out.bits(), data, err_msg=f"codes, constant {constant}")


def quantized(call, case, fmt, device, n, constant):
    """(output, scale bytes as atoms) of one call."""
    import torch

    out = Output(fmt.element.name, case.m, n, case.l, "n")
    blocks = -(-n // case.block)
    shape = (case.l, -(-case.m // 128), -(-blocks // 4), 32, 4, 4)
    scales = torch.full(shape, 0xEE, dtype=torch.uint8, device="cuda")
    view = scales.permute(layout.TO_LOGICAL) if case.view == "logical" else scales
    given = torch.full((1,), float(constant), device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    call(device, [out.tensor, view, given], blocks=3, stream=stream)
    torch.cuda.synchronize()
    return out, scales.cpu().numpy()


def quantize_cases():
    """Every recipe in one orientation or both; ragged atoms; narrow tiles, which leave whole rows of atoms to clear."""
    constants = {"constants": (0.37, 0.0, -2.0, float("nan"), float("inf"), 3e-39, 3e38)}
    ragged = {"view": "physical", "m": 129, **constants}
    one = replace(NORMAL, bm=64, bn=64, warpgroups=1)
    return [
        QuantizeCase("mxfp8", 32, NORMAL),
        QuantizeCase("mxfp8", 32, NORMAL, half=True),
        QuantizeCase("mxfp4", 32, NORMAL),
        QuantizeCase("nvfp4", 16, NORMAL, n=160, **ragged),
        QuantizeCase("mxfp8", 32, one, half=True),
        QuantizeCase("mxfp8", 32, SWAPPED),
        QuantizeCase("mxfp8_e5m2", 32, SWAPPED, n=176, **ragged),
        QuantizeCase("mxfp8", 32, SWAPPED, half=True),
        QuantizeCase("mxfp4", 16, SWAPPED, half=True),
        QuantizeCase("nvfp4", 16, SWAPPED, n=160, **ragged),
        QuantizeCase("mxfp8", 32, replace(SWAPPED, bm=16), m=40),
    ]


@pytest.mark.parametrize("case", quantize_cases(), ids=str)
def test_quantize(case):
    check_quantize(case)


@dataclass(frozen=True)
class OperandCase:
    """x times a row vector, x plus a tile, row sums of x, and max |x|, all at once."""

    dtype: str
    contiguous: str
    tile: TileConfig
    mode: str = "tma"
    m: int = 200
    n: int = 192
    l: int = 2
    depth: int = 2
    accumulate: bool = False


def operands_harness(case, made=False):
    import cutlass
    import cutlass.cute as cute

    from cudnn_core.hopper import arguments
    from cudnn_core.hopper.epilogue import (
        AmaxReduce,
        Epilogue,
        Fragments,
        RowSum,
        RowVector,
        TileLoad,
        TileStore,
    )
    from cudnn_core.testing.epilogue import Harness

    fragments = Fragments(case.tile, depth=case.depth)
    resources = {
        "scaled": TileStore(fragments, "float32", "n"),
        "added": TileStore(fragments, "float32", "n"),
        "vector": RowVector(fragments),
        "tile": TileLoad(fragments, case.dtype, case.contiguous, case.mode),
        "sums": RowSum(fragments, case.accumulate),
        "amax": AmaxReduce(per_batch=True),
    }

    def function(values, frame, scaled, added, vector, tile, sums, amax):
        rows = vector.get(frame)
        scaled.put(frame, [x * p for x, p in zip(values, rows, strict=True)])
        added.put(frame, [x + t for x, t in zip(values, tile.get(frame), strict=True)])
        sums.add(frame, values)
        amax.add(frame, values)

    epilogue = Epilogue(fragments, tuple(resources.items()), function)
    assert epilogue.why_not() is None
    m, n = cute.sym_int32(), cute.sym_int32()
    float32 = arguments.matrix(m, n, "float32", "native", "second", batched=True)
    loaded = arguments.matrix(
        m,
        n,
        case.dtype,
        "native",
        "first" if case.contiguous == "m" else "second",
        batched=True,
        aligned=case.mode == "tma",
    )
    # Each with strides of its own.
    vector, sums = (arguments.column(m, batched=True) for _ in range(2))
    flat = cute.runtime.make_fake_tensor(
        cutlass.Float32, (cute.sym_int32(),), (1,), assumed_align=16
    )
    amax = arguments.scalar(per_batch=True)
    slots = [float32, vector, loaded, sums, flat, amax, float32]
    takes = [(0,), (6,), (1,), (2,), (3, 4, 8), (5,)]
    return Harness(epilogue, takes, made), slots


def check_operands(case):
    import torch

    harness, slots = operands_harness(case)
    call = harness.compile(slots, case, __file__)
    row_sum = dict(harness.epilogue.resources)["sums"]
    rng = np.random.default_rng(0)
    shape = (case.l, case.m, case.n)
    x = rng.standard_normal(shape).astype(np.float32)
    p = rng.standard_normal((case.l, case.m)).astype(np.float32)
    tile = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    tile = tile.to(getattr(torch, case.dtype))
    prior = rng.standard_normal((case.l, case.m)).astype(np.float32)
    given = Output(case.dtype, case.m, case.n, case.l, case.contiguous, aligned=case.mode == "tma")
    given.tensor.copy_(tile.permute(1, 2, 0))
    vector = torch.full((case.l, case.m, 3), float("nan"), device="cuda")
    vector[..., 1] = torch.from_numpy(p)
    device = torch.from_numpy(x).cuda().permute(1, 2, 0)
    stream = torch.cuda.current_stream().cuda_stream
    nbytes = row_sum.workspace_bytes(case.m, case.n, case.l)
    seen = set()
    for _ in range(3):
        scaled = Output("float32", case.m, case.n, case.l, "n")
        added = Output("float32", case.m, case.n, case.l, "n")
        sums = torch.from_numpy(prior).cuda()[..., None].permute(1, 2, 0)
        workspace = torch.full((nbytes // 4,), float("nan"), device="cuda")
        amax = torch.full((case.l, 1, 1), float("-inf"), device="cuda")
        tensors = [
            scaled.tensor,
            vector[..., 1:2].permute(1, 2, 0),
            given.tensor,
            sums,
            workspace,
            amax,
            added.tensor,
        ]
        call(device, tensors, blocks=3, stream=stream)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(scaled.bits().view(np.float32), x * p[..., None])
        wide = tile.float().numpy()
        np.testing.assert_array_equal(added.bits().view(np.float32), x + wide)
        np.testing.assert_array_equal(amax.cpu().numpy().ravel(), np.abs(x).max(axis=(1, 2)))
        got = sums[:, 0].cpu().numpy().T
        want = x.astype(np.float64).sum(axis=-1) + (prior if case.accumulate else 0)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * case.n)
        seen.add(got.tobytes())
    assert len(seen) == 1, "sums differ from call to call"


def operands_cases():
    return [
        OperandCase("bfloat16", "n", NORMAL),
        OperandCase("bfloat16", "n", SWAPPED),
        OperandCase("float32", "m", SWAPPED, accumulate=True),
        OperandCase("float16", "m", NORMAL, "direct", m=77),
        OperandCase("bfloat16", "n", replace(NORMAL, bm=64, pingpong=True), depth=4),
        OperandCase("bfloat16", "n", replace(SWAPPED, bm=16), m=40),
    ]


@pytest.mark.parametrize("case", operands_cases(), ids=str)
def test_operands(case):
    check_operands(case)
