"""GEMM + squared-ReLU backward on NumPy arrays against an independent float64 model: formula, dprob, life cycle."""

import numpy as np
import pytest

from cudnn_gemm_dense import GemmDsrelu, GemmDsreluSm100, gemm_dsrelu_wrapper, gemm_srelu_wrapper
from cudnn_gemm_dense.testing import (
    Output,
    batch_first,
    column_tensor,
    dsrelu,
    make_call,
    matrix_tensor,
    relu,
    values,
)

ROWS = (0, 1, 7, 63, 64, 65, 127, 128, 129, 1000)
ULP = 2.0**-23


def inputs(call, c_dtype="float32", c_major="n", pad=0, m_inner=False):
    c = matrix_tensor(call.gradient, c_dtype, c_major, pad=pad)
    prob = column_tensor(call.column, m_inner=m_inner)
    return (call.a.tensor(), call.b.tensor(), c, call.a.scale(), call.b.scale(), prob)


def run(call, layout=None, **options):
    options = {"sf_vec_size": call.vec(), "d_dtype": "float32"} | options
    return gemm_dsrelu_wrapper(*inputs(call, **(layout or {})), call.alpha, **options)


def assert_matches(result, call):
    d, dprob = dsrelu(call)
    np.testing.assert_allclose(values(result["d_tensor"]), d, rtol=4 * ULP)
    # Terms cancel, so the error is measured by their sizes.
    sizes = relu(call.preactivation()) ** 2 * np.abs(call.gradient)
    bound = 4 * ULP * sizes.sum(axis=-1, keepdims=True)
    assert (np.abs(values(result["dprob_tensor"]) - dprob) <= bound).all()


@pytest.mark.parametrize("l", [1, 3])
@pytest.mark.parametrize("m", ROWS)
def test_rows_and_batches(m, l):
    call = make_call(m, 72, 72, l)
    assert_matches(run(call), call)


@pytest.mark.parametrize("format", ["mxfp8", "mxfp8_e5m2", "mxfp4", "mxfp4_16", "nvfp4"])
def test_formats(format):
    call = make_call(130, 136, 352, 3, format, format)
    assert_matches(run(call), call)


@pytest.mark.parametrize("n", [0, 1, 8, 24, 136])
@pytest.mark.parametrize("k", [0, 8, 40, 584])
def test_columns_and_contractions(n, k):
    call = make_call(17, n, k, 2)
    assert_matches(run(call), call)


@pytest.mark.parametrize("alpha", [0, -1.5, 2.0])
def test_alpha(alpha):
    call = make_call(9, 64, 64)
    call.alpha = alpha
    assert_matches(run(call), call)


