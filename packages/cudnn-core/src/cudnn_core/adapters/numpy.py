"""The NumPy adapter. Imports NumPy; it is loaded when the first NumPy array comes."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .base import Adapter, container, element, refuse_unpacked_fp4
from ..dtypes import as_dtype
from ..tensor_desc import Device, TensorDesc

__all__ = ["NumpyAdapter"]

CPU = Device("cpu")


def _allocate(dtype: np.dtype, shape: tuple, strides: tuple, nbytes: int) -> np.ndarray:
    return np.ndarray(shape, dtype, np.empty(nbytes, np.uint8), strides=strides)


class NumpyAdapter(Adapter):
    """numpy.ndarray. FP4 is uint8, two codes in a byte."""

    name = "numpy"

    def describe(self, x: Any, name: str = "") -> TensorDesc:
        dtype = as_dtype(x.dtype, f"{name or 'array'} dtype")
        refuse_unpacked_fp4(dtype, name)
        if any(step % x.itemsize for step in x.strides):
            raise ValueError(
                f"{name or 'array'}: expected strides in whole elements of {x.itemsize} bytes, got byte "
                f"strides {x.strides}"
            )
        stride = tuple(step // x.itemsize for step in x.strides)
        return TensorDesc(dtype, x.shape, stride, None, CPU, name=name)

    def metadata(self, x: Any) -> tuple:
        return x.dtype, x.shape, x.strides

    def device(self, x: Any) -> Device:
        return CPU

    def allocator(self, desc: TensorDesc) -> Callable[[], Any]:
        kind, shape, stride = container(desc, packed_dtype=False)
        if any(step < 0 for step in stride):
            raise ValueError(f"{desc.name or 'array'}: cannot allocate negative strides {stride}")
        dtype = kind.numpy()
        span = 0 if 0 in shape else 1 + sum((e - 1) * s for e, s in zip(shape, stride, strict=True))
        strides = tuple(step * dtype.itemsize for step in stride)
        return functools.partial(_allocate, dtype, shape, strides, span * dtype.itemsize)

    def full(self, desc: TensorDesc, value: float) -> Any:
        out = self.empty(desc)
        out[...] = element(desc.dtype, value)
        return out

    def data_pointer(self, x: Any) -> int:
        return x.__array_interface__["data"][0]

    def to_numpy(self, x: Any) -> Any:
        return x
