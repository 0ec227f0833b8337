"""swiglu, srelu and dsrelu on a Hopper GPU against the float64 model: formats, layouts, extents, quantized results.

Data has few bits, so sums are exact in FP32 in any order; what comes after them is compared to an ulp or bit for bit.
"""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fused_cases import FusedCase

import cudnn_gemm_dense as dense
from cudnn_core.formats import quantize
from cudnn_core.testing.gemm import bits, host
from cudnn_gemm_dense.testing import (
    Output,
    ScaleOutput,
    batch_first,
    dsrelu,
    expected_scale_memory,
    relu,
    scale_memory,
    values,
)
from cudnn_gemm_dense.testing import quantize as quantize_by_formula

pytestmark = pytest.mark.gpu

ULP = 2.0**-23
OPS = ("swiglu", "srelu", "dsrelu")
every_op = pytest.mark.parametrize("case", [FusedCase(op) for op in OPS], ids=str)
ROWS = (0, 1, 7, 63, 64, 65, 127, 128, 129, 1000)
PAIRS = (
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("float32", "float32"),
    ("float8_e4m3fn", "float8_e5m2"),
    ("mxfp8", "mxfp8"),
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("bfloat16", "nvfp4"),
    ("bfloat16", "mxfp8"),
    ("mxfp8", "bfloat16"),
)
FORMATS = [FusedCase(op, a, b) for a, b in PAIRS for op in OPS]
LAYOUTS = [
    FusedCase("swiglu", glu="concatenated"),
    FusedCase("swiglu", "bfloat16", "nvfp4", glu="concatenated"),
    FusedCase("swiglu", second=None),
    FusedCase("swiglu", "mxfp8", "mxfp8", second=None, dtype="bfloat16"),
    FusedCase("swiglu", dtype="float16", second="bfloat16", major="m"),
    FusedCase("swiglu", second="float8_e4m3fn", dtype="bfloat16"),
    FusedCase("swiglu", a_major="m", b_major="n", m=208),
    FusedCase("swiglu", "float8_e4m3fn", "float8_e4m3fn", a_major="m", b_major="n", m=208),
    FusedCase("srelu", "mxfp8", "mxfp8", dtype="bfloat16", second="bfloat16", major="m"),
    FusedCase("srelu", n=130),
    FusedCase("srelu", "bfloat16", "mxfp4", n=130),
    FusedCase("dsrelu", n=130, dtype="float16"),
    FusedCase("dsrelu", "bfloat16", "mxfp8", n=136, major="m"),
    FusedCase("dsrelu", m=264, n=1000),
]
# Rows enough for weights to be expanded.
LARGE = [
    FusedCase(
        "swiglu", "mxfp8", "mxfp8", m=2200, n=2432, k=160, l=1, dtype="bfloat16", second=None
    ),
    FusedCase("srelu", "nvfp4", "mxfp4", m=2200, n=2432, k=160, l=1, dtype="bfloat16"),
    FusedCase("dsrelu", "bfloat16", "mxfp8", m=2200, n=2432, k=8288, l=1, dtype="bfloat16"),
    # By spare warps of the product: one side or both, and halves that lie apart.
    FusedCase("dsrelu", "bfloat16", "mxfp8", m=2200, n=2432, k=160, l=1, dtype="bfloat16"),
    FusedCase("srelu", "nvfp4", "nvfp4", m=6200, n=2432, k=320, l=1, dtype="bfloat16"),
    FusedCase(
        "swiglu",
        "mxfp8",
        "mxfp8",
        m=2200,
        n=2432,
        k=288,
        l=1,
        dtype="bfloat16",
        second=None,
        glu="concatenated",
    ),
]
# Rows so few that activations are sorted on their way: several times round the rings.
SORTED = [
    FusedCase("srelu", "bfloat16", b, m=m, n=8192, k=8288, l=1, dtype="bfloat16")
    for m, b in ((9, "mxfp4"), (9, "mxfp8"), (24, "nvfp4"), (24, "mxfp8_e5m2"))
]
# Tiles of few rows beside decoded weights, in the layouts and with the epilogues that other lists have with more rows.
FEW = [
    *[FusedCase("srelu", "bfloat16", b, m=48, a_major="m") for b in ("nvfp4", "mxfp8")],
    *[FusedCase("srelu", "float8_e4m3fn", b, m=m) for m, b in ((40, "mxfp8"), (9, "mxfp4"))],
    FusedCase("srelu", "bfloat16", "mxfp4", m=9, l=3),
    FusedCase("srelu", "bfloat16", "mxfp4_16", m=9),
    FusedCase("srelu", "bfloat16", "mxfp4_16", m=40),
    FusedCase("srelu", "bfloat16", "mxfp8", m=9, b_major="n"),
    *[FusedCase("swiglu", "bfloat16", "mxfp4", m=m, glu="concatenated") for m in (9, 24, 40)],
    *[FusedCase("dsrelu", a, "mxfp8", m=m) for a in ("bfloat16", "mxfp8") for m in (9, 24)],
    # Tiles in more parts than a block loads at once.
    *[FusedCase("srelu", "bfloat16", "mxfp4", m=m, n=320, k=8192, l=1) for m in (9, 24, 48)],
]
SIZES = [FusedCase(op, m=m) for op in OPS for m in ROWS if m != 200]
SIZES += [FusedCase("swiglu", "bfloat16", "mxfp4", m=m, l=1) for m in ROWS]
QUANTIZED = [
    FusedCase(op, a, b, n=320, out_format=f)
    for op in OPS
    for a, b, f in (
        ("bfloat16", "bfloat16", "mxfp8"),
        ("bfloat16", "bfloat16", "nvfp4"),
        ("mxfp8", "mxfp8", "mxfp4"),
        ("mxfp8", "mxfp8", "mxfp8"),
    )
]
QUANTIZED += [
    FusedCase(op, "bfloat16", "nvfp4", m=m, n=320, out_format=f)
    for op in OPS
    for m, f in ((9, "mxfp8"), (24, "nvfp4"))
]


