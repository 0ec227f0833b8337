"""streams: the table of stream arguments, with stand-ins for objects that need a GPU."""

import types

import pytest

from cudnn_core.adapters.base import Adapter
from cudnn_core.streams import handle_of, is_default
from cudnn_core.tensor_desc import Device

CUDA0 = Device("cuda", 0)


def fake(kind, module, **members):
    return type(kind, (), {"__module__": module, **members})()


class WithCurrentStream(Adapter):
    """An adapter whose current stream is 77."""

    name = "fake"
    describe = metadata = device = allocator = data_pointer = to_numpy = namespace = None

    def current_stream(self, device):
        assert device == CUDA0
        return 77


@pytest.mark.parametrize("handle", [0, 1, 0x7F00_0000_1230])
def test_an_int_is_its_own_handle(handle):
    assert handle_of(handle, CUDA0) == handle


def test_none_is_the_current_stream_of_the_framework():
    adapter = WithCurrentStream()
    assert adapter.stream_handle(None, CUDA0) == 77
    assert adapter.stream_handle(0, CUDA0) == 0


@pytest.mark.parametrize(
    "module, kind", [("cuda.bindings.driver", "CUstream"), ("cuda.cuda", "CUstream")]
)
def test_a_custream_gives_its_integer(module, kind):
    assert handle_of(fake(kind, module, __int__=lambda self: 48), CUDA0) == 48


def test_a_real_custream():
    driver = pytest.importorskip("cuda.bindings.driver")
    assert handle_of(driver.CUstream(0x1230), CUDA0) == 0x1230
    with pytest.raises(ValueError, match="per-thread"):
        handle_of(driver.CUstream(2), CUDA0)


@pytest.mark.parametrize("protocol", [lambda self: (0, 96), (0, 96)], ids=["method", "attribute"])
def test_the_cuda_stream_protocol(protocol):
    assert handle_of(fake("Stream", "somewhere", __cuda_stream__=protocol), CUDA0) == 96


def test_another_version_of_the_protocol_is_refused():
    stream = fake("Stream", "somewhere", __cuda_stream__=lambda self: (1, 96))
    with pytest.raises(ValueError, match="current_stream: expected version 0"):
        handle_of(stream, CUDA0, "current_stream")


@pytest.mark.parametrize(
    "stream", [2, fake("S", "x", __cuda_stream__=(0, 2))], ids=["int", "protocol"]
)
def test_the_per_thread_stream_is_refused(stream):
    with pytest.raises(ValueError, match="stream: the per-thread default stream"):
        handle_of(stream, CUDA0)


def test_a_negative_handle_is_refused():
    with pytest.raises(ValueError, match="stream: expected a stream handle, got -1"):
        handle_of(-1, CUDA0)


@pytest.mark.parametrize("stream", [True, 1.0, "0", object(), [0]], ids=lambda x: type(x).__name__)
def test_what_is_no_stream_is_a_type_error(stream):
    with pytest.raises(TypeError, match=r"current_stream: expected None, an int.*got builtins\."):
        handle_of(stream, CUDA0, "current_stream")


class FakeTorchStream:
    def __init__(self, device, handle):
        self.device, self.cuda_stream = device, handle


@pytest.fixture
def torch_stream(monkeypatch):
    """Makes stand-ins that count as torch streams on a machine without a GPU."""
    monkeypatch.setitem(
        __import__("sys").modules, "torch", types.SimpleNamespace(Stream=FakeTorchStream)
    )
    return FakeTorchStream


def test_a_torch_stream_must_be_on_the_device_of_the_tensors(torch_stream):
    assert handle_of(torch_stream(CUDA0, 64), CUDA0) == 64
    assert handle_of(torch_stream(Device("cuda", 1), 64), Device("cpu")) == 64
    with pytest.raises(ValueError, match=r"stream: expected a stream of cuda:0.*got one of cuda:1"):
        handle_of(torch_stream(Device("cuda", 1), 64), CUDA0)


def test_a_torch_stream_of_another_kind_is_a_type_error(torch_stream):
    with pytest.raises(TypeError, match="expected a CUDA stream, got a stream of xpu:0"):
        handle_of(torch_stream(Device("xpu", 0), 64), CUDA0)


def test_a_generic_torch_stream_has_its_handle_elsewhere(torch_stream):
    stream = torch_stream(CUDA0, None)
    stream.native_handle = 65
    assert handle_of(stream, CUDA0) == 65


def test_names_of_the_legacy_default_stream():
    assert [is_default(handle) for handle in (0, 1, 2, 64)] == [True, True, False, False]


@pytest.mark.gpu
def test_torch_streams_on_a_gpu():
    torch = pytest.importorskip("torch")
    side = torch.cuda.Stream()
    assert handle_of(side, CUDA0) == side.cuda_stream
    assert handle_of(torch.cuda.default_stream(), CUDA0) == 0
    assert handle_of(torch.cuda.ExternalStream(side.cuda_stream), CUDA0) == side.cuda_stream
