"""The contract: dimensions, attributes, operand kinds, binding; each refusal with its message."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_core.contract import (
    Contract,
    Dims,
    Matrix,
    ScalarTensor,
    ScaleFactor,
    choice,
    dtype_attribute,
    tile_hint,
)
from cudnn_core.dtypes import (
    BFLOAT16,
    FLOAT4_E2M1FN,
    FLOAT8_E4M3FN,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    UINT8,
)
from cudnn_core.tensor_desc import Device, TensorDesc, logical_fp4
from cudnn_core.testing.toy import CONTRACT, OPTIONAL_CONTRACT

CPU = Device("cpu")


def desc(dtype, shape, stride=None, name=""):
    return TensorDesc.of(dtype, shape, stride, name=name)


def dims_of(**extents):
    dims = Dims()
    for symbol, extent in extents.items():
        dims.bind(symbol, extent, "earlier")
    return dims


# --- dimensions and attributes ---------------------------------------------------------------------------------------


def test_a_dimension_remembers_who_bound_it():
    dims = Dims()
    dims.bind("K", 8, "a")
    dims.bind("K", 8, "b")
    assert dims == {"K": 8} and dims.source("K") == "a"
    with pytest.raises(ValueError, match=r"c: expected K = 8 \(from a\), got K = 9"):
        dims.bind("K", 9, "c")


@pytest.mark.parametrize("value", [32, np.int64(32), np.uint8(32)])
def test_choice_takes_any_integer(value):
    got = choice("vec", 16, (16, 32)).parse(value, "vec")
    assert got == 32 and type(got) is int


@pytest.mark.parametrize(
    "value",
    [True, np.True_, 32.0, "32", None, 8, [32], np.float32(32), np.array([32, 32]), np.array([])],
    ids=repr,
)
def test_choice_refuses_the_rest(value):
    with pytest.raises(ValueError, match="vec: expected one of 1, 16, 32, got "):
        choice("vec", 16, (1, 16, 32)).parse(value, "vec")


def test_choice_of_words_and_switches():
    assert choice("flag", False, (False, True)).parse(True, "flag") is True
    with pytest.raises(ValueError, match="flag"):
        choice("flag", False, (False, True)).parse(1, "flag")
    with pytest.raises(ValueError, match="major: expected one of 'm', 'n', got 'k'"):
        choice("major", "n", ("n", "m")).parse("k", "major")


@pytest.mark.parametrize("value", ["float16", np.float16, np.dtype("float16"), FLOAT16, "half"])
def test_dtype_attribute_takes_every_spelling(value):
    assert dtype_attribute("d", FLOAT32, (FLOAT32, FLOAT16)).parse(value, "d") is FLOAT16


@pytest.mark.parametrize("value", ["bfloat16", None, 3, "nonsense", object()])
def test_dtype_attribute_refuses(value):
    with pytest.raises(ValueError, match="d: expected"):
        dtype_attribute("d", FLOAT32, (FLOAT32, FLOAT16)).parse(value, "d")


HINT = tile_hint("tile", None, ((64, 128), (128, 256)))


@pytest.mark.parametrize(
    "value", [None, (64, 256), [128, 128], (np.int32(64), 128), iter((64, 128))]
)
def test_tile_hint(value):
    got = HINT.parse(value, "tile")
    assert got is None or (type(got) is tuple and all(type(x) is int for x in got))


@pytest.mark.parametrize(
    "value, text",
    [
        ((128, 64), r"tile\[1\]: expected one of 128, 256, got 64"),
        ((32, 128), r"tile\[0\]: expected one of 128, 64, got 32"),
        ((64,), "tile: expected a pair of integers or None"),
        (64, "tile: expected a pair"),
        ((64.0, 128), "tile: expected a pair"),
        ((True, 128), "tile: expected a pair"),
        ((np.True_, 128), "tile: expected a pair"),
        ((None, 128), "tile: expected a pair"),
        ("64", "tile: expected a pair"),
        ((np.array([64, 64]), 128), "tile: expected a pair"),
    ],
)
def test_tile_hint_refuses(value, text):
    with pytest.raises(ValueError, match=text):
        HINT.parse(value, "tile")


# --- matrices --------------------------------------------------------------------------------------------------------

A = Matrix(
    "a",
    ("M", "K", "L"),
    dtypes=(FLOAT16, FLOAT8_E4M3FN, FLOAT4_E2M1FN, UINT8),
    majors={"k": "K", "m": "M"},
    fp4_major="k",
    aligned=True,
)


def bind(operand, metadata, attributes=None):
    dims = Dims()
    return operand.bind(metadata, dims, attributes or {}), dims


@pytest.mark.parametrize(
    "stride, major",
    [
        ((64, 1, 512), "k"),
        ((1, 8, 512), "m"),
        ((72, 1, 600), "k"),
        ((128, 1, 64), "k"),
        ((1, 16, 8), "m"),
    ],
)
def test_major_and_padded_strides(stride, major):
    plan, dims = bind(A, desc(FLOAT16, (8, 64, 2), stride))
    assert (plan.dtype, plan.container, plan.major, plan.tma) == ("float16", "native", major, True)
    assert dims == {"M": 8, "K": 64, "L": 2}


@pytest.mark.parametrize(
    "stride", [(64, 2, 1024), (32, 1, 512), (1, 4, 512), (-64, 1, 512), (0, 1, 512), (64, 1, 0)]
)
def test_strides_that_no_major_admits(stride):
    with pytest.raises(
        ValueError,
        match=r"a: expected k-major \(stride 1 along K\) or m-major \(stride 1 along M\)",
    ):
        bind(A, desc(FLOAT16, (8, 64, 2), stride))


@pytest.mark.parametrize(
    "stride, fits",
    [
        ((64, 1, 512), True),
        ((128, 1, 64), True),  # batches side by side in each row
        ((80, 1, 640), True),
        ((64, 1, 64), False),  # each batch a row further
        ((64, 1, 448), False),
        ((96, 1, 64), False),
        ((1, 8, 256), False),
    ],
)
def test_elements_of_an_output_share_no_memory(stride, fits):
    output = Matrix("c", ("M", "N", "L"), True, dtypes=(FLOAT16,), majors={"n": "N", "m": "M"})
    metadata = desc(FLOAT16, (8, 64, 2), stride)
    if fits:
        assert bind(output, metadata)[0].major == "n"
    else:
        with pytest.raises(ValueError, match=r"c: expected n-major .*, got shape \(8, 64, 2\)"):
            bind(output, metadata)
    bind(A, metadata)  # an input may


@pytest.mark.parametrize("step", [0, 1, 3, 10**9, -5])
def test_extent_one_has_no_stride(step):
    base, _ = bind(A, desc(FLOAT16, (8, 64, 1), (64, 1, 512)))
    assert bind(A, desc(FLOAT16, (8, 64, 1), (64, 1, step)))[0] == base
    row, _ = bind(A, desc(FLOAT16, (1, 64, 2), (64, 1, 64)))
    assert bind(A, desc(FLOAT16, (1, 64, 2), (step, 1, 64)))[0] == row


@pytest.mark.parametrize("shape", [(0, 64, 2), (8, 64, 0), (8, 0, 2)])
@pytest.mark.parametrize("stride", [(64, 1, 512), (0, 0, 0), (7, 9, 3)])
def test_an_empty_array_has_no_strides(shape, stride):
    _, dims = bind(A, desc(FLOAT16, shape, stride))
    assert tuple(dims.values()) == shape


def test_alignment_is_told_with_its_rule():
    with pytest.raises(
        ValueError,
        match=r"a: expected K a multiple of 16 bytes \(8 elements of float16\), got K = 60",
    ):
        bind(A, desc(FLOAT16, (8, 60, 1)))
    with pytest.raises(ValueError, match=r"a: expected K a multiple .*strides \(65, 1, 520\)"):
        bind(A, desc(FLOAT16, (8, 64, 2), (65, 1, 520)))
    with pytest.raises(
        ValueError, match=r"a: expected strides a multiple of 16 bytes \(16 elements"
    ):
        bind(A, desc(FLOAT8_E4M3FN, (8, 64, 2), (1, 24, 1536)))
    relaxed = replace(A, aligned=False)
    assert bind(relaxed, desc(FLOAT16, (8, 60, 1)))[0].tma is False


def test_rank_and_dtype():
    with pytest.raises(
        ValueError,
        match=r"a: expected rank 3 \(M, K, L\), got shape \(8, 64\); add a trailing batch axis",
    ):
        bind(A, desc(FLOAT16, (8, 64)))
    with pytest.raises(ValueError, match="x: expected dtype one of float16, .*, got bfloat16"):
        bind(A, desc(BFLOAT16, (8, 64, 1), name="x"))


def test_fp4_in_its_two_containers():
    native, dims = bind(A, desc(FLOAT4_E2M1FN, (8, 64, 2), (64, 1, 512)))
    packed, same = bind(A, desc(UINT8, (8, 32, 2), (32, 1, 256)))
    assert dims == same == {"M": 8, "K": 64, "L": 2}
    assert (native.dtype, packed.dtype) == ("float4_e2m1fn", "float4_e2m1fn")
    assert (native.container, packed.container) == ("native", "uint8")
    with pytest.raises(ValueError, match="a: expected packed FP4 bytes contiguous along axis 1"):
        bind(A, desc(UINT8, (8, 32, 2), (1, 8, 256)))
    with pytest.raises(ValueError, match=r"a: expected k-major \(stride 1 along K\), got"):
        bind(A, desc(FLOAT4_E2M1FN, (8, 64, 2), (1, 8, 512)))


@pytest.mark.parametrize("shape", [(5, 48, 0), (0, 48, 1), (0, 48, 0), (5, 0, 0), (5, 0, 2)])
def test_empty_fp4_is_packed_along_its_contraction(shape):
    """torch's strides of empty tensors are 1 along several axes, and a reader without a contract takes an empty one."""
    rows, packed, batches = shape
    steps = (max(packed, 1) * max(batches, 1), max(batches, 1), 1)
    native = TensorDesc.of(FLOAT4_E2M1FN, *logical_fp4(shape, steps))
    plan, dims = bind(A, native)
    assert dims == {"M": rows, "K": 2 * packed, "L": batches}
    assert (plan, dims) == (
        replace(bind(A, desc(UINT8, shape, steps))[0], container="native"),
        bind(A, desc(UINT8, shape, steps))[1],
    )