def assert_result(case, call, result):
    got, want = values(result[case.result]), case.model(call)
    if case.op == "swiglu":
        # exp2 and the reciprocal are approximate, results below 2^-126 are zero.
        rtol = {"float32": 2e-5, "float16": 2**-10, "bfloat16": 2**-7}[case.dtype]
        with np.errstate(over="ignore"):
            want = want if case.dtype != "float16" else want.astype(np.float16).astype(np.float64)
        np.testing.assert_allclose(
            got, want, rtol=rtol, atol=1e-7 if case.dtype == "float16" else 1e-30
        )
        x = call.preactivation()
        if case.second is None:
            assert result["ab12_tensor"] is None
        elif case.second != "float8_e4m3fn":
            stored = result["ab12_tensor"]
            np.testing.assert_array_equal(values(stored), x.astype(host(stored).dtype))
        return
    kind = host(result[case.result]).dtype
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32).astype(kind).astype(np.float64)
    np.testing.assert_allclose(got, rounded, rtol=4 * ULP if case.dtype == "float32" else 2**-7)
    if case.op == "srelu":
        c = result["c_tensor"]
        np.testing.assert_array_equal(values(c), call.preactivation().astype(host(c).dtype))
    else:
        sizes = relu(call.preactivation()) ** 2 * np.abs(call.gradient)
        bound = 8 * ULP * sizes.sum(axis=-1, keepdims=True)
        assert (np.abs(values(result["dprob_tensor"]) - dsrelu(call)[1]) <= bound).all()


@pytest.mark.parametrize("case", [*FORMATS, *LAYOUTS, *SIZES, *LARGE, *SORTED, *FEW], ids=str)
def test_values(case):
    call = case.call()
    assert_result(case, call, case.run(call))


