"""GEMM + amax on a Hopper GPU against the float64 model: every format and layout, odd shapes, special values.

Where data is `exact`, sums are exact in FP32 in any order, so C and amax must equal the model bit for bit.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cudnn_core.testing.gemm import (
    RECIPES,
    Case,
    Guarded,
    amax_tensor,
    assert_matches,
    bits,
    encode,
    exact,
    host,
    quantized,
    values,
)
from cudnn_gemm_dense import GemmAmax, gemm_amax_wrapper

pytestmark = pytest.mark.gpu

NAN, INF = float("nan"), float("inf")
FLOATS = ("float32", "float16", "bfloat16")


def run(data, **layout):
    return gemm_amax_wrapper(*data.inputs("cuda", **layout), **data.case.options())


def execute(data, pad=0, prior=-INF):
    """The class on poisoned, guarded outputs, twice; the second run must not need the first."""
    inputs = data.inputs("cuda")
    out, amax = Guarded(data.case, "cuda", pad), amax_tensor("cuda", prior)
    op = GemmAmax(*inputs, out.tensor, amax, sf_vec_size=data.case.format.vec)
    op.compile()
    for _ in range(2):
        out.poison()
        op.execute(*inputs, out.tensor, amax)
        assert_matches((out.tensor, amax), data, prior)
        out.assert_guards()


PAIRS = [Case(300, 264, 608, 3, recipe) for recipe in RECIPES]
MAJORS = [
    Case(272, 144, 336, 2, "mxfp8", a, b, "bfloat16", c) for a in "km" for b in "kn" for c in "nm"
]
MAJORS += [Case(144, 272, 336, 2, "mxfp8_e5m2", "m", "n")]
OUTPUTS = [Case(264, 160, 352, 2, "mxfp8", c_dtype=c) for c in ("float16", "float8_e4m3fn")]
OUTPUTS += [Case(264, 160, 352, 2, "mxfp8_e5m2", c_dtype="float8_e5m2")]
OUTPUTS += [
    Case(264, 160, 352, 2, "nvfp4", c_dtype=c)
    for c in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "uint8")
]
OUTPUTS += [
    Case(272, 136, 352, 2, "nvfp4", c_dtype=c, c_major="m")
    for c in ("float32", "float16", "float8_e4m3fn")
]
VIEWS = [
    Case(300, 264, 608, 2, "mxfp8", scale_view="physical"),
    Case(300, 264, 608, 2, "nvfp4", scale_view="physical"),
    Case(300, 264, 608, 2, "mxfp4", container="uint8", scale_container="int8"),
]
# C whose rows are no multiples of 16 bytes takes another way to memory.
RAGGED = [
    Case(129, 35, 176, 3, "mxfp8"),
    Case(129, 35, 192, 3, "nvfp4", c_dtype="bfloat16"),
    Case(35, 129, 176, 2, "mxfp8", c_dtype="float16", c_major="m"),
    Case(129, 40, 192, 2, "mxfp4_16", c_dtype="float4_e2m1fn"),
    Case(129, 35, 192, 2, "nvfp4", c_dtype="float8_e4m3fn"),
]
# Batches enough that the larger tiles are chosen, and sums long enough to be promoted.
TILES = [Case(300, 264, 608, 17, recipe) for recipe in RECIPES]
TILES += [Case(300, 264, 608, 12, recipe) for recipe in ("mxfp8", "nvfp4")]
TILES += [
    Case(272, 272, 336, 17, "mxfp8", "m", "n", "bfloat16", "m"),
    Case(129, 136, 352, 50, "nvfp4", c_dtype="float16", c_major="m"),
    Case(300, 160, 352, 26, "nvfp4", c_dtype="float4_e2m1fn"),
    Case(300, 35, 352, 50, "nvfp4", c_dtype="bfloat16"),
]
TILES += [Case(300, 72, 8224, 1, recipe) for recipe in RECIPES]


@pytest.mark.parametrize("case", PAIRS + MAJORS + OUTPUTS + VIEWS + RAGGED + TILES, ids=str)
def test_formats_and_layouts(case):
    data = exact(case, seed=1)
    assert_matches(run(data), data)
    assert_matches(run(data), data)  # remembered
    execute(data)


@pytest.mark.parametrize(
    "case",
    [
        Case(m, n, k, l, recipe)
        for recipe in ("mxfp8", "nvfp4")
        for (m, n, k) in [
            (1, 8, 32),
            (7, 24, 96),
            (17, 136, 160),
            (100, 8, 608),
            (129, 24, 576),
            (1752, 4720, 608),
            (1, 4720, 64),
            (1752, 8, 32),
            (256, 128, 64),
            (257, 132, 4128),
        ]
        for l in (1, 2)
        if m * l < 2000
    ],
    ids=str,
)
def test_shapes(case):
    """Multiples of the tile, one past them, single rows; K/vec no multiple of 4; more tiles than processors."""
    data = exact(case, seed=case.m)
    assert_matches(run(data), data)
    execute(data)


@pytest.mark.parametrize("k", [16, 48, 112, 592])
@pytest.mark.parametrize("case", [Case(17, 24, 64, 2)], ids=str)
def test_k_of_odd_multiples_of_16_bytes(case, k):
    data = exact(Case(case.m, case.n, k, case.l))
    assert_matches(run(data), data)


@pytest.mark.parametrize("n", [1, 3, 17, 130])
@pytest.mark.parametrize("case", [Case(129, 35, 176, 3)], ids=str)
def test_any_n(case, n):
    data = exact(Case(case.m, n, case.k, case.l))
    assert_matches(run(data), data)
    execute(data)


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("m, n, k, l", [(0, 8, 64, 2), (8, 0, 64, 2), (8, 8, 0, 2), (8, 8, 64, 0)])
def test_empty(recipe, m, n, k, l):
    data = exact(Case(m, n, k, l, recipe))
    assert_matches(run(data), data)
    for prior in (-5.0, 3.0, NAN):
        execute(data, prior=prior)


@pytest.mark.parametrize("case", [Case(8, 8, 64), Case(64, 64, 640)], ids=str)
def test_contraction_of_zero_after_a_full_tile(case):
    """Nothing of an earlier call shows in the next."""
    run(exact(case))
    data = exact(Case(case.m, case.n, 0))
    execute(data)


@pytest.mark.parametrize("pad", [16, 48])
@pytest.mark.parametrize(
    "case",
    [
        Case(48, 64, 96, 3),
        Case(48, 64, 96, 3, a_major="m", b_major="n"),
        Case(48, 64, 96, 3, "nvfp4"),
    ],
    ids=str,
)
def test_padded_rows_and_offsets(case, pad):
    """NaN bytes stand between the rows and before the data."""
    data = exact(case)
    assert_matches(run(data, pad=pad, offset=pad), data)
    execute(data, pad=pad)


@pytest.mark.parametrize("pad", [1, 3])
@pytest.mark.parametrize(
    "case", [Case(129, 35, 176, 3), Case(48, 64, 96, 3, c_dtype="bfloat16")], ids=str
)
def test_unaligned_rows_of_c(case, pad):
    execute(exact(case), pad=pad)


@pytest.mark.parametrize("step", [0, 1, 10**9])
@pytest.mark.parametrize("case", [Case(17, 24, 64)], ids=str)
def test_stride_of_a_single_batch_says_nothing(case, step):
    data = exact(case)
    inputs = [x.as_strided(x.shape, (*x.stride()[:-1], step)) for x in data.inputs("cuda")]
    assert_matches(gemm_amax_wrapper(*inputs), data)


@pytest.mark.parametrize("step", [0, 1, 10**9])
@pytest.mark.parametrize("case", [Case(1, 8, 64, 2)], ids=str)
def test_stride_of_a_single_row_says_nothing(case, step):
    data = exact(case)
    a, *rest = data.inputs("cuda")
    a = a.as_strided(a.shape, (step, *a.stride()[1:]))
    assert_matches(gemm_amax_wrapper(a, *rest), data)


@pytest.mark.parametrize("case", [Case(17, 24, 64), Case(129, 24, 96, 2)], ids=str)
def test_rows_past_the_end_reach_nothing(case):
    """The tensor is the head of one whose other rows are NaN."""
    whole = exact(Case(384, case.n, case.k, case.l))
    whole.a[:, case.m :] = 0x7F
    head = exact(case)
    head.a, head.sfa = whole.a[:, : case.m], whole.sfa[:, : case.m]
    head.b, head.sfb = whole.b, whole.sfb
    a = whole.inputs("cuda")[0][: case.m]
    assert_matches(gemm_amax_wrapper(a, *head.inputs("cuda")[1:]), head)


# --- special values --------------------------------------------------------------------------------------------------


def ones(case):
    """Every element 1, every scale 1."""
    data = exact(case)
    data.a[...] = data.b[...] = encode(np.array(1.0), case.format.element)
    one = 127 if case.format.scale == "float8_e8m0fnu" else encode(np.array(1.0), "float8_e4m3fn")
    data.sfa[...] = data.sfb[...] = one
    return data


@pytest.mark.parametrize("case", [Case(256, 8, 32, recipe=r) for r in RECIPES], ids=str)
def test_all_scale_bytes(case):
    """Row r has scale byte r; E8M0 on the other side brings the product back to 1 in column 0's block."""
    data = ones(case)
    code = np.arange(256, dtype=np.uint8)
    data.sfa[0] = code[:, None]
    if case.format.scale == "float8_e8m0fnu":
        for shift in (0, 100, 127, 227, 254):
            data.sfb[0] = shift
            near = np.abs(code.astype(int) - 127 + shift - 127) < 100
            c = values(run(data)[0], "float32")
            np.testing.assert_array_equal(c[0, near], data.expected()[0, near])
        assert np.isnan(c[0, 255]).all()
    else:
        assert_matches(run(data), data)


