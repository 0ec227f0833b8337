"""The adapter of objects that only describe an array: TensorDesc, and foreign ones. Imports no framework."""

from collections.abc import Callable
from typing import Any, NoReturn

from .base import Adapter
from ..dtypes import as_dtype
from ..tensor_desc import Device, TensorDesc, as_device, contiguous_stride

__all__ = ["MetadataAdapter"]


class MetadataAdapter(Adapter):
    """TensorDesc, and any object with `.shape` and `.dtype`. Good for checking, not for computing."""

    name = "metadata"

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

    def allocator(self, desc: TensorDesc) -> Callable[[], Any]:
        self._refuse("memory to allocate", desc)

    def full(self, desc: TensorDesc, value: float) -> Any:
        self._refuse("memory to fill", desc)

    def data_pointer(self, x: Any) -> int:
        pointer = getattr(x, "data_ptr", None)
        return pointer() if callable(pointer) else self._refuse("a data pointer", x)

    def to_numpy(self, x: Any) -> Any:
        self._refuse("elements to read", x)

    def _refuse(self, what: str, x: Any) -> NoReturn:
        raise ValueError(f"expected a torch, JAX or NumPy array: {type(x).__name__} has no {what}")


def _stride(x: Any, shape: tuple) -> tuple:
    """Strides in elements from `.stride`, `.stride()` or `.strides`; C-contiguous when there are none."""
    stride = getattr(x, "stride", None)
    if stride is None:
        stride = getattr(x, "strides", None)
        itemsize = getattr(x, "itemsize", None)
        if stride is not None and itemsize:  # array libraries count `strides` in bytes
            return tuple(step // itemsize for step in stride)
    if callable(stride):
        stride = stride()
    return contiguous_stride(shape) if stride is None else tuple(stride)