@pytest.mark.parametrize(
    "case", [FusedCase("swiglu"), FusedCase("srelu", "mxfp8", "mxfp8")], ids=str
)
def test_views_with_padding_and_offsets(case):
    call = case.call()
    assert_result(case, call, case.run(call, pad=32, offset=16))


@pytest.mark.parametrize("case", QUANTIZED, ids=str)
def test_quantized_results_are_those_of_quantize(case):
    """Codes and scales equal `cudnn.quantize` of the kernel's own FP32 result, bit for bit, padding zeros included."""
    call = case.call()
    wide = replace(case, out_format=None).run(call)[case.result]
    q = quantize(batch_first(wide), case.out_format)
    got = case.run(call)
    scales = got["sfc_tensor" if case.op == "swiglu" else "sfd_tensor"]
    codes = batch_first(host(got[case.result]).view(np.uint8))
    np.testing.assert_array_equal(codes, host(q["data"]).view(np.uint8))
    np.testing.assert_array_equal(scale_memory(scales), scale_memory(q["scale"]))


@pytest.mark.parametrize("norm_const", [0.25, 3.0, 1e-20])
@pytest.mark.parametrize(
    "case", [FusedCase("srelu", n=320, out_format="mxfp8", norm_const=1.0)], ids=str
)
def test_norm_const(case, norm_const):
    case = replace(case, norm_const=norm_const)
    call = case.call()
    wide = replace(case, out_format=None, norm_const=None).run(call)["d_tensor"]
    got = case.run(call)
    codes, scales = quantize_by_formula(
        batch_first(wide), "float8_e4m3fn", "float8_e8m0fnu", 32, norm_const
    )
    np.testing.assert_array_equal(batch_first(host(got["d_tensor"]).view(np.uint8)), codes)
    np.testing.assert_array_equal(scale_memory(got["sfd_tensor"]), expected_scale_memory(scales))


@pytest.mark.parametrize(
    "case", [FusedCase("swiglu"), FusedCase("srelu"), FusedCase("dsrelu")], ids=str
)
@pytest.mark.parametrize("alpha", [0.0, -1.0, 2.5, float("nan"), float("inf")])
def test_alpha(case, alpha):
    call = case.call()
    call.alpha = alpha
    result = case.run(call, alpha=alpha)
    got, want = values(result[case.result]), case.model(call)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("case", [FusedCase(op) for op in OPS], ids=str)
def test_nan_stays_where_it_belongs(case):
    call = case.call()
    call.a.data[0, 3, 5] = np.nan
    got = values(case.run(call)[case.result])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(case.model(call)))
    assert np.isnan(got[0, 3]).any() and not np.isnan(got[1]).any()


SAME = [
    FusedCase("dsrelu", m=264, n=1000),
    FusedCase("dsrelu", "bfloat16", "mxfp8", n=136, major="m"),
]


@pytest.mark.parametrize("case", SAME, ids=str)
def test_the_same_bits_every_time(case):
    call = case.call()
    call.alpha = 0.37
    given, options = case.inputs(call), case.options(call) | {"alpha": 0.37}
    first = dense.gemm_dsrelu_wrapper(**given, **options)
    for _ in range(50):
        again = dense.gemm_dsrelu_wrapper(**given, **options)
        assert torch.equal(first["dprob_tensor"], again["dprob_tensor"])
        assert torch.equal(first["d_tensor"], again["d_tensor"])


@pytest.mark.parametrize(
    "case", [FusedCase("srelu", "nvfp4", "nvfp4"), FusedCase("dsrelu", "nvfp4", "nvfp4")], ids=str
)
def test_amax_of_fp4(case):
    call = case.call()
    amax = case.run(call)["amax_tensor"]
    assert tuple(amax.shape) == (1,)
    np.testing.assert_allclose(amax.item(), np.abs(case.model(call)).max(), rtol=4 * ULP)


