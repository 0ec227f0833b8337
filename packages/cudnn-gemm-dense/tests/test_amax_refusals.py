"""What GEMM + amax refuses: the class of every error, and that its message names the argument."""

import logging
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from cudnn_core.tensor_desc import TensorDesc
from cudnn_core.testing.gemm import Case, Guarded, amax_tensor, assert_matches, exact
from cudnn_gemm_dense import GemmAmax, gemm_amax_wrapper

NAMES = ("a", "b", "sfa", "sfb", "c", "amax")


def describe(case, **changes):
    """TensorDescs of a case's six tensors; `changes` replaces fields of some of them by dicts."""
    data = exact(replace(case, c_dtype="float32"))
    arrays = (*data.inputs(), Guarded(data.case, "numpy").tensor, amax_tensor("numpy"))
    descs = []
    for name, x in zip(NAMES, arrays, strict=True):
        strides = [s // x.itemsize for s in x.strides]
        desc = TensorDesc.of(x.dtype, x.shape, strides, name=name)
        descs.append(replace(desc, stride_order=None, **changes.get(name, {})))
    return descs


def refuse(error, match, case=None, options=None, **changes):
    """GemmAmax on described tensors raises `error` with `match`."""
    case = case or Case(128, 128, 128)
    options = {"sf_vec_size": case.format.vec} | (options or {})
    with pytest.raises(error, match=match) as caught:
        GemmAmax(*describe(case, **changes), **options).check_support()
    assert type(caught.value) is error
    return str(caught.value)


FP4_CASE = Case(128, 128, 128, recipe="nvfp4")
E8M0_FP4 = Case(128, 128, 128, recipe="mxfp4")

# --- spec gemm_dense 5.3, item by item -------------------------------------------------------------------------------


def test_the_unchanged_case_is_supported():
    """So that every refusal below is due to its one change."""
    for case in (
        Case(128, 128, 128),
        FP4_CASE,
        E8M0_FP4,
        Case(48, 64, 80, 2, a_major="m", b_major="n"),
    ):
        assert GemmAmax(*describe(case), sf_vec_size=case.format.vec).check_support() is True


@pytest.mark.parametrize("dtype", ["float64", "int8", "float8_e8m0fnu"])
def test_1_dtype_of_a(dtype):
    refuse(
        ValueError,
        rf"sample_a: expected dtype one of bfloat16, .*, got {dtype}",
        a={"dtype": dtype},
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_1_wide_elements_have_no_scales(name, dtype):
    message = refuse(
        ValueError,
        f"sf{name}_tensor: expected None, as {name}_tensor is {dtype}, which has no block scales",
        **{name: {"dtype": dtype}},
    )
    assert "cudnn.quantize makes block-scaled operands" in message


@pytest.mark.parametrize("name", ["sfa_tensor", "sfb_tensor"])
def test_3_fp4_has_scales(name):
    inputs = dict(zip(INPUT_NAMES, exact(FP4_CASE).inputs(), strict=True)) | {name: None}
    with pytest.raises(ValueError, match=f"{name}: expected block scales, which {name[2]}_tensor"):
        gemm_amax_wrapper(*inputs.values(), sf_vec_size=16)


def test_float32_goes_with_float32():
    a, b = np.zeros((8, 32, 1), np.float32), np.zeros((8, 32, 1), np.float16)
    with pytest.raises(ValueError, match=r"b_tensor: expected dtype float32 \(a_tensor's\), got"):
        gemm_amax_wrapper(a, b, None, None)
    with pytest.raises(ValueError, match="b_tensor: expected a narrower dtype than float32"):
        gemm_amax_wrapper(b, a, None, None)


@pytest.mark.parametrize("vec", [0, 8, 64, 32.0, "32", None, True])
def test_2_sf_vec_size(vec):
    refuse(ValueError, r"sf_vec_size: expected one of 16, 32, got ", options={"sf_vec_size": vec})


@pytest.mark.parametrize("dtype", ["float32", "float8_e5m2", "uint8"])
@pytest.mark.parametrize("name", ["sfa", "sfb"])
def test_3_dtype_of_scales(name, dtype):
    refuse(
        ValueError,
        f"sample_{name}: expected dtype one of .*, got {dtype}",
        **{name: {"dtype": dtype}},
    )


def test_3_each_side_has_scales_of_its_own():
    """Upstream wants one scale dtype; MXFP4 with NVFP4 means something."""
    change = {"sfb": {"dtype": "float8_e8m0fnu"}}
    assert GemmAmax(*describe(FP4_CASE, **change), sf_vec_size=16).check_support() is True


def scales_of(case, vec, dtype):
    """Both scale operands with the shape that `vec` asks for."""
    blocks = -(-case.k // vec)
    shape = (32, 4, 1, 4, -(-blocks // 4), 1)
    q = shape[4]
    change = {"shape": shape, "stride": (16, 4, 512 * q, 1, 512, 512 * q), "dtype": dtype}
    return {"sfa": change, "sfb": change}


@pytest.mark.parametrize(
    "case, vec, dtype",
    [
        (Case(128, 128, 128), 16, "float8_e8m0fnu"),
        (Case(128, 128, 128), 32, "float8_e4m3fn"),
        (Case(128, 128, 128), 16, "float8_e4m3fn"),
        (Case(128, 128, 128, recipe="mxfp8_e5m2"), 16, "float8_e8m0fnu"),
        (FP4_CASE, 32, "float8_e4m3fn"),
    ],
)
def test_4_illegal_triples(case, vec, dtype):
    message = refuse(
        ValueError,
        "sf_vec_size: expected float8_e8m0fnu scales with sf_vec_size",
        case,
        {"sf_vec_size": vec},
        **scales_of(case, vec, dtype),
    )
    assert message.endswith(f"got {dtype} with {vec}")


@pytest.mark.parametrize(
    "vec, dtype", [(16, "float8_e8m0fnu"), (32, "float8_e8m0fnu"), (16, "float8_e4m3fn")]
)
def test_4_legal_fp4_triples(vec, dtype):
    descs = describe(FP4_CASE, **scales_of(FP4_CASE, vec, dtype))
    assert GemmAmax(*descs, sf_vec_size=vec).check_support() is True


@pytest.mark.parametrize("dtype", ["float64", "int8", "float8_e8m0fnu", "int32"])
def test_5_dtype_of_c(dtype):
    refuse(ValueError, f"sample_c: expected dtype one of .*, got {dtype}", c={"dtype": dtype})


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "uint8"])
def test_5_fp4_results_need_fp4_inputs(dtype):
    columns = 128 if dtype == "float4_e2m1fn" else 64
    change = {"dtype": dtype, "shape": (128, columns, 1), "stride": (columns, 1, 128 * columns)}
    refuse(ValueError, "c_tensor: expected an FP4 result only from FP4 inputs", c=change)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_5_fp8_from_fp8_is_served(dtype):
    """Upstream's kernel declines it; the mathematics does not."""
    assert GemmAmax(*describe(Case(128, 128, 128), c={"dtype": dtype})).check_support() is True


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_6_accumulator(dtype):
    message = refuse(ValueError, "acc_dtype: expected one of float32", options={"acc_dtype": dtype})
    assert message.endswith(f"got {dtype}")


@pytest.mark.parametrize("name, axes", [("a", "M, K, L"), ("b", "N, K, L"), ("c", "M, N, L")])
def test_7_rank(name, axes):
    flat = {"shape": (128, 128), "stride": (128, 1)}
    message = refuse(
        ValueError,
        rf"sample_{name}: expected rank 3 \({axes}\), got shape \(128, 128\)",
        **{name: flat},
    )
    assert "add a trailing batch axis" in message
    deep = {"shape": (128, 128, 1, 1), "stride": (128, 1, 1, 1)}
    refuse(ValueError, f"sample_{name}: expected rank 3", **{name: deep})


@pytest.mark.parametrize(
    "name, shape, text",
    [
        ("b", (128, 64, 1), r"K = 128 \(from sample_a\), got K = 64"),
        ("b", (128, 128, 2), r"L = 1 \(from sample_a\), got L = 2"),
        ("c", (64, 128, 1), r"M = 128 \(from sample_a\), got M = 64"),
        ("c", (128, 64, 1), r"N = 128 \(from sample_b\), got N = 64"),
        ("c", (128, 128, 3), r"L = 1 \(from sample_a\), got L = 3"),
    ],
)
def test_7_extents_agree(name, shape, text):
    change = {"shape": shape, "stride": (shape[1], 1, shape[0] * shape[1])}
    refuse(ValueError, f"sample_{name}: expected {text}", **{name: change})


@pytest.mark.parametrize(
    "shape",
    [
        (32, 4, 2, 4, 1, 1),
        (32, 4, 1, 4, 2, 1),
        (32, 4, 1, 4, 1, 2),
        (1, 2, 1, 32, 4, 4),
        (1, 1, 2, 32, 4, 4),
        (4, 32, 1, 4, 1, 1),
        (128, 4),
        (512,),
    ],
)
@pytest.mark.parametrize("name", ["sfa", "sfb"])
def test_7_scale_shapes(name, shape):
    """R against the rows, Q against K (which upstream never compares), L; and shapes of no view."""
    desc = TensorDesc.of("float8_e8m0fnu", shape)
    change = {"shape": shape, "stride": desc.stride}
    message = refuse(
        ValueError,
        rf"sample_{name}: expected shape \(32, 4, 1, 4, 1, 1\) .*contiguous",
        **{name: change},
    )
    assert f"got shape {shape}" in message and "= 128, K = 128, sf_vec_size = 32" in message
    assert ("cudnn.pack_scales makes this layout" in message) == (len(shape) < 6)


def test_scales_of_another_vector_length_are_recognized():
    desc = TensorDesc.of("float8_e8m0fnu", (1, 1, 2, 32, 4, 4))
    message = refuse(ValueError, "sample_sfa", sfa={"shape": desc.shape, "stride": desc.stride})
    assert "these look like scales for sf_vec_size = 16" in message


@pytest.mark.parametrize(
    "stride", [(16, 4, 512, 1, 1024, 512), (4, 128, 512, 1, 512, 512), (64, 16, 16, 4, 4, 1)]
)
@pytest.mark.parametrize("name", ["sfa", "sfb"])
def test_7_scale_strides(name, stride):
    case = Case(128, 128, 256)
    refuse(
        ValueError,
        rf"sample_{name}: expected shape .* strides \(16, 4, 1024, 1, 512, 1024\)",
        case,
        **{name: {"stride": stride}},
    )


@pytest.mark.parametrize("shape", [(2,), (1, 1, 2), (2, 1, 1), (0,), (1, 1, 1, 1, 2)])
def test_8_amax_is_one_number(shape):
    change = {"shape": shape, "stride": TensorDesc.of("float32", shape).stride}
    refuse(ValueError, r"sample_amax: expected float32 of shape \(1, 1, 1\)", amax=change)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_8_amax_is_float32(dtype):
    refuse(ValueError, f"sample_amax: expected dtype float32, got {dtype}", amax={"dtype": dtype})


@pytest.mark.parametrize(
    "stride", [(256, 2, 32768), (1, 1, 16384), (64, 1, 16384), (-128, 1, 16384), (0, 1, 0)]
)
@pytest.mark.parametrize(
    "name, text",
    [
        ("a", "k-major .* or m-major"),
        ("b", "k-major .* or n-major"),
        ("c", "n-major .* or m-major"),
    ],
)
def test_9_strides_that_no_layout_admits(name, text, stride):
    message = refuse(ValueError, f"sample_{name}: expected {text}", **{name: {"stride": stride}})
    assert f"with strides {stride}" in message


@pytest.mark.parametrize("name", ["a", "b"])
def test_10_fp4_operands_are_k_major(name):
    refuse(
        ValueError,
        rf"sample_{name}: expected (packed FP4 bytes contiguous|k-major)",
        FP4_CASE,
        **{name: {"stride": (1, 128, 8192)}},
    )


def test_10_fp4_results_are_n_major():
    change = {"dtype": "float4_e2m1fn", "stride": (1, 128, 16384)}
    refuse(ValueError, r"sample_c: expected n-major \(stride 1 along N\)", FP4_CASE, c=change)
    data = exact(FP4_CASE)
    with pytest.raises(ValueError, match="c_major: expected 'n'"):
        gemm_amax_wrapper(*data.inputs(), c_major="m", c_dtype="float4_e2m1fn", sf_vec_size=16)


@pytest.mark.parametrize(
    "tile, text",
    [
        ((64, 128), r"mma_tiler_mn\[0\]: expected one of 128, 256, got 64"),
        ((128, 64), r"mma_tiler_mn\[1\]: expected one of 128, 256, got 64"),
        ((128,), "mma_tiler_mn: expected a pair of integers or None"),
        ((128, 128, 64), "mma_tiler_mn: expected a pair"),
        (128, "mma_tiler_mn: expected a pair"),
        ("ab", "mma_tiler_mn: expected a pair"),
        ((128.0, 128.0), "mma_tiler_mn: expected a pair"),
    ],
)
def test_11_tiles(tile, text):
    refuse(ValueError, text, options={"mma_tiler_mn": tile})


@pytest.mark.parametrize("k, tile", [(64, (128, 256)), (128, (256, 128))])
def test_11_to_13_limits_of_upstreams_kernel_are_none_of_ours(k, tile):
    case = replace(FP4_CASE, k=k)
    assert GemmAmax(*describe(case), mma_tiler_mn=tile, sf_vec_size=16).check_support() is True


@pytest.mark.parametrize(
    "cluster, text",
    [
        ((3, 1), r"cluster_shape_mn\[0\]: expected one of 1, 2, 4, got 3"),
        ((1, 8), r"cluster_shape_mn\[1\]: expected one of 1, 2, 4, got 8"),
        ((1, 0), r"cluster_shape_mn\[1\]"),
        (2, "cluster_shape_mn: expected a pair"),
    ],
)
def test_14_clusters(cluster, text):
    refuse(ValueError, text, options={"cluster_shape_mn": cluster})


@pytest.mark.parametrize(
    "recipe, k, quantum",
    [("mxfp8", 24, 16), ("mxfp8_e5m2", 8, 16), ("mxfp4", 48, 32), ("nvfp4", 16, 32)],
)
def test_15_k_is_a_multiple_of_16_bytes(recipe, k, quantum):
    data = exact(Case(128, 128, k, recipe=recipe))
    with pytest.raises(
        ValueError,
        match=rf"a_tensor: expected K a multiple of 16 bytes \({quantum} elements.*got K = {k}",
    ):
        gemm_amax_wrapper(*data.inputs(), **data.case.options())


@pytest.mark.parametrize(
    "name, case", [("a", Case(40, 48, 64, a_major="m")), ("b", Case(48, 40, 64, b_major="n"))]
)
def test_15_row_strides_are_multiples_of_16_bytes(name, case):
    refuse(ValueError, f"sample_{name}: expected strides a multiple of 16 bytes", case)


def test_15_an_odd_row_stride_names_tensor_stride_and_rule():
    data = exact(Case(16, 16, 64))
    a, *rest = data.inputs(pad=1)
    with pytest.raises(
        ValueError, match=r"a_tensor: .*multiple of 16 bytes .*strides \(65, 1, 1040\)"
    ):
        gemm_amax_wrapper(a, *rest)


@pytest.mark.parametrize("columns", [1, 3, 130])
def test_15_any_c_is_served(columns):
    """Upstream wants 16-byte rows of C; here any N means something."""
    data = exact(Case(16, columns, 64))
    assert_matches(gemm_amax_wrapper(*data.inputs()), data)


def test_16_no_device():
    """Everything is right but the machine: RuntimeError that lists the engines, after every ValueError."""
    on_device = {name: {"device": "cuda:7"} for name in NAMES}
    message = refuse(RuntimeError, "no engine runs this on cuda:7", **on_device)
    assert "reference: it runs on host arrays only" in message and "hopper: " in message
    refuse(
        ValueError,
        "sample_a: expected dtype",
        **(on_device | {"a": {"dtype": "float64", "device": "cuda:7"}}),
    )
    elsewhere = {name: {"device": "tpu:0"} for name in NAMES}
    message = refuse(RuntimeError, "no engine runs this on tpu:0", **elsewhere)
    assert "hopper: it needs a CUDA device" in message


# --- what the issue names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_mixed_devices(name):
    with pytest.raises(
        ValueError, match=r"expected it on (cpu|cuda:0), as \w+ is, got (cpu|cuda:0)"
    ):
        GemmAmax(*describe(Case(128, 128, 128), **{name: {"device": "cuda:0"}}))


def test_scale_on_the_host_with_data_on_a_device():
    on_device = {name: {"device": "cuda:0"} for name in NAMES if name != "sfb"}
    with pytest.raises(
        ValueError, match="sample_sfb: expected it on cuda:0, as sample_a is, got cpu"
    ):
        GemmAmax(*describe(Case(128, 128, 128), **on_device))


INPUT_NAMES = ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor")


@pytest.mark.parametrize("thing", [3, 2.5, "x", None, [1], np.float32(1)], ids=repr)
@pytest.mark.parametrize("name", INPUT_NAMES)
def test_what_is_no_tensor(name, thing):
    inputs = dict(zip(INPUT_NAMES, exact(Case(8, 8, 32)).inputs(), strict=True)) | {name: thing}
    if thing is None and name.startswith("sf"):
        pytest.skip("FP8 without scales is an operand too")
    error = ValueError if thing is None else TypeError
    with pytest.raises(error, match=f"{name}: expected a tensor, got"):
        gemm_amax_wrapper(*inputs.values())


def test_description_instead_of_data():
    a, *rest = exact(Case(8, 8, 32)).inputs()
    described = TensorDesc.of(a.dtype, a.shape)
    with pytest.raises(
        ValueError, match="(a|b)_tensor: expected a torch, JAX or NumPy array|b_tensor"
    ):
        gemm_amax_wrapper(described, *rest)


@pytest.mark.parametrize("name", INPUT_NAMES[:2])
def test_float64(name):
    inputs = dict(zip(INPUT_NAMES, exact(Case(8, 8, 32)).inputs(), strict=True))
    inputs[name] = inputs[name].astype(np.float64)
    with pytest.raises(ValueError, match=f"{name}: expected dtype .*got float64"):
        gemm_amax_wrapper(*inputs.values())


def test_every_second_row_and_column():
    case = Case(16, 16, 64)
    a, *rest = exact(case).inputs()
    wide = np.zeros((16, 128, 1), a.dtype)
    with pytest.raises(ValueError, match=r"a_tensor: expected k-major .*strides \(128, 2, 1\)"):
        gemm_amax_wrapper(wide[:, ::2], *rest)
    tall = np.zeros((32, 64, 1), a.dtype)
    assert gemm_amax_wrapper(tall[::2], *rest)[0].shape == (16, 16, 1)


@pytest.mark.parametrize("name", INPUT_NAMES[:2])
def test_unpacked_fp4(name):
    inputs = dict(zip(INPUT_NAMES, exact(Case(8, 8, 64, recipe="nvfp4")).inputs(), strict=True))
    inputs[name] = np.zeros((8, 64, 1), ml_dtypes.float4_e2m1fn)
    with pytest.raises(ValueError, match=f"{name}: expected packed FP4.*cudnn.quantize"):
        gemm_amax_wrapper(*inputs.values(), sf_vec_size=16)


@pytest.mark.parametrize("major", ["k", "x", None, 1, True])
def test_c_major(major):
    with pytest.raises(ValueError, match="c_major: expected one of 'm', 'n', got "):
        gemm_amax_wrapper(*exact(Case(8, 8, 32)).inputs(), c_major=major)


@pytest.mark.parametrize("dtype", [None, "float33", 3, object, "int8", "float64"])
@pytest.mark.parametrize("name", ["c_dtype", "acc_dtype"])
def test_dtype_arguments(name, dtype):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        gemm_amax_wrapper(*exact(Case(8, 8, 32)).inputs(), **{name: dtype})


@pytest.mark.parametrize("option", [{"sf_vec_size": [32]}, {"c_major": ["n"]}, {"c_dtype": []}])
def test_unhashable_options(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))}: expected"):
        gemm_amax_wrapper(*exact(Case(8, 8, 32)).inputs(), **option)


def test_odd_columns_of_an_fp4_result():
    data = exact(Case(8, 9, 64, recipe="nvfp4"))
    with pytest.raises(ValueError, match=r"(c_tensor|N).*even"):
        gemm_amax_wrapper(*data.inputs(), c_dtype="float4_e2m1fn", sf_vec_size=16)


@pytest.mark.parametrize("k", [0, 128])
def test_checks_come_before_the_empty_shortcut(k):
    a, b, sfa, sfb = exact(Case(0, 8, k)).inputs()
    with pytest.raises(ValueError, match="sfb_tensor: expected shape"):
        gemm_amax_wrapper(a, b, sfa, np.zeros((32, 4, 3, 4, 3, 1), sfb.dtype))


def test_a_refused_call_leaves_nothing_behind():
    """The same arguments are refused again, and right ones still work."""
    data = exact(Case(8, 8, 32))
    for _ in range(2):
        with pytest.raises(ValueError, match="sf_vec_size"):
            gemm_amax_wrapper(*data.inputs(), sf_vec_size=8)
        assert_matches(gemm_amax_wrapper(*data.inputs()), data)


# --- containers are read as design section 5 says -------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_containers_are_announced_once(caplog, monkeypatch, framework):
    """int8 always; uint8 where the framework has a dtype for packed FP4, so that another reading was possible."""
    pytest.importorskip(framework)
    monkeypatch.setattr("cudnn_core.op._told", set())
    data = exact(replace(FP4_CASE, recipe="mxfp4_16", scale_container="int8", container="uint8"))
    out = Guarded(data.case, "numpy" if framework == "numpy" else "cpu").tensor
    tensors = (*data.inputs(framework), out, amax_tensor(framework))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            GemmAmax(*tensors, sf_vec_size=16).check_support()
    texts = [record.getMessage() for record in caplog.records]
    codes = [text for text in texts if "uint8" in text and "packed fp4" in text]
    assert [text.partition(":")[0] for text in codes] == (
        ["a_tensor", "b_tensor"] if framework == "torch" else []
    )
    assert sum("int8 treated as e8m0" in text for text in texts) == 2


def test_int8_is_no_e4m3_scale():
    """int8 means E8M0, so it goes with its block sizes."""
    data = exact(replace(Case(128, 128, 128), scale_container="int8"))
    assert_matches(gemm_amax_wrapper(*data.inputs()), data)
    with pytest.raises(ValueError, match="sf_vec_size"):
        gemm_amax_wrapper(
            *data.inputs()[:2],
            *exact(replace(FP4_CASE, scale_container="int8")).inputs()[2:],
            sf_vec_size=16,
        )
