"""The benchmark's cases: their checks refuse wrong results, and the chains beside them are the same maths."""

import functools
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import cudnn_gemm_dense
from cudnn_core import workspace
from cudnn_core.bench.measure import WRONG, Bench
from cudnn_core.bench.protocol import Case, WrongResult
from cudnn_core.bench.timing import Effort
from cudnn_core.engine import ReferenceEngine, Workspace
from cudnn_core.formats import pack_scales
from cudnn_gemm_dense import _bench, _bench_peers, _bench_work
from cudnn_gemm_dense._bench_work import ClassDoor, Work

SHAPE = (96, 192, 256)
BF16, FP8 = "bfloat16", "float8_e4m3fn"
# A chain rounds the product to BF16 before it goes on, so its results differ by more than the check allows ours.
CHAIN_NOISE, CHAIN_AMAX = 0.1, 2.0**-8

FORMATS = ("mxfp8", "mxfp8_e5m2", "nvfp4", "mxfp4")
PROBLEMS = [
    *(("amax", f, f, BF16) for f in FORMATS),
    *(("swiglu", BF16, f, BF16) for f in FORMATS),
    *((op, "mxfp8", "nvfp4", BF16) for op in ("srelu", "dsrelu")),
    ("swiglu", BF16, BF16, BF16),
    ("swiglu", "mxfp8", "mxfp8", "mxfp8"),
]


def batched(results):
    """Matrices as the operations return them, (rows, columns, 1)."""
    found = {}
    for name, x in results.items():
        if isinstance(x, tuple):
            codes, exponents = x
            found[f"sf{name}"] = pack_scales(exponents.view(torch.float8_e8m0fnu))
            x = codes
        found[name] = x[:, :, None] if x.ndim == 2 else x
    return found


def chain_results(work):
    run, arguments = _bench_peers.chain(work)
    return batched(run(*arguments))


def test_every_row_of_the_acceptance_has_a_case():
    found = {(c.op, c.case, c.dtype): dict(c.targets) for c in _bench.cases()}
    assert len(found) == len(list(_bench.cases()))
    for shape in ("8192,8192,8192", "8192,28672,4096", "4096,4096,4096"):
        expected = {
            ("swiglu", "bf16xbf16->bf16"): {"torch.mm": 0.97, "torch.compile(mm, swiglu)": 1.15},
            ("swiglu", "fp8xfp8->bf16"): {"torch._scaled_mm": 0.95},
            **{
                (op, "mxfp8xmxfp8->bf16"): {"torch.mm": 0.92}
                for op in ("amax", "swiglu", "srelu", "dsrelu")
            },
            **{("amax", f"{f}x{f}->bf16"): {"torch.mm": 0.92} for f in ("nvfp4", "mxfp4")},
            **{
                ("swiglu", f"bf16x{f}->bf16"): {"torch.mm": 1.0}
                for f in ("mxfp8", "nvfp4", "mxfp4")
            },
            ("swiglu", "mxfp8xmxfp8->mxfp8"): {
                "torch.compile(dequantize, mm, swiglu, quantize)": 1.35
            },
        }
        for (op, dtype), targets in expected.items():
            assert found[f"dense/{op}", shape, dtype] == targets
    for shape in ("64,28672,4096", "16,4096,14336"):
        for weights, ratio in (("mxfp8", 1.6), ("mxfp4", 2.3), ("nvfp4", 2.3)):
            mixed = found["dense/swiglu", shape, f"mxfp8x{weights}->bf16"]
            assert mixed == {"torch.mm": ratio}
            plain = found["dense/swiglu", shape, f"bf16x{weights}->bf16"]
            assert plain == {"torch.mm": ratio, "quack.gemm_w4a16": 1.0}


def test_each_target_names_a_peer_or_a_bound(monkeypatch):
    """On a tiny problem of the same kind: a misspelt name would never be judged."""
    monkeypatch.setattr(_bench_work.Work, "ours", None)
    monkeypatch.setattr(_bench_work.Work, "nbytes", 0)
    for case in _bench.cases():
        if case.clock == "host":
            continue
        op, _, a, b, out = case.prepare.args
        trial = _bench.prepare(op, (64, 64, 64), a, b, out, "cpu")
        assert case.targets.keys() <= trial.peers.keys() | trial.bounds.keys(), case.dtype


