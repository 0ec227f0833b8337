"""NumPy mathematics of the causal convolution: the executable specification. Imports NumPy only.

Every history is a gather. A row's tokens, then its initial states, then one zero stand behind each other ("extended");
a map says where in there each tap of each token finds its operand. Gradients scatter along the same map.
FP32 sums are what a chain of fused multiply-adds gives, oldest tap first, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Of the numbers that are summed: FP64 for itself, FP32 for all others.
WIDE = np.dtype(np.float64)


@dataclass(frozen=True)
class Row:
    """Where the operands of one batch row stand in its extended axis.

    taps: (W, T), oldest first; exists: (T,), False for padding; final: (S, W-1) of its S sequences.
    """

    taps: np.ndarray
    exists: np.ndarray
    final: np.ndarray


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c: rounded once in FP32; in FP64 in two steps."""
    if c.dtype == WIDE:
        return a * b + c
    product, wide = a.astype(WIDE) * b.astype(WIDE), c.astype(WIDE)
    total = product + wide
    # Rounding FP64 again to FP32 is exact after rounding to odd: an even result that is inexact moves to
    # the odd neighbour on the side of the error.
    part = total - product
    error = (product - (total - part)) + (wide - part)
    bits = total.view(np.int64)
    inexact = (error != 0) & (bits & 1 == 0) & np.isfinite(total)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return (bits + np.where(inexact, step, 0)).view(WIDE).astype(np.float32)


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)) in FP64."""
    return 1 / (1 + np.exp(-z.astype(WIDE)))


def activate(z: np.ndarray, activation: str) -> np.ndarray:
    """The activation of sums, in their own precision."""
    return z if activation == "identity" else (z * sigmoid(z)).astype(z.dtype)


def slope(z: np.ndarray, activation: str) -> np.ndarray:
    """The derivative of the activation, in FP64."""
    if activation == "identity":
        return np.ones(z.shape)
    s = sigmoid(z)
    return s * (1 + z * (1 - s))


def sequences(cu_seqlens: np.ndarray, tokens: int) -> np.ndarray:
    """Boundaries clamped to be legal: within [0, tokens], each at least the one before."""
    return np.maximum.accumulate(np.clip(cu_seqlens.astype(np.int64), 0, tokens))


def row_of(
    tokens: int,
    width: int,
    bounds: np.ndarray,
    has_initial: bool,
    ids: np.ndarray | None = None,
) -> Row:
    """The map of one batch row whose sequences lie between `bounds`; ids: its seq_idx."""
    count, history = len(bounds) - 1, width - 1
    zero = tokens + count * history * has_initial
    at = np.arange(tokens)
    sequence = np.searchsorted(bounds, at, side="right") - 1
    exists = (sequence >= 0) & (sequence < count)
    sequence = np.clip(sequence, 0, max(count - 1, 0))
    start = bounds[sequence]

    def find(source: np.ndarray, start: np.ndarray, sequence: np.ndarray) -> np.ndarray:
        """Token `source` where its sequence has it, the initial state before its start, or the zero."""
        before = tokens + sequence * history + (source - start + history)
        return np.where(source >= start, source, before if has_initial else zero)

    taps = []
    for tap in range(width):
        source = at - (history - tap)
        found = np.where(exists, find(source, start, sequence), zero)
        if ids is not None:
            same = (source >= 0) & (ids[np.maximum(source, 0)] == ids) & (ids >= 0)
            found = np.where(same, found, zero)
        taps.append(found)
    if ids is not None:
        exists = exists & (ids >= 0)
    numbers, ends = np.arange(count)[:, None], bounds[1:, None]
    final = find(ends - history + np.arange(history), bounds[:-1, None], numbers)
    return Row(np.array(taps).reshape(width, tokens), exists, final)


def rows(
    x: np.ndarray,
    width: int,
    seq_idx: np.ndarray | None,
    cu_seqlens: np.ndarray | None,
    initial_states: np.ndarray | None,
) -> Iterator[tuple[int, Row, slice]]:
    """(batch index, its map, which of the states are its own)."""
    batch, _, tokens = x.shape
    has_initial = initial_states is not None
    if cu_seqlens is not None:
        bounds = sequences(cu_seqlens, tokens)
        yield 0, row_of(tokens, width, bounds, has_initial), slice(None)
        return
    bounds = np.array([0, tokens])
    same = None if seq_idx is not None else row_of(tokens, width, bounds, has_initial)
    for b in range(batch):
        row = same or row_of(tokens, width, bounds, has_initial, seq_idx[b])
        yield b, row, slice(b, b + 1)


def extended(x: np.ndarray, states: np.ndarray | None) -> np.ndarray:
    """(D, E): the tokens (D, T) of a row, its initial states (S, D, W-1), and a zero."""
    parts = [x]
    if states is not None:
        count, _, history = states.shape
        parts.append(np.moveaxis(states, 0, 1).reshape(len(x), count * history))
    return np.concatenate([*parts, np.zeros((len(x), 1), x.dtype)], axis=1)


def accumulated(operands: np.ndarray, row: Row, weight: np.ndarray, bias: np.ndarray | None):
    """(D, T): the sums before the activation."""
    z = np.zeros((len(operands), row.taps.shape[1]), operands.dtype)
    for tap, source in enumerate(row.taps):
        z = fma(operands[:, source], weight[:, tap, None], z)
    return z if bias is None else z + bias[:, None]


def wide(*arrays: np.ndarray | None, of: np.dtype) -> list[np.ndarray | None]:
    """The arrays in the precision in which inputs of dtype `of` are summed."""
    kind = WIDE if of == WIDE else np.dtype(np.float32)
    return [None if a is None else a.astype(kind) for a in arrays]


@np.errstate(all="ignore")
def forward(x, weight, bias, seq_idx, cu_seqlens, initial_states, activation, out, final_states):
    """Write out, and final_states unless it is None: bitwise copies of tokens and initial states."""
    taps, offset = wide(weight, bias, of=x.dtype)
    for b, row, own in rows(x, weight.shape[1], seq_idx, cu_seqlens, initial_states):
        source = extended(x[b], None if initial_states is None else initial_states[own])
        z = accumulated(*wide(source, of=x.dtype), row, taps, offset)
        out[b] = np.where(row.exists, activate(z, activation), 0).astype(out.dtype)
        if final_states is not None:
            final_states[own] = np.moveaxis(source[:, row.final], 0, 1)


@np.errstate(all="ignore")
def backward(
    x, weight, bias, seq_idx, cu_seqlens, initial_states, dout, dfinal_states, activation, outputs
):
    """Write outputs, a mapping: dx, dweight, and dbias and dinitial_states if they are in it. Sums in FP64."""
    taps, offset = wide(weight, bias, of=x.dtype)
    width, tokens = weight.shape[1], x.shape[2]
    dweight, dbias = np.zeros(weight.shape), np.zeros(len(weight))
    for b, row, own in rows(x, width, seq_idx, cu_seqlens, initial_states):
        source = extended(x[b], None if initial_states is None else initial_states[own])
        (operands,) = wide(source, of=x.dtype)
        z = accumulated(operands, row, taps, offset)
        dz = np.where(row.exists, dout[b].astype(WIDE) * slope(z, activation), 0)
        gradient = np.zeros(source.shape)
        for tap, place in enumerate(row.taps):
            # No place but the zero's, which is not read, occurs twice in one tap.
            gradient[:, place] += taps[:, tap, None] * dz
            dweight[:, tap] += (dz * operands[:, place]).sum(axis=1)
        dbias += dz.sum(axis=1)
        if dfinal_states is not None:
            for place, given in zip(row.final, dfinal_states[own], strict=True):
                gradient[:, place] += given
        outputs["dx"][b] = gradient[:, :tokens].astype(x.dtype)
        if initial_states is not None:
            states = gradient[:, tokens:-1].reshape(len(weight), len(row.final), width - 1)
            outputs["dinitial_states"][own] = np.moveaxis(states, 0, 1).astype(x.dtype)
    outputs["dweight"][...] = dweight.astype(weight.dtype)
    if bias is not None:
        outputs["dbias"][...] = dbias.astype(bias.dtype)


@np.errstate(all="ignore")
def update(x, conv_state, weight, bias, cache_seqlens, indices, activation, out):
    """Write out (N, D, S) and, in place, the slots of conv_state (P, D, L) that rows name."""
    (rows_, _, steps), (slots, _, length) = x.shape, conv_state.shape
    taps, offset = wide(weight, bias, of=x.dtype)
    width = weight.shape[1]
    slot = np.arange(rows_) if indices is None else indices.astype(np.int64)
    exists = (slot >= 0) & (slot < slots)
    out[~exists] = 0
    row = row_of(steps, width, np.array([0, steps]), has_initial=True)
    for n in np.flatnonzero(exists):
        state = conv_state[slot[n]]
        if cache_seqlens is None:
            history = state[:, length - (width - 1) :]
            after = np.concatenate([state, x[n]], axis=1)[:, steps:]
        else:
            at = int(cache_seqlens[n])
            history = state[:, (at - (width - 1) + np.arange(width - 1)) % length]
            after = state.copy()
            for step in range(steps):
                after[:, (at + step) % length] = x[n, :, step]
        (operands,) = wide(extended(x[n], history[None]), of=x.dtype)
        z = accumulated(operands, row, taps, offset)
        out[n] = activate(z, activation).astype(out.dtype)
        conv_state[slot[n]] = after
