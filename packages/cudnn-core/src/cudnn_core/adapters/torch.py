"""The torch adapter. Imports torch; it is loaded when the first torch tensor comes."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import device_info, streams
from .base import NOTHING_TO_GUARD, Adapter, container, element
from ..dtypes import DType, as_dtype
from ..tensor_desc import Device, TensorDesc, logical_fp4

__all__ = ["TorchAdapter"]

HAS_FP4 = hasattr(torch, "float4_e2m1fn_x2")
PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
# Same-width integers under which NumPy sees what it has no type for.
BITS = {8: torch.uint8, 16: torch.int16}

_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_thread = threading.local()


class TorchAdapter(Adapter):
    """torch.Tensor on any device. FP4 is float4_e2m1fn_x2, or uint8 where torch lacks it or the caller asks."""

    name = "torch"

    def describe(self, x: Any, name: str = "") -> TensorDesc:
        dtype = as_dtype(x.dtype, f"{name or 'tensor'} dtype")
        if x.layout is not torch.strided:
            raise ValueError(f"{name or 'tensor'}: expected a strided tensor, got {x.layout}")
        shape, stride = tuple(x.shape), x.stride()
        if dtype.is_fp4:
            shape, stride = logical_fp4(shape, stride)
        return TensorDesc(dtype, shape, stride, None, _device(x.device), name=name)

    def metadata(self, x: Any) -> tuple:
        return x.dtype, x.shape, x.stride(), x.device

    def key(self, arrays: Iterable[Any]) -> tuple:
        return tuple([(x.dtype, x.shape, x.stride(), x.device) for x in arrays])

    def device(self, x: Any) -> Device:
        return _device(x.device)

    def allocator(self, desc: TensorDesc) -> Callable[[], Any]:
        dtype, shape, stride = container(desc, packed_dtype=HAS_FP4)
        place = torch.device(str(desc.device))
        return functools.partial(
            torch.empty_strided, shape, stride, dtype=dtype.torch(), device=place
        )

    def full(self, desc: TensorDesc, value: float) -> Any:
        out = self.empty(desc)
        if desc.dtype.is_fp4 or desc.dtype.is_float8:
            # torch refuses or rounds differently on some of these; their bytes are plain
            out.view(torch.uint8).fill_(int(element(desc.dtype, value).view("uint8")))
            return out
        return out.fill_(value)

    def data_pointer(self, x: Any) -> int:
        return x.data_ptr()

    def version(self, x: Any) -> int:
        return 0 if x.is_inference() else x._version

    def to_numpy(self, x: Any) -> Any:
        if x.device.type != "cpu":
            raise ValueError(f"expected a tensor on the CPU, got one on {x.device}")
        x = x.detach()
        bits, final = _numpy_view(as_dtype(x.dtype))
        return x.numpy() if bits is None else x.view(bits).numpy().view(final)

    def current_stream(self, device: Device) -> int:
        if device.type != "cuda":
            return 0
        return torch._C._cuda_getCurrentRawStream(device.index)

    def guard(self, device: Device) -> contextlib.AbstractContextManager:
        if device.type != "cuda":
            return NOTHING_TO_GUARD
        if torch.cuda.current_device() != device.index:
            return torch.cuda.device(device.index)
        if not hasattr(_thread, "has_context"):
            # Autograd's worker threads start without a context, and asking torch for the device makes none.
            device_info.ensure_context(device.index)
            _thread.has_context = True
        return NOTHING_TO_GUARD

    def on_stream(self, handle: int, device: Device) -> contextlib.AbstractContextManager:
        if device.type != "cuda":
            return NOTHING_TO_GUARD
        current = self.current_stream(device)
        if handle == current or (streams.is_default(handle) and streams.is_default(current)):
            return self.guard(device)
        return torch.cuda.stream(_stream(handle, device))

    def keep_alive(self, arrays: Iterable[Any], handle: int) -> None:
        for x in arrays:
            if x is not None and x.is_cuda:
                x.record_stream(_stream(handle, _device(x.device)))

    def is_traced(self, x: Any) -> bool:
        """Whether torch is compiling, a dispatch mode watches, or a functorch transform is on; any tensor."""
        return (
            # First: under dynamo it is a constant, and the other two cannot be traced.
            torch.compiler.is_compiling()
            or _dispatch_modes() > 0
            or _functorch_level() is not None
        )

    def is_subclass(self, x: Any) -> bool:
        return type(x) not in PLAIN_TYPES

    def deterministic(self) -> tuple[bool, bool]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )


    def needs_op(self, arrays: Iterable[Any]) -> bool:
        return self.is_traced(None) or any(type(x) not in PLAIN_TYPES for x in arrays)

    def op_door(self, op: Any, inputs: tuple, attributes: tuple, stream: Any) -> Any:
        from ..doors import torch_op

        return torch_op.call(op, inputs, attributes, stream)

    def launcher(
        self, executable: Callable[..., None], device: Device
    ) -> Callable[[Iterable[Any], Any], None]:
        call = getattr(executable, "call", executable)
        index = device.index
        stream_of, current_device = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice

        def launch(arrays: Iterable[Any], stream: Any) -> None:
            handle = stream_of(index) if stream is None else streams.handle_of(stream, device)
            if current_device() == index and hasattr(_thread, "has_context"):
                call(*arrays, handle)
            else:
                with self.guard(device):
                    call(*arrays, handle)

        return launch

    def zero(self, x: Any) -> None:
        x.view(torch.uint8).zero_() if x.element_size() == 1 else x.zero_()

    def clamp_min(self, x: Any, bound: float) -> None:
        x.clamp_(min=bound)


@functools.cache
def _device(device: torch.device) -> Device:
    return Device(device.type, device.index)


@functools.cache
def _numpy_view(dtype: DType) -> tuple[torch.dtype | None, Any]:
    """(integer dtype to view as first, NumPy dtype to view as then); None where NumPy has the dtype."""
    if dtype.is_fp4:
        return torch.uint8, "uint8"
    if dtype.is_float8 or dtype.name == "bfloat16":
        return BITS[dtype.bits], dtype.numpy()
    return None, None


def _stream(handle: int, device: Device) -> torch.cuda.Stream:
    """The torch stream of a handle. ExternalStream(0) is another stream in some torch versions: never used."""
    default = torch.cuda.default_stream(device.index)
    if streams.is_default(handle) or handle == default.cuda_stream:
        return default
    current = torch.cuda.current_stream(device.index)
    if handle == current.cuda_stream:
        return current
    return torch.cuda.ExternalStream(handle, device=device.index)
