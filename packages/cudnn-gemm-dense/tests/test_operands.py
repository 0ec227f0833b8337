"""Operands of every format on each side on its own, in all four ops, against an independent float64 model."""

import numpy as np
import pytest

from cudnn_core.dtypes import as_dtype
from cudnn_gemm_dense import (
    gemm_amax_wrapper,
    gemm_dsrelu_wrapper,
    gemm_srelu_wrapper,
    gemm_swiglu_wrapper,
)
from cudnn_gemm_dense.config import Side
from cudnn_gemm_dense.testing import (
    FORMATS,
    column_tensor,
    dsrelu,
    make_call,
    matrix_tensor,
    srelu,
    swiglu,
    values,
)

PAIRS = [(a, b) for a in FORMATS for b in FORMATS if (a == "float32") == (b == "float32")]
ULP = 2.0**-23


def sides(call, framework="numpy", view="logical", **layout):
    a, b = (s.tensor(framework, **layout) for s in (call.a, call.b))
    return a, b, call.a.scale(framework, view), call.b.scale(framework, view)


@pytest.mark.parametrize("a, b", PAIRS)
def test_any_pair(a, b):
    """Exactly the products of the operands' own values, scales of each side by its own block length."""
    call = make_call(33, 128, 352, 2, a, b)
    c, amax = gemm_amax_wrapper(*sides(call), sf_vec_size=call.vec())
    acc = call.accumulator()
    np.testing.assert_array_equal(values(c), acc)
    assert amax.item() == np.abs(acc).max()


@pytest.mark.parametrize(
    "a, b", [("bfloat16", "nvfp4"), ("mxfp8", "mxfp4_16"), ("float8_e4m3fn", "float8_e5m2")]
)
def test_every_op_takes_them(a, b):
    call = make_call(33, 128, 352, 2, a, b)
    a, b, sfa, sfb = sides(call)
    prob, c = column_tensor(call.column), matrix_tensor(call.gradient, "float32", "n")
    vec = {"sf_vec_size": call.vec()}
    got = gemm_swiglu_wrapper(a, b, sfa_tensor=sfa, sfb_tensor=sfb, c_dtype="float32", **vec)
    np.testing.assert_allclose(
        values(got["c_tensor"]), swiglu(call.preactivation()), rtol=ULP, atol=1e-44
    )
    got = gemm_srelu_wrapper(a, b, sfa, sfb, prob, d_dtype="float32", **vec)
    np.testing.assert_allclose(values(got["d_tensor"]), srelu(call), rtol=3 * ULP)
    got = gemm_dsrelu_wrapper(a, b, c, sfa, sfb, prob, d_dtype="float32", **vec)
    np.testing.assert_allclose(values(got["d_tensor"]), dsrelu(call)[0], rtol=4 * ULP)


@pytest.mark.parametrize("vec, want", [(32, (32, 32)), ((32, 32), (32, 32)), ([32, 16], (32, 16))])
def test_block_lengths(vec, want):
    """A number is for both sides; a pair of equal numbers is that number."""
    formats = {32: "mxfp4", 16: "mxfp4_16"}
    call = make_call(17, 24, 352, 1, *(formats[v] for v in want))
    c, _ = gemm_amax_wrapper(*sides(call), sf_vec_size=vec)
    np.testing.assert_array_equal(values(c), call.accumulator())


@pytest.mark.parametrize("vec", [(16, 16, 16), (16,), (16, 8), (), "ab", (None, 16), 16.0])
def test_block_lengths_that_are_none(vec):
    call = make_call(17, 24, 96, 1, "nvfp4", "nvfp4")
    with pytest.raises(ValueError, match=r"sf_vec_size(\[1\]|\[0\])?: expected"):
        gemm_amax_wrapper(*sides(call), sf_vec_size=vec)


def test_the_block_length_of_a_side_is_its_own():
    """Scales of 32 on the left are refused where 16 was said, and the message says which."""
    call = make_call(17, 24, 512, 1, "mxfp4", "mxfp4_16")
    with pytest.raises(
        ValueError, match="sfa_tensor: expected shape .*scales for sf_vec_size = 32"
    ):
        gemm_amax_wrapper(*sides(call), sf_vec_size=16)
    with pytest.raises(
        ValueError, match="sfb_tensor: expected shape .*scales for sf_vec_size = 16"
    ):
        gemm_amax_wrapper(*sides(call), sf_vec_size=32)


def test_a_float16_side_is_not_rounded_to_bfloat16():
    call = make_call(9, 24, 64, 1, "float16", "mxfp8")
    call.a.data[...] = np.float16(1 + 2.0**-10)
    c, _ = gemm_amax_wrapper(*sides(call), sf_vec_size=32)
    np.testing.assert_array_equal(values(c), call.accumulator())
    assert (values(c) != (call.b.values().sum(-1)[:, None])).any()


@pytest.mark.parametrize("format", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
@pytest.mark.parametrize("a_major, b_major", ["kk", "mk", "kn", "mn"])
def test_majors(format, a_major, b_major):
    call = make_call(48, 32, 64, 3, format, format)
    a = call.a.tensor(major=a_major, pad=16, offset=16)
    b = call.b.tensor(major=b_major, pad=16, offset=32)
    np.testing.assert_array_equal(
        values(gemm_amax_wrapper(a, b, None, None)[0]), call.accumulator()
    )


@pytest.mark.parametrize(
    "format, k, quantum", [("bfloat16", 12, 8), ("float32", 6, 4), ("float8_e5m2", 24, 16)]
)
def test_k_is_whole_16_byte_units_of_each_side(format, k, quantum):
    call = make_call(9, 16, k, 1, format, format)
    with pytest.raises(
        ValueError, match=rf"a_tensor: expected K a multiple of 16 bytes \({quantum} e"
    ):
        gemm_amax_wrapper(*sides(call))


def test_infinities_of_wide_operands():
    call = make_call(9, 24, 64, 1, "float16", "bfloat16")
    call.a.data[0, 2, 3] = np.inf
    c, amax = gemm_amax_wrapper(*sides(call))
    acc = call.accumulator()
    np.testing.assert_array_equal(values(c), acc)
    assert np.isinf(acc).any() and np.isnan(acc).any() and np.isnan(amax.item())
    call.b.data[call.b.data == 0] = 1
    c, amax = gemm_amax_wrapper(*sides(call))
    np.testing.assert_array_equal(values(c), call.accumulator())
    assert amax.item() == np.inf


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"],
)
def test_a_side_of_a_kernel_knows_the_size_of_its_elements(dtype):
    assert Side(dtype).bits == as_dtype(dtype).bits
