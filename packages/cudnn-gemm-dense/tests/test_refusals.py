"""What swiglu, srelu and dsrelu refuse: the class of every error, and that its message names the argument."""

import math

import numpy as np
import pytest

import cudnn_gemm_dense as dense
from cudnn_core.tensor_desc import TensorDesc
from cudnn_gemm_dense.testing import column_tensor, make_call, matrix_tensor

OPS = ("swiglu", "srelu", "dsrelu")


def arguments(op, call):
    """Keyword arguments of a wrapper call."""
    given = {
        "a_tensor": call.a.tensor(),
        "b_tensor": call.b.tensor(),
        "sfa_tensor": call.a.scale(),
        "sfb_tensor": call.b.scale(),
        "sf_vec_size": call.vec(),
    }
    if op != "swiglu":
        given["prob_tensor"] = column_tensor(call.column)
    if op == "dsrelu":
        given["c_tensor"] = matrix_tensor(call.gradient, "bfloat16", "n")
    return given


def wrapper(op):
    return getattr(dense, f"gemm_{op}_wrapper")


def refuse(op, error, match, call=None, **changes):
    given = arguments(op, call or make_call(9, 64, 64, 2, "mxfp8", "mxfp8")) | changes
    with pytest.raises(error, match=match) as caught:
        wrapper(op)(**given)
    assert type(caught.value) is error
    return str(caught.value)


every_op = pytest.mark.parametrize("op", OPS)


@every_op
def test_the_unchanged_calls_are_served(op):
    for formats in (("mxfp8", "mxfp8"), ("bfloat16", "bfloat16"), ("nvfp4", "nvfp4")):
        wrapper(op)(**arguments(op, make_call(9, 64, 64, 2, *formats)))


@every_op
@pytest.mark.parametrize("name, axes", [("a_tensor", "M, K, L"), ("b_tensor", "N, K, L")])
def test_rank(op, name, axes):
    flat = np.zeros((64, 64), np.float16)
    message = refuse(
        op, ValueError, rf"{name}: expected rank 3 \({axes}\), got shape \(64, 64\)", **{name: flat}
    )
    assert "add a trailing batch axis" in message


@every_op
def test_extents_agree(op):
    other = make_call(8, 128, 96, 3, "mxfp8", "mxfp8")
    refuse(
        op, ValueError, r"b_tensor: expected K = 64 \(from a_tensor\)", b_tensor=other.b.tensor()
    )
    refuse(op, ValueError, "sfb_tensor: expected shape", sfb_tensor=other.b.scale())
    if op != "swiglu":
        wrong = column_tensor(other.column)
        refuse(op, ValueError, r"prob_tensor: expected M = 9 \(from a_tensor\)", prob_tensor=wrong)
    if op == "dsrelu":
        wrong = matrix_tensor(other.gradient, "float32", "n")
        refuse(op, ValueError, r"c_tensor: expected M = 9 \(from a_tensor\)", c_tensor=wrong)


@every_op
@pytest.mark.parametrize("dtype", ["float64", "int8", "int32"])
def test_dtypes_of_operands(op, dtype):
    wrong = np.zeros((9, 64, 2), dtype)
    refuse(op, ValueError, f"a_tensor: expected dtype one of .*, got {dtype}", a_tensor=wrong)


@every_op
@pytest.mark.parametrize("formats", [("mxfp8", 16), ("nvfp4", 32)])
def test_block_lengths_go_with_elements_and_scales(op, formats):
    name, vec = formats
    call = make_call(9, 64, 64, 1, name, name)
    given = arguments(op, call) | {"sf_vec_size": vec}
    with pytest.raises(ValueError, match="sf_vec_size: expected .* for a_tensor"):
        wrapper(op)(**given)


@every_op
@pytest.mark.parametrize(
    "tile, text",
    [
        ((64, 128), r"mma_tiler_mn\[0\]: expected one of 128, 256, got 64"),
        ((128, 48), r"mma_tiler_mn\[1\]: expected one of"),
        ((128,), "mma_tiler_mn: expected a pair"),
        (128, "mma_tiler_mn: expected a pair"),
    ],
)
def test_tiles(op, tile, text):
    refuse(op, ValueError, text, mma_tiler_mn=tile)


@every_op
@pytest.mark.parametrize(
    "cluster, text",
    [
        ((3, 1), r"cluster_shape_mn\[0\]: expected one of"),
        ((8, 4), "cluster_shape_mn: expected a product of at most 16"),
        (2, "cluster_shape_mn: expected a pair"),
    ],
)
def test_clusters(op, cluster, text):
    refuse(op, ValueError, text, cluster_shape_mn=cluster)


@every_op
def test_upstreams_legal_hints_are_accepted(op):
    call = make_call(9, 64, 64, 2, "mxfp8", "mxfp8")
    for tile in ((128, 64), (256, 192), (256, 256)):
        wrapper(op)(
            **arguments(op, call), mma_tiler_mn=tile, cluster_shape_mn=(4, 4), vector_f32=True
        )


@every_op
@pytest.mark.parametrize("alpha", ["2", None, 1j, b"1", [1.0], object(), np.zeros(2)])
def test_alpha_is_a_number(op, alpha):
    refuse(op, TypeError, "alpha: expected a number known on the host", alpha=alpha)


@every_op
def test_alpha_on_a_device_is_not_read(op):
    class Elsewhere:
        device = type("device", (), {"type": "cuda", "__str__": lambda self: "cuda:0"})()

        def __float__(self):
            raise AssertionError("read from the device")

    refuse(op, ValueError, "alpha: expected a number on the host.*cuda:0", alpha=Elsewhere())


