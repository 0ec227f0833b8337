"""The NumPy adapter: views of every kind, allocation with exact strides, packed FP4."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_core.adapters import adapter_of
from cudnn_core.dtypes import as_dtype
from cudnn_core.tensor_desc import Device, TensorDesc

ADAPTER = adapter_of(np.zeros(1))
CUDA0 = Device("cuda", 0)


@st.composite
def views(draw):
    """A view with offset, steps (negative ones too), permuted dims and possibly empty extents."""
    dtype = draw(st.sampled_from([np.float32, np.int64, np.uint8, ml_dtypes.bfloat16]))
    base = np.arange(6 * 7 * 8).astype(dtype).reshape(6, 7, 8)
    index = tuple(
        slice(draw(st.integers(0, 3)), draw(st.integers(0, 6)), draw(st.integers(1, 2)))
        for _ in range(3)
    )
    x = base[index].transpose(draw(st.permutations(range(3))))
    return x[::-1] if draw(st.booleans()) else x


@settings(deadline=None)
@given(views())
def test_views_are_described_in_elements(x):
    desc = ADAPTER.describe(x, "x")
    assert (desc.shape, desc.dtype, desc.name) == (x.shape, as_dtype(x.dtype), "x")
    assert desc.device == Device("cpu")
    address = ADAPTER.data_pointer(x)
    assert address == x.__array_interface__["data"][0]
    if x.size:
        last = tuple(extent - 1 for extent in x.shape)
        reach = sum((e - 1) * s for e, s in zip(desc.shape, desc.stride, strict=True))
        assert (
            ADAPTER.data_pointer(x[last[0] :, last[1] :, last[2] :]) == address + reach * x.itemsize
        )


@settings(deadline=None)
@given(views())
def test_the_key_separates_what_the_description_separates(x):
    same = ADAPTER.metadata(x) == ADAPTER.metadata(x.copy(order="C"))
    assert same == (ADAPTER.describe(x) == ADAPTER.describe(x.copy(order="C")))
    assert hash(ADAPTER.key([x, x])) == hash((ADAPTER.metadata(x), ADAPTER.metadata(x)))


def test_the_view_for_the_engine_is_the_array():
    x = np.zeros((3, 4), np.float32)[:, ::2]
    assert ADAPTER.to_numpy(x) is x


def test_strides_must_be_whole_elements():
    fields = np.zeros(4, [("a", "u1"), ("b", "f4")])
    with pytest.raises(ValueError, match="x: expected strides in whole elements of 4 bytes"):
        ADAPTER.describe(fields["b"], "x")


def test_dtypes_outside_the_set_name_the_argument():
    with pytest.raises(ValueError, match="x dtype: expected a dtype.*complex64"):
        ADAPTER.describe(np.zeros(3, np.complex64), "x")
    with pytest.raises(ValueError, match="x dtype"):
        ADAPTER.describe(np.zeros(3, ">f4"), "x")


def test_unpacked_fp4_points_to_quantize():
    with pytest.raises(ValueError, match=r"x: expected packed FP4.*cudnn\.quantize"):
        ADAPTER.describe(np.zeros(4, ml_dtypes.float4_e2m1fn), "x")


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.sampled_from(["float32", "bfloat16", "float8_e4m3fn", "uint8", "bool"]),
    st.integers(0, 3),
    st.data(),
)
def test_empty_has_exactly_the_strides_asked_for(shape, dtype, gap, data):
    order = data.draw(st.permutations(range(len(shape))))
    stride, step = [0] * len(shape), 1
    for d in order:
        stride[d], step = step, step * max(shape[d], 1) + gap
    desc = TensorDesc.of(dtype, shape, stride)
    out = ADAPTER.empty(desc)
    assert ADAPTER.describe(out) == desc
    assert out.flags.writeable
    out[...] = 1  # every element lies in the allocation
    assert (ADAPTER.full(desc, 1) == out).all()


def test_fp4_is_allocated_as_bytes():
    desc = TensorDesc.of("float4_e2m1fn", (3, 8, 2), (8, 1, 24))
    out = ADAPTER.full(desc, 1.5)
    assert (out.dtype, out.shape, out.strides) == (np.uint8, (3, 4, 2), (4, 1, 12))
    assert (out == 0x33).all()  # 1.5 is code 3, twice in a byte
    assert ADAPTER.describe(out).as_fp4().stride == desc.stride


@pytest.mark.parametrize("value", [0.0, 1.0, -np.inf, np.nan])
def test_full_converts_to_the_dtype(value):
    out = ADAPTER.full(TensorDesc.of("float32", (3,)), value)
    np.testing.assert_array_equal(out, np.full(3, value, np.float32))
    assert np.isnan(
        ADAPTER.full(TensorDesc.of("float8_e4m3fn", (2,)), np.nan).astype(np.float32)
    ).all()


def test_negative_strides_cannot_be_allocated():
    with pytest.raises(ValueError, match="c: cannot allocate negative strides"):
        ADAPTER.empty(TensorDesc.of("float32", (3,), (-1,), name="c"))


def test_zero_and_clamp():
    x = np.array([-1.0, np.nan, 2.0, -np.inf], np.float32)
    ADAPTER.clamp_min(x, 0.0)
    np.testing.assert_array_equal(x, [0.0, np.nan, 2.0, 0.0])
    ADAPTER.zero(x)
    assert not x.any()


def test_the_host_has_no_streams_modes_or_traces():
    x = np.zeros(3)
    assert ADAPTER.stream_handle(None, ADAPTER.device(x)) == 0
    assert ADAPTER.version(x) == 0
    assert ADAPTER.deterministic() == (False, False)
    assert not (ADAPTER.watches() or ADAPTER.is_subclass(x) or ADAPTER.needs_op([x]))
    ADAPTER.keep_alive([x, None], 0)
    calls = []
    launch = ADAPTER.launcher(lambda *arguments: calls.append(arguments), Device("cpu"))
    with ADAPTER.guard(CUDA0), ADAPTER.on_stream(None, CUDA0):
        launch((x, x), None)
    assert [len(arguments) for arguments in calls] == [3]
    assert calls[0][0] is x and calls[0][-1] == 0