@pytest.mark.parametrize("format", FORMATS)
def test_amax_passes_its_check(format):
    work = Work("amax", SHAPE, format, format, BF16, "cpu")
    work.check()
    element = 1 if format.startswith("mxfp8") else 0.5
    m, n, k = SHAPE
    operands = (m + n) * k * element
    # Each side's scales fill whole atoms of 128 rows.
    scales = (128 + 256) * k / work.a.block
    assert work.nbytes == operands + scales + m * n * 2 + 4


def spoilt(monkeypatch, name, change):
    """The amax wrapper with one of its results changed."""
    real = cudnn_gemm_dense.gemm_amax_wrapper

    def wrong(*args, **options):
        results = real(*args, **options)
        change(results[name])
        return results

    monkeypatch.setattr(cudnn_gemm_dense, "gemm_amax_wrapper", wrong)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("c_tensor", lambda c: c[5, 7].add_(4.0)),
        ("c_tensor", lambda c: c[-1].fill_(torch.nan)),
        ("c_tensor", lambda c: c.copy_(c.flip(1))),
        ("amax_tensor", lambda amax: amax.mul_(1.001)),
        ("amax_tensor", lambda amax: amax.fill_(torch.nan)),
    ],
)
def test_a_wrong_result_is_refused(monkeypatch, name, change):
    spoilt(monkeypatch, name, change)
    work = Work("amax", SHAPE, "mxfp8", "mxfp8", BF16, "cpu")
    with pytest.raises(WrongResult, match=name):
        work.check()


def test_the_bench_does_not_time_a_wrong_kernel(monkeypatch):
    spoilt(monkeypatch, "c_tensor", lambda c: c[0, 0].add_(9.0))
    prepare = partial(_bench.prepare, "amax", SHAPE, "nvfp4", "nvfp4", BF16)
    case = Case("dense/amax", "96,192,256", "nvfp4xnvfp4->bf16", {}, prepare)
    # Without a clock: touching it would be an error of another kind.
    found = Bench(None, "cpu", dict, Effort(), {}).run(case)
    assert found.state == WRONG and found.note.startswith("c_tensor: ")


@pytest.mark.parametrize(("op", "a", "b", "out"), PROBLEMS)
def test_the_chain_computes_the_operation(op, a, b, out):
    work = Work(op, SHAPE, a, b, out, "cpu")
    work.check_results(chain_results(work), CHAIN_NOISE, CHAIN_AMAX)


@pytest.mark.parametrize(("op", "a", "b", "out"), [p for p in PROBLEMS if p[3] == BF16])
def test_the_jax_chain_computes_the_operation(op, a, b, out):
    jax = pytest.importorskip("jax")
    import numpy as np

    work = Work(op, SHAPE, a, b, out, "cpu")
    run, arguments = _bench_peers.jax_function(work)
    found = {
        name: torch.from_numpy(np.array(x.astype("float32")))
        for name, x in jax.jit(run)(*arguments).items()
    }
    work.check_results(batched(found), CHAIN_NOISE, CHAIN_AMAX)


def test_the_glu_halves_are_told_apart():
    """The check itself: columns 64b.. are the up half, 64b + 32.. the gate; swapped they are another operation."""
    work = Work("swiglu", SHAPE, BF16, BF16, BF16, "cpu")
    run, arguments = _bench_peers.chain(work)
    a, b = arguments[0]
    swapped = b.reshape(-1, 2, 32, b.shape[1]).flip(1).reshape(b.shape)
    results = batched(run([a, swapped], ()))
    with pytest.raises(WrongResult, match="c_tensor"):
        work.check_results(results, CHAIN_NOISE, CHAIN_AMAX)


