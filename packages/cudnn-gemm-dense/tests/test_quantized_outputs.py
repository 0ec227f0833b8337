"""Quantized C and D: bit for bit what `cudnn.quantize` makes of the op's own FP32 result, and what the formulas say."""

import numpy as np
import pytest

import cudnn_gemm_dense as dense
from cudnn_core.formats import quantize
from cudnn_core.testing.gemm import encode, host
from cudnn_gemm_dense.testing import (
    Output,
    ScaleOutput,
    Side,
    batch_first,
    column_tensor,
    expected_scale_memory,
    make_call,
    matrix_tensor,
    scale_memory,
    values,
)
from cudnn_gemm_dense.testing import quantize as quantize_by_formula

OPS = ("swiglu", "srelu", "dsrelu")
FORMATS = ("mxfp8", "mxfp4", "nvfp4")
BLOCK = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}
SCALE = {"mxfp8": "float8_e8m0fnu", "mxfp4": "float8_e8m0fnu", "nvfp4": "float8_e4m3fn"}
ELEMENT = {"mxfp8": "float8_e4m3fn", "mxfp4": "float4_e2m1fn", "nvfp4": "float4_e2m1fn"}


def run(op, call, dtype="float32", major="n", **options):
    """(quantized output or FP32, its scales or None)."""
    a, b, sfa, sfb = call.a.tensor(), call.b.tensor(), call.a.scale(), call.b.scale()
    options = {"sf_vec_size": call.vec()} | options
    prob = column_tensor(call.column)
    if op == "swiglu":
        options = {
            "sfa_tensor": sfa,
            "sfb_tensor": sfb,
            "c_dtype": dtype,
            "c_major": major,
        } | options
        made = dense.gemm_swiglu_wrapper(a, b, call.alpha, **options)
        return made["c_tensor"], made["sfc_tensor"]
    if op == "srelu":
        options = {"d_dtype": dtype, "c_major": major} | options
        made = dense.gemm_srelu_wrapper(a, b, sfa, sfb, prob, call.alpha, **options)
    else:
        c = matrix_tensor(call.gradient, "float32", "n")
        options = {"d_dtype": dtype, "d_major": major} | options
        made = dense.gemm_dsrelu_wrapper(a, b, c, sfa, sfb, prob, call.alpha, **options)
    return made["d_tensor"], made["sfd_tensor"]


def codes(x):
    """The bytes of (L, M, columns), FP4 packed."""
    return batch_first(host(x).view(np.uint8))


def some_call(m=33, n=192, k=72, l=2, seed=0, **formats):
    call = make_call(m, n, k, l, seed=seed, **formats)
    call.alpha = 0.37
    return call


