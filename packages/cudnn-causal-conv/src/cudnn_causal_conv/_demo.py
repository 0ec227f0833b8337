"""What this family shows in `cudnn demo`: the convolution, its gradient and a decode step, against float64.

May import NumPy and core's demo protocol. No framework: `place` holds the arrays.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from cudnn_causal_conv import backward, conv1d, update
from cudnn_core.cli.places import Place
from cudnn_core.cli.protocol import Case, FeedForward, Trial, engine_of

WIDTH = 4
# One rounding of the result; FP32 sums over tokens for the gradient of the filter.
TOLERANCE = {"float32": 1e-6, "bfloat16": 3e-3}


def cases(place: Place, block: FeedForward | None) -> Iterator[Case]:
    """Each operation in FP32 and BF16, on N(0, 1)."""
    b, d, t = 2, place.side // 2, place.side // 2
    for dtype, error in TOLERANCE.items():
        shape = f"{b}x{d}x{t}"
        yield _case(conv1d.OP, shape, dtype, {"y": error}, partial(_forward, place, dtype))
        gradients = {"dx": error, "dw": max(error, 1e-5)}
        yield _case(backward.OP, shape, dtype, gradients, partial(_backward, place, dtype))
        yield _case(
            update.OP,
            f"{d}x{d}",
            dtype,
            {"y": error, "state": 0.0},
            partial(_update, place, dtype),
        )


def _case(
    op: Any,
    shape: str,
    dtype: str,
    tolerance: Mapping[str, float],
    prepare: Callable[[], Trial],
) -> Case:
    # What they compute is nothing beside what they read and write: no rate of operations.
    return Case(op.contract.name, "N(0, 1)", shape, dtype, 0.0, tolerance, prepare)


def _normal(place: Place, dtype: str, shape: tuple[int, ...], seed: int) -> tuple[Any, np.ndarray]:
    """An array of the place in `dtype`, and its values in float64 on the host."""
    values = place.get(place.normal(shape, seed)).astype(np.float32)
    array = place.put(values)
    if dtype == "bfloat16":
        values = values.astype(ml_dtypes.bfloat16)
        array = array.bfloat16() if hasattr(array, "bfloat16") else values
    return array, values.astype(np.float64)


def _wide(place: Place, array: Any) -> np.ndarray:
    """An array of the place in float64 on the host."""
    if hasattr(array, "float"):
        array = array.float()
    return place.get(array).astype(np.float64)


def _error(got: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def _sums(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Causal sums of (B, D, T), tap by tap."""
    z = np.zeros_like(x)
    for back in range(WIDTH):
        z[:, :, back:] += weight[:, WIDTH - 1 - back, None] * x[:, :, : x.shape[2] - back]
    return z


def _operands(place: Place, dtype: str) -> tuple[list[Any], list[np.ndarray]]:
    b, d, t = 2, place.side // 2, place.side // 2
    shapes = ((b, d, t), (d, WIDTH), (d,), (b, d, t))
    made = [_normal(place, dtype, shape, seed) for seed, shape in enumerate(shapes)]
    return [array for array, _ in made], [exact for _, exact in made]


def _forward(place: Place, dtype: str) -> Trial:
    (x, weight, bias, _), (wide, taps, offset, _) = _operands(place, dtype)
    z = _sums(wide, taps) + offset[:, None]
    exact = z / (1 + np.exp(-z))

    def judge(y: Any) -> dict[str, float]:
        return {"y": _error(_wide(place, y), exact)}

    engine = engine_of(conv1d.OP, (x, weight, bias, None, None, None), ("silu",))
    return Trial(engine, partial(conv1d.causal_conv1d, x, weight, bias, "silu"), judge)


def _backward(place: Place, dtype: str) -> Trial:
    (x, weight, _, dout), (wide, taps, _, gradient) = _operands(place, dtype)
    z = _sums(wide, taps)
    s = 1 / (1 + np.exp(-z))
    dz = gradient * s * (1 + z * (1 - s))
    # Backwards in time the gradient is a causal convolution again.
    exact = {"dx": _sums(dz[:, :, ::-1], taps)[:, :, ::-1]}
    backs = [
        (dz[:, :, back:] * wide[:, :, : z.shape[2] - back]).sum((0, 2)) for back in range(WIDTH)
    ]
    exact["dw"] = np.stack(backs[::-1], axis=1)

    def judge(made: Mapping[str, Any]) -> dict[str, float]:
        got = {"dx": made["dx"], "dw": made["dweight"]}
        return {name: _error(_wide(place, got[name]), value) for name, value in exact.items()}

    inputs = (x, weight, None, None, None, None, dout, None)
    engine = engine_of(backward.OP, inputs, ("silu",))
    call = partial(backward.causal_conv1d_backward, dout, x, weight, None, "silu")
    return Trial(engine, call, judge)


def _update(place: Place, dtype: str) -> Trial:
    d = place.side // 2
    shapes = ((d, d), (d, d, WIDTH - 1), (d, WIDTH))
    made = [_normal(place, dtype, shape, seed) for seed, shape in enumerate(shapes)]
    (x, state, weight), (token, before, taps) = zip(*made, strict=True)
    history = np.concatenate([before, token[:, :, None]], axis=2)
    z = (history * taps).sum(axis=2)
    exact = z / (1 + np.exp(-z))

    def judge(y: Any) -> dict[str, float]:
        moved = _error(_wide(place, state), history[:, :, 1:])
        return {"y": _error(_wide(place, y), exact), "state": moved}

    engine = engine_of(update.OP, (x, state, weight, None, None, None), ("silu",))
    call = partial(update.causal_conv1d_update, x, state, weight, None, "silu")
    return Trial(engine, call, judge)
