"""The family's epilogue functions alone on the device, both orientations, against NumPy.

May import torch, numpy, the project's device code and cudnn_core.testing.epilogue.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from cudnn_core.hopper.tile import TileConfig
from cudnn_core.testing.tiers import why_no_hopper

pytestmark = pytest.mark.gpu

NORMAL = TileConfig(bm=128, bn=128)
SWAPPED = TileConfig(bm=128, bn=128, orientation="swapped")


@dataclass(frozen=True)
class EpilogueCase:
    """One op's epilogue. second: whether the output that the op may leave out is stored too."""

    op: str
    tile: TileConfig
    dtype: str = "float32"
    second: bool = True
    glu: str = "interleaved"
    m: int = 200
    n: int = 192
    l: int = 2
    alpha: float = -0.75


@pytest.fixture(scope="session", autouse=True)
def epilogue_kernels(request):
    """The kernels of all collected cases, compiled side by side."""
    if why_no_hopper() is None:
        from cudnn_core.testing.epilogue import precompile_items

        precompile_items(request.session.items)


def epilogue_harness(case, made=False):
    import cutlass
    import cutlass.cute as cute

    from cudnn_core.hopper import arguments
    from cudnn_core.hopper import epilogue as core
    from cudnn_core.testing.epilogue import Harness
    from cudnn_gemm_dense import epilogues

    fragments = core.Fragments(case.tile, glu=case.glu if case.op == "swiglu" else None)
    m, n, other = cute.sym_int32(), cute.sym_int32(), cute.sym_int32()

    def matrix(columns, dtype):
        return arguments.matrix(m, columns, dtype, "native", "second", batched=True)

    def vector():
        strides = tuple(cute.sym_int64() for _ in range(3))
        return cute.runtime.make_fake_tensor(
            cutlass.Float32, (m, 1, cute.sym_int32()), strides, assumed_align=4
        )

    flat = cute.runtime.make_fake_tensor(
        cutlass.Float32, (cute.sym_int32(),), (1,), assumed_align=16
    )
    half = case.op == "swiglu"
    out = core.TileStore(fragments, case.dtype, half=half)
    whole = core.TileStore(fragments, "float32")
    amax, alpha = core.AmaxReduce(per_batch=True), core.Scalar()
    slots = [
        matrix(other if half else n, case.dtype),
        matrix(n, "float32"),
        arguments.scalar(per_batch=True),
        vector(),
        vector(),
        flat,
        matrix(n, "bfloat16"),
    ]
    if case.op == "swiglu":
        function = epilogues.glu_silu
        resources = {"c": (out, (0,)), "ab12": (whole, (1,))}
    elif case.op == "srelu":
        function = epilogues.squared_relu
        vector = core.RowVector(fragments)
        resources = {"d": (out, (0,)), "c": (whole, (1,)), "prob": (vector, (3,))}
    else:
        function = epilogues.squared_relu_backward
        resources = {
            "d": (out, (0,)),
            "c": (core.TileLoad(fragments, "bfloat16"), (6,)),
            "prob": (core.RowVector(fragments), (3,)),
            "dprob": (core.RowSum(fragments), (4, 5, 8)),
        }
    if not case.second:
        del resources["ab12" if case.op == "swiglu" else "c"]
    resources |= {"amax": (amax, (2,)), "alpha": (alpha, (7,))}
    used = tuple((name, resource) for name, (resource, _) in resources.items())
    epilogue = core.Epilogue(fragments, used, function)
    assert epilogue.why_not() is None
    takes = [takes for _, takes in resources.values()]
    return Harness(epilogue, takes, made, ("cudnn_gemm_dense.epilogues",)), slots


def data(case):
    """(product as tiles see it, prob, incoming) with NaN, Inf and zeros among them."""
    rng = np.random.default_rng(0)
    x = (3 * rng.standard_normal((case.l, case.m, case.n))).astype(np.float32)
    x[rng.random(x.shape) < 0.02] = 0
    x[0, 5, 7], x[0, 6, 70], x[-1, -1, -1] = np.nan, np.inf, -np.inf
    x[0, 9, 3], x[0, 9, 3 + 32] = 2.0, 120.0
    x[0, 10, 3], x[0, 10, 3 + 32] = 2.0, -120.0
    p = rng.standard_normal((case.l, case.m)).astype(np.float32)
    incoming = rng.standard_normal(x.shape).astype(np.float32)
    return x, p, incoming