@pytest.mark.parametrize("major", "nm")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("op", OPS)
def test_equals_quantize_of_its_own_result(op, format, major):
    if major == "m" and format != "mxfp8":
        pytest.skip("FP4 is packed along N")
    call = some_call()
    wide, none = run(op, call)
    assert none is None
    q = quantize(batch_first(wide), format)
    got, scales = run(op, call, out_format=format, major=major)
    np.testing.assert_array_equal(codes(got), host(q["data"]).view(np.uint8))
    np.testing.assert_array_equal(scale_memory(scales), scale_memory(q["scale"]))
    columns = wide.shape[1]
    assert got.shape == (33, columns // 2 if format != "mxfp8" else columns, 2)
    r, block = 1, BLOCK[format]
    assert scales.shape == (32, 4, r, 4, -(-columns // (4 * block)), 2)
    assert scales.dtype == SCALE[format] and got.dtype == (
        ELEMENT[format] if format == "mxfp8" else "uint8"
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("m, n", [(0, 64), (1, 64), (129, 128), (7, 0), (300, 320)])
def test_extents(op, m, n):
    call = some_call(m, n, 8, 3)
    for format in FORMATS:
        wide, _ = run(op, call)
        got, scales = run(op, call, out_format=format)
        q = quantize(batch_first(wide), format)
        np.testing.assert_array_equal(codes(got), host(q["data"]).view(np.uint8))
        np.testing.assert_array_equal(scale_memory(scales), scale_memory(q["scale"]))


@pytest.mark.parametrize("op", ["srelu", "dsrelu"])
@pytest.mark.parametrize("n", [2, 8, 24, 40, 136])
def test_partial_blocks(op, n):
    call = some_call(17, n)
    for format in FORMATS:
        q = quantize(batch_first(run(op, call)[0]), format)
        got, scales = run(op, call, out_format=format)
        np.testing.assert_array_equal(codes(got), host(q["data"]).view(np.uint8))
        np.testing.assert_array_equal(scale_memory(scales), scale_memory(q["scale"]))


def test_partial_blocks_of_concatenated_halves():
    call = some_call(17, 84)
    wide, _ = run("swiglu", call, glu_layout="concatenated")
    got, scales = run("swiglu", call, glu_layout="concatenated", out_format="nvfp4")
    q = quantize(batch_first(wide), "nvfp4")
    np.testing.assert_array_equal(codes(got), host(q["data"]))
    np.testing.assert_array_equal(scale_memory(scales), scale_memory(q["scale"]))


@pytest.mark.parametrize("norm_const", [1.0, 0.25, 3.0, 1e-20, 1e20, 448.0])
@pytest.mark.parametrize("format", FORMATS)
def test_formulas_with_norm_const(format, norm_const):
    """The contract's formulas, block by block, written out independently."""
    call = some_call(9, 128, seed=int(norm_const) % 7)
    wide, _ = run("swiglu", call)
    nc = np.full((1,), norm_const, np.float32)
    got, scales = run("swiglu", call, out_format=format, norm_const_tensor=nc)
    want, want_scales = quantize_by_formula(
        batch_first(wide), ELEMENT[format], SCALE[format], BLOCK[format], norm_const
    )
    if format != "mxfp8":
        want = want[..., 0::2] | (want[..., 1::2] << 4)
    np.testing.assert_array_equal(codes(got), want)
    np.testing.assert_array_equal(scale_memory(scales), expected_scale_memory(want_scales))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_norm_const_of_any_rank(shape):
    call = some_call()
    got, scales = run(
        "srelu", call, out_format="nvfp4", norm_const_tensor=np.full(shape, 0.5, np.float32)
    )
    q = quantize(batch_first(run("srelu", call)[0]), "nvfp4", per_tensor_scale=2.0)
    np.testing.assert_array_equal(codes(got), host(q["data"]))
    np.testing.assert_array_equal(scale_memory(scales), scale_memory(q["scale"]))


@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("op", OPS)
def test_fp8_by_dtype_is_mxfp8(op, element):
    """The contract's way: an FP8 dtype and norm_const. E5M2's limit is 57344, not upstream's 128."""
    call = some_call(k=96, a="mxfp8", b="mxfp8")
    wide, _ = run(op, call)
    got, scales = run(op, call, element, norm_const_tensor=np.ones(1, np.float32))
    q = quantize(
        batch_first(wide), {"float8_e4m3fn": "mxfp8", "float8_e5m2": "mxfp8_e5m2"}[element]
    )
    assert got.dtype == element and scales.dtype == "float8_e8m0fnu"
    np.testing.assert_array_equal(codes(got), host(q["data"]).view(np.uint8))
    np.testing.assert_array_equal(scale_memory(scales), scale_memory(q["scale"]))
    same, _ = run(op, call, element, out_format="mxfp8")
    np.testing.assert_array_equal(codes(got), codes(same))


def chosen(*rows):
    """A problem whose sReLU gives D[m, n] = rows[m] of 32-column blocks: value at each block's first column, else 0."""
    m, blocks = len(rows), 32
    a, b = np.ones((1, m, 8), np.float32), np.zeros((1, blocks, 8), np.float32)
    a[..., 1:], b[0, 0, 0] = 0, 1
    call = make_call(m, blocks, 8)
    call.a, call.b = Side("float32", a), Side("float32", b)
    call.column = np.array(rows, np.float32)[None, :, None]
    return call


def test_blocks_at_the_boundaries_of_scales():
    """An amax at 448 * 2^k and just above it; a block of zeros has the smallest scale; signs."""
    above = np.nextafter(np.float32(448), np.float32(500))
    rows = (256, 448, above, 484, -484, 448 * 2.0**-20, 0, 2.0**120)
    d, sfd = run("srelu", chosen(*rows), out_format="mxfp8")
    np.testing.assert_array_equal(
        scale_memory(sfd)[: 16 * len(rows) : 16], [127, 127, 128, 128, 128, 107, 0, 127 + 112]
    )
    want = [256, 448, 224, 240, -240, 448, 0, 256]
    np.testing.assert_array_equal(values(d)[0, :, 0], want)
    assert not values(d)[0, :, 1:].any()


def test_e4m3_scales_round_to_nearest_and_saturate_at_448():
    rows = (2.0**12, 6 * 448.0, 16.0, 0.0, 6 * 2.0**-10)
    d, sfd = run("srelu", chosen(*rows), out_format="nvfp4")
    wanted = np.minimum(np.array(rows) / 6, 448)
    np.testing.assert_array_equal(
        scale_memory(sfd)[: 16 * len(rows) : 16], encode(wanted, "float8_e4m3fn")
    )
    np.testing.assert_array_equal(values(d)[0, :, 0], [6, 6, 6, 0, 6])


@pytest.mark.parametrize("format, nan_scale", [("mxfp8", 255), ("mxfp4", 255), ("nvfp4", 0x7F)])
def test_a_nan_makes_its_block_nan(format, nan_scale):
    call = some_call(9, 128, a="float16", b="float16")
    call.b.data[0, 64 + 5] = np.nan
    d, sfd = run("srelu", call, out_format=format)
    q = quantize(batch_first(run("srelu", call)[0]), format)
    np.testing.assert_array_equal(codes(d), host(q["data"]).view(np.uint8))
    np.testing.assert_array_equal(scale_memory(sfd), scale_memory(q["scale"]))
    atoms = scale_memory(sfd).reshape(2, 1, -1, 32, 4, 4)
    block = (64 + 5) // BLOCK[format]
    assert (atoms[0, 0, block // 4, :9, 0, block % 4] == nan_scale).all()


def test_an_infinity_makes_the_largest_scale():
    call = chosen(1.0, -1.0)
    call.b.data[0, 0, 0] = np.inf
    call.a.data[...] = 0
    call.a.data[..., 0] = 1
    d, sfd = run("srelu", call, out_format="mxfp8")
    assert scale_memory(sfd)[[0, 16]].tolist() == [254, 254]
    np.testing.assert_array_equal(values(d)[0, :, 0], [448, -448])
    assert not values(d)[0, :, 1:].any()


# --- class -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["logical", "physical"])
@pytest.mark.parametrize("format", FORMATS)
def test_class_writes_whole_scale_atoms_and_nothing_else(format, view):
    call = some_call(130, 136, 72, 3)
    a, b, prob = call.a.tensor(), call.b.tensor(), column_tensor(call.column)
    element = "uint8" if format != "mxfp8" else "float8_e4m3fn"
    c, d = Output((130, 136, 3), "bfloat16"), Output((130, 136, 3), element)
    sfd = ScaleOutput(130, 136, 3, SCALE[format], BLOCK[format], view)
    op = dense.GemmSrelu(
        a, b, c.tensor, d.tensor, None, None, prob, sfd.tensor, alpha=0.37, out_format=format
    )
    op(a, b, c.tensor, d.tensor, None, None, prob, sfd.tensor)
    q = quantize(batch_first(run("srelu", call)[0]), format)
    np.testing.assert_array_equal(codes(d.tensor), host(q["data"]).view(np.uint8))
    np.testing.assert_array_equal(sfd.memory(), scale_memory(q["scale"]))
    for output in (c, d, sfd):
        output.assert_guards()


def class_refuses(match, d="float8_e4m3fn", sfd=("float8_e8m0fnu", 32), nc=True, **options):
    call = some_call(9, 320)
    a, b, prob = call.a.tensor(), call.b.tensor(), column_tensor(call.column)
    scales = None if sfd is None else ScaleOutput(9, 320, 2, *sfd).tensor
    norm_const = np.ones(1, np.float32) if nc else None
    op = dense.GemmSrelu(
        a,
        b,
        Output((9, 320, 2), "float32").tensor,
        Output((9, 320, 2), d).tensor,
        None,
        None,
        prob,
        scales,
        None,
        norm_const,
        **options,
    )
    with pytest.raises(ValueError, match=match):
        op.check_support()


def test_what_the_class_refuses():
    class_refuses("sample_sfd: expected a tensor, got None", sfd=None)
    class_refuses("norm_const_tensor: expected a tensor, as d_tensor is float8_e4m3fn", nc=False)
    class_refuses("sample_sfd: expected dtype one of float8_e8m0fnu", sfd=("float8_e4m3fn", 32))
    class_refuses("sample_sfd: expected shape", sfd=("float8_e8m0fnu", 16))
    class_refuses("sample_sfd: expected None, as it does not apply", d="bfloat16")
    class_refuses(
        "norm_const_tensor: expected None, as d_tensor is bfloat16", d="bfloat16", sfd=None
    )
    class_refuses("out_format: expected 'mxfp4' or 'nvfp4'", d="uint8", sfd=None)
    class_refuses(
        r"d_tensor: expected dtype float4_e2m1fn \(out_format 'mxfp4'\)", out_format="mxfp4"
    )
    class_refuses(
        r"d_tensor: .*\(out_format 'mxfp8'\), got bfloat16", d="bfloat16", out_format="mxfp8"
    )
    class_refuses("out_format: expected one of", out_format="fp8")


@pytest.mark.parametrize("op", OPS)
def test_what_the_wrappers_refuse(op):
    call = some_call(9, 64)
    with pytest.raises(ValueError, match="norm_const_tensor: expected a tensor, as"):
        run(op, call, "float8_e4m3fn")
    with pytest.raises(ValueError, match="norm_const_tensor: expected None, as"):
        run(op, call, "float16", norm_const_tensor=np.ones(1, np.float32))
    with pytest.raises(ValueError, match="out_format: expected 'mxfp4' or 'nvfp4', as"):
        run(op, call, "uint8")
    for format, dtype in (
        *(("mxfp8", "float4_e2m1fn"), ("mxfp8", "uint8")),
        *(("mxfp4", "float8_e4m3fn"), ("nvfp4", "float8_e5m2")),
    ):
        with pytest.raises(ValueError, match=rf"_tensor: expected dtype .*'{format}'\), got float"):
            run(op, call, dtype, out_format=format)
    for format in FORMATS:
        for dtype in ("nonsense", None, 3, [], "float64", "int8", "float8_e8m0fnu"):
            with pytest.raises(ValueError, match="[cd]_dtype: expected"):
                run(op, call, dtype, out_format=format)
    for wrong in ("MXFP8", "mxfp8_e5m2", 8, [], object()):
        with pytest.raises(ValueError, match="out_format: expected one of"):
            run(op, call, out_format=wrong)
    for shape in ((2,), (1, 2), (0,)):
        with pytest.raises(ValueError, match="norm_const_tensor: expected float32 of shape"):
            run(op, call, out_format="mxfp8", norm_const_tensor=np.ones(shape, np.float32))
    with pytest.raises(ValueError, match="norm_const_tensor: expected dtype float32, got float16"):
        run(op, call, out_format="mxfp8", norm_const_tensor=np.ones(1, np.float16))
    with pytest.raises(ValueError, match="major: expected 'n'"):
        run(op, call, out_format="nvfp4", major="m")
    with pytest.raises(TypeError, match="norm_const_tensor: expected a tensor, got 1.0"):
        run(op, call, out_format="mxfp8", norm_const_tensor=1.0)