C = Matrix(
    "c",
    ("M", "N", "L"),
    output=True,
    dtypes=(FLOAT32, FLOAT16, FLOAT4_E2M1FN, UINT8),
    majors={"n": "N", "m": "M"},
    fp4_major="n",
    dtype_from="d",
    major_from="major",
)


@settings(max_examples=80, deadline=None)
@given(
    m=st.integers(0, 40),
    n=st.integers(0, 20).map(lambda n: 2 * n),
    batches=st.integers(0, 4),
    major=st.sampled_from("nm"),
    dtype=st.sampled_from([FLOAT32, FLOAT16, FLOAT4_E2M1FN]),
)
def test_an_output_as_described_binds_as_asked(m, n, batches, major, dtype):
    """Compact, dense, and of the major that was asked for even where extents of 1 leave a choice."""
    major = "n" if dtype.is_fp4 else major
    attributes = {"d": dtype, "major": major}
    made = C.describe({"M": m, "N": n, "L": batches}, attributes, CPU)
    plan, dims = bind(C, made, attributes)
    assert (plan.major, plan.dtype) == (major, dtype.name)
    assert tuple(dims.values()) == (m, n, batches)
    inner, outer = (n, m) if major == "n" else (m, n)
    strides = (inner, 1) if major == "n" else (1, inner)
    assert made.stride == (*strides, inner * outer)


