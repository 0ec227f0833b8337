"""The NumPy adapter. Imports NumPy; it is loaded when the first NumPy array comes."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import as_dtype
from ..tensor_desc import Device, TensorDesc
from .base import Adapter, container, element, refuse_unpacked_fp4

__all__ = ["ADAPTER", "NumpyAdapter"]

CPU = Device("cpu")


def _allocate(dtype: np.dtype, shape: tuple, strides: tuple, nbytes: int, value: Any) -> np.ndarray:
    out = np.ndarray(shape, dtype, np.empty(nbytes, np.uint8), strides=strides)
    if value is not None:
        out[...] = value
    return out


class NumpyAdapter(Adapter):
    """numpy.ndarray. FP4 is uint8, two codes in a byte."""

    name = "numpy"

    @property
    def namespace(self) -> Any:
        return np

    def describe(self, x: Any, name: str = "") -> TensorDesc:
        dtype = as_dtype(x.dtype, f"{name or 'array'} dtype")
        refuse_unpacked_fp4(dtype, name)
        if any(step % x.itemsize for step in x.strides):
            raise ValueError(
                f"{name or 'array'}: expected strides in whole elements of {x.itemsize} bytes, "
                f"got byte strides {x.strides}"
            )
        stride = tuple(step // x.itemsize for step in x.strides)
        return TensorDesc(dtype, x.shape, stride, None, CPU, name=name)

    def metadata(self, x: Any) -> tuple:
        return x.dtype, x.shape, x.strides

    def device(self, x: Any) -> Device:
        return CPU

    def allocator(
        self, desc: TensorDesc, initial: float | None = None, *, guarded: bool = False
    ) -> Callable[[], Any]:
        kind, shape, stride = container(desc, packed_dtype=False)
        if any(step < 0 for step in stride):
            raise ValueError(f"{desc.name or 'array'}: cannot allocate negative strides {stride}")
        dtype = kind.numpy()
        span = 0 if 0 in shape else 1 + sum((e - 1) * s for e, s in zip(shape, stride, strict=True))
        strides = tuple(step * dtype.itemsize for step in stride)
        value = None if initial is None else element(desc.dtype, initial)
        return functools.partial(_allocate, dtype, shape, strides, span * dtype.itemsize, value)

    def as_bytes(self, x: Any) -> Any:
        return super().as_bytes(np.asarray(x))  # a matrix stays two-dimensional

    def data_pointer(self, x: Any) -> int:
        return x.__array_interface__["data"][0]

    has_read_only = True

    def is_writable(self, x: Any) -> bool:
        return x.flags.writeable

    def to_numpy(self, x: Any) -> Any:
        return np.asarray(x)  # a subclass may have arithmetic of its own


ADAPTER = NumpyAdapter()
