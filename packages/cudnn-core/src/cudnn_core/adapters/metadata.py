"""The adapter of what only describes an array: TensorDesc and foreign arrays. Imports none."""

from collections.abc import Callable
from typing import Any, NoReturn

from ..dtypes import as_dtype
from ..tensor_desc import Device, TensorDesc, as_device, contiguous_stride
from .base import Adapter

__all__ = ["ADAPTER", "MetadataAdapter"]


class MetadataAdapter(Adapter):
    """TensorDesc, and any object with `.shape` and `.dtype`: to check with, not to compute."""

    name = "metadata"

    @property
    def namespace(self) -> Any:
        raise ValueError("metadata has no array functions")

    def describe(self, x: Any, name: str = "") -> TensorDesc:
        if isinstance(x, TensorDesc):
            return x
        dtype = as_dtype(x.dtype, f"{name or 'tensor'} dtype")
        shape = tuple(x.shape)
        return TensorDesc(dtype, shape, _stride(x, shape), None, self.device(x), name=name)

    def metadata(self, x: Any) -> TensorDesc:
        return self.describe(x)

    def device(self, x: Any) -> Device:
        try:
            return as_device(getattr(x, "device", None))
        except TypeError:
            return Device("unknown")

    def allocator(
        self, desc: TensorDesc, initial: float | None = None, *, guarded: bool = False
    ) -> Callable[[], Any]:
        self._refuse("memory to allocate", desc)

    def data_pointer(self, x: Any) -> int:
        pointer = getattr(x, "data_ptr", None)
        return pointer() if callable(pointer) else self._refuse("a data pointer", x)

    def to_numpy(self, x: Any) -> Any:
        self._refuse("elements to read", x)

    def _refuse(self, what: str, x: Any) -> NoReturn:
        raise ValueError(f"expected a torch, JAX or NumPy array: {type(x).__name__} has no {what}")


def _stride(x: Any, shape: tuple) -> tuple:
    """Strides in elements, from `.stride`, `.stride()` or `.strides`; otherwise C-contiguous."""
    stride = getattr(x, "stride", None)
    if stride is None:
        stride = getattr(x, "strides", None)
        itemsize = getattr(x, "itemsize", None)
        if stride is not None and itemsize:  # array libraries count `strides` in bytes
            return tuple(step // itemsize for step in stride)
    if callable(stride):
        stride = stride()
    return contiguous_stride(shape) if stride is None else tuple(stride)


ADAPTER = MetadataAdapter()
