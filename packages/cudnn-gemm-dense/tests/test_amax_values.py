"""GEMM + amax on special values: NaN, Inf, every scale byte, BF16's limits, what the amax buffer held before."""

import numpy as np
import pytest

from cudnn_core.testing.gemm import (
    RECIPES,
    Case,
    Guarded,
    amax_tensor,
    any_codes,
    assert_matches,
    bits,
    encode,
    exact,
    scale_bytes,
    values,
)
from cudnn_gemm_dense import GemmAmax, gemm_amax_wrapper

NAN, INF = float("nan"), float("inf")
FP8 = {"mxfp8": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2"}


def ones(case):
    """Every element 1, every scale 1."""
    data = exact(case)
    data.a[...] = data.b[...] = encode(np.array(1.0), case.format.element)
    one = 127 if case.format.scale == "float8_e8m0fnu" else encode(np.array(1.0), "float8_e4m3fn")
    data.sfa[...] = data.sfb[...] = one
    return data


def run(data):
    return gemm_amax_wrapper(*data.inputs(), **data.case.options())


# --- scales ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["logical", "physical"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_padding_of_the_scales_is_never_read(recipe, view):
    """Rows and blocks that do not exist carry NaN codes; M, N and K/vec are ragged."""
    case = Case(130, 129, 160, 2, recipe, scale_view=view)
    data = exact(case)
    scales = data.inputs()[2]
    assert np.count_nonzero(bits(scales) == case.format.nan_scale) > 512
    c, amax = run(data)
    assert_matches((c, amax), data)
    assert np.isfinite(c).all() and np.isfinite(amax).all()


E8M0 = {0: 2.0**-127, 1: 2.0**-126, 126: 0.5, 127: 1.0, 134: 128.0, 254: 2.0**127, 255: NAN}


@pytest.mark.parametrize("code, value", E8M0.items())
@pytest.mark.parametrize("side", ["sfa", "sfb"])
@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4_16"])
def test_scale_bytes(recipe, side, code, value):
    data = ones(Case(2, 8, 64, recipe=recipe))
    getattr(data, side)[0, 0, 0] = code
    c = values(run(data)[0], "float32")[0]
    vec = data.case.format.vec
    touched = c[0] if side == "sfa" else c[:, 0]
    untouched = c[1:] if side == "sfa" else c[:, 1:]
    np.testing.assert_array_equal(untouched, 64.0)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(touched, np.float32(vec * value + (64 - vec)))
    assert_matches(run(data), data)


@pytest.mark.parametrize("recipe", RECIPES)
def test_all_scale_bytes(recipe):
    """Row r of A has scale byte r; the model decodes all 256 of them."""
    data = ones(Case(256, 8, 32, recipe=recipe))
    data.sfa[0, :, :] = np.arange(256, dtype=np.uint8)[:, None]
    assert_matches(run(data), data)


@pytest.mark.parametrize("recipe", RECIPES)
def test_all_element_codes(recipe):
    """Row r of A is filled with element code r, NaN and Inf included."""
    count = 16 if RECIPES[recipe].fp4 else 256
    data = ones(Case(count, 8, 32, recipe=recipe))
    data.a[0] = np.arange(count, dtype=np.uint8)[:, None]
    data.sfa[0, :, :] -= 3  # 2^-3, or 1 - 3/8 steps of E4M3: not 1
    assert_matches(run(data), data)


def test_products_beyond_bf16_overflow_and_tiny_ones_stay():
    """448 * 2^127 is beyond BF16: Inf. 2^-9 * 2^-124 is its smallest subnormal: kept; half of that rounds to 0."""
    data = ones(Case(4, 8, 32))
    data.b[0, :, 1:] = 0
    data.a[0, :, 0] = encode(np.array([448.0, -448.0, 2.0**-9, 2.0**-9]), "float8_e4m3fn")
    data.sfa[0, :, 0] = 254, 254, 127 - 124, 127 - 125
    c, amax = run(data)
    assert c[:, 0, 0].tolist() == [INF, -INF, 2.0**-133, 0.0]
    assert amax.item() == INF
    assert_matches((c, amax), data)


def test_rounding_to_bf16_is_to_nearest_even():
    """e4m3 subnormals at scale 2^-127 need bits below BF16's last: 7 * 2^-136 is 0.875 * 2^-133."""
    data = ones(Case(16, 8, 32))
    data.b[0, :, 1:] = 0
    data.a[0, :, 0] = np.arange(16)
    data.sfa[0, :, 0] = 0
    data.sfb[0, :, 0] = 254
    c, _ = run(data)
    assert c[1, 0, 0] == 0 and c[4, 0, 0] == 0 and c[5, 0, 0] == 2.0**-6
    assert_matches((c, _), data)


# --- NaN and Inf -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 15, 31, 63])
@pytest.mark.parametrize("recipe", FP8)
def test_nan_element_reaches_its_row_and_amax(recipe, position):
    data = ones(Case(17, 24, 64, 2, recipe))
    data.a[1, 3, position] = encode(np.array(NAN), FP8[recipe])
    c, amax = run(data)
    wrong = np.zeros((17, 24, 2), bool)
    wrong[3, :, 1] = True
    np.testing.assert_array_equal(np.isnan(c), wrong)
    assert np.isnan(amax.item())


@pytest.mark.parametrize("recipe", RECIPES)
def test_nan_scale_reaches_its_column_and_amax(recipe):
    data = ones(Case(17, 24, 64, 2, recipe))
    data.sfb[0, 5, -1] = data.case.format.nan_scale
    c, amax = run(data)
    wrong = np.zeros((17, 24, 2), bool)
    wrong[:, 5, 0] = True
    np.testing.assert_array_equal(np.isnan(c), wrong)
    assert np.isnan(amax.item())


@pytest.mark.parametrize(
    "c_dtype, nan", [("float8_e4m3fn", 0x7F), ("float8_e5m2", None), ("uint8", 7)]
)
def test_nan_in_small_outputs(c_dtype, nan):
    """FP8 has a NaN; FP4 has none and takes its largest number."""
    data = ones(Case(4, 8, 64, recipe="nvfp4", c_dtype=c_dtype))
    data.sfa[0, 2, 0] = 0x7F
    c, amax = run(data)
    assert_matches((c, amax), data)
    assert np.isnan(amax.item())
    if c_dtype == "uint8":
        assert (c[2, :, 0] == 0x77).all()
    else:
        assert np.isnan(values(c, c_dtype)[0, 2]).all()
        assert nan is None or (bits(c)[2] == nan).all()


def test_infinity_follows_ieee():
    """Inf times 1 is Inf; Inf meeting 0, or -Inf in the same sum, is NaN."""
    data = ones(Case(3, 8, 32, recipe="mxfp8_e5m2"))
    data.a[0, :, 0] = encode(np.array(1.0), "float8_e5m2")
    data.a[0, 0, 0] = 0x7C
    data.a[0, 1, :2] = 0x7C, 0xFC
    data.b[0, 3, 0] = 0
    c, amax = run(data)
    assert c[0, 0, 0] == INF and np.isnan(c[0, 3, 0]) and np.isnan(c[1, :, 0]).all()
    assert (c[2, [0, 1, 2, 4, 5, 6, 7], 0] == 32).all() and c[2, 3, 0] == 31
    assert np.isnan(amax.item())
    assert_matches((c, amax), data)


def test_finite_overflow_of_outputs():
    """FP8 and FP4 saturate, FP16 and BF16 overflow by their rules; amax is that of the FP32 value."""
    for c_dtype, top in (
        ("float16", INF),
        ("float8_e4m3fn", 448),
        ("float8_e5m2", 57344),
        ("uint8", 6),
    ):
        data = ones(Case(8, 8, 64, recipe="mxfp4", c_dtype=c_dtype))
        data.sfa[0, 0, :] = 127 + 12
        c, amax = run(data)
        assert amax.item() == 64 * 2**12
        assert_matches((c, amax), data)
        np.testing.assert_array_equal(values(c, c_dtype)[0, 0], top)


# --- the amax buffer -------------------------------------------------------------------------------------------------


def execute(data, prior):
    out, amax = Guarded(data.case, "numpy"), amax_tensor("numpy", prior)
    op = GemmAmax(*data.inputs(), out.tensor, amax, sf_vec_size=data.case.format.vec)
    op(*data.inputs(), out.tensor, amax)
    return op, out, amax


@pytest.mark.parametrize("prior", [-INF, -5.0, -0.0, 0.0, 1.0, 1e9, INF, NAN])
def test_amax_keeps_what_was_larger(prior):
    data = any_codes(Case(33, 24, 96, 2))
    _, out, amax = execute(data, prior)
    assert_matches((out.tensor, amax), data, prior)
    if prior in (1e9, INF):
        assert amax.item() == prior


def test_amax_of_a_second_call_keeps_the_first():
    large = ones(Case(8, 8, 64))
    op, out, amax = execute(large, -INF)
    small = ones(large.case)
    small.a[...] = encode(np.array(0.5), "float8_e4m3fn")
    op(*small.inputs(), out.tensor, amax)
    assert amax.item() == 64 and (out.tensor == 32).all()


def test_amax_of_negative_values_and_of_zeros():
    data = ones(Case(8, 8, 64))
    data.a[...] = encode(np.array(-1.0), "float8_e4m3fn")
    c, amax = run(data)
    assert (c == -64).all() and amax.item() == 64
    data.a[...] = 0x80  # -0
    c, amax = run(data)
    assert not c.any() and bits(amax).item() == 0  # +0, never -0


@pytest.mark.parametrize("c_dtype", ["float16", "float8_e4m3fn", "uint8"])
def test_amax_is_of_the_unrounded_value(c_dtype):
    data = any_codes(Case(33, 24, 96, recipe="nvfp4", c_dtype=c_dtype))
    _, amax = run(data)
    assert amax.item() == np.abs(data.accumulator()).max()
    assert amax.item() != np.abs(data.expected()).max()


def test_one_amax_over_the_batch():
    data = ones(Case(8, 8, 64, 3))
    data.sfa[1, 4, :] = 130
    c, amax = run(data)
    assert amax.shape == (1, 1, 1) and amax.item() == 64 * 8
    np.testing.assert_array_equal(np.abs(c).max(axis=(0, 1)), [64, 512, 64])


def test_rows_past_the_end_reach_nothing():
    """A view of the first 17 of 32 rows; the others hold NaN elements."""
    whole = exact(Case(32, 24, 64))
    whole.a[0, 17:] = 0x7F
    head = exact(Case(17, 24, 64))
    head.a, head.sfa, head.b, head.sfb = whole.a[:, :17], whole.sfa[:, :17], whole.b, whole.sfb
    a = whole.inputs()[0][:17]
    result = gemm_amax_wrapper(a, *head.inputs()[1:])
    assert_matches(result, head)


def test_scale_offsets_by_formula():
    """The model's own addressing, spelled once more for one byte of each coordinate."""
    scales = np.zeros((2, 257, 9), np.uint8)
    scales[1, 256, 8] = 1
    offset = ((1 * 3 + 2) * 3 + 2) * 512 + 0 * 16 + 0 * 4 + 0
    assert np.flatnonzero(scale_bytes(scales, 0)).tolist() == [offset]
