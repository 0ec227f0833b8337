"""GEMM + amax on NumPy arrays against an independent float64 model: shapes, layouts, formats, life cycle."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_core import api_base
from cudnn_core.dtypes import FLOAT32
from cudnn_core.tensor_desc import TensorDesc
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
    host,
    quantized,
    scale_bytes,
    table,
    values,
)
from cudnn_core.tuple_dict import TupleDict
from cudnn_gemm_dense import GemmAmax, GemmAmaxSm100, gemm_amax_wrapper

FP8, FP4 = ("mxfp8", "mxfp8_e5m2"), ("mxfp4", "mxfp4_16", "nvfp4")
FLOATS = ("float32", "float16", "bfloat16")


def run(data, **layout):
    return gemm_amax_wrapper(*data.inputs(**layout), **data.case.options())


def execute(data, c, amax, **layout):
    inputs = data.inputs(**layout)
    op = GemmAmax(*inputs, c, amax, sf_vec_size=data.case.format.vec)
    op(*inputs, c, amax)


# --- the model itself ------------------------------------------------------------------------------------------------


def test_model_knows_the_golden_bytes():
    """Facts written down elsewhere, so that model and engine cannot be wrong together."""
    assert encode(np.array([0.5, 1.0, 2.5, -5.0, 9.0, np.nan]), "float4_e2m1fn").tolist() == [
        1,
        2,
        4,
        14,
        7,
        7,
    ]
    assert encode(np.array([448.0, 464.0, 1e4, -np.inf, np.nan]), "float8_e4m3fn").tolist() == [
        0x7E,
        0x7E,
        0x7E,
        0xFE,
        0x7F,
    ]
    assert encode(np.array([57344.0, 1e6]), "float8_e5m2").tolist() == [0x7B, 0x7B]
    assert table("float8_e8m0fnu")[[0, 126, 127, 254]].tolist() == [2.0**-127, 0.5, 1.0, 2.0**127]
    # Row 129, block 6 of a (130, 7 blocks) side: R = 2, Q = 2, atom (1, 1), row 1 of it, block 2.
    scales = np.zeros((1, 130, 7), np.uint8)
    scales[0, 129, 6] = 9
    assert np.flatnonzero(scale_bytes(scales, 0)).tolist() == [3 * 512 + 16 + 2]


def test_fp4_first_code_is_the_low_nibble():
    """0.5 and 1.0 make the byte 0x21."""
    data = exact(Case(1, 8, 32, recipe="mxfp4"))
    data.a[0, 0, :2] = 1, 2
    assert data.inputs()[0][0, 0, 0] == 0x21


# --- numerics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale_view", ["logical", "physical"])
@pytest.mark.parametrize("l", [1, 3])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_operand_pair(recipe, l, scale_view):
    """R >= 2 and Q >= 2 on both sides, random scales, K/vec no multiple of 4."""
    data = any_codes(Case(130, 136, 352, l, recipe, scale_view=scale_view))
    c, amax = run(data)
    if recipe == "mxfp8_e5m2":  # too wide a range for float64 sums to be exact
        np.testing.assert_allclose(values(c, "float32"), data.expected(), rtol=2e-7, atol=1e-3)
        np.testing.assert_allclose(amax.ravel(), data.amax(), rtol=2e-7)
    else:
        assert_matches((c, amax), data)


@pytest.mark.parametrize("l", [1, 3])
@pytest.mark.parametrize("c_major", "nm")
@pytest.mark.parametrize("b_major", "kn")
@pytest.mark.parametrize("a_major", "km")
@pytest.mark.parametrize("recipe", FP8)
def test_fp8_majors(recipe, a_major, b_major, c_major, l):
    case = Case(48, 64, 80, l, recipe, a_major, b_major, "bfloat16", c_major)
    assert_matches(run(exact(case)), exact(case))


WIDE = [
    (r, d, m)
    for r in ("mxfp8", "nvfp4")
    for d in (*FLOATS, "float8_e4m3fn", "float8_e5m2")
    for m in "nm"
]
PACKED = [("nvfp4", d, "n") for d in ("float4_e2m1fn", "uint8")]


@pytest.mark.parametrize("recipe, c_dtype, c_major", WIDE + PACKED)
def test_output_dtypes_and_majors(recipe, c_dtype, c_major):
    fp4_out = c_dtype in ("float4_e2m1fn", "uint8")
    # Products well beyond the ranges of the small types: saturation is part of this.
    data = any_codes(Case(33, 24, 96, 2, recipe, c_dtype=c_dtype, c_major=c_major))
    c, amax = run(data)
    assert_matches((c, amax), data)
    inner, outer = (24, 33) if c_major == "n" else (33, 24)
    if not fp4_out:
        want = (inner, 1, inner * outer) if c_major == "n" else (1, inner, inner * outer)
        assert tuple(s // c.itemsize for s in c.strides) == want and c.shape == (33, 24, 2)
    else:
        assert c.shape == (33, 12, 2) and c.dtype == np.uint8 and c.strides[1] == 1
    assert amax.shape == (1, 1, 1) and amax.dtype == np.float32


@pytest.mark.parametrize("k", [16, 48, 576, 592])
@pytest.mark.parametrize("n", [0, 1, 8, 24, 136])
@pytest.mark.parametrize("m", [0, 1, 7, 17, 100, 129])
def test_odd_shapes(m, n, k):
    data = exact(Case(m, n, k, 2), seed=m + n + k)
    assert_matches(run(data), data)


@pytest.mark.parametrize("k", [32, 64, 160, 608])
@pytest.mark.parametrize("m, n", [(1, 1), (17, 8), (129, 24), (0, 8), (7, 0)])
@pytest.mark.parametrize("recipe", FP4)
def test_odd_shapes_fp4(recipe, m, n, k):
    data = exact(Case(m, n, k, 2, recipe, c_dtype="float16"), seed=m + n + k)
    assert_matches(run(data), data)


@pytest.mark.parametrize(
    "case", [Case(5, 8, 0, 2), Case(5, 8, 64, 0), Case(5, 8, 0, recipe="nvfp4")]
)
def test_empty_contraction_and_batch(case):
    c, amax = run(exact(case))
    assert c.shape == (5, 8, case.l) and not c.any() and amax.item() == 0


def test_empty_problem_overwrites_poison():
    data = exact(Case(5, 8, 0, 2))
    out, amax = Guarded(data.case, "numpy"), amax_tensor("numpy", 3.0)
    execute(data, out.tensor, amax)
    assert not out.tensor.any() and amax.item() == 3.0


def test_realistic_data():
    for recipe in RECIPES:
        data = quantized(Case(64, 40, 512, recipe=recipe), seed=4)
        c, _ = run(data)
        np.testing.assert_allclose(values(c, "float32"), data.product(), rtol=1e-6, atol=1e-4)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad, offset", [(0, 16), (16, 0), (48, 32)])
@pytest.mark.parametrize("majors", ["kk", "mn"])
def test_padded_rows_and_offsets(majors, pad, offset):
    data = exact(Case(48, 32, 64, 3, "mxfp8", *majors))
    assert_matches(run(data, pad=pad, offset=offset), data)


@pytest.mark.parametrize("recipe, c_dtype, c_major", WIDE + PACKED)
@pytest.mark.parametrize("pad", [0, 16])
def test_only_the_output_is_written(recipe, c_dtype, c_major, pad):
    data = exact(Case(17, 24, 64, 3, recipe, c_dtype=c_dtype, c_major=c_major))
    out, amax = Guarded(data.case, "numpy", pad), amax_tensor("numpy")
    execute(data, out.tensor, amax)
    assert_matches((out.tensor, amax), data)
    out.assert_guards()


def test_inputs_are_never_written():
    data = exact(Case(17, 24, 96, 2))
    inputs = data.inputs()
    before = [bits(x).copy() for x in inputs]
    for x in inputs:
        x.setflags(write=False)
    gemm_amax_wrapper(*inputs)
    for x, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(bits(x), old)


@pytest.mark.parametrize("step", [0, 1, 16, 10**9])
def test_stride_of_a_single_batch_says_nothing(step):
    data = exact(Case(17, 24, 64))
    strided = np.lib.stride_tricks.as_strided
    inputs = list(data.inputs())
    for i in (0, 1):
        inputs[i] = strided(inputs[i], strides=(*inputs[i].strides[:2], step))
    for i in (2, 3):
        inputs[i] = strided(inputs[i], strides=(*inputs[i].strides[:5], step))
    assert_matches(gemm_amax_wrapper(*inputs), data)


@pytest.mark.parametrize("step", [0, 1, 10**9])
def test_stride_of_a_single_row_says_nothing(step):
    data = exact(Case(1, 1, 64, 2))
    a, b, *scales = data.inputs()
    a, b = (np.lib.stride_tricks.as_strided(x, strides=(step, *x.strides[1:])) for x in (a, b))
    assert_matches(gemm_amax_wrapper(a, b, *scales), data)


def test_scale_views_share_bytes_and_results():
    data = any_codes(Case(130, 24, 160, 2))
    logical, physical = data.inputs(), data.with_case(scale_view="physical").inputs()
    np.testing.assert_array_equal(bits(logical[2]), bits(physical[2]).transpose(3, 4, 1, 5, 2, 0))
    first, second = gemm_amax_wrapper(*logical), gemm_amax_wrapper(*physical)
    np.testing.assert_array_equal(bits(first[0]), bits(second[0]))


@pytest.mark.parametrize("change", [{"scale_container": "int8"}, {"scale_view": "physical"}])
def test_int8_scales_are_read_as_e8m0(change):
    data = any_codes(Case(33, 24, 96, 2)).with_case(**change)
    assert_matches(run(data), data)


# --- hypothesis ------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw):
    recipe = draw(st.sampled_from(list(RECIPES)))
    fp4 = RECIPES[recipe].fp4
    c_dtypes = [*FLOATS, "float8_e4m3fn", *(["uint8", "float4_e2m1fn"] if fp4 else [])]
    c_dtype = draw(st.sampled_from(c_dtypes))
    packed = c_dtype in ("uint8", "float4_e2m1fn")
    a_major, b_major = (
        ("k", "k") if fp4 else (draw(st.sampled_from("km")), draw(st.sampled_from("kn")))
    )
    quantum = 32 if fp4 else 16
    m = draw(st.integers(0, 10)) * 16 if a_major == "m" else draw(st.integers(0, 150))
    n = draw(st.integers(0, 10)) * 16 if b_major == "n" else draw(st.integers(0, 150))
    return Case(
        m,
        n * 2 // 2 - (n % 2 if packed else 0),
        draw(st.integers(1, 12)) * quantum,
        draw(st.integers(1, 3)),
        recipe,
        a_major,
        b_major,
        c_dtype,
        "n" if packed else draw(st.sampled_from("nm")),
        scale_view=draw(st.sampled_from(["logical", "physical"])),
    )


@settings(max_examples=60, deadline=None)
@given(
    case=cases(),
    pad=st.sampled_from([0, 16, 32]),
    offset=st.sampled_from([0, 16]),
    seed=st.integers(0, 99),
)
def test_any_problem(case, pad, offset, seed):
    data = exact(case, seed)
    out, amax = Guarded(case, "numpy", pad), amax_tensor("numpy")
    assert_matches(run(data, pad=pad, offset=offset), data)
    execute(data, out.tensor, amax, pad=pad, offset=offset)
    assert_matches((out.tensor, amax), data)
    out.assert_guards()


# --- names, results, life cycle --------------------------------------------------------------------------------------


def test_result_is_a_tuple_dict():
    result = run(exact(Case(8, 8, 32)))
    assert isinstance(result, TupleDict) and list(result.keys()) == ["c_tensor", "amax_tensor"]
    c, amax = result
    assert c is result[0] is result["c_tensor"] and amax is result[1] is result["amax_tensor"]
    for index in (-1, 2):
        with pytest.raises(IndexError):
            result[index]


def test_second_call_equals_the_first():
    """Cold, then remembered; fresh outputs each time, the amax from -inf each time."""
    data = any_codes(Case(33, 40, 96, 2))
    first, second = run(data), run(data)
    np.testing.assert_array_equal(bits(first[0]), bits(second[0]))
    assert first[1] == second[1] and not np.shares_memory(first[0], second[0])
    small = exact(Case(33, 40, 96, 2))
    assert run(small)[1].item() == small.amax()


@pytest.fixture
def samples():
    data = exact(Case(17, 24, 64))
    out = Guarded(data.case, "numpy")
    return data, (*data.inputs(), out.tensor, amax_tensor("numpy"))


def test_life_cycle(samples):
    data, tensors = samples
    op = GemmAmax(*tensors)
    with pytest.raises(RuntimeError, match=r"GemmAmax: call compile\(\) before execute\(\)"):
        op.execute(*tensors)
    assert op.check_support() is True
    with pytest.raises(RuntimeError, match="compile"):
        op.execute(*tensors)
    assert op.compile() is None and op.compile() is None
    assert op.execute(*tensors) is None
    assert_matches(tensors[4:], data)


def test_compile_checks_by_itself(samples):
    data, tensors = samples
    op = GemmAmax(*tensors)
    op.compile()
    op.execute(*tensors)
    assert_matches(tensors[4:], data)


def test_call_compiles_and_executes(samples):
    data, tensors = samples
    GemmAmaxSm100(*tensors)(*tensors)
    assert_matches(tensors[4:], data)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_amax_of_any_rank(samples, rank):
    data, tensors = samples
    amax = np.full((1,) * rank, -np.inf, np.float32)
    GemmAmax(*tensors[:5], amax)(*tensors[:5], amax)
    assert amax.item() == data.amax()
    # Declared with one rank, given with another: a single element has no layout.
    again = amax_tensor("numpy")
    GemmAmax(*tensors[:5], amax)(*tensors[:5], again)
    assert again.item() == data.amax()


def test_samples_may_be_descriptions(samples):
    data, tensors = samples
    names = ("a", "b", "sfa", "sfb", "c", "amax")
    described = [
        TensorDesc.of(x.dtype, x.shape, [s // x.itemsize for s in x.strides], name=name)
        for name, x in zip(names, tensors, strict=True)
    ]
    op = GemmAmax(*described)
    assert op.check_support() is True
    op(*tensors)
    assert_matches(tensors[4:], data)


@pytest.mark.parametrize(
    "index, name",
    list(enumerate(["a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "c_tensor"])),
)
def test_execute_refuses_what_the_samples_did_not_say(samples, index, name):
    _, tensors = samples
    op = GemmAmax(*tensors)
    op.compile()
    other = list(exact(Case(17, 24, 64, 2)).inputs())
    other.append(np.zeros((17, 24, 2), np.float32))
    changed = (*tensors[:index], other[index], *tensors[index + 1 :])
    with pytest.raises(ValueError, match=rf"{name}: expected shape .*\(the sample's\), got shape"):
        op.execute(*changed)
    with pytest.raises((ValueError, TypeError), match=name):
        op.execute(*tensors[:index], None, *tensors[index + 1 :])


def test_notice_comes_once_for_each_class(samples, caplog):
    _, tensors = samples
    api_base._reset_experimental_api_warning_registry()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            GemmAmax(*tensors)
            GemmAmaxSm100(*tensors)
    notices = [(r.name, r.levelname) for r in caplog.records if "experimental" in r.message]
    assert notices == [("GemmAmax", "WARNING"), ("GemmAmaxSm100", "WARNING")]


def test_dtypes_in_every_spelling():
    import ml_dtypes

    data = exact(Case(8, 8, 32, c_dtype="bfloat16"))
    results = [
        gemm_amax_wrapper(*data.inputs(), c_dtype=spelling, acc_dtype=acc)[0]
        for spelling, acc in (
            ("bfloat16", "float32"),
            (ml_dtypes.bfloat16, np.float32),
            (np.dtype(ml_dtypes.bfloat16), FLOAT32),
        )
    ]
    for c in results:
        assert c.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(host(c), results[0])


@pytest.mark.parametrize("tile", [None, (128, 128), [128, 256], (256, 128), (256, 256)])
@pytest.mark.parametrize("cluster", [None, (1, 1), (2, 4), (np.int64(4), 1)])
def test_hints_change_nothing(tile, cluster):
    data = exact(Case(17, 24, 64))
    result = gemm_amax_wrapper(*data.inputs(), mma_tiler_mn=tile, cluster_shape_mn=cluster)
    assert_matches(result, data)
