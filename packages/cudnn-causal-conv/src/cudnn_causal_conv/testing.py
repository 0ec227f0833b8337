"""For tests of this package: cases, hostile layouts, and an independent float64 law. Imports NumPy and core's metadata.

The law cuts sequences out and slides windows over them; it shares nothing with the reference's gathers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from cudnn_core.tensor_desc import TensorDesc

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
# Half a unit in the last place: what one rounding costs. FP32 sums of a few taps cost a few of them.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Case:
    """One call. lengths: packed sequences, which make B = 1 and T their sum; ids: with seq_idx."""

    b: int = 2
    d: int = 5
    t: int = 17
    width: int = 4
    x: str = "float32"
    weight: str = ""
    bias: bool = True
    activation: str | None = "silu"
    lengths: tuple[int, ...] = ()
    ids: bool = False
    initial: bool = False
    final: bool = False
    layout: str = "t"

    @property
    def shape(self) -> tuple[int, int, int]:
        return (1, self.d, sum(self.lengths)) if self.lengths else (self.b, self.d, self.t)

    @property
    def sequences(self) -> int:
        return len(self.lengths) or self.b


@dataclass(frozen=True)
class Step:
    """A decode step: x (N, D), or (N, D, S) where `tokens` is not None; slots 0: one for each row, no indices."""

    rows: int = 5
    d: int = 64
    tokens: int | None = None
    length: int = 3
    slots: int = 0
    width: int = 4
    x: str = "bfloat16"
    weight: str = ""
    bias: bool = True
    activation: str | None = "silu"
    channel_last: bool = False
    circular: bool = False


@dataclass
class Data:
    """The operands of a case, NumPy, and gradients of its outputs."""

    case: Case
    x: Any
    weight: Any
    bias: Any = None
    seq_idx: Any = None
    cu_seqlens: Any = None
    initial_states: Any = None
    dout: Any = None
    dfinal_states: Any = None

    def positional(self) -> tuple[Any, ...]:
        return self.x, self.weight, self.bias, self.case.activation

    def keywords(self) -> dict[str, Any]:
        return {
            "seq_idx": self.seq_idx,
            "cu_seqlens": self.cu_seqlens,
            "initial_states": self.initial_states,
        }

    def differentiable(self) -> dict[str, Any]:
        """Operands that have a gradient, by name."""
        names = ("x", "weight", "bias", "initial_states")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def make(case: Case, seed: int = 0, scale: float = 1.0) -> Data:
    """Random operands; x in the case's layout."""
    random = np.random.default_rng(seed)
    (b, d, t), w = case.shape, case.width
    kind, weights = DTYPES[case.x], DTYPES[case.weight or case.x]

    def normal(shape: tuple[int, ...], dtype: np.dtype = kind) -> np.ndarray:
        return (scale * random.standard_normal(shape)).astype(dtype)

    data = Data(
        case,
        laid_out(normal((b, d, t)), case.layout),
        (random.standard_normal((d, w)) / np.sqrt(w)).astype(weights),
        (0.5 * random.standard_normal(d)).astype(weights) if case.bias else None,
        dout=normal((b, d, t)),
    )
    if case.ids:
        data.seq_idx = np.sort(random.integers(-1, 4, (b, t)), axis=1).astype(np.int32)
    if case.lengths:
        data.cu_seqlens = np.cumsum((0, *case.lengths), dtype=np.int32)
    states = (case.sequences, d, w - 1)
    if case.initial:
        data.initial_states = normal(states)
    if case.final:
        data.dfinal_states = normal(states)
    return data


def make_step(step: Step, seed: int = 0) -> dict[str, Any]:
    """The operands of a decode step by name: slots in random order; with indices every fourth row is padding."""
    random = np.random.default_rng(seed)
    kind, weights = DTYPES[step.x], DTYPES[step.weight or step.x]
    slots, tail = step.slots or step.rows, () if step.tokens is None else (step.tokens,)
    state = random.standard_normal((slots, step.d, step.length)).astype(kind)
    if step.channel_last:
        state = np.ascontiguousarray(state.transpose(0, 2, 1)).transpose(0, 2, 1)
    indices = None
    if step.slots:
        indices = random.permutation(slots)[: step.rows].astype(np.int32)
        indices[::4] = [-1, slots, -(2**31), 2**31 - 1][seed % 4]
    lengths = random.integers(0, 10**9, step.rows).astype(np.int32) if step.circular else None
    return {
        "x": random.standard_normal((step.rows, step.d, *tail)).astype(kind),
        "conv_state": state,
        "weight": random.standard_normal((step.d, step.width)).astype(weights),
        "bias": random.standard_normal(step.d).astype(weights) if step.bias else None,
        "cache_seqlens": lengths,
        "conv_state_indices": indices,
    }


