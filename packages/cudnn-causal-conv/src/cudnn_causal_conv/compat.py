"""The operations under the names and positional signatures of the Dao-AILab package causal-conv1d 1.6.

    from cudnn_causal_conv.compat import causal_conv1d_fn, causal_conv1d_update, causal_conv1d_varlen_states

Differences are only what more is legal: any layout, width, dtype pairing and framework. Imports no framework.
"""

from __future__ import annotations

from typing import Any

from cudnn_core.adapters import common
from cudnn_core.errors import mismatch
from cudnn_core.tensor_desc import TensorDesc

from .conv1d import causal_conv1d
from .update import OP as UPDATE

__all__ = ["causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"]


def _check_activation(activation: Any) -> None:
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(mismatch("activation", "None, 'silu' or 'swish'", activation))


def causal_conv1d_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    seq_idx: Any = None,
    initial_states: Any = None,
    return_final_states: bool = False,
    final_states_out: Any = None,
    activation: str | None = None,
) -> Any:
    """`causal_conv1d` with the peer's order of parameters: `activation` comes last.

    x: (B, D, T), weight: (D, W), bias: (D,), seq_idx: (B, T) int32, initial_states and final_states_out: (B, D, W-1).
    activation: None, "silu" or "swish", else NotImplementedError. final_states_out counts only with
    return_final_states. Returns y, or (y, final_states). For shapes, numerics and what raises see `causal_conv1d`;
    where the peer asserts, a ValueError comes.
    """
    _check_activation(activation)
    return causal_conv1d(
        x,
        weight,
        bias,
        activation,
        seq_idx=seq_idx,
        initial_states=initial_states,
        return_final_states=bool(return_final_states),
        final_states_out=final_states_out if return_final_states else None,
    )


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> Any:
    """The decode step for one token or several a row, with a state that moves on, or a circular one.

    x: (N, D) or (N, D, S), any strides. conv_state: (P, D, L), L >= W-1, any strides, written in place.
    Without cache_seqlens: hist = conv_state[s], x[n] along the last axis; y is the last S convolutions over it, and
    conv_state[s] its last L entries. With cache_seqlens (N,) int32, c = cache_seqlens[n] mod L: the taps before the
    first token are conv_state[s, :, (c - (W-1) + i) mod L], token i is written to place (c + i) mod L, and nothing
    else moves. conv_state_indices (N,) int32: s of each row; outside of 0..P-1 it is padding (output 0, no write).
    activation: None, "silu" or "swish", else NotImplementedError.

    Returns y in the shape of x; with JAX (y, new conv_state). Tensors that require grad are accepted; no gradient
    flows. Numerics and what raises: see `cudnn_causal_conv.causal_conv1d_update`.
    """
    _check_activation(activation)
    inputs = (x, conv_state, weight, bias, cache_seqlens, conv_state_indices)
    y, *state = UPDATE.run(inputs, (activation,), ignore_gradient=True)
    return (y, *state) if state else y


def causal_conv1d_varlen_states(x: Any, cu_seqlens: Any, state_len: int) -> Any:
    """The last `state_len` tokens of each packed sequence, as states for `causal_conv1d_update`.

    x: (total, D). cu_seqlens: (N+1,), any integer dtype, contents stay on the device. Returns (N, D, state_len) of
    x's dtype with strides (state_len D, 1, D): states[i, :, state_len-m:] are the last m = min(length, state_len)
    tokens of sequence i, bit for bit, and zeros stand before. Not differentiable; raises TypeError for what is no
    tensor or no integer, ValueError for shapes, a negative state_len and mixed devices.
    """
    adapter, device = common({"x": x, "cu_seqlens": cu_seqlens}, "causal_conv1d_varlen_states")
    if isinstance(state_len, bool) or not hasattr(state_len, "__index__"):
        raise TypeError(mismatch("state_len", "an integer", repr(state_len)))
    if state_len < 0:
        raise ValueError(mismatch("state_len", "at least 0", state_len))
    if len(x.shape) != 2:
        raise ValueError(mismatch("x", "rank 2 (total, D)", f"shape {tuple(x.shape)}"))
    if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 1:
        expected = "rank 1 (N+1,)"
        raise ValueError(mismatch("cu_seqlens", expected, f"shape {tuple(cu_seqlens.shape)}"))
    if "int" not in str(cu_seqlens.dtype):
        raise TypeError(mismatch("cu_seqlens", "integers", f"dtype {cu_seqlens.dtype}"))
    total, channels = x.shape
    count = cu_seqlens.shape[0] - 1
    if 0 in (total, count, state_len, channels):
        dtype = adapter.describe(x, "x").dtype
        empty = TensorDesc.of(dtype, (count, state_len, channels), None, device, "states")
        return adapter.full(empty, 0.0).swapaxes(1, 2)
    xp = adapter.namespace
    steps = adapter.steps(state_len, x)
    # Narrow and unsigned integers become as wide as the steps.
    ends = xp.asarray(cu_seqlens, dtype=steps.dtype).clip(0, total)
    at = ends[1:, None] - state_len + steps[None, :]
    states = adapter.detached(x)[at.clip(0)]
    inside = (at >= ends[:-1, None])[:, :, None]
    return xp.where(inside, states, xp.zeros_like(states)).swapaxes(1, 2)
