"""The Hopper kernels on CUDA tensors of PyTorch: layout, launch. Imports torch and its adapter, engine, formats.*."""

import torch

from ...adapters.torch import ADAPTER
from ...engine import why_not_hopper
from .. import layout
from ..spec import Format, Geometry
from ..torch_impl import finish_scale, publish_data, rows_contiguous, torch_ops
from . import executable
from .config import ELEMENT_BYTES, AmaxConfig, QuantizeConfig


def quantize(x, fmt: Format, geo: Geometry, scale_layout: str, per_tensor_scale):
    """As formats.torch_impl.quantize; per_tensor_scale is None, True or a 0-d FP32 tensor."""
    _require_hopper(x)
    ordered = layout.canonical(torch_ops, x, geo)
    turned = rows_contiguous(x, geo) and not fmt.is_fp4
    if turned:
        data = x.new_empty((geo.batch, geo.k, geo.rows), dtype=torch.uint8).mT
    else:
        extent = -(-geo.k // fmt.element.codes_per_byte)
        data = x.new_empty((geo.batch, geo.rows, extent), dtype=torch.uint8)
    plain = scale_layout == "plain"
    shape = (geo.batch, geo.rows, geo.blocks) if plain else geo.physical
    scale = x.new_empty(shape, dtype=torch.uint8)
    if x.numel():
        per_tensor_scale = _launch(
            ordered, data, scale if plain else scale.view(-1), fmt, plain, turned, per_tensor_scale
        )
    elif per_tensor_scale is True:
        per_tensor_scale = x.new_zeros((), dtype=torch.float32)
    if plain:
        scale = layout.restore(torch_ops, scale, geo, geo.blocks)
    else:
        scale = layout.present_atoms(torch_ops, scale, scale_layout)
    return publish_data(data, fmt, geo), finish_scale(scale, fmt), per_tensor_scale


def _launch(x, data, scale, fmt: Format, plain: bool, turned: bool, per_tensor_scale):
    dtype = str(x.dtype).removeprefix("torch.")
    # The vector path writes codes contiguous along K, also where x had to be copied into that order.
    path = "strided" if turned else _path(x, ELEMENT_BYTES[dtype])
    mode = "given"
    if per_tensor_scale is None or per_tensor_scale is True:
        mode = "computed" if per_tensor_scale else "none"
    config = QuantizeConfig(dtype, fmt.name, fmt.block, path, "plain" if plain else "atom", mode)
    device, extra = ADAPTER.device(x), []
    if mode == "computed":
        amax = torch.zeros(1, dtype=torch.int32, device=x.device)
        ADAPTER.launcher(executable(AmaxConfig(dtype, path)), device)((x, amax), None)
        per_tensor_scale = torch.empty((), dtype=torch.float32, device=x.device)
        extra = [amax]
    if mode != "none":
        extra.append(per_tensor_scale.view(1))
    ADAPTER.launcher(executable(config), device)((x, data, scale, *extra), None)
    return per_tensor_scale


def _path(x, size: int) -> str:
    """ "vector" where every 32-byte chunk of a row is whole and 16-byte aligned."""
    batch, rows, k = x.shape
    aligned = x.stride(2) == 1 and k * size % 32 == 0 and x.data_ptr() % 16 == 0
    aligned &= rows == 1 or x.stride(1) * size % 16 == 0
    aligned &= batch == 1 or x.stride(0) * size % 16 == 0
    return "vector" if aligned else "strided"


def _require_hopper(x):
    reason = why_not_hopper(ADAPTER.device(x))
    if reason is not None:
        raise RuntimeError(
            f"x is on {x.device} and engine 'hopper' cannot run: {reason}; engine='torch' runs "
            f"PyTorch operations on any device"
        )