def described(name: str, x: np.ndarray | None, device: str) -> TensorDesc | None:
    """Metadata of an array as it would be on a device."""
    if x is None:
        return None
    stride = tuple(step // x.itemsize for step in x.strides)
    return TensorDesc.of(x.dtype, x.shape, stride, device, name)


def descs(case: Case, backward: bool, device: str = "cuda:0") -> list[TensorDesc | None]:
    """Metadata of the inputs of a case's forward or backward, on a device."""
    data = make(case)
    names = ["x", "weight", "bias", "seq_idx", "cu_seqlens", "initial_states"]
    names += ["dout", "dfinal_states"] * backward
    return [described(name, getattr(data, name), device) for name in names]


def step_descs(step: Step, device: str = "cuda:0") -> list[TensorDesc | None]:
    """Metadata of the inputs of a decode step, on a device."""
    return [described(name, x, device) for name, x in make_step(step).items()]


def laid_out(values: np.ndarray, layout: str) -> np.ndarray:
    """A view of these values: "t" or "d" contiguous, "padded", "shifted" by one element, or every other ("any")."""
    b, d, t = values.shape
    junk = np.nan if values.dtype.kind not in "iu" else -7
    if layout == "t":
        return values.copy()
    if layout == "d":
        view = np.empty((b, t, d), values.dtype).transpose(0, 2, 1)
    elif layout == "padded":
        view = np.full((b, t, d + 3), junk, values.dtype).transpose(0, 2, 1)[:, 1 : d + 1]
    elif layout == "shifted":
        view = np.full(b * d * t + 1, junk, values.dtype)[1:].reshape(b, d, t)
    else:
        view = np.full((b, 2 * d, 2 * t), junk, values.dtype)[:, ::2, ::2]
    view[...] = values
    return view


def law(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """(y, final states) in float64, by definition; final states of plain rows or packed sequences."""
    case, w = data.case, data.case.width
    x, weight = data.x.astype(np.float64), data.weight.astype(np.float64)
    bias = np.zeros(case.d) if data.bias is None else data.bias.astype(np.float64)
    y = np.zeros(x.shape)
    states = np.zeros((case.sequences, case.d, w - 1))
    if data.seq_idx is not None:
        return act(_by_ids(x, weight, bias, data.seq_idx), case.activation, data.seq_idx), states
    for r in range(case.sequences):
        row, first, last = r, 0, x.shape[2]
        if case.lengths:
            row, first, last = 0, data.cu_seqlens[r], data.cu_seqlens[r + 1]
        history = np.zeros((case.d, w - 1))
        if data.initial_states is not None:
            history = data.initial_states[r].astype(np.float64)
        line = np.concatenate([history, x[row, :, first:last]], axis=1)
        if last > first:
            windows = np.lib.stride_tricks.sliding_window_view(line, w, axis=1)
            y[row, :, first:last] = np.einsum("dtw,dw->dt", windows, weight) + bias[:, None]
        states[r] = line[:, line.shape[1] - (w - 1) :]
    return act(y, case.activation), states


def act(z: np.ndarray, activation: str | None, ids: np.ndarray | None = None) -> np.ndarray:
    """The activation in float64; 0 where ids are negative."""
    y = z if activation in (None, "identity") else z / (1 + np.exp(-z))
    return y if ids is None else np.where(ids[:, None] >= 0, y, 0)


def _by_ids(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, ids: np.ndarray) -> np.ndarray:
    (b, d, t), w = x.shape, weight.shape[1]
    z = np.zeros((b, d, t))
    for row in range(b):
        for at in range(t):
            for back in range(min(w, at + 1)):
                if ids[row, at - back] == ids[row, at]:
                    z[row, :, at] += weight[:, w - 1 - back] * x[row, :, at - back]
            z[row, :, at] += bias
    return z


def assert_near(got: Any, expected: np.ndarray, dtype: str, sums: float = 8.0) -> None:
    """Within one rounding to `dtype` and `sums` roundings of FP32 (or FP64), at the scale of the whole."""
    got = np.asarray(got).astype(np.float64)
    assert got.shape == expected.shape
    scale = np.abs(expected).max(initial=1.0)
    precision = ROUNDING["float64" if dtype == "float64" else "float32"]
    bound = 1.01 * ROUNDING[dtype] * np.abs(expected) + sums * precision * scale
    bound += 2.0**-25 if dtype == "float16" else 0  # subnormal halves
    miss = np.abs(got - expected) > bound
    assert not miss.any() and not np.isnan(got).any(), (
        f"{miss.sum()} of {miss.size} off, by {np.abs(got - expected).max()} at most"
    )


def bits(x: Any) -> np.ndarray:
    """The bytes of an array, to compare exactly."""
    x = np.ascontiguousarray(x)
    return x.view(f"u{x.itemsize}")


def same_bits(first: Any, second: Any) -> None:
    """Two arrays of one dtype that hold the same numbers, signs and payloads included."""
    first, second = np.asarray(first), np.asarray(second)
    assert first.dtype == second.dtype
    np.testing.assert_array_equal(bits(first), bits(second))


def spans(lengths: Sequence[int]) -> list[slice]:
    """Where each of the packed sequences lies."""
    ends = np.cumsum((0, *lengths))
    return [slice(a, b) for a, b in itertools.pairwise(ends)]