@pytest.mark.parametrize("format", FORMATS)
def test_the_chains_expansion_is_that_of_the_formats(format):
    side = _bench_work.make_side(torch.randn(32, 128, dtype=torch.bfloat16), format)
    expanded = _bench_peers.expand(_bench_peers.raw_codes(side), side.plain, side.block)
    assert torch.equal(expanded, side.wide)


def test_what_differs_in_blocks_is_passed_as_a_pair():
    assert Work("swiglu", SHAPE, "mxfp8", "nvfp4", BF16, "cpu").vector == (32, 16)
    assert Work("swiglu", SHAPE, BF16, "nvfp4", BF16, "cpu").vector == 16
    assert Work("swiglu", SHAPE, FP8, FP8, BF16, "cpu").vector is None


HOST_CASES = [case for case in _bench.cases() if case.clock == "host"]
every_op = pytest.mark.parametrize("op", _bench.HOST_RESULTS)


@every_op
def test_each_door_has_a_row_of_host_time(op):
    """Each with the bound of design section 7, and the wrapper's with a share for each of its outputs."""
    rows = {c.case.split(maxsplit=1)[1]: c for c in HOST_CASES if c.op == f"dense/{op}"}
    assert list(rows) == ["execute", _bench.IN_WORKSPACE, "wrapper"]
    outputs = {"amax": 2, "swiglu": 1, "srelu": 2, "dsrelu": 2}[op]
    for door, case in rows.items():
        trial = case.prepare("cpu")
        trial.check()
        (target,) = case.targets
        plus = trial.bounds[target].plus_us
        assert plus == (6.0 + 3.5 * outputs if door == "wrapper" else 0.0)
        assert (trial.bounds[target].of, trial.bounds[target].scale) == (_bench.BARE, 1.3)


@every_op
@pytest.mark.parametrize("door", ["execute", _bench.IN_WORKSPACE])
def test_the_class_door_is_checked_as_well(monkeypatch, op, door):
    """Of what it writes, not of what was there before."""
    kind = getattr(cudnn_gemm_dense, f"Gemm{op.capitalize()}")
    monkeypatch.setattr(kind, "execute", nothing_like(kind.execute))
    with pytest.raises(WrongResult):
        _bench.prepare_host(op, _bench.HOST_RESULTS[op], door, "cpu").check()


def nothing_like(execute):
    """A function with the parameters of `execute` that does nothing."""

    @functools.wraps(execute)
    def nothing(*arguments, **named):
        pass

    return nothing


class Recording(ReferenceEngine):
    """An engine as if on a GPU, whose executable keeps its arguments."""

    platform = "recording"

    def __init__(self):
        super().__init__(None)
        self.calls = []

    def workspaces(self, problem):
        return (Workspace(1 << 16),)

    def scalars(self, problem):
        return (132,)

    def compile(self, plan):
        return SimpleNamespace(call=lambda *arguments: self.calls.append(arguments))


@every_op
@pytest.mark.parametrize("in_workspace", [False, True])
def test_the_bare_executable_gets_what_the_class_gives_it(monkeypatch, op, in_workspace):
    work = Work(op, SHAPE, "mxfp8", "mxfp8", _bench.HOST_RESULTS[op], "cpu")
    work.ours()
    engine = Recording()
    monkeypatch.setattr(
        getattr(cudnn_gemm_dense, f"Gemm{op.capitalize()}").op, "engines", (engine,)
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    # What torch allocates on the host is aligned to 64 bytes only.
    monkeypatch.setattr(workspace, "ALIGNMENT", 64)
    door = ClassDoor(work, in_workspace)
    door.call()
    door.bare()()
    through, bare = engine.calls
    assert len(through) == len(bare)
    for ours, theirs in zip(through, bare, strict=True):
        if getattr(ours, "dtype", None) is torch.uint8:
            assert ours.nbytes == theirs.nbytes == 1 << 16
        else:
            assert ours is theirs or ours == theirs
    names = (*work.inputs, *door.outputs)
    assert sum(torch.is_tensor(x) for x in bare) == len(names) + 1