@pytest.mark.parametrize("c_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("c_major, d_major", ["nn", "mm", "nm", "mn"])
@pytest.mark.parametrize("pad, m_inner", [(0, False), (5, True)])
def test_the_gradient_in_any_layout(c_dtype, c_major, d_major, pad, m_inner):
    call = make_call(17, 24, 64, 3)
    layout = {"c_dtype": c_dtype, "c_major": c_major, "pad": pad, "m_inner": m_inner}
    assert_matches(run(call, layout, d_major=d_major), call)


def test_it_is_the_derivative_of_the_forward():
    """Central differences of sum(dD * srelu(X)) in X (by alpha) and in prob."""
    call = make_call(5, 24, 16)
    call.column[...] = np.float32(0.5)
    wide = {"c_dtype": "float32", "d_dtype": "float32"}
    sides = (call.a.tensor(), call.b.tensor(), None, None)

    def loss(alpha, prob):
        d = gemm_srelu_wrapper(*sides, prob, alpha, **wide)["d_tensor"]
        return (batch_first(d).astype(np.float64) * call.gradient).sum(axis=-1)[0]

    prob, step = column_tensor(call.column), 2.0**-10
    d, dprob, *_ = run(call)
    by_alpha = (loss(1 + step, prob) - loss(1 - step, prob)) / (2 * step)
    want = (batch_first(d).astype(np.float64) * call.accumulator()).sum(axis=-1)[0]
    np.testing.assert_allclose(by_alpha, want, rtol=1e-3, atol=1e-2)
    by_prob = loss(1.0, prob + np.float32(1)) - loss(1.0, prob)
    np.testing.assert_allclose(by_prob, dprob[:, 0, 0], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("d_dtype", ["float32", "float16", "bfloat16"])
def test_outputs(d_dtype):
    call = make_call(17, 24, 64, 3)
    d, dprob, amax, sfd = run(call, d_dtype=d_dtype)
    assert (d.shape, d.dtype, dprob.shape, dprob.dtype) == (
        (17, 24, 3),
        d_dtype,
        (17, 1, 3),
        "float32",
    )
    assert dprob.strides == (12, 12, 4) and amax is None and sfd is None
    want = dsrelu(call)[0].astype(np.float32).astype(d.dtype).astype(np.float64)
    np.testing.assert_array_equal(values(d), want)


def test_nan_passes_the_relu():
    call = make_call(9, 24, 64, a="float16", b="float16")
    call.a.data[0, 3, 5] = np.nan
    result = run(call)
    bad = np.isnan(batch_first(result["d_tensor"])[0])
    assert bad[3].all() and bad.sum() == 24
    np.testing.assert_array_equal(np.isnan(result["dprob_tensor"][:, 0, 0]), np.arange(9) == 3)
    call.gradient[0, 5, 7] = np.nan
    result = run(call)
    assert np.isnan(batch_first(result["d_tensor"])[0, 5, 7])
    assert np.isnan(result["dprob_tensor"][5, 0, 0])


@pytest.mark.parametrize("d_dtype", ["float32", "float16", "bfloat16"])
def test_amax_of_fp4(d_dtype):
    call = make_call(17, 24, 352, 3, "mxfp4", "mxfp4")
    call.column *= np.float32(0.01)
    amax = run(call, d_dtype=d_dtype)["amax_tensor"]
    assert amax.shape == (1,)
    np.testing.assert_allclose(amax[0], np.abs(dsrelu(call)[0]).max(), rtol=4 * ULP)


# --- class -----------------------------------------------------------------------------------------------------------


def samples(call, pad=0, major="n"):
    m, n, _, l = call.extents
    d, dprob = Output((m, n, l), "float32", major, pad=pad), Output((m, 1, l), "float32", pad=pad)
    dprob.tensor[...] = 0
    a, b, c, sfa, sfb, prob = inputs(call, c_major=major)
    return d, dprob, (a, b, c, d.tensor, dprob.tensor, sfa, sfb, prob)


@pytest.mark.parametrize("major", "nm")
@pytest.mark.parametrize("pad", [0, 8])
def test_class_writes_only_its_outputs(pad, major):
    """M = 200 and 17: rows past the end are neither read nor written."""
    for m in (17, 200):
        call = make_call(m, 24, 64, 3, "mxfp8", "bfloat16")
        d, dprob, tensors = samples(call, pad, major)
        GemmDsrelu(*tensors, sf_vec_size=32)(*tensors)
        assert_matches({"d_tensor": d.tensor, "dprob_tensor": dprob.tensor}, call)
        d.assert_guards()
        dprob.assert_guards()


def test_dprob_accumulates():
    call = make_call(17, 200, 64, 2)
    _, dprob, tensors = samples(call)
    op = GemmDsreluSm100(*tensors)
    dprob.tensor[...] = 100.0
    op(*tensors)
    first = dprob.tensor.copy()
    np.testing.assert_allclose(values(first), 100 + dsrelu(call)[1], rtol=4 * ULP)
    op.execute(*tensors)
    np.testing.assert_allclose(values(dprob.tensor), 100 + 2 * dsrelu(call)[1], rtol=8 * ULP)


def test_execute_takes_the_constructors_alpha():
    call = make_call(8, 24, 64)
    d, _, tensors = samples(call)
    op = GemmDsrelu(*tensors, alpha=2.0)
    op(*tensors)
    call.alpha = 2.0
    np.testing.assert_allclose(values(d.tensor), dsrelu(call)[0], rtol=4 * ULP)
    op.execute(*tensors, alpha=-1)
    call.alpha = -1
    np.testing.assert_allclose(values(d.tensor), dsrelu(call)[0], rtol=4 * ULP)


def test_dprob_must_not_fold_onto_itself():
    call = make_call(8, 24, 64)
    *_, tensors = samples(call)
    folded = np.lib.stride_tricks.as_strided(tensors[4], strides=(0, 4, 4))
    with pytest.raises(
        ValueError, match="sample_dprob: expected an output whose elements share no"
    ):
        GemmDsrelu(*tensors[:4], folded, *tensors[5:]).check_support()


def test_result_keys():
    result = run(make_call(8, 24, 64))
    assert list(result.keys()) == ["d_tensor", "dprob_tensor", "amax_tensor", "sfd_tensor"]
