"""GEMM + squared ReLU on NumPy arrays against an independent float64 model: formula, outputs, life cycle."""

import numpy as np
import pytest

from cudnn_gemm_dense import GemmSrelu, GemmSreluSm100, gemm_srelu_wrapper
from cudnn_gemm_dense.testing import (
    Output,
    batch_first,
    column_tensor,
    make_call,
    srelu,
    values,
)

ROWS = (0, 1, 7, 63, 64, 65, 127, 128, 129, 1000)
ULP = 2.0**-23


def inputs(call, m_inner=False, **layout):
    prob = column_tensor(call.column, m_inner=m_inner)
    sides = (call.a.tensor(**layout), call.b.tensor(**layout), call.a.scale(), call.b.scale())
    return (*sides, prob)


def run(call, m_inner=False, **options):
    options = {"sf_vec_size": call.vec(), "c_dtype": "float32", "d_dtype": "float32"} | options
    return gemm_srelu_wrapper(*inputs(call, m_inner), call.alpha, **options)


def assert_matches(result, call):
    np.testing.assert_array_equal(values(result["c_tensor"]), call.preactivation())
    np.testing.assert_allclose(values(result["d_tensor"]), srelu(call), rtol=3 * ULP)


@pytest.mark.parametrize("l", [1, 3])
@pytest.mark.parametrize("m", ROWS)
def test_rows_and_batches(m, l):
    call = make_call(m, 72, 72, l)
    assert_matches(run(call), call)


@pytest.mark.parametrize("format", ["mxfp8", "mxfp8_e5m2", "mxfp4", "mxfp4_16", "nvfp4"])
@pytest.mark.parametrize("c_major", "nm")
def test_the_activation_is_never_skipped(format, c_major):
    """Upstream applies it only where there is an amax: D must be prob * relu(C)^2 for every format."""
    call = make_call(130, 136, 352, 3, format, format)
    result = run(call, c_major=c_major)
    assert_matches(result, call)
    assert (call.column < 0).any() and not np.array_equal(*list(result)[:2])


@pytest.mark.parametrize("n", [0, 1, 8, 24, 136])
@pytest.mark.parametrize("k", [0, 8, 40, 584])
def test_columns_and_contractions(n, k):
    call = make_call(17, n, k, 2)
    assert_matches(run(call), call)


@pytest.mark.parametrize("alpha", [0, -1.5, 2.0, np.float32(0.5)])
def test_alpha(alpha):
    call = make_call(9, 64, 64)
    call.alpha = alpha
    assert_matches(run(call), call)


@pytest.mark.parametrize("m_inner", [False, True])
def test_prob_of_any_strides(m_inner):
    call = make_call(17, 24, 64, 3)
    assert_matches(run(call, m_inner), call)
    wide = np.repeat(np.repeat(column_tensor(call.column), 2, axis=0), 3, axis=2)
    sides = inputs(call)[:4]
    result = gemm_srelu_wrapper(*sides, wide[::2, :, ::3], c_dtype="float32", d_dtype="float32")
    assert_matches(result, call)
    one = np.broadcast_to(np.float32(0.5), (17, 1, 3))
    call.column = np.full((3, 17, 1), 0.5, np.float32)
    result = gemm_srelu_wrapper(*sides, one, c_dtype="float32", d_dtype="float32")
    assert_matches(result, call)