def test_outputs_that_fp4_cannot_have():
    with pytest.raises(ValueError, match="major: expected 'n'"):
        C.describe({"M": 8, "N": 8, "L": 1}, {"d": FLOAT4_E2M1FN, "major": "m"}, CPU)
    with pytest.raises(ValueError, match="even"):
        C.describe({"M": 8, "N": 7, "L": 1}, {"d": FLOAT4_E2M1FN, "major": "n"}, CPU)


# --- scale factors and scalars ---------------------------------------------------------------------------------------

SF = ScaleFactor("sf", ("M", "K", "L"), dtypes=(FLOAT8_E8M0FNU,), vec_from="vec", int8_is_e8m0=True)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 400),
    k=st.integers(1, 600),
    batches=st.integers(1, 3),
    vec=st.sampled_from([16, 32]),
)
def test_scale_factor_geometry(m, k, batches, vec):
    """R and Q by counting atoms one by one; both views bind, and nothing one atom off does."""
    r = len({row // 128 for row in range(m)})
    q = len({(j // vec) // 4 for j in range(k)})
    dims = dims_of(M=m, K=k, L=batches)
    assert SF.atoms(dims, {"vec": vec}) == (r, q, batches)
    physical = desc(FLOAT8_E8M0FNU, (batches, r, q, 32, 4, 4))
    logical = physical.permute(3, 4, 1, 5, 2, 0)
    assert SF.bind(physical, dims, {"vec": vec}).major == "physical"
    assert SF.bind(logical, dims, {"vec": vec}).major == "logical"
    for shape in (
        (batches, r + 1, q, 32, 4, 4),
        (batches, r, q + 1, 32, 4, 4),
        (batches + 1, r, q, 32, 4, 4),
    ):
        for wrong in (
            desc(FLOAT8_E8M0FNU, shape),
            desc(FLOAT8_E8M0FNU, shape).permute(3, 4, 1, 5, 2, 0),
        ):
            with pytest.raises(ValueError, match="sf: expected shape"):
                SF.bind(wrong, dims, {"vec": vec})


def test_scale_factor_strides_and_dtypes():
    dims = dims_of(M=200, K=256, L=2)
    physical = desc(FLOAT8_E8M0FNU, (2, 2, 2, 32, 4, 4))
    logical = physical.permute(3, 4, 1, 5, 2, 0)
    with pytest.raises(ValueError, match="sf: .*with strides.*the memory order is the layout"):
        SF.bind(logical.contiguous(), dims, {"vec": 32})
    with pytest.raises(ValueError, match="sf: .*contiguous shape"):
        SF.bind(
            desc(FLOAT8_E8M0FNU, physical.shape, (4096, 2048, 512, 16, 4, 1)), dims, {"vec": 32}
        )
    assert (
        SF.bind(replace(logical, dtype="int8", stride_order=None), dims, {"vec": 32}).container
        == "int8"
    )
    with pytest.raises(
        ValueError, match="sf: expected dtype one of float8_e8m0fnu, int8, got uint8"
    ):
        SF.bind(replace(logical, dtype="uint8", stride_order=None), dims, {"vec": 32})


TOP = ScalarTensor("top", (), output=True, initial=-1.0, per_batch_from="amax")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_scalar_of_any_rank(shape):
    assert bind(TOP, desc(FLOAT32, shape))[0].dtype == "float32"


@pytest.mark.parametrize("shape", [(2,), (1, 2), (0,), (1, 1, 1, 2)])
def test_scalar_refuses_more(shape):
    with pytest.raises(ValueError, match=r"top: expected float32 of shape \(1, 1, 1\)"):
        bind(TOP, desc(FLOAT32, shape))


def test_scalar_per_batch():
    dims = dims_of(L=3)
    made = TOP.describe(dims, {"amax": "per_batch"}, CPU)
    assert made.shape == (3, 1, 1)
    TOP.bind(made, dims, {"amax": "per_batch"})
    with pytest.raises(ValueError, match="top: expected float32 of shape"):
        TOP.bind(made, dims, {"amax": "global"})


# --- contracts -------------------------------------------------------------------------------------------------------


def toy_descs(m=5, n=4, k=3, batches=1, dtype="float32", **device):
    return [TensorDesc.of(dtype, (rows, k, batches), **device) for rows in (m, n)]


def test_binding_describes_the_outputs():
    problem = CONTRACT.bind(toy_descs(), {"y_dtype": "float16", "y_major": "m"})
    y, top = problem.outputs
    assert (y.dtype, y.shape, y.stride, y.name) == (FLOAT16, (5, 4, 1), (1, 5, 20), "y_tensor")
    assert (top.dtype, top.shape) == (FLOAT32, (1, 1, 1))
    assert problem.dims == {"M": 5, "K": 3, "L": 1, "N": 4} and not problem.is_empty
    assert problem.device == CPU


def test_signatures_hold_no_extent_and_no_output_option():
    first = CONTRACT.bind(toy_descs(), {"y_dtype": "float16"})
    second = CONTRACT.bind(toy_descs(m=7, n=12, k=5), {"y_dtype": np.float16})
    assert first.signature == second.signature and hash(first) == hash(second)
    assert first == second and first.dims != second.dims
    names = [name for name, _ in first.signature.attributes]
    assert names == ["sign", "width", "batch", "amax"]
    with pytest.raises(FrozenInstanceError):
        first.signature.op = "other"


def test_a_sample_and_an_allocated_output_give_one_signature():
    """The class door and the wrapper door share their kernels."""
    allocated = CONTRACT.bind(toy_descs(), {"y_dtype": "float16", "y_major": "m"})
    y = TensorDesc.of("float16", (5, 4, 1), (1, 5, 20), name="sample_y")
    given_out = CONTRACT.bind(
        [*toy_descs(), y, TensorDesc.of("float32", (1,), name="sample_top")], {}
    )
    assert given_out.signature == allocated.signature and given_out.outputs == ()


def test_operands_and_attributes_by_name():
    signature = CONTRACT.bind(toy_descs(), {"sign": "minus"}).signature
    assert signature.operand("w_tensor").major == "k" and signature.attribute("sign") == "minus"
    for missing in (lambda: signature.operand("z"), lambda: signature.attribute("z")):
        with pytest.raises(KeyError):
            missing()


@pytest.mark.parametrize("change", [{"m": 0}, {"n": 0}, {"k": 0}, {"batches": 0}])
def test_empty_problems(change):
    assert CONTRACT.bind(toy_descs(**change), {}).is_empty


def test_messages_call_tensors_by_their_own_names():
    x, _ = toy_descs()
    with pytest.raises(ValueError, match=r"sample_w: expected K = 3 \(from x_tensor\), got K = 9"):
        CONTRACT.bind([x, TensorDesc.of("float32", (4, 9, 1), name="sample_w")], {})


def test_rules_see_the_bound_whole():
    with pytest.raises(ValueError, match="sign: expected 'plus' for float16 inputs"):
        CONTRACT.bind(toy_descs(dtype="float16"), {"sign": "minus"})


def test_counts_and_missing_operands():
    x, w = toy_descs()
    with pytest.raises(ValueError, match="core/toy: expected 2 tensors, got 3"):
        CONTRACT.bind([x, w, x], {})
    with pytest.raises(ValueError, match="w_tensor: expected a tensor, got None"):
        CONTRACT.bind([x, None], {})


def test_optional_operands_may_be_absent():
    bias = Matrix("b", ("M", "K", "L"), dtypes=(FLOAT32,), majors={"k": "K"}, optional=True)
    x = Matrix("x", ("M", "K", "L"), dtypes=(FLOAT32,), majors={"k": "K"})
    contract = Contract("core/optional", (x, bias), ())
    d = desc(FLOAT32, (2, 3, 1))
    absent, present = contract.bind([d, None], {}), contract.bind([d, d], {})
    assert [p.name for p in absent.signature.operands] == ["x"]
    assert [p.name for p in present.signature.operands] == ["x", "b"]
    assert absent.signature != present.signature


# --- operands that apply under a condition ---------------------------------------------------------------------------


def names_of(problem):
    return [plan.name for plan in problem.signature.operands]


@pytest.mark.parametrize(
    "bias, attributes, present",
    [
        (True, {}, ["bias_tensor", "y_tensor", "sum_tensor", "top_tensor"]),
        (False, {}, ["y_tensor", "top_tensor"]),
        (False, {"y_dtype": "float16"}, ["y_tensor"]),
        (True, {"sign": "minus"}, ["bias_tensor", "y_tensor", "sum_tensor"]),
    ],
)
def test_outputs_exist_when_they_apply(bias, attributes, present):
    """A wrapper's call and a class with the samples of that call's outputs bind alike."""
    x, w = toy_descs()
    inputs = [x, desc("float32", (5, 4, 1)) if bias else None, w]
    problem = OPTIONAL_CONTRACT.bind(inputs, attributes)
    assert [n for n in names_of(problem) if n not in ("x_tensor", "w_tensor")] == present
    assert [None if d is None else d.name for d in problem.outputs] == [
        name if name in present else None for name in ("y_tensor", "sum_tensor", "top_tensor")
    ]
    assert problem.descs == (*inputs, *problem.outputs)
    options = {name: value for name, value in attributes.items() if name != "y_dtype"}
    assert OPTIONAL_CONTRACT.bind(problem.descs, options).signature == problem.signature


def test_given_operands_must_apply_and_applying_ones_be_given():
    x, w = toy_descs()
    y, top = desc("float32", (5, 4, 1)), desc("float32", (1,))
    with pytest.raises(ValueError, match="sample_sum: expected None, as it does not apply"):
        OPTIONAL_CONTRACT.bind([x, None, w, y, replace(y, name="sample_sum"), top], {})
    with pytest.raises(ValueError, match="sum_tensor: expected a tensor, got None"):
        OPTIONAL_CONTRACT.bind([x, y, w, y, None, top], {})


def test_inputs_may_have_conditions_too():
    x = Matrix("x", ("M", "K", "L"), dtypes=(FLOAT32, FLOAT16), majors={"k": "K"})
    norm = ScalarTensor("norm", (), when=lambda attributes, dtypes: dtypes["x"] == "float16")
    contract = Contract("core/norm", (x, norm), ())
    full, half = (desc(t, (2, 3, 1)) for t in (FLOAT32, FLOAT16))
    one = desc(FLOAT32, (1,))
    assert names_of(contract.bind([full, None], {})) == ["x"]
    assert names_of(contract.bind([half, one], {})) == ["x", "norm"]
    with pytest.raises(ValueError, match="norm: expected None, as it does not apply"):
        contract.bind([full, one], {})
    with pytest.raises(ValueError, match="norm: expected a tensor, got None"):
        contract.bind([half, None], {})


def test_conditions_see_logical_dtypes_and_selecting_attributes():
    """A container counts as what it holds; an output option is seen in the output that it shaped."""
    seen = []

    def watch(attributes, dtypes):
        seen.append((attributes, dict(dtypes)))
        return True

    y = replace(OPTIONAL_CONTRACT.operands[3], dtypes=(UINT8, FLOAT4_E2M1FN), fp4_major="n")
    contract = replace(
        CONTRACT,
        operands=(*CONTRACT.inputs, y, replace(CONTRACT.operands[-1], when=watch)),
        attributes=(dtype_attribute("y_dtype", UINT8, (UINT8,), True), *CONTRACT.attributes[:1]),
        rules=(),
    )
    contract.bind(toy_descs(), {})
    ((attributes, dtypes),) = seen
    assert attributes == {} and dtypes["y_tensor"] == "float4_e2m1fn" == y.logical(UINT8).name


def test_signatures_name_an_executables_arrays():
    x, w = toy_descs()
    signature = OPTIONAL_CONTRACT.bind([x, None, w], {}).signature
    assert signature.has("top_tensor") and not signature.has("bias_tensor")
    assert signature.named([1, 2, 3, 4]) == {
        "x_tensor": 1,
        "w_tensor": 2,
        "y_tensor": 3,
        "top_tensor": 4,
    }
    with pytest.raises(ValueError):
        signature.named([1, 2, 3])


def test_the_first_operand_is_always_there():
    x, *others = CONTRACT.operands
    with pytest.raises(ValueError, match="x_tensor: expected a first operand that no call leaves"):
        replace(CONTRACT, operands=(replace(x, optional=True), *others))
