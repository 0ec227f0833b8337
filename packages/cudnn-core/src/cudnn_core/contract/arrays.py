"""Array: the operand kind of element-wise and per-channel operations, an array of any strides.

Extents may be a symbol with an offset, such as "W-1"; outputs take dtype and memory order from another operand.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..dtypes import DType
from ..errors import axes, mismatch, one_of
from ..tensor_desc import Device, TensorDesc, contiguous_stride
from .dims import Dims
from .operands import Operand, OperandPlan, addresses_once, compact_stride


@functools.cache
def symbol_and_offset(extent: str) -> tuple[str, int]:
    """ "W-1" -> ("W", -1), "N+1" -> ("N", 1), "T" -> ("T", 0)."""
    for sign in "+-":
        symbol, found, offset = extent.partition(sign)
        if found:
            return symbol, int(sign + offset)
    return extent, 0


@dataclass(frozen=True)
class Array(Operand):
    """An array of any strides, 0 and overlapping ones included where it is only read.

    `dims` are symbols, or a symbol and an offset: "W-1" binds W to the extent plus 1. dtypes: those allowed; others
    raise `refusal`. packed: row-major without gaps, or ValueError. One that is written in place has no element twice.
    droppable: arrays may leave out the last axis, which then has an extent of 1; an output does as `like` did.

    Outputs take the dtype of the operand `dtype_of`. `like` names the operand whose memory order it takes, its very
    strides where those leave no gap; otherwise `order` lists its axes, innermost first (row-major when empty).
    empty_from: the input whose content the output has when the problem is empty; zeros without such an input.
    """

    aligned_base: ClassVar[bool] = False

    dtypes: tuple[DType, ...] = ()
    dtype_of: str = ""
    refusal: type[Exception] = ValueError
    packed: bool = False
    droppable: bool = False
    like: str = ""
    order: tuple[int, ...] = ()
    empty_from: str = ""

    def bind(self, desc: TensorDesc, dims: Dims, attributes: Mapping[str, Any]) -> OperandPlan:
        label = desc.name or self.name
        shape = tuple(desc.shape)
        short = self.droppable and len(shape) == len(self.dims) - 1
        if len(shape) != len(self.dims) and not short:
            expected = f"rank {len(self.dims)} {axes(self.dims)}"
            raise ValueError(mismatch(label, expected, f"shape {shape}"))
        if all(dtype is not desc.dtype for dtype in self.dtypes):
            expected = f"dtype {one_of(dtype.name for dtype in self.dtypes)}"
            raise self.refusal(mismatch(label, expected, desc.dtype.name))
        for axis, extent in enumerate(shape):
            symbol, offset = symbol_and_offset(self.dims[axis])
            if not dims.admits(symbol, extent - offset):
                raise ValueError(self._shape_message(label, shape, dims))
            dims.bind(symbol, extent - offset, label)
        if short:
            dims.bind(self.dims[-1], 1, label)
        if self.packed and not desc.is_contiguous():
            got = f"shape {shape} with strides {tuple(desc.stride)}"
            raise ValueError(mismatch(label, "a contiguous array", got))
        once = addresses_once(shape, tuple(abs(step) for step in desc.stride))
        if self.mutated and not once and 0 not in shape:
            got = f"shape {shape} with strides {tuple(desc.stride)}"
            raise ValueError(mismatch(label, "strides that address each element once", got))
        return OperandPlan(self.name, desc.dtype.name, "native")

    def _shape_message(self, label: str, shape: tuple[int, ...], dims: Dims) -> str:
        extents = []
        for text in self.dims:
            symbol, offset = symbol_and_offset(text)
            extents.append(str(dims[symbol] + offset) if symbol in dims else "any")
        names = ", ".join(dims.spelled(text) for text in self.dims)
        comma = "," * (len(self.dims) == 1)
        return mismatch(label, f"shape ({names}{comma}) = ({', '.join(extents)}{comma})", shape)

    def make(
        self,
        dims: Mapping[str, int],
        attributes: Mapping[str, Any],
        device: Device,
        bound: Mapping[str, TensorDesc],
    ) -> TensorDesc:
        shape = []
        for text in self.dims:
            symbol, offset = symbol_and_offset(text)
            shape.append(dims[symbol] + offset)
        shape = tuple(shape)
        if self.droppable:
            shape = shape[: len(bound[self.like].shape)]
        if self.like in bound:
            stride = dense_like(bound[self.like].shape, bound[self.like].stride)
        elif self.order:
            stride = compact_stride(shape, list(self.order))
        else:
            stride = contiguous_stride(shape)
        dtype = bound[self.dtype_of].dtype
        return TensorDesc.of(dtype, shape, stride, device, self.name)


def dense_like(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a new array in the memory order of another: its own where it is dense, else without the gaps.

    Axes that repeat (stride 0) go outermost.
    """
    order = sorted(
        (axis for axis, extent in enumerate(shape) if not extent < 2),
        key=lambda axis: (stride[axis] == 0, abs(stride[axis]), -axis),
    )
    step, dense, made = 1, True, {}
    for axis in order:
        dense = dense and stride[axis] == step
        made[axis] = step
        step = step * shape[axis]
    if dense:
        return tuple(stride)
    return tuple(made.get(axis, step) for axis in range(len(shape)))