@pytest.mark.parametrize("c_dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_d_comes_from_unrounded_c(c_dtype):
    call = make_call(17, 64, 584)
    call.alpha = 0.37
    first, second = run(call), run(call, c_dtype=c_dtype)
    np.testing.assert_array_equal(first["d_tensor"], second["d_tensor"])
    assert second["c_tensor"].dtype == c_dtype


@pytest.mark.parametrize("d_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("c_major", "nm")
def test_outputs(d_dtype, c_major):
    call = make_call(17, 24, 64, 3)
    c, d, amax, sfd = run(call, d_dtype=d_dtype, c_major=c_major, c_dtype="float16")
    inner = (24, 1, 17 * 24) if c_major == "n" else (1, 17, 17 * 24)
    for x, dtype in ((c, "float16"), (d, d_dtype)):
        assert (x.shape, x.dtype) == ((17, 24, 3), dtype)
        assert tuple(s // x.itemsize for s in x.strides) == inner
    assert amax is None and sfd is None
    with np.errstate(over="ignore"):
        want = srelu(call).astype(np.float32).astype(d.dtype).astype(np.float64)
    np.testing.assert_array_equal(values(d), want)


def test_nan_passes_the_relu():
    call = make_call(9, 24, 64, a="float16", b="float16")
    call.a.data[0, 3, 5] = np.nan
    result = run(call)
    for x in (result["c_tensor"], result["d_tensor"]):
        bad = np.isnan(batch_first(x)[0])
        assert bad[3].all() and bad.sum() == 24
    call.column[0, 5] = np.nan
    assert np.isnan(batch_first(run(call)["d_tensor"])[0, 5]).all()


def test_negative_preactivations_give_zero():
    call = make_call(9, 24, 64)
    call.alpha = -np.float32(1)
    call.a.data[...], call.b.data[...] = 1, 1
    d = run(call)["d_tensor"]
    assert not d.any() and (run(call)["c_tensor"] == -64).all()


@pytest.mark.parametrize("d_dtype", ["float32", "float16", "bfloat16"])
def test_amax_of_fp4(d_dtype):
    """Of the float32 D before it is rounded; C has no part in it."""
    call = make_call(17, 24, 352, 3, "nvfp4", "nvfp4")
    call.alpha = -0.37
    call.column[...] = 0.001
    amax = run(call, d_dtype=d_dtype)["amax_tensor"]
    assert amax.shape == (1,) and amax.dtype == np.float32
    np.testing.assert_allclose(amax[0], np.abs(srelu(call)).max(), rtol=3 * ULP)
    assert amax[0] < np.abs(call.preactivation()).max()


# --- class -----------------------------------------------------------------------------------------------------------


def samples(call, pad=0, d_dtype="float32", major="n"):
    m, n, _, l = call.extents
    c, d = (Output((m, n, l), t, major, pad=pad) for t in ("float32", d_dtype))
    a, b, sfa, sfb, prob = inputs(call)
    return c, d, (a, b, c.tensor, d.tensor, sfa, sfb, prob)


@pytest.mark.parametrize("major", "nm")
@pytest.mark.parametrize("pad", [0, 8])
def test_class_writes_only_its_outputs(pad, major):
    call = make_call(17, 24, 64, 3, "mxfp8", "bfloat16")
    c, d, tensors = samples(call, pad, major=major)
    op = GemmSrelu(*tensors, sf_vec_size=32)
    assert op.check_support() is True
    op.compile()
    op.execute(*tensors)
    assert_matches({"c_tensor": c.tensor, "d_tensor": d.tensor}, call)
    c.assert_guards()
    d.assert_guards()


def test_execute_takes_the_constructors_alpha():
    call = make_call(8, 24, 64)
    c, _, tensors = samples(call)
    op = GemmSreluSm100(*tensors, alpha=2.0)
    op(*tensors)
    np.testing.assert_array_equal(values(c.tensor), 2 * call.accumulator())
    op.execute(*tensors, alpha=-1)
    np.testing.assert_array_equal(values(c.tensor), -call.accumulator())
    op.execute(*tensors, alpha=None)
    np.testing.assert_array_equal(values(c.tensor), 2 * call.accumulator())


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (1, 1, 1, 1)])
def test_class_accumulates_an_amax_of_any_rank(shape):
    call = make_call(9, 24, 64, 2)
    _, _, tensors = samples(call)
    amax = np.full(shape, -5.0, np.float32)
    op = GemmSrelu(*tensors, sample_amax=amax)
    op(*tensors, amax_tensor=amax)
    np.testing.assert_allclose(amax.ravel(), np.abs(srelu(call)).max(), rtol=3 * ULP)
    amax[...] = 1e9
    op.execute(*tensors, amax_tensor=amax)
    assert amax.item() == 1e9


def test_result_keys():
    result = run(make_call(8, 24, 64))
    assert list(result.keys()) == ["c_tensor", "d_tensor", "amax_tensor", "sfd_tensor"]
