"""TensorDesc and stride arithmetic, compared with NumPy's and torch's own."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cudnn_core.dtypes import FLOAT4_E2M1FN, FLOAT32, UINT8
from cudnn_core.tensor_desc import (
    Device,
    TensorDesc,
    as_device,
    canonical_stride,
    contiguous_stride,
    logical_fp4,
    physical_fp4,
    stride_order,
)

shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)


@st.composite
def strided(draw):
    """(shape, stride) of a permuted, sliced and partly broadcast array."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    steps = [draw(st.integers(1, 2)) for _ in shape]
    big = np.zeros([extent * step for extent, step in zip(shape, steps, strict=True)], np.int8)
    x = big[tuple(slice(None, None, step) for step in steps)]
    x = x.transpose(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        x = np.broadcast_to(x, (3, *x.shape))
    return x.shape, x.strides


def of(shape, stride=None, **fields):
    return TensorDesc.of("float32", shape, stride, **fields)


def test_device_spells_itself():
    assert str(Device("cpu")) == "cpu"
    assert str(Device("cuda", 1)) == "cuda:1"
    assert as_device("cuda:1") == Device("cuda", 1)
    assert as_device("cpu") == Device("cpu")
    assert hash(Device("cuda", 1)) == hash(as_device("cuda:1"))


@pytest.mark.parametrize("bad", [None, 0, "", ":1", "cuda:", "cuda:x", object()])
def test_what_is_no_device_is_a_type_error(bad):
    with pytest.raises(TypeError, match="device"):
        of((2,), device=bad)


def test_a_torch_device_is_a_device():
    torch = pytest.importorskip("torch")
    assert of((2,), device=torch.device("cuda:3")).device == Device("cuda", 3)
    assert of((2,), device=torch.device("cpu")).device == Device("cpu")


@settings(deadline=None)
@given(shapes)
def test_contiguous_strides_are_products_of_later_extents(shape):
    stride = contiguous_stride(shape)
    assert stride == tuple(int(np.prod(shape[d + 1 :], dtype=int)) for d in range(len(shape)))
    assert of(shape).is_contiguous()


@pytest.mark.parametrize("stride", [(8, 1, 1), (8, 1, 8), (8, 1, 32), (8, 1, 0), (8, 1, 10**9)])
def test_strides_of_unit_dims_do_not_matter(stride):
    assert canonical_stride((4, 8, 1), stride) == (8, 1, 32)


def test_canonical_strides_leave_other_dims_alone():
    assert canonical_stride((1, 1, 1), (5, 6, 7)) == (1, 1, 1)
    assert canonical_stride((3, 0, 1), (9, 1, 1)) == (9, 1, 0)
    assert canonical_stride((3, 5), (7, 2)) == (7, 2)
    assert canonical_stride((), ()) == ()


def test_stride_order_is_innermost_first_with_ties_by_extent_then_index():
    assert stride_order((16, 32, 2), (32, 1, 512)) == (1, 0, 2)
    assert stride_order((16, 32, 2), (1, 16, 512)) == (0, 1, 2)
    assert stride_order((16, 1, 1), (1, 1, 1)) == (1, 2, 0)
    assert stride_order((4, 4), (1, 1)) == (0, 1)


@settings(deadline=None)
@given(strided())
def test_stride_order_sorts_strides(case):
    shape, stride = case
    order = stride_order(shape, stride)
    assert sorted(order) == list(range(len(shape)))
    pairs = [(stride[d], shape[d]) for d in order]
    assert pairs == sorted(pairs)


# FP4


def test_packed_fp4_doubles_the_packed_extent_and_the_other_strides():
    assert logical_fp4((16, 32, 2), (32, 1, 512)) == ((16, 64, 2), (64, 1, 1024))
    assert logical_fp4((8, 32, 2), (1, 8, 256)) == ((16, 32, 2), (1, 16, 512))


def test_the_stride_of_a_unit_dim_does_not_pick_the_packed_one():
    # M = 1 with row stride 1 (hostile strides), and one batch with stride 1
    assert logical_fp4((1, 32, 1), (1, 1, 1))[0] == (1, 64, 1)
    assert logical_fp4((4, 16, 1), (16, 1, 1))[0] == (4, 32, 1)
    # an empty packed dim
    assert logical_fp4((8, 0), (1, 1))[0] == (8, 0)
    assert logical_fp4((0, 4), (4, 1))[0] == (0, 8)


def test_the_caller_may_know_the_packed_dim():
    assert logical_fp4((8, 1, 1), (1, 1, 8), axis=1) == ((8, 2, 1), (2, 1, 16))


def test_packed_fp4_needs_a_dense_dim():
    with pytest.raises(RuntimeError, match="stride 1"):
        logical_fp4((4, 8), (16, 2))


def test_codes_that_cannot_be_paired_are_refused():
    with pytest.raises(ValueError, match="even extent"):
        physical_fp4((4, 7), (7, 1))
    with pytest.raises(ValueError, match="even strides"):
        physical_fp4((4, 8), (9, 1))
    assert physical_fp4((1, 8), (9, 1)) == ((1, 4), (4, 1))  # a unit dim may have any stride


@settings(deadline=None)
@given(strided())
def test_physical_undoes_logical(case):
    shape, stride = case
    assume(sum(s == 1 for s in stride) == 1)
    assert physical_fp4(*logical_fp4(shape, stride)) == (shape, stride)


def test_uint8_seen_as_fp4():
    desc = TensorDesc.of("uint8", (4, 16), device="cuda:1", name="a").as_fp4()
    assert desc.dtype is FLOAT4_E2M1FN
    assert (desc.shape, desc.stride, desc.interpret_uint8_as_fp4x2) == ((4, 32), (32, 1), True)
    assert (str(desc.device), desc.name) == ("cuda:1", "a")
    with pytest.raises(ValueError, match="b: expected uint8, got float32"):
        of((4, 16), name="b").as_fp4()


# construction


def test_fields_come_in_the_agreed_order():
    names = [field.name for field in dataclasses.fields(TensorDesc)]
    assert names == [
        "dtype",
        "shape",
        "stride",
        "stride_order",
        "device",
        "interpret_uint8_as_fp4x2",
        "name",
    ]
    desc = TensorDesc(np.float32, [2, np.int64(3)], [3, 1], [1, 0], "cuda:0")
    assert desc.dtype is FLOAT32
    assert (desc.shape, desc.stride, desc.stride_order) == ((2, 3), (3, 1), (1, 0))
    assert (desc.ndim, desc.interpret_uint8_as_fp4x2, desc.name) == (2, False, "")
    assert all(type(extent) is int for extent in desc.shape)


def test_a_descriptor_is_frozen_hashable_and_compares_by_value():
    a, b = of((4, 8), (8, 1)), of([4, 8], [8, 1])
    assert a == b and hash(a) == hash(b) and len({a, b}) == 1
    assert a != of((4, 8), (1, 4))
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.shape = (1,)
    with pytest.raises(AttributeError, match="no_such"):
        a.no_such  # noqa: B018
    assert "stride_order=(1, 0)" in repr(a)


@pytest.mark.parametrize(
    "shape, stride, order, message",
    [
        ((2, 3), (1,), None, "x: stride: expected 2 entries"),
        ((2, 3), (3, 1), (0,), "x: stride_order: expected a permutation"),
        ((2, 3), (3, 1), (0, 0), "x: stride_order"),
        ((2, 3), (3, 1), (1, 2), "x: stride_order"),
        ((-2, 3), (3, 1), None, "x: shape: expected extents of 0 or more"),
    ],
)
def test_ranks_and_orders_must_fit(shape, stride, order, message):
    with pytest.raises(ValueError, match=message):
        TensorDesc("float32", shape, stride, order, "cpu", name="x")


@pytest.mark.parametrize("bad", [5, None, "ab", (2.0,), (None,), ("2",), (float("nan"),), (1j,)])
def test_extents_and_strides_are_integers(bad):
    with pytest.raises(TypeError, match="x: shape: expected integers, got"):
        TensorDesc.of("float32", bad, name="x")
    with pytest.raises(TypeError, match="x: shape: expected integers, got"):
        TensorDesc("float32", bad, (1,), None, "cpu", name="x")
    if bad is not None:
        with pytest.raises(TypeError, match="x: stride: expected integers, got"):
            TensorDesc.of("float32", (2,), bad, name="x")


def test_stride_order_is_not_derived_before_it_is_asked_for():
    class Symbol:
        """As a traced extent: it may be stored, but neither compared nor hashed."""

        def __eq__(self, other):
            raise AssertionError("compared")

        __lt__ = __eq__
        __hash__ = None

    size = Symbol()
    desc = TensorDesc("float32", (size, 4), (4, 1), None, "cpu", name="x")
    assert desc.shape[0] is size
    assert desc.permute(1, 0).shape[1] is size
    with pytest.raises(AssertionError, match="compared"):
        TensorDesc("float32", (size, 4), (1, 1), None, "cpu").stride_order  # noqa: B018


# methods, against torch


def meta(shape, stride):
    torch = pytest.importorskip("torch")
    return torch.empty_strided(shape, stride, device="meta")


def assert_same(desc, tensor):
    """Shape, and the strides of dims that are longer than 1."""
    assert desc.shape == tuple(tensor.shape)
    for extent, got, want in zip(desc.shape, desc.stride, tensor.stride(), strict=True):
        assert extent == 1 or got == want


@settings(deadline=None)
@given(strided(), st.data())
def test_permute_transpose_squeeze_unsqueeze_as_torch(case, data):
    shape, stride = case
    desc, tensor = of(shape, stride), meta(shape, stride)
    order = data.draw(st.permutations(range(len(shape))))
    assert_same(desc.permute(*order), tensor.permute(*order))
    assert_same(desc.permute(order), tensor.permute(order))
    dim = st.integers(-len(shape), len(shape) - 1)
    a, b = data.draw(dim), data.draw(dim)
    assert_same(desc.transpose(a, b), tensor.transpose(a, b))
    assert_same(desc.squeeze(), tensor.squeeze())
    assert_same(desc.squeeze(a), tensor.squeeze(a))
    at = data.draw(st.integers(-len(shape) - 1, len(shape)))
    assert desc.unsqueeze(at).shape == tuple(tensor.unsqueeze(at).shape)
    assert desc.size() == shape and desc.size(a) == tensor.size(a) and len(desc) == len(tensor)


@settings(deadline=None)
@given(strided())
def test_contiguity_as_torch(case):
    shape, stride = case
    desc, tensor = of(shape, stride), meta(shape, stride)
    assert desc.is_contiguous() == tensor.is_contiguous()
    assert_same(desc.contiguous(), tensor.contiguous())


def test_channels_last():
    torch = pytest.importorskip("torch")
    for shape, form in (
        ((2, 3, 4, 5), torch.channels_last),
        ((2, 3, 4, 5, 6), torch.channels_last_3d),
    ):
        x = torch.empty(shape, device="meta")
        dense, last = of(shape, x.stride()), of(shape, x.to(memory_format=form).stride())
        assert (dense.is_contiguous(form), last.is_contiguous(form)) == (False, True)
        assert (dense.is_contiguous(), last.is_contiguous()) == (True, False)
        assert last.is_contiguous(str(form)) and not of((2, 3)).is_contiguous(form)
    with pytest.raises(ValueError, match="memory_format"):
        of((2, 3)).is_contiguous(torch.preserve_format)


@settings(deadline=None)
@given(strided(), st.data())
def test_view_as_torch(case, data):
    shape, stride = case
    total = int(np.prod(shape))
    factors = [f for f in range(1, total + 1) if total % f == 0]
    first = data.draw(st.sampled_from(factors))
    second = data.draw(st.sampled_from([f for f in factors if (total // first) % f == 0]))
    wanted = [first, second, total // first // second]
    if data.draw(st.booleans()):
        wanted[data.draw(st.integers(0, 2))] = -1
    desc, tensor = of(shape, stride), meta(shape, stride)
    try:
        expected = tensor.view(wanted)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="view"):
            desc.view(*wanted)
    else:
        assert_same(desc.view(*wanted), expected)


@pytest.mark.parametrize("wanted", [(5,), (-1, -1), (-1, 5), (-2, -6), (0, -1)])
def test_views_that_do_not_fit(wanted):
    with pytest.raises(RuntimeError, match="view"):
        of((3, 4)).view(wanted)


def test_views_of_nothing():
    assert of((0, 3)).view(3, 0).shape == (3, 0)
    assert of((0, 3)).view(-1).shape == (0,)
    assert of(()).view(1, 1).shape == (1, 1)


def test_as_strided():
    assert of((4, 4)).as_strided((2, 2), (4, 2)).stride == (4, 2)
    with pytest.raises(RuntimeError, match="storage_offset"):
        of((4, 4)).as_strided((2, 2), (4, 2), 1)


def test_metadata_methods_refuse_what_torch_refuses():
    desc = of((2, 3))
    with pytest.raises(TypeError, match="0-d"):
        len(of(()))
    with pytest.raises(IndexError, match="dimension 2"):
        desc.size(2)
    with pytest.raises(IndexError):
        desc.transpose(0, -3)
    with pytest.raises(RuntimeError, match="expected 2 dims"):
        desc.permute(0)
    with pytest.raises(RuntimeError, match="repeated"):
        desc.permute(0, 0)


def test_methods_keep_the_other_fields():
    desc = TensorDesc(UINT8, (1, 4), (4, 1), None, "cuda:1", True, "a")
    for made in (desc.permute(1, 0), desc.squeeze(), desc.view(4), desc.contiguous()):
        kept = (made.dtype, made.device, made.interpret_uint8_as_fp4x2, made.name)
        assert kept == (UINT8, Device("cuda", 1), True, "a")
    assert desc.unsqueeze(2).stride == (4, 1, 1)
    assert desc.unsqueeze(0).stride == (4, 4, 1)
    assert bool(of((0,)))


def test_all_orders_of_a_compact_tensor():
    for order in itertools.permutations(range(3)):
        shape = (2, 3, 4)
        stride, step = [0] * 3, 1
        for d in order:
            stride[d], step = step, step * shape[d]
        assert of(shape, stride).stride_order == order
