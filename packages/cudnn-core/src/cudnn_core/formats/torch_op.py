"""The formats as torch.library operators, for whatever traces. Imports torch, formats.*.

While torch.compile traces, under dispatch modes and for tensor subclasses, formats.torch_impl calls
these instead of working: a graph then holds one opaque node, which runs what an eager call runs, the
Hopper kernel on CUDA tensors included.
"""

import torch

from . import torch_impl
from .spec import Geometry, resolve

_library = torch.library.Library("cudnn_core", "FRAGMENT")
_library.define(
    "quantize(Tensor x, Tensor? per_tensor_scale, bool computed, str format, int block, "
    "int[] order, str scale_layout, str? engine) -> Tensor[]"
)
_library.define(
    "dequantize(Tensor data, Tensor scale, Tensor? per_tensor_scale, str format, int block, "
    "int[] order, SymInt size, str scale_layout, str dtype) -> Tensor"
)


def _geometry(shape, order, block: int, size=None) -> Geometry:
    geo = Geometry(tuple(shape), tuple(order), block)
    return geo if size is None else Geometry(geo.with_k(size), geo.order, block)


def _quantize(x, per_tensor_scale, computed, format, block, order, scale_layout, engine):
    *results, tensor_scale = torch_impl.quantize_now(
        x,
        resolve(format, block),
        _geometry(x.shape, order, block),
        scale_layout,
        True if computed else per_tensor_scale,
        engine,
    )
    # A given scale is the caller's own tensor, and an operator may not return its argument.
    return [*results, tensor_scale] if computed else results


def _quantize_fake(x, per_tensor_scale, computed, format, block, order, scale_layout, engine):
    fmt, geo = resolve(format, block), _geometry(x.shape, order, block)
    extent = -(-geo.k // fmt.element.codes_per_byte)
    if torch_impl.rows_contiguous(x, geo) and not fmt.is_fp4:
        data = x.new_empty((geo.batch, extent, geo.rows), dtype=torch.uint8).mT
    else:
        data = x.new_empty((geo.batch, geo.rows, extent), dtype=torch.uint8)
    scale = x.new_empty((geo.batch, geo.rows, geo.blocks), dtype=torch.uint8)
    results = [
        torch_impl.publish_data(data, fmt, geo),
        torch_impl.publish_scale(scale, fmt, geo, scale_layout),
    ]
    return [*results, x.new_empty((), dtype=torch.float32)] if computed else results


def _dequantize(data, scale, per_tensor_scale, format, block, order, size, scale_layout, dtype):
    return torch_impl.dequantize_now(
        data,
        scale,
        resolve(format, block),
        _geometry(data.shape, order, block, size),
        scale_layout,
        per_tensor_scale,
        dtype,
    )


def _dequantize_fake(
    data, scale, per_tensor_scale, format, block, order, size, scale_layout, dtype
):
    geo = _geometry(data.shape, order, block, size)
    x = data.new_empty((geo.batch, geo.rows, geo.k), dtype=getattr(torch, dtype))
    return torch_impl.restore(x, geo)


_library.impl("quantize", _quantize, "CompositeExplicitAutograd")
_library.impl("dequantize", _dequantize, "CompositeExplicitAutograd")
torch.library.register_fake("cudnn_core::quantize", _quantize_fake, lib=_library)
torch.library.register_fake("cudnn_core::dequantize", _dequantize_fake, lib=_library)


def quantize(x, fmt, geo: Geometry, scale_layout: str, per_tensor_scale, engine):
    computed = per_tensor_scale is True
    given = None if computed else per_tensor_scale
    data, scale, *made = torch.ops.cudnn_core.quantize(
        x, given, computed, fmt.name, fmt.block, geo.order, scale_layout, engine
    )
    return data, scale, made[0] if made else given


def dequantize(data, scale, fmt, geo: Geometry, scale_layout: str, per_tensor_scale, dtype: str):
    return torch.ops.cudnn_core.dequantize(
        data, scale, per_tensor_scale, fmt.name, fmt.block, geo.order, geo.k, scale_layout, dtype
    )
