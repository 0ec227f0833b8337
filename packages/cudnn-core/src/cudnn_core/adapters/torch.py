"""The torch adapter. Imports torch; it is loaded when the first torch tensor comes."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from .. import device_info, streams
from ..dtypes import DType, as_dtype
from ..tensor_desc import Device, TensorDesc, logical_fp4
from .base import NOTHING_TO_GUARD, Adapter, container, element

__all__ = ["ADAPTER", "TorchAdapter"]

HAS_FP4 = hasattr(torch, "float4_e2m1fn_x2")
# None stands for an absent operand.
PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))
# Same-width integers under which NumPy sees what it has no type for.
BITS = {8: torch.uint8, 16: torch.int16}

# Not public, so another torch may lack it.
_empty_on_current_gpu = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
_holds = getattr(torch._C, "_storage_Use_Count", None)
_data_pointer = torch.Tensor.data_ptr
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_thread = threading.local()


class TorchAdapter(Adapter):
    """torch.Tensor on any device. FP4 is float4_e2m1fn_x2, or uint8 where torch lacks it."""

    name = "torch"
    packs_fp4 = HAS_FP4

    @property
    def namespace(self) -> Any:
        return torch

    def steps(self, count: int, beside: Any) -> Any:
        return torch.arange(count, device=beside.device)

    def detached(self, x: Any) -> Any:
        return x.detach()

    def describe(self, x: Any, name: str = "") -> TensorDesc:
        dtype = as_dtype(x.dtype, f"{name or 'tensor'} dtype")
        if x.layout is not torch.strided or x.is_nested:
            got = "a nested one" if x.is_nested else x.layout
            raise ValueError(f"{name or 'tensor'}: expected a strided tensor, got {got}")
        if x.is_neg():
            raise ValueError(
                f"{name or 'tensor'}: expected a tensor whose memory holds its numbers, got a negated view; "
                f"resolve_neg() makes one"
            )
        shape, stride = tuple(x.shape), x.stride()
        if dtype.is_fp4:
            try:
                shape, stride = logical_fp4(shape, stride)
            except RuntimeError as error:
                raise RuntimeError(f"{name or 'tensor'}: {error}") from None
        return TensorDesc(dtype, shape, stride, None, _device(x.device), name=name)

    def metadata(self, x: Any) -> tuple:
        return type(x), x.dtype, x.shape, x.stride(), x.device, x.is_neg()

    def key(self, arrays: Iterable[Any]) -> tuple:
        return tuple(
            [
                None if x is None else (type(x), x.dtype, x.shape, x.stride(), x.device, x.is_neg())
                for x in arrays
            ]
        )

    def recognizer(self, arrays: Sequence[Any]) -> Callable[..., bool] | None:
        # What torch's compiler guards its graphs with; not public, so another torch may lack it.
        try:
            guards = torch._C._dynamo.guards.TensorGuards(
                *arrays,
                dynamic_dims_sizes=[list(x.shape) for x in arrays],
                dynamic_dims_strides=[list(x.stride()) for x in arrays],
            )
            return guards.check if guards.check(*arrays) else None
        except (AttributeError, TypeError, RuntimeError):
            return None

    def device(self, x: Any) -> Device:
        return _device(x.device)

    def empty(self, desc: TensorDesc) -> Any:
        # Through the dispatcher, and not as `allocator`: fake kernels make fake tensors of symbolic extents here.
        dtype, shape, stride = container(desc, packed_dtype=HAS_FP4)
        allocated = torch.uint8 if dtype.is_fp4 else dtype.torch()
        made = torch.empty_strided(shape, stride, dtype=allocated, device=str(desc.device))
        return made.view(dtype.torch()) if dtype.is_fp4 else made

    def allocator(
        self, desc: TensorDesc, initial: float | None = None, *, guarded: bool = False
    ) -> Callable[[], Any]:
        dtype, shape, stride = container(desc, packed_dtype=HAS_FP4)
        # torch fills new memory in deterministic mode, which it cannot do for FP4: bytes first, then a view.
        allocated = torch.uint8 if dtype.is_fp4 else dtype.torch()
        place = torch.device(str(desc.device))
        make = functools.partial(torch.empty_strided, shape, stride, dtype=allocated, device=place)
        if place.type == "cuda" and _empty_on_current_gpu is not None:
            # The allocation that torch's own compiler emits, which skips the dispatcher.
            quick = functools.partial(_empty_on_current_gpu, shape, stride, allocated)
            make = quick if guarded else _where_current(quick, make, place.index)
        if initial is not None and place.type == "cuda" and dtype.bits == 32:
            return _words_on_gpu(make, desc, initial)
        if initial is not None:
            make = _filled(make, desc.dtype, initial)
        if dtype.is_fp4:
            packed = dtype.torch()
            return lambda: make().view(packed)
        return make

    def scratch(
        self, descs: Sequence[TensorDesc], initial: Sequence[float | None]
    ) -> Callable[[int], tuple[Any, ...]]:
        make = super().scratch(descs, initial)
        is_small = sum(desc.numel() for desc in descs) <= KEPT_BYTES
        if descs[0].device.type != "cuda" or set(initial) != {None} or not is_small:
            return make
        # A text, whose hash is remembered.
        sizes = ",".join(str(desc.numel()) for desc in descs)
        return _kept(make, f"{descs[0].device}: {sizes}")

    def zero(self, x: Any) -> None:
        if x.dtype.itemsize == 1:
            _fill_bytes(x, 0)
        else:
            x.zero_()

    def clamp_min(self, x: Any, bound: float) -> None:
        x.clamp_min_(bound)

    def assign(self, x: Any, source: Any) -> None:
        x.copy_(source)

    def as_bytes(self, x: Any) -> Any:
        if x.dtype is torch.uint8 and x.dim() == 1:
            return x
        return x.reshape(-1).view(torch.uint8)

    data_pointer = staticmethod(_data_pointer)

    def data_pointers(self, arrays: Iterable[Any]) -> tuple[int, ...]:
        return tuple(map(_data_pointer, arrays))

    def is_shared(self, x: Any) -> bool:
        storage = x.untyped_storage()
        # Memory that another library knows cannot be resized; the tensor and `storage` have a hold on it anyway.
        return _holds is None or not storage.resizable() or _holds(storage._cdata) > 2

    def version(self, x: Any) -> int:
        return 0 if x.is_inference() else x._version

    def written(self, x: Any) -> None:
        try:
            torch._C._increment_version((x,))
        except RuntimeError:  # in some torch versions, of a tensor that has none
            if not x.is_inference():
                raise

    def tracks_gradient(self, arrays: Iterable[Any]) -> bool:
        if forward_ad._current_level >= 0 and self._has_tangent(arrays):
            return True
        if not torch.is_grad_enabled():
            return False
        for x in arrays:
            if x is not None and x.requires_grad:
                return True
        return False

    def tracker(self, arrays: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        is_grad_enabled = torch.is_grad_enabled
        if any(x.requires_grad for x in arrays):

            def tracks(arrays: Sequence[Any]) -> bool:
                return is_grad_enabled() or (
                    forward_ad._current_level >= 0 and self._has_tangent(arrays)
                )
        else:

            def tracks(arrays: Sequence[Any]) -> bool:
                return forward_ad._current_level >= 0 and self._has_tangent(arrays)

        return tracks

    def _has_tangent(self, arrays: Iterable[Any]) -> bool:
        # The tensors of a transform hide what outer ones have noted: under any, every call may be one to refuse.
        if _functorch_level() is not None:
            return True
        return any(forward_ad.unpack_dual(x).tangent is not None for x in arrays if x is not None)

    def unrecorded(self) -> contextlib.AbstractContextManager:
        return torch.no_grad()

    def resolved(self, arrays: Iterable[Any]) -> list[Any]:
        return [None if x is None else x.resolve_neg() for x in arrays]

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
            # Autograd's worker threads start without a context, and torch made none just now.
            device_info.ensure_context(device.index)
            _thread.has_context = True
        return NOTHING_TO_GUARD

    def ready_stream(self, device: Device) -> Callable[[], int | None]:
        if device.type != "cuda":
            return super().ready_stream(device)
        index, current_device = device.index, torch._C._cuda_getDevice
        current_stream = torch._C._cuda_getCurrentRawStream

        def stream() -> int | None:
            if current_device() == index and hasattr(_thread, "has_context"):
                return current_stream(index)
            return None

        return stream

    def on_stream(self, stream: Any, device: Device) -> contextlib.AbstractContextManager:
        if device.type != "cuda":
            return NOTHING_TO_GUARD
        handle, current = self.stream_handle(stream, device), self.current_stream(device)
        if handle == current or (streams.is_default(handle) and streams.is_default(current)):
            return self.guard(device)
        return torch.cuda.stream(_stream(handle, device))

    def launcher(
        self,
        executable: Callable[..., None],
        device: Device,
        scalars: tuple[Any, ...] = (),
        scratch: Callable[[int], tuple[Any, ...]] | None = None,
    ) -> Callable[..., None]:
        if device.type != "cuda":
            return super().launcher(executable, device, scalars, scratch)
        # The warm path of `execute`: bound functions, a context manager only when needed, one tuple of arguments.
        index, current_device = device.index, torch._C._cuda_getDevice
        current_stream = torch._C._cuda_getCurrentRawStream
        tails = {0: (*scalars, 0)}

        def launch_with_scratch(
            arrays: tuple[Any, ...], stream: Any, numbers: tuple[float, ...] = ()
        ) -> None:
            if stream is None and current_device() == index and hasattr(_thread, "has_context"):
                handle = current_stream(index)
                tail = tails.get(handle) or (*scalars, handle)
                executable(*(arrays + scratch(handle) + numbers + tail))
                return
            # Inside, so that memory freed at the end goes back to the stream that uses it.
            with self.guard(device) if stream is None else self.on_stream(stream, device):
                launch(arrays + scratch(self.stream_handle(stream, device)), stream, numbers)

        def launch(arrays: tuple[Any, ...], stream: Any, numbers: tuple[float, ...] = ()) -> None:
            if stream is None:
                handle = current_stream(index)
            else:
                handle = self.stream_handle(stream, device)
            tail = tails.get(handle) or (*scalars, handle)
            if current_device() == index and hasattr(_thread, "has_context"):
                executable(*(arrays + numbers + tail))
                return
            with self.guard(device):
                executable(*(arrays + numbers + tail))

        return launch if scratch is None else launch_with_scratch

    def restride(self, x: Any, stride: tuple[int, ...]) -> Any:
        return x.as_strided(x.shape, stride)

    def keep_alive(self, arrays: Iterable[Any], handle: int) -> None:
        for x in arrays:
            if x is not None and x.is_cuda:
                x.record_stream(_stream(handle, _device(x.device)))

    def watches(self) -> bool:
        """Whether torch compiles, or a dispatch mode, functorch transform or forward-mode level is on."""
        return self.traces() or _functorch_level() is not None

    def traces(self) -> bool:
        # Recognizers compare the keys by which torch dispatches now, and so refuse all tensors under a transform; of
        # tangents they know nothing. First the compiler, which itself traces this line.
        return (
            torch.compiler.is_compiling() or _dispatch_modes() > 0 or forward_ad._current_level >= 0
        )

    def has_no_data(self, arrays: Iterable[Any]) -> bool:
        if torch.compiler.is_compiling() or _functorch_level() is not None:
            return True
        return any(
            isinstance(x, FakeTensor) or (isinstance(x, torch.Tensor) and x.is_meta) for x in arrays
        )

    def is_subclass(self, x: Any) -> bool:
        return type(x) not in PLAIN_TYPES

    def needs_op(self, arrays: Iterable[Any]) -> bool:
        if self.watches():
            return True
        # What is no tensor at all is not the op's to refuse: torch would not name it as we do. Memory of a negated view
        # (part of a conjugate) does not have its numbers, and torch resolves it on the way to an op.
        return any(
            isinstance(x, torch.Tensor) and (type(x) not in PLAIN_TYPES or x.is_neg())
            for x in arrays
        )

    def deterministic(self) -> tuple[bool, bool]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )


def _filled(
    make: Callable[[], torch.Tensor], dtype: DType, value: float
) -> Callable[[], torch.Tensor]:
    if dtype.is_fp4 or dtype.is_float8:
        # torch overflows in some of these where others saturate: their bytes are plain
        byte = int(element(dtype, value).view("uint8"))
        return lambda: _fill_bytes(make(), byte)
    return lambda: make().fill_(value)


def _fill_bytes(x: torch.Tensor, byte: int) -> torch.Tensor:
    x.view(torch.uint8).fill_(byte)
    return x


def _where_current(
    quick: Callable[[], Any], make: Callable[[], Any], index: int
) -> Callable[[], Any]:
    """`quick` where the device is current, else `make`."""
    current_device = torch._C._cuda_getDevice
    return lambda: quick() if current_device() == index else make()


# Scratch memory of a call up to so many bytes a thread keeps for its next one, for so many kinds of calls at most.
KEPT_BYTES, KEPT_KINDS = 1 << 20, 16


def _kept(make: Callable[[int], tuple[Any, ...]], key: str) -> Callable[[int], tuple[Any, ...]]:
    """`make`, but on the legacy default stream the same memory for all calls of a thread.

    Work on that stream runs in its order, and is never captured into a graph; what a call queues is queued whole, by
    its thread. An allocation takes 2.3 us of a small call's 12 to 18 (beside an H200, 2026-12-02).

    key: device and sizes.
    """

    def scratch(handle: int) -> tuple[Any, ...]:
        if handle:
            return make(handle)
        try:
            return _thread.scratch[key]
        except (AttributeError, KeyError):
            kept = _thread.__dict__.setdefault("scratch", {})
            if len(kept) >= KEPT_KINDS:
                kept.clear()
            with torch.inference_mode(False):
                kept[key] = make(handle)
            return kept[key]

    return scratch


READY_SCALARS = 64


def _words_on_gpu(make: Callable[[], Any], desc: TensorDesc, initial: float) -> Callable[[], Any]:
    """`make`, then every 32-bit element set by a memset of the driver instead of a dispatched fill kernel.

    Single elements on the legacy default stream were made ready before, many by one fill. Work on that stream is
    ordered after that fill, and it is never captured into a graph, so each element is as fresh as its own fill would
    leave it; each is handed out once and has its own storage and version counter.
    """
    fill, index, count = device_info.word_filler(), desc.device.index, desc.numel()
    word = int(element(desc.dtype, initial).view("uint32"))
    current_stream, current_device = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice
    ready: list[torch.Tensor] = []

    def more() -> torch.Tensor:
        with torch.inference_mode(False), torch.no_grad():
            made = [make() for _ in range(READY_SCALARS)]
            torch._foreach_zero_(made)
            torch._foreach_add_(made, initial)
            ready.extend(x.data for x in made)
        return ready.pop()

    def allocate() -> Any:
        # The driver's call wants the device's context current in this thread.
        if current_device() != index or not hasattr(_thread, "has_context"):
            return make().fill_(initial)
        stream = current_stream(index)
        if count == 1 and stream == 0:
            try:
                return ready.pop()
            except IndexError:
                return more()
        x = make()
        fill(x.data_ptr(), word, count, stream)
        return x

    return allocate


@functools.cache
def _device(device: torch.device) -> Device:
    return Device(device.type, device.index)


@functools.cache
def _numpy_view(dtype: DType) -> tuple[torch.dtype | None, Any]:
    """(integer dtype to view as first, NumPy dtype then); None where NumPy has the dtype itself."""
    if dtype.is_fp4:
        return torch.uint8, "uint8"
    if dtype.is_float8 or dtype.name == "bfloat16":
        return BITS[dtype.bits], dtype.numpy()
    return None, None


def _stream(handle: int, device: Device) -> torch.cuda.Stream:
    """The torch stream of a handle. In some torch versions ExternalStream(0) is another stream."""
    default = torch.cuda.default_stream(device.index)
    if streams.is_default(handle) or handle == default.cuda_stream:
        return default
    current = torch.cuda.current_stream(device.index)
    if handle == current.cuda_stream:
        return current
    return torch.cuda.ExternalStream(handle, device=device.index)


ADAPTER = TorchAdapter()
