"""The class life cycle of every operation, and helpers of its subclasses. Imports no framework."""

import abc
import logging
import threading
from collections.abc import Iterable
from typing import Any

from .adapters import adapter_of
from .tensor_desc import TensorDesc, contiguous_stride
from .tuple_dict import TupleDict

__all__ = [
    "APIBase",
    "TensorDesc",
    "TupleDict",
    "check_buffers_disjoint",
    "check_workspace",
    "pad_rank",
    "warn_experimental_api_once",
]

_experimental_warned: set[str] = set()
_experimental_lock = threading.Lock()


def warn_experimental_api_once(logger: logging.Logger, api_name: str) -> None:
    """Logs one WARNING for each api_name in a process: "<api_name> is an experimental API"."""
    with _experimental_lock:
        if api_name in _experimental_warned:
            return
        _experimental_warned.add(api_name)
    logger.warning("%s is an experimental API", api_name)


def _reset_experimental_api_warning_registry() -> None:
    """Forgets which notices were given, so that tests can see them again."""
    with _experimental_lock:
        _experimental_warned.clear()


class APIBase(abc.ABC):
    """Life cycle of an operation: construct from samples, check_support, compile, execute.

    A subclass's constructor captures descriptors and calls `super().__init__()`. Its
    `check_support` sets `_is_supported`, its `compile` begins with `_ensure_support_checked` and
    sets `_is_compiled`, its `execute` begins with `_require_compiled`.
    """

    def __init__(self) -> None:
        name = type(self).__name__
        self._logger = logging.getLogger(name)
        self._is_supported = False
        self._is_compiled = False
        warn_experimental_api_once(self._logger, name)

    @abc.abstractmethod
    def check_support(self) -> bool:
        """True, or an exception that says what is wrong: metadata, options, the device last."""

    @abc.abstractmethod
    def compile(self) -> None:
        """Makes `execute` ready; a second call does nothing. Allocates and launches nothing."""

    @abc.abstractmethod
    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Writes the outputs, which the caller allocated; asynchronous on the stream."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """compile() if needed, then execute(*args, **kwargs)."""
        if not self._is_compiled:
            self.compile()
        return self.execute(*args, **kwargs)

    def _ensure_support_checked(self) -> None:
        if not self._is_supported:
            self._logger.info("compile: check_support was not called, calling it now")
            self.check_support()

    def _require_compiled(self) -> None:
        if not self._is_compiled:
            raise RuntimeError(f"{type(self).__name__}: call compile() before execute()")


def pad_rank(desc: TensorDesc, rank: int) -> TensorDesc:
    """`desc` with trailing dims of extent 1 added or dropped until it has `rank` dims.

    `ValueError` when a dim that would have to go is longer than 1.
    """
    while desc.ndim < rank:
        desc = desc.unsqueeze(desc.ndim)
    while desc.ndim > rank:
        if desc.shape[-1] != 1:
            raise ValueError(
                f"{desc.name or 'tensor'}: expected {rank} dims, up to trailing dims of extent 1, "
                f"got shape {desc.shape}"
            )
        desc = desc.squeeze(-1)
    return desc


def check_buffers_disjoint(
    writers: Iterable[tuple[str, Any]],
    readers: Iterable[tuple[str, Any]] = (),
    what: str = "operands",
) -> None:
    """`ValueError` when the byte range of a written tensor meets that of any other one.

    writers, readers: (name, tensor) pairs; None tensors are absent. A range spans from the lowest
    to the highest byte that the strides reach, so interleaved views of one buffer count as
    overlapping. Readers may overlap readers.
    """
    written = [(name, *_byte_range(x)) for name, x in writers if x is not None]
    read = [(name, *_byte_range(x)) for name, x in readers if x is not None]
    for i, (name, low, high) in enumerate(written):
        for other, other_low, other_high in written[i + 1 :] + read:
            if max(low, other_low) < min(high, other_high):
                raise ValueError(
                    f"{what}: {name} is written and must not overlap {other} in memory"
                )


def _byte_range(x: Any) -> tuple[int, int]:
    """[low, high) of the bytes that a tensor spans; an empty one spans nothing."""
    adapter = adapter_of(x)
    if adapter is None:
        raise TypeError(f"expected a tensor, got {type(x).__name__}")
    desc = adapter.describe(x)
    if 0 in desc.shape:
        return 0, 0
    reach = [(extent - 1) * step for extent, step in zip(desc.shape, desc.stride, strict=True)]
    base, bits = adapter.data_pointer(x), desc.dtype.bits
    low = base + sum(r for r in reach if r < 0) * bits // 8
    last_bit = (sum(r for r in reach if r > 0) + 1) * bits
    return low, base + -(-last_bit // 8)


def check_workspace(buffer: Any, nbytes: int, alignment: int = 16, name: str = "workspace") -> None:
    """Checks a workspace that the caller passes: dense memory of any dtype, large enough, aligned.

    `ValueError` for None, no memory and its alignment when bytes are needed, for gaps and size; `TypeError` for what
    is no tensor.
    """
    if buffer is None:
        if nbytes:
            raise ValueError(f"{name}: expected a tensor of at least {nbytes} bytes, got None")
        return
    adapter = adapter_of(buffer)
    if adapter is None or adapter.name == "metadata":
        raise TypeError(f"{name}: expected a tensor, got {type(buffer).__name__}")
    try:
        desc = adapter.describe(buffer, name)
    except RuntimeError as error:  # packed FP4 with its codes apart
        raise ValueError(str(error)) from None
    if not desc.is_contiguous():
        raise ValueError(
            f"{name}: expected a contiguous tensor, stride {contiguous_stride(desc.shape)}, "
            f"got stride {desc.stride}"
        )
    size = desc.numel() * desc.dtype.bits // 8
    if size < nbytes:
        raise ValueError(f"{name}: expected at least {nbytes} bytes, got {size}")
    address = adapter.data_pointer(buffer)
    if nbytes and not address:
        raise ValueError(f"{name}: expected a tensor with memory, got address 0")
    if nbytes and address % alignment:
        raise ValueError(f"{name}: expected {alignment}-byte alignment, got address {address:#x}")