@pytest.mark.parametrize("prior", [-5.0, 1e9, float("nan")])
@pytest.mark.parametrize(
    "case", [FusedCase("srelu", "mxfp8", "bfloat16", m=129, n=130, second="bfloat16")], ids=str
)
def test_class_writes_only_its_outputs(case, prior):
    call = case.call()
    given = case.inputs(call)
    c, d = (Output((129, 130, 2), t, framework="cuda", pad=6) for t in ("bfloat16", "float32"))
    amax = torch.full((1, 1, 1), prior, device="cuda")
    order = ("sfa_tensor", "sfb_tensor", "prob_tensor")
    tensors = (given["a_tensor"], given["b_tensor"], c.tensor, d.tensor, *(given[x] for x in order))
    op = dense.GemmSrelu(*tensors, sample_amax=amax, sf_vec_size=32, alpha=case.alpha)
    op(*tensors, amax_tensor=amax)
    assert_result(case, call, {"c_tensor": c.tensor, "d_tensor": d.tensor})
    c.assert_guards()
    d.assert_guards()
    largest = np.abs(case.model(call)).max()
    want = prior if np.isnan(prior) else max(prior, largest)
    np.testing.assert_allclose(amax.item(), want, rtol=4 * ULP)


@pytest.mark.parametrize(
    "case", [FusedCase("srelu", m=130, n=136, out_format="nvfp4", l=3)], ids=str
)
def test_class_writes_whole_scale_atoms(case):
    call = case.call()
    given = case.inputs(call)
    c, d = (
        Output((130, 136, 3), "float32", framework="cuda"),
        Output((130, 136, 3), "float4_e2m1fn", framework="cuda"),
    )
    sfd = ScaleOutput(130, 136, 3, "float8_e4m3fn", 16, framework="cuda")
    tensors = (
        given["a_tensor"],
        given["b_tensor"],
        c.tensor,
        d.tensor,
        None,
        None,
        given["prob_tensor"],
        sfd.tensor,
    )
    op = dense.GemmSrelu(*tensors, alpha=case.alpha, out_format="nvfp4")
    op(*tensors)
    wide = replace(case, out_format=None).run(call)["d_tensor"]
    q = quantize(batch_first(wide), "nvfp4")
    np.testing.assert_array_equal(sfd.memory(), scale_memory(q["scale"]))
    for output in (c, d, sfd):
        output.assert_guards()


@every_op
def test_graph_capture_and_replay_with_new_data(case):
    call, other = case.call(), case.call(seed=7)
    given, fresh, options = case.inputs(call), case.inputs(other), case.options(call)
    wrapper = getattr(dense, f"gemm_{case.op}_wrapper")
    wrapper(**given, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = wrapper(**given, **options)
    for name, x in given.items():
        if x is not None:
            x.copy_(fresh[name])
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert_result(case, other, result)


@every_op
def test_side_streams_and_no_sync(case):
    call = case.call()
    given, options = case.inputs(call), case.options(call)
    wrapper = getattr(dense, f"gemm_{case.op}_wrapper")
    wrapper(**given, **options)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [wrapper(**given, **options, stream=s) for s in streams]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    for result in results:
        assert_result(case, call, result)


@every_op
def test_one_kernel_for_every_m_and_alpha(case):
    from cudnn_core import cache

    case.run(case.call())
    before = cache.compile_count()
    for i in range(40):
        small = replace(case, m=201 + i)
        call = small.call()
        small.run(call, alpha=[0.1 * i, np.float32(i), torch.tensor(float(i))][i % 3])
    assert cache.compile_count() == before


AGREED = [
    FusedCase(op, "mxfp8", "mxfp8", dtype="bfloat16", second="bfloat16")
    for op in ("srelu", "dsrelu")
]


@pytest.mark.parametrize("case", AGREED, ids=str)
def test_numpy_and_torch_agree(case):
    """The reference engine and the kernel give the same bits where sums are exact, but for dprob's rounding."""
    call = case.call()
    there, here = case.run(call), case.run(call, "numpy")
    for name in here.keys():
        if here[name] is None:
            assert there[name] is None
        elif name != "dprob_tensor":
            np.testing.assert_array_equal(bits(there[name]), bits(here[name]))