def check_epilogue(case):
    import torch

    harness, slots = epilogue_harness(case)
    call = harness.compile(slots, case, __file__)
    x, p, incoming = data(case)
    columns = case.n // 2 if case.op == "swiglu" else case.n
    dtype = getattr(torch, case.dtype)
    out = torch.full((case.l, case.m, columns), float("nan"), dtype=dtype, device="cuda")
    whole = torch.full((case.l, case.m, case.n), float("nan"), device="cuda")
    amax = torch.full((case.l, 1, 1), float("-inf"), device="cuda")
    prob = torch.from_numpy(p).cuda()[..., None]
    dprob = torch.full_like(prob, float("nan"))
    workspace = torch.full((1 << 16,), float("nan"), device="cuda")
    given = torch.from_numpy(incoming).cuda().bfloat16()
    tensors = [
        out.permute(1, 2, 0),
        whole.permute(1, 2, 0),
        amax,
        prob.permute(1, 2, 0),
        dprob.permute(1, 2, 0),
        workspace,
        given.permute(1, 2, 0),
    ]
    device = torch.from_numpy(x).cuda().permute(1, 2, 0)
    stream = torch.cuda.current_stream().cuda_stream
    call(device, tensors, case.alpha, 3, stream=stream)
    torch.cuda.synchronize()
    with np.errstate(all="ignore"):
        scaled = np.float32(case.alpha) * x
        want = expected(case, scaled, p, given.float().cpu().numpy())
    got = out.float().cpu().numpy()
    if case.op == "swiglu":
        compare_glu(got, want, case.dtype)
    else:
        narrow = torch.from_numpy(want).to(dtype).float().numpy()
        np.testing.assert_array_equal(got, narrow)
        np.testing.assert_array_equal(amax.cpu().numpy().ravel(), np.abs(want).max(axis=(1, 2)))
    if case.second and case.op != "dsrelu":
        np.testing.assert_array_equal(whole.cpu().numpy(), placed(case, scaled))
    if case.op == "dsrelu":
        with np.errstate(all="ignore"):
            r = np.maximum(scaled, 0).astype(np.float64)
            terms = r * r * given.double().cpu().numpy()
            total, size = terms.sum(axis=-1), np.abs(terms).sum(axis=-1)
        found = dprob[..., 0].cpu().numpy()
        finite = np.isfinite(size)
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(total))
        assert (np.abs(found - total)[finite] <= 1e-6 * size[finite]).all()


def expected(case, x, p, incoming):
    """The FP32 result."""
    if case.op == "srelu":
        r = np.maximum(x, 0)
        return (r * r) * p[..., None]
    if case.op == "dsrelu":
        r = np.maximum(x, 0)
        return (np.float32(2) * r) * (incoming * p[..., None])
    pairs = x.reshape(*x.shape[:-1], -1, 2, 32).astype(np.float64)
    up, gate = (pairs[..., k, :].reshape(*x.shape[:-1], -1) for k in (0, 1))
    return up * (gate / (1 + np.exp(-gate)))


def compare_glu(got, want, dtype):
    """NaN where the formula has it, and within a few units in the last place elsewhere."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite])
    finite = np.isfinite(want)
    units = 2.0**-8 if dtype == "bfloat16" else 2.0**-20
    error = np.abs(got - want)[finite] - 1e-35
    assert (error <= units * np.abs(want)[finite]).all()
    print("largest error", (error / np.maximum(np.abs(want)[finite], 1e-30)).max() * 2**24, "ulp/2")


def placed(case, x):
    """The product in the order of the output's columns."""
    if case.op != "swiglu" or case.glu == "interleaved":
        return x
    pairs = x.reshape(*x.shape[:-1], -1, 2, 32)
    sides = [pairs[..., k, :].reshape(*x.shape[:-1], -1) for k in (0, 1)]
    return np.concatenate(sides, axis=-1)


def epilogue_cases():
    cases = [EpilogueCase(op, t) for op in ("swiglu", "dsrelu") for t in (NORMAL, SWAPPED)]
    return [
        *cases,
        EpilogueCase("swiglu", NORMAL, "bfloat16", glu="concatenated", m=129, n=256),
        EpilogueCase("swiglu", SWAPPED, "bfloat16", second=False),
        EpilogueCase("srelu", NORMAL, "bfloat16", second=False, m=129, n=256),
        EpilogueCase("srelu", SWAPPED),
        EpilogueCase("dsrelu", replace(SWAPPED, bm=16), m=40),
    ]


@pytest.mark.parametrize("case", epilogue_cases(), ids=str)
def test_epilogue(case):
    check_epilogue(case)
