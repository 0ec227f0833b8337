"""From bound problems to the backward kernels: configuration, cache source, workspaces.

Imports neither the DSL nor a framework: planning a call must stay cheap.
"""

from __future__ import annotations

from cudnn_core.cache import KernelSource
from cudnn_core.contract import Problem
from cudnn_core.engine import Workspace
from cudnn_core.plan import Plan

from .config import (
    CHUNK,
    ROW_BLOCKS,
    ROW_RUNS,
    ROW_WARPS,
    WIDEST_UNROLLED,
    BackwardConv,
    layout_of,
)
from .host import described, dtypes, source_of

# What these kernels are traced from, beside core's own device code.
DEVICE_CODE = (
    "cudnn_causal_conv.kernels.config",
    "cudnn_causal_conv.kernels.arithmetic",
    "cudnn_causal_conv.kernels.memory",
    "cudnn_causal_conv.kernels.launch",
    "cudnn_causal_conv.kernels.parts",
    "cudnn_causal_conv.kernels.backward",
    "cudnn_causal_conv.kernels.backward_channels",
    "cudnn_causal_conv.kernels.backward_states",
    "cudnn_causal_conv.kernels.backward_tokens",
    "cudnn_causal_conv.kernels.backward_wide",
    "cudnn_causal_conv.kernels.reduce",
    "cudnn_causal_conv.kernels.row_masks",
    "cudnn_causal_conv.kernels.row_walk",
)


def configure_backward(problem: Problem) -> BackwardConv:
    """The kernel configuration of a bound backward call."""
    signature, descs = problem.signature, described(problem)
    ends = [(descs[name].shape, descs[name].stride) for name in ("x", "dx")]
    return BackwardConv(
        **dtypes(problem),
        width=descs["weight"].shape[1],
        activation=signature.attribute("activation"),
        layout=layout_of(*ends),
        has_seq_idx=signature.has("seq_idx"),
        has_cu_seqlens=signature.has("cu_seqlens"),
        has_initial=signature.has("initial_states"),
        has_dfinal=signature.has("dfinal_states"),
        has_dinitial=signature.has("dinitial_states"),
    )


def source_backward(plan: Plan) -> KernelSource:
    """The backward of a plan."""
    return source_of(plan, "causal_conv1d_bwd", "backward", DEVICE_CODE)


def workspaces_backward(problem: Problem) -> tuple[Workspace, ...]:
    """Partial sums of the gradients of weight and bias, nothing where there is one; the sequence of each token, where
    they are packed.
    """
    config = configure_backward(problem)
    batches, channels, tokens = described(problem)["x"].shape
    splits = splits_of(config, batches, channels, tokens)
    made = [Workspace(partials_bytes(config, splits, channels) if splits > 1 else 0)]
    if config.has_cu_seqlens:
        made.append(Workspace(4 * tokens))
    return tuple(made)


# Of a grid's second axis.
MOST_SPLITS = 65535


def splits_of(config: BackwardConv, batches: int, channels: int, tokens: int) -> int:
    """Into how many parts, each summed on its own, the sums of weight gradients are cut.

    A function of the extents alone, so that results are the same on every device. The numbers come from runs
    on an H200 (2026-12) with BF16 of width 4: its multiprocessors hold 396 blocks of the channel-last kernel.
    """
    if batches * channels * tokens == 0:
        return 1
    if config.width > WIDEST_UNROLLED:
        splits = min(batches * -(-tokens // 256), -(-4096 // channels))
    elif config.layout == "d":
        splits = _splits_of_channels(batches, channels, tokens)
    else:
        splits = _splits_of_rows(batches, channels, tokens)
    return max(1, min(splits, MOST_SPLITS))


def _splits_of_channels(batches: int, channels: int, tokens: int) -> int:
    """Four warps a block: spans of a row each, at least 32 tokens; or whole rows, at least 128 tokens."""
    blocks = 396 // -(-channels // 128)
    per_row = min(4 * blocks // batches, -(-tokens // 32))
    if per_row >= 1:
        return -(-batches * per_row // 4)
    rows = max(1, 128 // tokens)
    return -(-batches // (4 * rows))


def _splits_of_rows(batches: int, channels: int, tokens: int) -> int:
    """One, unless all warps of a block for the same channels give too few blocks. A warp has four chunks, or a row."""
    most = CHUNK * ROW_RUNS
    lanes = next(n for n in (4, 8, 16, 32) if tokens <= most * n or n == 32)
    per_row = -(-tokens // (most * lanes))
    blocks = -(-channels * lanes // 32)
    return min(ROW_BLOCKS // blocks, -(-batches * per_row // (ROW_WARPS * min(4, per_row))))


def partials_bytes(config: BackwardConv, splits: int, channels: int) -> int:
    """What the splits leave for whoever adds them."""
    return config.split_bytes(channels) * splits
