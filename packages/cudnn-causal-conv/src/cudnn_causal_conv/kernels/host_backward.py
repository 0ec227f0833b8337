"""From bound problems to the backward kernels: configuration, cache source, workspaces.

Imports neither the DSL nor a framework: planning a call must stay cheap.
"""

from __future__ import annotations

from cudnn_core.cache import KernelSource
from cudnn_core.contract import Problem
from cudnn_core.engine import Workspace
from cudnn_core.plan import Plan

from .config import WIDEST_UNROLLED, BackwardConv, layout_of

# What these kernels are traced from, beside core's own device code.
DEVICE_CODE = tuple(
    f"cudnn_causal_conv.kernels.{name}"
    for name in (
        "config",
        "arithmetic",
        "memory",
        "parts",
        "backward",
        "backward_tokens",
        "backward_channels",
        "backward_wide",
        "reduce",
    )
)
# Partial sums of more bytes than this would cost more time than more parallel work saves.
LARGEST_PARTIALS = 2**24


def source_of(config: BackwardConv, **tuning) -> KernelSource:
    def build():
        from . import backward

        return *backward.build(config, **tuning), ""

    key = (config, *sorted(tuning.items()))
    return KernelSource("causal_conv1d_bwd", key=key, build=build, sources=DEVICE_CODE)


def splits_of(config: BackwardConv, batches: int, channels: int, tokens: int) -> int:
    """Into how many parts, each summed on its own, the sums of weight gradients are cut.

    A function of the extents alone, so that results are the same on every device.
    """
    if config.width > WIDEST_UNROLLED:
        total = batches * -(-tokens // 256)
        splits = min(total, -(-4096 // channels))
    elif config.layout == "d":
        tiles = -(-channels // 64)
        splits = min(-(-660 // tiles), -(-batches * tokens // 64))
    else:
        lanes = next(n for n in (4, 8, 16, 32) if tokens <= 8 * n or n == 32)
        per_row = -(-tokens // (8 * lanes))
        warps = -(-channels * lanes // 32)
        total = batches * per_row
        share = max(2, total * warps // 12672)
        splits = -(-total // share)
    return max(1, splits)


def partials_bytes(config: BackwardConv, splits: int, channels: int) -> int:
    """FP32 sums of every tap, and of the bias, for each channel and split."""
    return 4 * (config.width + (config.bias is not None)) * channels * splits