@every_op
@pytest.mark.parametrize("dtype", [None, "float33", 3, object, "int8", "float64"])
def test_dtype_arguments(op, dtype):
    names = {
        "swiglu": ("c_dtype", "ab12_dtype"),
        "srelu": ("c_dtype", "d_dtype"),
        "dsrelu": ("d_dtype",),
    }
    for name in (*names[op], "acc_dtype"):
        if name == "ab12_dtype" and dtype is None:
            continue
        refuse(op, ValueError, f"{name}: expected", **{name: dtype})


@every_op
@pytest.mark.parametrize("major", ["k", None, 1, ["n"]])
def test_majors(op, major):
    name = "d_major" if op == "dsrelu" else "c_major"
    refuse(op, ValueError, f"{name}: expected one of 'm', 'n'", **{name: major})


@every_op
def test_no_device(op):
    """Everything is right but the machine: RuntimeError that lists the engines."""
    call = make_call(9, 64, 64)
    given = {
        name: x
        if not hasattr(x, "shape")
        else TensorDesc.of(x.dtype, x.shape, [s // x.itemsize for s in x.strides], "cuda:7", name)
        for name, x in arguments(op, call).items()
    }
    contract = getattr(dense, f"Gemm{op.capitalize()}").op.contract
    descs = [given.get(operand.name) for operand in contract.inputs]
    problem = contract.bind(descs, {})
    from cudnn_core.engine import select

    with pytest.raises(RuntimeError, match="no engine runs this on cuda:7"):
        select(getattr(dense, f"Gemm{op.capitalize()}").op.engines, problem)


# --- single ops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 32, 40, 96])
def test_swiglu_columns_come_in_groups(n):
    """Upstream computes wrong columns for these; halves that lie side by side mean something."""
    call = make_call(9, n, 64)
    refuse("swiglu", ValueError, rf"b_tensor: expected N a multiple of 64 .*got N = {n}", call)
    wrapper("swiglu")(**arguments("swiglu", call), glu_layout="concatenated")
    refuse(
        "swiglu",
        ValueError,
        "b_tensor: expected N a multiple of 2",
        make_call(9, 7, 64),
        glu_layout="concatenated",
    )


@pytest.mark.parametrize("layout", ["split", None, 1, ["interleaved"]])
def test_swiglu_layouts(layout):
    refuse("swiglu", ValueError, "glu_layout: expected one of", glu_layout=layout)


def test_swiglu_float16_sums():
    refuse("swiglu", ValueError, "acc_dtype: expected float32", acc_dtype="float16")
    call = make_call(9, 64, 64)
    refuse(
        "swiglu",
        ValueError,
        "acc_dtype: .*got float16 with a_tensor bfloat16",
        call,
        acc_dtype="float16",
    )
    call = make_call(9, 64, 64, 1, "float8_e4m3fn", "float8_e4m3fn")
    wrapper("swiglu")(**arguments("swiglu", call), acc_dtype="float16")


@pytest.mark.parametrize("op", ["srelu", "dsrelu"])
def test_prob(op):
    call = make_call(9, 64, 64, 2, "mxfp8", "mxfp8")
    prob = column_tensor(call.column)
    refuse(
        op,
        ValueError,
        "prob_tensor: expected dtype float32, got float16",
        prob_tensor=prob.astype(np.float16),
    )
    refuse(op, ValueError, r"prob_tensor: expected rank 3 \(M, 1, L\)", prob_tensor=prob[:, 0])
    refuse(
        op,
        ValueError,
        r"prob_tensor: expected shape \(M, 1, L\), got",
        prob_tensor=np.zeros((9, 2, 2), np.float32),
    )
    refuse(op, ValueError, "prob_tensor: expected a tensor, got None", prob_tensor=None)
    refuse(op, TypeError, "prob_tensor: expected a tensor, got 3", prob_tensor=3)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint8", "float64"])
def test_dsrelu_gradient(dtype):
    wrong = np.zeros((9, 64, 2), np.uint8).view("uint8")
    if dtype != "uint8":
        import ml_dtypes

        wrong = np.zeros((9, 64, 2), getattr(ml_dtypes, dtype, dtype))
    refuse("dsrelu", ValueError, f"c_tensor: expected dtype .*got {dtype}", c_tensor=wrong)


def test_swiglu_class_names_its_columns():
    call = make_call(9, 128, 64)
    a, b = call.a.tensor(), call.b.tensor()
    ab12, c = np.zeros((9, 128, 1), np.float32), np.zeros((9, 128, 1), np.float16)
    with pytest.raises(
        ValueError, match=r"sample_c: expected N/2 = 64 \(from sample_b\), got N/2 = 128"
    ):
        dense.GemmSwiglu(a, b, ab12, c).check_support()
    with pytest.raises(ValueError, match=r"sample_c: expected a tensor, got None"):
        dense.GemmSwiglu(a, b, ab12, None).check_support()


@every_op
def test_run_time_numbers_cost_nothing(op):
    """200 calls that differ in M and alpha: one plan; alpha is in no remembered call."""
    made = getattr(dense, f"Gemm{op.capitalize()}").op
    made.forget()
    for i in range(40):
        call = make_call(1 + i % 4, 64, 8, 1)
        wrapper(op)(
            **arguments(op, call), alpha=[0.1 * i, np.float32(i), np.array(i), math.nan][i % 4]
        )
    assert len(made._prepared) == 4
    engine = made.engines[0]
    plans = set()
    for m in (1, 2, 3):
        given = arguments(op, make_call(m, 64, 8, 1))
        inputs = [given.get(operand.name) for operand in made.contract.inputs]
        plans.add(engine.plan(made.bind(inputs, ())[1]))
    assert len(plans) == 1