@pytest.mark.parametrize(
    "case", [Case(16 if RECIPES[r].fp4 else 256, 8, 32, recipe=r) for r in RECIPES], ids=str
)
def test_all_element_codes(case):
    data = ones(case)
    data.a[0] = np.arange(case.m, dtype=np.uint8)[:, None]
    assert_matches(run(data), data)
    swapped = ones(Case(8, case.m, case.k, recipe=case.recipe))
    swapped.b[0] = np.arange(case.m, dtype=np.uint8)[:, None]
    assert_matches(run(swapped), swapped)


@pytest.mark.parametrize("case", [Case(2, 8, 32)], ids=str)
def test_products_beyond_bf16_overflow(case):
    data = ones(case)
    data.b[0, :, 1:] = 0
    data.a[0, :, 0] = encode(np.array([448.0, -448.0]), "float8_e4m3fn")
    data.sfa[0] = 254
    c, amax = run(data)
    assert host(c)[:, 0, 0].tolist() == [INF, -INF] and amax.item() == INF


@pytest.mark.parametrize("position", [0, 15, 31, 63, 95])
@pytest.mark.parametrize(
    "case", [Case(130, 136, 96, 2), Case(130, 136, 96, 2, "mxfp8_e5m2")], ids=str
)
def test_nan_element_stays_in_its_row(case, position):
    data = ones(case)
    data.a[1, 129, position] = 0x7F
    c, amax = run(data)
    wrong = np.zeros((2, 130, 136), bool)
    wrong[1, 129] = True
    np.testing.assert_array_equal(np.isnan(values(c, "float32")), wrong)
    assert np.isnan(amax.item())


