"""Stream arguments: from whatever names a CUDA stream to its handle. Imports no framework."""

import sys
from typing import Any

from .tensor_desc import Device

__all__ = ["LEGACY_DEFAULT", "PER_THREAD", "handle_of", "is_default"]

LEGACY_DEFAULT = 1  # cudaStreamLegacy; handle 0 means the same
PER_THREAD = 2  # cudaStreamPerThread


def is_default(handle: int) -> bool:
    """Whether the handle is one of the two names of the legacy default stream."""
    return handle == 0 or handle == LEGACY_DEFAULT


def handle_of(stream: Any, device: Device, argument: str = "stream") -> int:
    """The handle of an int, a CUstream, a torch stream or an object with `__cuda_stream__`.

    `ValueError` for the per-thread stream, which is another stream in each thread so that neither
    order nor lifetime can be kept, and for a stream of another device; `TypeError` for what is no
    stream. None is not handled here: what it means depends on the framework
    (`Adapter.stream_handle`).
    """
    handle = stream if type(stream) is int else _handle(stream, device, argument)
    if handle == PER_THREAD:
        raise ValueError(
            f"{argument}: the per-thread default stream (handle {PER_THREAD}) is a different "
            f"stream in each host thread; pass a stream of your own or 0"
        )
    if handle < 0:
        raise ValueError(f"{argument}: expected a stream handle, got {handle}")
    return handle


def _handle(stream: Any, device: Device, argument: str) -> int:
    kind = type(stream)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(stream, torch.Stream):
        return _torch_handle(stream, device, argument)
    if kind.__module__.partition(".")[0] == "cuda" and kind.__name__ in (
        "CUstream",
        "cudaStream_t",
    ):
        return int(stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, handle = protocol() if callable(protocol) else protocol
        if version != 0:
            raise ValueError(
                f"{argument}: expected version 0 of the __cuda_stream__ protocol, got {version}"
            )
        return int(handle)
    raise TypeError(
        f"{argument}: expected None, an int, a CUstream, a torch.cuda.Stream or an object with "
        f"__cuda_stream__, got {kind.__module__}.{kind.__qualname__}"
    )


def _torch_handle(stream: Any, device: Device, argument: str) -> int:
    where = stream.device
    if where.type != "cuda":
        raise TypeError(f"{argument}: expected a CUDA stream, got a stream of {where}")
    if device.type == "cuda" and device.index is not None and where.index != device.index:
        raise ValueError(
            f"{argument}: expected a stream of {device}, where the tensors are, got one of {where}"
        )
    handle = getattr(stream, "cuda_stream", None)  # torch.Stream itself spells it native_handle
    return int(stream.native_handle if handle is None else handle)
