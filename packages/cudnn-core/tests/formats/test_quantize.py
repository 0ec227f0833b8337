"""quantize and dequantize on NumPy arrays: arithmetic, special values, axes, refusals."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cudnn_core.formats import FORMATS, cases, dequantize, quantize, reference, unpack_scales
from cudnn_core.tuple_dict import TupleDict

recipes = pytest.mark.parametrize(("name", "block"), cases.RECIPES)
rng = np.random.default_rng(5)


def raw(array) -> np.ndarray:
    return np.asarray(array).view(np.uint8)


def plain(x, name, block, **options):
    """Codes, one a byte, and scale bytes of the last axis."""
    q = quantize(x, name, sf_vec_size=block, scale_layout="plain", **options)
    data = raw(q["data"])
    if FORMATS[name].is_fp4:
        data = reference.unpack_fp4(data)[..., : x.shape[-1]]
    return data, raw(q["scale"])


def by_hand(x, fmt, block, norm_constant=1.0):
    """The law, block by block and number by number."""
    element, rows = fmt.element, x.reshape(-1, x.shape[-1])
    reciprocal = np.float32(1 / element.max_value)
    constant = np.float32(norm_constant)
    codes, scales = [], []
    for row in rows:
        for start in range(0, len(row), block):
            values = row[start : start + block]
            amax = max((abs(v) for v in values), key=lambda v: (np.isnan(v), v))
            s = (amax * reciprocal) * constant
            code = int(reference.scale_encode(s, fmt.scale))
            q = reference.scale_values(fmt.scale)[code]
            gain = constant * (np.float32(1) / q)
            gain = np.float32(np.finfo(np.float32).max) if gain == np.inf else gain
            codes += [int(reference.encode(v * gain, element)) for v in values]
            scales.append(code)
    return np.uint8(codes).reshape(x.shape), np.uint8(scales).reshape(*x.shape[:-1], -1)


@recipes
@pytest.mark.parametrize("case", ["normal", "wild", "special", "tiny"])
def test_is_the_law(name, block, case):
    x = cases.inputs(12, 70)[case]
    with np.errstate(all="ignore"):
        expected = by_hand(x, FORMATS[name], block)
    for ours, theirs in zip(plain(x, name, block), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("scale", [1e-30, 0.37, 12.0])
def test_a_per_tensor_scale_is_a_norm_constant(scale):
    x = cases.inputs(12, 40)["normal"]
    expected = by_hand(x, FORMATS["nvfp4"], 16, np.float32(1) / np.float32(scale))
    for ours, theirs in zip(plain(x, "nvfp4", 16, per_tensor_scale=scale), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_returns_three_keys_always():
    for per_tensor_scale in (None, True):
        q = quantize(np.ones((2, 32), np.float32), "nvfp4", per_tensor_scale=per_tensor_scale)
        assert type(q) is TupleDict
        assert list(q.keys()) == ["data", "scale", "per_tensor_scale"]
        assert (q["per_tensor_scale"] is None) == (per_tensor_scale is None)


def test_the_computed_per_tensor_scale():
    x = np.float32([[1, -5376, 3] + [0] * 13])
    scale = quantize(x, "nvfp4", per_tensor_scale=True)["per_tensor_scale"]
    assert scale == np.float32(2.0)
    assert (scale.shape, scale.dtype) == ((), np.float32)


@pytest.mark.parametrize("value", [0.0, np.inf, 1e-40])
def test_extreme_tensors_keep_a_finite_per_tensor_scale(value):
    x = np.full((2, 32), value, np.float32)
    q = quantize(x, "nvfp4", per_tensor_scale=True)
    assert np.isfinite(q["per_tensor_scale"])
    decoded = dequantize(q["data"], q["scale"], "nvfp4", per_tensor_scale=q["per_tensor_scale"])
    assert np.isfinite(decoded).all()


@recipes
def test_a_nan_spoils_exactly_its_block(name, block):
    fmt = FORMATS[name]
    for position in {0, 15, block - 1}:
        x = np.ones((1, 3 * block), np.float32)
        x[0, block + position] = np.nan
        codes, scale = plain(x, name, block)
        nan_scale = 255 if fmt.scale_is_e8m0 else 0x7F
        assert (scale == nan_scale).tolist() == [[False, True, False]]
        assert (codes[0, block : 2 * block] == fmt.element.nan_code).all()
        clean, _ = plain(np.ones((1, block), np.float32), name, block)
        np.testing.assert_array_equal(codes[:, :block], clean)
        np.testing.assert_array_equal(codes[:, 2 * block :], clean)


@recipes
@pytest.mark.parametrize("sign", [1, -1])
def test_an_inf_takes_the_largest_scale(name, block, sign):
    fmt = FORMATS[name]
    x = np.ones((1, block), np.float32)
    x[0, 3], x[0, 5] = sign * np.inf, np.finfo(np.float32).max
    codes, scale = plain(x, name, block)
    assert scale == (254 if fmt.scale_is_e8m0 else 0x7E)
    assert codes[0, 3] == fmt.element.max_code | (fmt.element.sign_code if sign < 0 else 0)
    assert codes[0, 0] == 0
    # FLT_MAX * 2^-127 rounds to 2 in every element type; by 1/448 it saturates.
    expected = np.float32(2) if fmt.scale_is_e8m0 else np.float32(fmt.element.max_value)
    assert reference.decode(codes[0, 5], fmt.element) == expected


@recipes
def test_zero_blocks_keep_their_signs(name, block):
    fmt = FORMATS[name]
    x = np.zeros((1, block), np.float32)
    x[0, ::3] = -0.0
    codes, scale = plain(x, name, block)
    assert scale == 0
    np.testing.assert_array_equal(codes, np.signbit(x) * np.uint8(fmt.element.sign_code))


@recipes
@pytest.mark.parametrize("case", ["tiny", "subnormal", "zeros", "negative zeros", "huge"])
def test_every_finite_input_decodes_finite(name, block, case):
    x = cases.inputs()[case]
    q = quantize(x, name, sf_vec_size=block)
    assert np.isfinite(x).all()
    assert np.isfinite(dequantize(q["data"], q["scale"], name, sf_vec_size=block)).all()


def test_scales_come_from_fp32():
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 448.5
    assert plain(x, "mxfp8", 32)[1] == 128
    assert plain(x.astype(ml_dtypes.bfloat16), "mxfp8", 32)[1] == 127


def test_golden_bytes():
    x = np.zeros(32, np.float32)
    x[:6] = [0.5, 1.0, -1.5, 6.0, -0.0, 0.26]
    q = quantize(x, "mxfp4", scale_layout="plain")
    assert raw(q["scale"]).tolist() == [127]
    assert q["data"].tolist() == [0x21, 0x7B, 0x18] + [0] * 13
    q = quantize(x, "mxfp8", scale_layout="plain")
    assert raw(q["scale"]).tolist() == [121]
    assert raw(q["data"])[:5].tolist() == [0x60, 0x68, 0xEC, 0x7C, 0x80]


@recipes
@given(
    x=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=70),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
@settings(max_examples=60)
def test_the_error_is_at_most_half_a_step(name, block, x):
    fmt = FORMATS[name]
    if not fmt.scale_is_e8m0:
        return
    codes, scale = plain(x, name, block)
    scale = reference.e8m0_values()[scale].astype(np.float64)
    scale = scale.repeat(block, axis=-1)[..., : x.shape[-1]]
    # In FP64: the largest FP32 numbers round up to values beyond FP32.
    decoded = reference.decode(codes, fmt.element).astype(np.float64) * scale
    step = 2.0**-fmt.element.mantissa_bits * np.maximum(
        np.abs(x), scale * 2.0**fmt.element.min_exponent
    )
    # A block whose scale would have to exceed 2^127 saturates.
    limit = fmt.element.max_value * scale
    inside = np.abs(x) <= limit
    assert (np.abs(decoded - x)[inside] <= (step / 2)[inside]).all()
    np.testing.assert_array_equal(np.abs(decoded)[~inside], limit[~inside])


# --- decoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "block"), [r for r in cases.RECIPES if r[0] != "nvfp4"])
def test_every_code_times_every_e8m0_scale(name, block):
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.element.bits, dtype=np.uint8)
    row = np.resize(codes, max(block, len(codes)))
    every = np.broadcast_to(row, (256, len(row)))
    data = reference.pack_fp4(every) if fmt.is_fp4 else np.ascontiguousarray(every)
    scale = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None], (256, len(row) // block))
    ours = dequantize(data, scale, name, sf_vec_size=block, scale_layout="plain")
    exact = reference.values(fmt.element)[row].astype(np.float64) * np.append(
        2.0 ** np.arange(-127.0, 128), np.nan
    ).reshape(256, 1)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(ours, exact.astype(np.float32))


def test_every_e2m1_code_times_every_e4m3_scale():
    data = np.broadcast_to(reference.pack_fp4(np.arange(16, dtype=np.uint8)), (256, 8))
    scale = np.arange(256, dtype=np.uint8).reshape(256, 1)
    ours = dequantize(np.ascontiguousarray(data), scale, "nvfp4", scale_layout="plain")
    exact = scale.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * np.arange(
        16, dtype=np.uint8
    ).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    np.testing.assert_array_equal(ours, exact.astype(np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", ml_dtypes.bfloat16, np.float16])
def test_decodes_to_other_dtypes(dtype):
    q = quantize(cases.inputs()["normal"], "nvfp4")
    wide = dequantize(q["data"], q["scale"], "nvfp4")
    narrow = dequantize(q["data"], q["scale"], "nvfp4", dtype=dtype)
    assert narrow.dtype == np.dtype(
        getattr(ml_dtypes, dtype, dtype) if isinstance(dtype, str) else dtype
    )
    np.testing.assert_array_equal(narrow, wide.astype(narrow.dtype))


# --- shapes, axes, memory ----------------------------------------------------------------------


@recipes
@pytest.mark.parametrize("layout", ["atom", "logical", "physical", "plain"])
@pytest.mark.parametrize("shape", [(1, 32), (129, 130), (2, 17, 96), (2, 3, 5, 48), (7,), (33,)])
def test_round_trip_of_every_layout(name, block, layout, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    options = {"sf_vec_size": block, "scale_layout": layout}
    q = quantize(x, name, **options)
    decoded = dequantize(q["data"], q["scale"], name, size=shape[-1], **options)
    codes, scale = plain(x, name, block)
    values = reference.decode(codes, FORMATS[name].element)
    factor = reference.scale_values(FORMATS[name].scale)[scale].repeat(block, -1)
    np.testing.assert_array_equal(decoded, values * factor[..., : shape[-1]])


def test_operands_of_a_gemm():
    m, k, batch = 129, 96, 2
    x = rng.standard_normal((m, k, batch)).astype(np.float32)
    for name, extent in (("mxfp8", k), ("mxfp4", k // 2)):
        q = quantize(x, name, axis=1)
        assert q["data"].shape == (m, extent, batch)
        assert q["data"].strides == (extent, 1, m * extent)
        assert q["scale"].shape == (32, 4, 2, 4, 1, batch)
        assert q["scale"].strides == (16, 4, 512, 1, 512, 1024)
        for index in range(batch):
            single = quantize(x[:, :, index], name)
            np.testing.assert_array_equal(raw(q["data"][:, :, index]), raw(single["data"]))
            np.testing.assert_array_equal(raw(q["scale"][..., index]), raw(single["scale"][..., 0]))


def test_m_major_operands_stay_m_major():
    x = rng.standard_normal((64, 48)).astype(np.float32)
    straight = quantize(x, "mxfp8")
    turned = quantize(np.asfortranarray(x), "mxfp8")
    assert straight["data"].strides == (48, 1)
    assert turned["data"].strides == (1, 64)
    across = quantize(np.ascontiguousarray(x.T), "mxfp8", axis=0)
    assert across["data"].strides == (64, 1)
    np.testing.assert_array_equal(raw(straight["data"]), raw(turned["data"]))
    np.testing.assert_array_equal(raw(straight["data"]), raw(across["data"]).T)
    np.testing.assert_array_equal(raw(straight["scale"]), raw(across["scale"]))


def test_fp4_is_packed_along_the_contraction_axis():
    x = rng.standard_normal((64, 48)).astype(np.float32)
    across = quantize(np.ascontiguousarray(x.T), "nvfp4", axis=0)
    assert across["data"].shape == (24, 64)
    assert across["data"].strides == (1, 24)
    np.testing.assert_array_equal(across["data"].T, quantize(x, "nvfp4")["data"])


@pytest.mark.parametrize(("axis", "row_axis"), [(1, 2), (-2, -1)])
def test_row_axis(axis, row_axis):
    x = rng.standard_normal((2, 64, 5)).astype(np.float32)
    ours = quantize(x, "mxfp8", axis=axis, row_axis=row_axis)
    theirs = quantize(x.transpose(0, 2, 1), "mxfp8")
    np.testing.assert_array_equal(raw(ours["data"]), raw(theirs["data"]).transpose(0, 2, 1))
    np.testing.assert_array_equal(raw(ours["scale"]), raw(theirs["scale"]))


@pytest.mark.parametrize("rows", [1, 16, 17, 129])
def test_scale_bytes_are_where_the_layout_says(rows):
    x = rng.standard_normal((2, rows, 150)).astype(np.float32) + 1
    scale = raw(quantize(x, "mxfp8", scale_layout="plain")["scale"])
    flat = raw(quantize(x, "mxfp8", scale_layout="physical")["scale"]).reshape(-1)
    row_atoms, block_atoms = -(-rows // 128), 2
    expected = np.zeros(2 * row_atoms * block_atoms * 512, np.uint8)
    for batch in range(2):
        for r in range(rows):
            for c in range(5):
                atom = (batch * row_atoms + r // 128) * block_atoms + c // 4
                expected[atom * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scale[batch, r, c]
    np.testing.assert_array_equal(flat, expected)


def test_padding_bytes_are_zero_even_beside_nan():
    x = np.full((5, 33), np.nan, np.float32)
    for name in FORMATS:
        scale = raw(quantize(x, name, scale_layout="physical")["scale"])[0, 0, 0]
        used = quantize(x, name, scale_layout="plain")["scale"].shape[1]
        assert (scale[:5, 0, :used] > 0).all()
        assert scale[5:].max() == scale[:, 1:].max() == scale[..., used:].max(initial=0) == 0


def test_dequantize_ignores_padding_bytes():
    x = rng.standard_normal((5, 40)).astype(np.float32)
    q = quantize(x, "mxfp8")
    poisoned = raw(q["scale"]).copy()
    poisoned[5:, :] = 255
    poisoned[:, 1:] = 255
    poisoned[:, :, :, 2:] = 255
    np.testing.assert_array_equal(
        dequantize(q["data"], poisoned, "mxfp8"), dequantize(q["data"], q["scale"], "mxfp8")
    )


def test_an_odd_k_leaves_the_last_nibble_empty():
    x = np.full((2, 5), np.nan, np.float32)
    assert quantize(x, "mxfp4")["data"].tolist() == [[0x77, 0x77, 0x07]] * 2


@recipes
@pytest.mark.parametrize("shape", [(0, 32), (4, 0), (0, 0), (0, 4, 32), (2, 0, 32), (0,)])
@pytest.mark.parametrize("layout", ["atom", "plain"])
def test_zero_sizes(name, block, shape, layout):
    x = np.empty(shape, np.float32)
    q = quantize(x, name, sf_vec_size=block, scale_layout=layout)
    assert q["data"].size == q["scale"].size == 0
    decoded = dequantize(q["data"], q["scale"], name, sf_vec_size=block, scale_layout=layout)
    assert decoded.shape == shape
    if name == "nvfp4":
        assert quantize(x, name, per_tensor_scale=True)["per_tensor_scale"] == 0


def test_strides_do_not_matter_and_inputs_are_not_written():
    big = rng.standard_normal((40, 131)).astype(np.float32)
    view = big[3:30:2, 5:101]
    before = big.copy()
    ours, theirs = quantize(view, "nvfp4"), quantize(view.copy(), "nvfp4")
    np.testing.assert_array_equal(ours["data"], theirs["data"])
    np.testing.assert_array_equal(raw(ours["scale"]), raw(theirs["scale"]))
    np.testing.assert_array_equal(big, before)


# --- refusals ----------------------------------------------------------------------------------

ONES = np.ones((4, 32), np.float32)
Q = quantize(ONES, "mxfp8")
P = quantize(ONES, "nvfp4")
UNPACKED = ONES.astype(ml_dtypes.float4_e2m1fn)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: quantize(ONES.astype(np.float64), "mxfp8"), ValueError, "x: .*got float64"),
        (lambda: quantize(ONES.astype(np.int32), "mxfp8"), ValueError, "x: .*got int32"),
        (lambda: quantize(7, "mxfp8"), TypeError, "x: expected a NumPy, PyTorch or JAX array"),
        (lambda: quantize([1.0], "mxfp8"), TypeError, "x: .*got builtins.list"),
        (lambda: quantize(ONES, "fp8"), ValueError, "format: expected one of .*'nvfp4'"),
        (lambda: quantize(ONES, 8), TypeError, "format: expected a name"),
        (lambda: quantize(ONES, "mxfp8", sf_vec_size=16), ValueError, "sf_vec_size: mxfp8 takes"),
        (lambda: quantize(ONES, "nvfp4", sf_vec_size=32), ValueError, "sf_vec_size: nvfp4"),
        (lambda: quantize(ONES, "mxfp8", axis=2), ValueError, "axis: x has 2 axes, got 2"),
        (lambda: quantize(ONES, "mxfp8", axis=1.0), TypeError, "axis: expected an integer"),
        (lambda: quantize(ONES, "mxfp8", axis=0, row_axis=0), ValueError, "row_axis"),
        (
            lambda: quantize(np.ones((2, 2, 2, 2), np.float32), "mxfp8", axis=1),
            ValueError,
            "row_axis: needed",
        ),
        (lambda: quantize(np.ones((), np.float32), "mxfp8"), ValueError, "x: .*0-d"),
        (lambda: quantize(ONES, "mxfp8", scale_layout="linear"), ValueError, "scale_layout"),
        (lambda: quantize(ONES, "mxfp8", engine="torch"), ValueError, "engine: .*'reference'"),
        (lambda: quantize(ONES, "mxfp8", per_tensor_scale=True), ValueError, "only nvfp4"),
        (lambda: quantize(ONES, "nvfp4", per_tensor_scale=-1.0), ValueError, "positive"),
        (lambda: quantize(ONES, "nvfp4", per_tensor_scale=np.ones(2)), ValueError, "one element"),
        # Positive and finite, but not in FP32: they would become Inf and 0.
        (lambda: quantize(ONES, "nvfp4", per_tensor_scale=1e300), ValueError, "finite FP32"),
        (lambda: quantize(ONES, "nvfp4", per_tensor_scale=10**400), ValueError, "finite FP32"),
        (lambda: quantize(ONES, "nvfp4", per_tensor_scale=1e-60), ValueError, "finite FP32"),
        (lambda: quantize(ONES, "nvfp4", per_tensor_scale=float("nan")), ValueError, "positive"),
        (lambda: quantize(ONES, "mxfp8", sf_vec_size=32.0), TypeError, "sf_vec_size: .*integer"),
        (lambda: quantize(ONES, "mxfp8", sf_vec_size=np.ones(2)), TypeError, "sf_vec_size"),
        (
            lambda: quantize(ONES, "mxfp8", scale_layout=np.array(["atom", "plain"])),
            ValueError,
            "scale_layout",
        ),
        (lambda: quantize(ONES, "nvfp4", per_tensor_scale="1x"), TypeError, "per_tensor_scale"),
        (
            lambda: dequantize(UNPACKED, P["scale"], "nvfp4"),
            ValueError,
            "data: unpacked float4_e2m1fn.*cudnn.quantize",
        ),
        (
            lambda: dequantize(Q["data"], Q["scale"], "mxfp8_e5m2"),
            ValueError,
            "data: .*float8_e5m2.*got float8_e4m3fn",
        ),
        (lambda: dequantize(P["data"], Q["scale"], "nvfp4"), ValueError, "scale: nvfp4 expects"),
        (
            lambda: dequantize(Q["data"], Q["scale"][:, :2], "mxfp8"),
            ValueError,
            r"scale: expected shape \(32, 4, 1, 4, 1, 1\) \(logical\)",
        ),
        (
            lambda: dequantize(Q["data"], Q["scale"], "mxfp8", scale_layout="plain"),
            ValueError,
            r"scale: expected shape \(4, 1\)",
        ),
        (lambda: dequantize(P["data"], P["scale"], "nvfp4", size=30), ValueError, "size"),
        (
            lambda: dequantize(P["data"], P["scale"], "nvfp4", size=32.0),
            TypeError,
            "size: .*integer",
        ),
        (lambda: dequantize(P["data"], P["scale"], "nvfp4", size="32"), TypeError, "size: .*'32'"),
        (lambda: dequantize(P["data"], P["scale"], "nvfp4", size=[32]), TypeError, "size: "),
        (lambda: unpack_scales(Q["scale"], 4), TypeError, "shape: expected the shape of plain"),
        (lambda: unpack_scales(Q["scale"], "ab"), TypeError, "shape: expected the shape of plain"),
        (lambda: unpack_scales(Q["scale"], (4, 1.0)), TypeError, "shape: expected an integer"),
        (lambda: unpack_scales(Q["scale"], (True, 1)), TypeError, "shape: expected an integer"),
        (lambda: unpack_scales(Q["scale"], (-4, 1)), ValueError, "shape: expected extents of 0"),
        (lambda: dequantize(Q["data"], Q["scale"], "mxfp8", dtype="float64"), ValueError, "dtype"),
        (lambda: dequantize(Q["data"], 1, "mxfp8"), TypeError, "scale: expected a numpy array"),
        (
            lambda: dequantize(P["data"], P["scale"], "nvfp4", per_tensor_scale=True),
            ValueError,
            "per_tensor_scale",
        ),
    ],
)
def test_refusals_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()