@pytest.mark.parametrize("case", [Case(130, 136, 96, 2, r) for r in RECIPES], ids=str)
def test_nan_scale_stays_in_its_column(case):
    data = ones(case)
    data.sfb[0, 135, -1] = case.format.nan_scale
    c, amax = run(data)
    wrong = np.zeros((2, 130, 136), bool)
    wrong[0, :, 135] = True
    np.testing.assert_array_equal(np.isnan(values(c, "float32")), wrong)
    assert np.isnan(amax.item())


@pytest.mark.parametrize(
    "case",
    [
        Case(264, 160, 352, 2, "nvfp4", c_dtype=c)
        for c in ("float8_e4m3fn", "float8_e5m2", "uint8", "bfloat16")
    ],
    ids=str,
)
def test_nan_and_overflow_in_small_outputs(case):
    data = ones(case)
    data.sfa[0, 2, 0] = 0x7F  # NaN
    data.sfa[0, 3] = 0x7E  # 448
    data.sfa[1, 4] = 0x7E
    data.a[1, 4] |= 8  # negative
    c, amax = run(data)
    assert_matches((c, amax), data)
    if case.c_dtype == "float8_e4m3fn":
        assert (bits(c)[2, :, 0] & 0x7F == 0x7F).all()


@pytest.mark.parametrize("case", [Case(3, 8, 32, recipe="mxfp8_e5m2")], ids=str)
def test_infinity_follows_ieee(case):
    data = ones(case)
    data.a[0, 0, 0] = 0x7C
    data.a[0, 1, :2] = 0x7C, 0xFC
    data.b[0, 3, 0] = 0
    assert_matches(run(data), data)


