"""GEMM + SwiGLU on NumPy arrays against an independent float64 model: formula, layouts, outputs, life cycle."""

import numpy as np
import pytest

from cudnn_gemm_dense import GemmSwiglu, GemmSwigluSm100, gemm_swiglu_wrapper
from cudnn_gemm_dense.testing import (
    Output,
    Side,
    batch_first,
    make_call,
    swiglu,
    values,
)

ROWS = (0, 1, 7, 63, 64, 65, 127, 128, 129, 1000)
# A float32 is off by half an ulp of rounding, and the model's exp by next to nothing.
ULP = 2.0**-23


def run(call, **options):
    options = {"sfa_tensor": call.a.scale(), "sfb_tensor": call.b.scale()} | options
    options = {"sf_vec_size": call.vec(), "c_dtype": "float32"} | options
    return gemm_swiglu_wrapper(call.a.tensor(), call.b.tensor(), call.alpha, **options)


def assert_matches(result, call, layout="interleaved"):
    ab12, c = result["ab12_tensor"], result["c_tensor"]
    x = call.preactivation()
    if ab12 is not None:
        np.testing.assert_array_equal(values(ab12), x)
    np.testing.assert_allclose(values(c), swiglu(x, layout), rtol=ULP, atol=1e-44)


# --- numerics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("l", [1, 3])
@pytest.mark.parametrize("m", ROWS)
def test_rows_and_batches(m, l):
    call = make_call(m, 128, 72, l)
    assert_matches(run(call), call)


@pytest.mark.parametrize("n", [0, 64, 128, 192, 320])
@pytest.mark.parametrize("k", [0, 8, 40, 584])
def test_columns_and_contractions(n, k):
    call = make_call(17, n, k, 2)
    assert_matches(run(call), call)


@pytest.mark.parametrize("alpha", [0, -1.5, 2.0, np.float32(0.5), np.array(3.0), np.int64(2)])
def test_alpha(alpha):
    call = make_call(9, 64, 64)
    call.alpha = alpha
    assert_matches(run(call), call)


def test_alpha_of_nan_and_infinity():
    call = make_call(9, 64, 64)
    call.alpha = np.nan
    result = run(call)
    assert np.isnan(result["ab12_tensor"]).all() and np.isnan(result["c_tensor"]).all()
    call.alpha = np.inf
    x = run(call)["ab12_tensor"]
    zero = call.accumulator() == 0
    np.testing.assert_array_equal(np.isnan(batch_first(x)), zero)


def test_interleave_probe():
    """B's row n gives AB12's column n the value n; C's column 32b + i is of columns 64b + i and 64b + 32 + i."""
    n = 256
    a, b = np.zeros((1, 1, 8)), np.zeros((1, n, 8))
    a[0, 0, 0], b[0, :, 0] = 1, np.arange(n)
    a, b = (Side("float32", x.astype(np.float32)) for x in (a, b))
    ab12, c, *_ = gemm_swiglu_wrapper(a.tensor(), b.tensor(), 1 / 64, c_dtype="float32")
    np.testing.assert_array_equal(ab12[0, :, 0] * 64, np.arange(n))
    for block in range(4):
        for i in range(32):
            up, gate = (64 * block + i) / 64, (64 * block + 32 + i) / 64
            want = up * gate / (1 + np.exp(-gate))
            np.testing.assert_allclose(c[0, 32 * block + i, 0], want, rtol=ULP)


