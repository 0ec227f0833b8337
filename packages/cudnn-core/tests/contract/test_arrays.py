"""Arrays of any strides: extents with an offset, aliases, what an output is made like, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_core.contract import Array, Contract, Dims
from cudnn_core.contract.arrays import dense_like, symbol_and_offset
from cudnn_core.contract.operands import addresses_once
from cudnn_core.dtypes import FLOAT32, INT32
from cudnn_core.tensor_desc import Device, TensorDesc
from cudnn_core.testing.channels import CONTRACT, STORE_CONTRACT


def desc(shape, dtype="float32", stride=None):
    return TensorDesc.of(dtype, shape, stride)


def bind(x=(2, 5, 7), weight=(5,), offset=None, bounds=None, **attributes):
    given = [desc(s) if s else None for s in (x, weight, offset)]
    return CONTRACT.bind([*given, desc(bounds, "int32") if bounds else None], attributes)


@pytest.mark.parametrize("text, parts", [("W", ("W", 0)), ("W-1", ("W", -1)), ("N+12", ("N", 12))])
def test_extents_with_an_offset(text, parts):
    assert symbol_and_offset(text) == parts


def test_a_symbol_may_be_another_name_of_one():
    assert bind().dims == {"B": 2, "D": 5, "T": 7, "R": 2}
    problem = bind(x=(1, 5, 7), bounds=(4,), totals=True)
    assert problem.dims["R"] == problem.dims["N"] == 3
    assert problem.outputs[1].shape == (3, 5) and problem.outputs[1].stride == (1, 3)


def test_dims_with_aliases():
    dims = Dims({"R": "N"})
    assert "R" not in dims
    dims.bind("R", 3, "x")
    assert (dims["N"], dims["R"], dims.source("R"), dims.spelled("R+1")) == (3, 3, "x", "N+1")
    assert not dims.admits("N", 4) and not dims.admits("M", -1) and dims.admits("M", 0)
    with pytest.raises(KeyError):
        _ = dims["M"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"x": (5, 7)}, r"x: expected rank 3 \(B, D, T\), got shape \(5, 7\)"),
        ({"weight": (4,)}, r"weight: expected shape \(D,\) = \(5,\), got \(4,\)"),
        ({"bounds": (0,)}, r"bounds: expected shape \(N\+1,\) = \(any,\)"),
    ],
)
def test_shapes(changes, message):
    with pytest.raises(ValueError, match=message):
        bind(**changes)


def test_a_refused_dtype_has_the_operands_exception():
    with pytest.raises(ValueError, match="x: expected dtype one of float32, float64, got int32"):
        CONTRACT.bind([desc((2, 5, 7), "int32"), desc((5,)), None, None], {})
    with pytest.raises(TypeError, match="bounds: expected dtype one of int32, got int64"):
        CONTRACT.bind([desc((1, 5, 7)), desc((5,)), None, desc((2,), "int64")], {})


def test_packed_arrays_have_no_gaps():
    with pytest.raises(ValueError, match="bounds: expected a contiguous array"):
        CONTRACT.bind([desc((1, 5, 7)), desc((5,)), None, desc((2,), "int32", (2,))], {})


@pytest.mark.parametrize("stride", [(0, 1), (5, 0), (1, 1)])
def test_what_is_written_in_place_has_no_element_twice(stride):
    with pytest.raises(ValueError, match="store: expected strides that address each element once"):
        STORE_CONTRACT.bind([desc((2, 5)), desc((2, 5), stride=stride)], {})
    assert STORE_CONTRACT.bind([desc((0, 5)), desc((0, 5), stride=stride)], {}).is_empty


@pytest.mark.parametrize("stride", [(-5, 1), (1, 2), (100, 7)])
def test_other_strides_are_legal(stride):
    problem = STORE_CONTRACT.bind([desc((2, 5), stride=stride), desc((2, 5), stride=stride)], {})
    assert problem.dims == {"N": 2, "D": 5, "S": 1}


def test_only_vital_extents_make_a_problem_empty():
    assert bind(x=(0, 5, 7)).is_empty and not bind(x=(1, 5, 7), bounds=(1,)).is_empty


def test_early_rules_come_before_tensors():
    def refuse(given, attributes):
        raise ValueError(f"early: {sorted(given)}")

    contract = Contract("core/x", CONTRACT.operands[:2], (), early=(refuse,))
    with pytest.raises(ValueError, match=r"early: \['x'\]"):
        contract.bind([desc((5,)), None], {})


@pytest.mark.parametrize(
    "shape, stride, expected",
    [
        ((2, 5, 7), (35, 7, 1), (35, 7, 1)),
        ((2, 5, 7), (35, 1, 5), (35, 1, 5)),
        ((2, 5, 7), (70, 14, 2), (35, 7, 1)),
        ((2, 5, 7), (100, 1, 9), (35, 1, 5)),
        ((1, 5, 7), (10**9, 7, 1), (10**9, 7, 1)),
        ((2, 5, 7), (0, 7, 1), (35, 7, 1)),
        ((2, 5, 7), (-35, 7, -1), (35, 7, 1)),
        ((2, 0, 7), (9, 9, 1), (7, 14, 1)),
        ((), (), ()),
    ],
)
def test_memory_order_of_an_output(shape, stride, expected):
    assert dense_like(shape, stride) == expected


@given(st.lists(st.integers(1, 4), max_size=4), st.randoms())
def test_an_output_is_dense_and_keeps_the_order(shape, random):
    order = list(range(len(shape)))
    random.shuffle(order)
    stride, step = [0] * len(shape), 1
    for axis in order:
        stride[axis] = step
        step *= shape[axis] + random.randint(0, 2)
    made = dense_like(tuple(shape), tuple(stride))
    assert addresses_once(tuple(shape), made)
    long = [axis for axis in order if shape[axis] > 1]
    assert sorted(long, key=lambda axis: made[axis]) == long


def test_outputs_take_dtype_and_order():
    operand = Array("y", ("B",), output=True, dtypes=(FLOAT32, INT32), dtype_of="i")
    made = operand.make({"B": 3}, {}, Device("cpu"), {"i": desc((1,), "int32")})
    assert (made.dtype, made.shape, made.stride) == (INT32, (3,), (1,))