@pytest.mark.parametrize("prior", [-INF, -5.0, -0.0, 1.0, 1e9, INF, NAN])
@pytest.mark.parametrize("case", [Case(300, 264, 608, 3)], ids=str)
def test_amax_keeps_what_was_larger(case, prior):
    execute(exact(case), prior=prior)


@pytest.mark.parametrize("case", [Case(8, 8, 64)], ids=str)
def test_amax_of_negative_values_and_of_zeros(case):
    data = ones(case)
    data.a[...] = encode(np.array(-1.0), "float8_e4m3fn")
    assert_matches(run(data), data)
    data.a[...] = 0x80
    c, amax = run(data)
    assert not host(c).any() and bits(amax).item() == 0


@pytest.mark.parametrize("case", [Case(264, 160, 352, 2, "nvfp4", c_dtype="float16")], ids=str)
def test_amax_is_of_the_unrounded_value(case):
    data = exact(case)
    data.sfa[1, 263] = encode(np.array(1.125), "float8_e4m3fn")
    assert_matches(run(data), data)


# --- accuracy --------------------------------------------------------------------------------------------------------


def accuracy(recipe, positive, k):
    """(relative Frobenius error, relative amax error) of FP32 C against float64."""
    data = quantized(Case(256, 256, k, recipe=recipe), seed=k, positive=positive)
    c, amax = run(data)
    truth = data.product()
    error = np.linalg.norm(values(c, "float32") - truth) / np.linalg.norm(truth)
    top = np.abs(truth).max()
    return error, abs(amax.item() - top) / top


def test_accuracy(capsys):
    """FP32 C within 2e-5 relative Frobenius error of float64, amax within 1e-5: the bounds of the contract."""
    rows = []
    for recipe in RECIPES:
        for positive in (False, True):
            for k in (512, 8192, 16384):
                rows.append(
                    (
                        recipe,
                        "|N(0,1)|" if positive else "N(0,1)",
                        k,
                        *accuracy(recipe, positive, k),
                    )
                )
    with capsys.disabled():
        print(f"\n{'format':<12}{'data':<10}{'K':>6}  {'C, Frobenius':>13}  {'amax':>9}")
        for recipe, kind, k, error, top in rows:
            print(f"{recipe:<12}{kind:<10}{k:>6}  {error:>13.2e}  {top:>9.2e}")
    assert [row for row in rows if not (row[3] < 2e-5 and row[4] < 1e-5)] == []


@pytest.mark.parametrize("c_dtype", FLOATS[1:])
def test_half_outputs_differ_by_one_rounding(c_dtype):
    case = Case(264, 160, 8192, recipe="nvfp4", c_dtype=c_dtype)
    data = quantized(case, seed=2)
    truth = data.product()
    got = values(run(data)[0], c_dtype)
    half = 2.0**-11 if c_dtype == "float16" else 2.0**-8
    assert (np.abs(got - truth) <= half * np.abs(truth) + 2e-5 * np.abs(truth).max()).all()


def test_engines_agree():
    """The reference engine and the Hopper engine, through the same door."""
    data = quantized(Case(300, 264, 608, 2, "mxfp8"), seed=3)
    ours, reference = run(data), gemm_amax_wrapper(*data.inputs("torch"))
    a, b = values(ours[0], "float32"), values(reference[0], "float32")
    assert np.linalg.norm(a - b) / np.linalg.norm(b) < 2e-5
    assert ours[1].item() == pytest.approx(reference[1].item(), rel=1e-5)