def test_concatenated_probe():
    n = 200
    a, b = np.zeros((1, 1, 8)), np.zeros((1, n, 8))
    a[0, 0, 0], b[0, :, 0] = 1, np.arange(n)
    a, b = (Side("float32", x.astype(np.float32)) for x in (a, b))
    options = {"c_dtype": "float32", "glu_layout": "concatenated"}
    ab12, c, *_ = gemm_swiglu_wrapper(a.tensor(), b.tensor(), 1 / 64, **options)
    np.testing.assert_array_equal(ab12[0, :, 0] * 64, np.arange(n))
    for i in range(n // 2):
        gate = (n // 2 + i) / 64
        np.testing.assert_allclose(c[0, i, 0], i / 64 * gate / (1 + np.exp(-gate)), rtol=ULP)


@pytest.mark.parametrize("n", [2, 66, 128, 130])
def test_concatenated(n):
    call = make_call(17, n, 72, 2)
    assert_matches(run(call, glu_layout="concatenated"), call, "concatenated")


def test_layouts_are_permutations_of_each_other():
    """B's rows reordered from interleaved to concatenated give the same C."""
    call = make_call(9, 256, 64)
    rows = np.arange(256).reshape(4, 2, 32)
    moved = Side(
        call.b.format, call.b.data[:, np.concatenate([rows[:, 0].ravel(), rows[:, 1].ravel()])]
    )
    first = run(call)["c_tensor"]
    call.b = moved
    np.testing.assert_array_equal(first, run(call, glu_layout="concatenated")["c_tensor"])


@pytest.mark.parametrize("ab12", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", None])
def test_c_comes_from_unrounded_ab12(ab12):
    call = make_call(17, 128, 584)
    call.alpha = 0.37
    first, second = run(call), run(call, ab12_dtype=ab12)
    np.testing.assert_array_equal(first["c_tensor"], second["c_tensor"])
    if ab12 is None:
        assert second["ab12_tensor"] is None and list(second) == [
            None,
            second["c_tensor"],
            None,
            None,
        ]
    else:
        assert second["ab12_tensor"].dtype == ab12


def test_ab12_in_fp8_saturates():
    call = make_call(8, 64, 64)
    call.alpha = 1e4
    ab12 = values(run(call, ab12_dtype="float8_e4m3fn")["ab12_tensor"])
    np.testing.assert_array_equal(ab12, np.clip(call.preactivation(), -448, 448))


@pytest.mark.parametrize("c_major", "nm")
@pytest.mark.parametrize("c_dtype", ["float32", "float16", "bfloat16"])
def test_outputs(c_dtype, c_major):
    call = make_call(17, 128, 64, 3)
    ab12, c, sfc, amax = run(call, c_dtype=c_dtype, c_major=c_major, ab12_dtype=c_dtype)
    assert (c.shape, ab12.shape, c.dtype, ab12.dtype) == (
        (17, 64, 3),
        (17, 128, 3),
        c_dtype,
        c_dtype,
    )
    size = c.itemsize
    inner = (64, 1, 17 * 64) if c_major == "n" else (1, 17, 17 * 64)
    assert tuple(s // size for s in c.strides) == inner and sfc is None and amax is None
    want = swiglu(call.preactivation()).astype(np.float32).astype(c.dtype)
    # The model's float32 may lie on the other side of a rounding boundary.
    np.testing.assert_allclose(values(c), want.astype(np.float64), rtol=2**-7, atol=1e-9)
    assert (values(c) == want).mean() > 0.999


@pytest.mark.parametrize("majors", ["kk", "km", "nk", "nm"])
@pytest.mark.parametrize("format", ["bfloat16", "float16", "float32", "float8_e4m3fn", "mxfp8"])
def test_majors_views_and_offsets(format, majors):
    call = make_call(48, 64, 64, 3, format, format)
    a = call.a.tensor(major="k" if majors[1] == "k" else "m", pad=16, offset=16)
    b = call.b.tensor(major="k" if majors[0] == "k" else "n", pad=32, offset=48)
    scales = {"sfa_tensor": call.a.scale(), "sfb_tensor": call.b.scale()}
    result = gemm_swiglu_wrapper(a, b, c_dtype="float32", sf_vec_size=call.vec(), **scales)
    assert_matches(result, call)


def test_sums_in_float16_are_accepted_and_no_worse():
    call = make_call(9, 64, 64, a="float16", b="float16")
    assert_matches(run(call, acc_dtype="float16", ab12_dtype="float16"), call)


# --- special values --------------------------------------------------------------------------------------------------


def gates(*pairs):
    """C of (up, gate) pairs, through a product with the identity."""
    b = np.zeros((1, 64, 8), np.float32)
    for i, pair in enumerate(pairs):
        b[0, i, 0], b[0, 32 + i, 0] = pair
    a = np.zeros((1, 1, 8), np.float32)
    a[0, 0, 0] = 1
    # Others columns are 0 * something and must not turn Inf into NaN, so the rest of A is not multiplied by it.
    result = gemm_swiglu_wrapper(
        Side("float32", a).tensor(), Side("float32", b).tensor(), c_dtype="float32"
    )
    return result["c_tensor"][0, : len(pairs), 0]


def test_limits_of_silu():
    big, inf, nan = 3e38, np.inf, np.nan
    got = gates(
        (1, -big), (1, -200.0), (2, inf), (1, -inf), (nan, 1), (1, nan), (0, inf), (-1, 100)
    )
    np.testing.assert_array_equal(np.abs(got[:2]), 0)
    np.testing.assert_array_equal(got[2:], [inf, nan, nan, nan, nan, -100])


def test_nan_stays_in_its_row_and_pair():
    call = make_call(9, 128, 64, a="float16", b="float16")
    call.a.data[0, 3, 5] = np.nan
    call.b.data[0, 64 + 32 + 7, 1] = np.nan
    result = run(call)
    bad = np.isnan(batch_first(result["c_tensor"])[0])
    want = np.zeros_like(bad)
    want[3], want[:, 32 + 7] = True, True
    np.testing.assert_array_equal(bad, want)


def test_rows_past_the_end_reach_nothing():
    """A view of the first 17 of 32 rows; the others hold NaN."""
    call = make_call(32, 64, 64)
    call.a.data[0, 17:] = np.nan
    a = call.a.tensor()[:17]
    c = gemm_swiglu_wrapper(a, call.b.tensor(), c_dtype="float32")["c_tensor"]
    call.a = Side("bfloat16", call.a.data[:, :17])
    np.testing.assert_allclose(values(c), swiglu(call.preactivation()), rtol=ULP)


# --- class -----------------------------------------------------------------------------------------------------------


def outputs(call, c_dtype="float32", major="n", pad=0, ab12="float32"):
    m, n, _, l = call.extents
    made = Output((m, n, l), ab12, major, pad=pad) if ab12 else None
    return made, Output((m, n // 2, l), c_dtype, major, pad=pad)


@pytest.mark.parametrize("major", "nm")
@pytest.mark.parametrize("pad", [0, 8])
@pytest.mark.parametrize("ab12", ["bfloat16", None])
def test_class_writes_only_its_outputs(ab12, pad, major):
    call = make_call(17, 64, 64, 3)
    wide, c = outputs(call, major=major, pad=pad, ab12=ab12)
    stored = None if wide is None else wide.tensor
    tensors = (call.a.tensor(), call.b.tensor(), stored, c.tensor)
    op = GemmSwiglu(*tensors)
    assert op.check_support() is True
    op.compile()
    op.execute(*tensors, alpha=0.25)
    call.alpha = 0.25
    assert_matches({"ab12_tensor": None, "c_tensor": c.tensor}, call)
    c.assert_guards()
    if wide is not None:
        wide.assert_guards()
        np.testing.assert_array_equal(values(stored), call.preactivation().astype(stored.dtype))


def test_execute_has_its_own_alpha():
    """Upstream's rule for this op alone: 1 unless given, whatever the constructor had."""
    call = make_call(8, 64, 64)
    wide, c = outputs(call)
    tensors = (call.a.tensor(), call.b.tensor(), wide.tensor, c.tensor)
    GemmSwigluSm100(*tensors, alpha=2.0)(*tensors)
    np.testing.assert_array_equal(values(wide.tensor), call.accumulator())


@pytest.mark.parametrize("prior", [-np.inf, -5.0, 0.0, 1e9, np.nan])
def test_class_accumulates_amax_of_any_dtype(prior):
    """Over |C| in float32, before it is rounded, and not over AB12."""
    call = make_call(9, 64, 64, 2)
    wide, c = outputs(call, c_dtype="float16")
    amax = np.full((1,), prior, np.float32)
    samples = (call.a.tensor(), call.b.tensor(), wide.tensor, c.tensor)
    GemmSwiglu(*samples, sample_amax=amax)(*samples, amax_tensor=amax)
    largest = np.float32(np.abs(swiglu(call.preactivation())).max())
    want = largest if not prior > largest else prior
    np.testing.assert_allclose(amax, np.nan if np.isnan(prior) else want, rtol=2 * ULP)


def test_amax_is_made_for_fp4_with_bfloat16():
    for a, c_dtype, there in (
        ("nvfp4", "bfloat16", True),
        ("nvfp4", "float16", False),
        ("mxfp8", "bfloat16", False),
        ("bfloat16", "bfloat16", False),
    ):
        call = make_call(9, 64, 64, 2, a, a)
        amax = run(call, c_dtype=c_dtype)["amax_tensor"]
        assert (amax is not None) is there
        if there:
            assert amax.shape == (1, 1, 1)
            np.testing.assert_allclose(
                amax.item(), np.abs(swiglu(call.preactivation())).max(), rtol=2 * ULP
            )


def test_undeclared_and_missing_tensors():
    call = make_call(8, 64, 64)
    wide, c = outputs(call)
    tensors, amax = (
        (call.a.tensor(), call.b.tensor(), wide.tensor, c.tensor),
        np.zeros(1, np.float32),
    )
    op = GemmSwiglu(*tensors)
    op.compile()
    with pytest.raises(ValueError, match="amax_tensor: expected no tensor .none was declared."):
        op.execute(*tensors, amax_tensor=amax)
    op = GemmSwiglu(*tensors, sample_amax=amax)
    op.compile()
    with pytest.raises(ValueError, match="amax_tensor: expected a tensor, got None"):
        op.execute(*tensors)
    with pytest.raises(ValueError, match="ab12_tensor: expected a tensor, got None"):
        op.execute(*tensors[:2], None, tensors[3], amax_tensor=amax)


# --- names -----------------------------------------------------------------------------------------------------------


def test_result_keys():
    result = run(make_call(8, 64, 64))
    assert list(result.keys()) == ["ab12_tensor", "c_tensor", "sfc_tensor", "amax_tensor"]
    assert result[1] is result["c_tensor"]
    with pytest.raises(IndexError):
        result[-1]
