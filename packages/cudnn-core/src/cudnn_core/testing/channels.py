"""A differentiable operation and one in place, for tests of what such operations share. NumPy when they run.

y[b,d,t] = x[b,d,t] weight[d] (+ offset[d]); totals[r,d] = sum of x over the tokens of row b, or of packed sequence r.
The second adds x to a store and gives what was there before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..contract import Array, Attribute, Contract, Signature, choice
from ..dtypes import FLOAT32, FLOAT64, INT32
from ..op import Op
from .toy import CountingEngine

FLOATS = (FLOAT32, FLOAT64)


def _boolean(value: Any, argument: str) -> bool:
    return bool(value)


def _totals(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
    return attributes["totals"]


def _offset(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
    return "offset" in dtypes


def _rows(given: frozenset[str]) -> dict[str, str]:
    return {"R": "N" if "bounds" in given else "B"}


INPUTS = (
    Array("x", ("B", "D", "T"), dtypes=FLOATS),
    Array("weight", ("D",), dtypes=FLOATS),
    Array("offset", ("D",), dtypes=FLOATS, optional=True),
    Array("bounds", ("N+1",), dtypes=(INT32,), refusal=TypeError, optional=True, packed=True),
)
SHARED = {"output": True, "dtypes": FLOATS, "dtype_of": "x"}
BACKWARD_CONTRACT = Contract(
    "core/channels_backward",
    operands=(
        *INPUTS,
        Array("dy", ("B", "D", "T"), dtypes=FLOATS),
        Array("dtotals", ("R", "D"), dtypes=FLOATS, optional=True),
        Array("dx", ("B", "D", "T"), like="x", **SHARED),
        Array("dweight", ("D",), **SHARED),
        Array("doffset", ("D",), when=_offset, **SHARED),
    ),
    attributes=(choice("sign", "plus", ("plus", "minus")),),
    aliases=_rows,
    vital=("B", "D", "T"),
    folds=(frozenset("D"),),
)
CONTRACT = Contract(
    "core/channels",
    operands=(
        *INPUTS,
        Array("y", ("B", "D", "T"), like="x", **SHARED),
        Array("totals", ("R", "D"), order=(0, 1), when=_totals, empty_from="", **SHARED),
    ),
    attributes=(
        choice("sign", "plus", ("plus", "minus")),
        Attribute("totals", False, _boolean),
    ),
    aliases=_rows,
    vital=("B", "D", "T"),
    folds=(frozenset("BR"), frozenset("D")),
)


def _sequences(named: Mapping[str, Any]) -> list[tuple[int, slice]]:
    x, bounds = named["x"], named.get("bounds")
    if bounds is None:
        return [(b, slice(None)) for b in range(x.shape[0])]
    return [(0, slice(*bounds[i : i + 2])) for i in range(len(bounds) - 1)]


def _sign(signature: Signature) -> int:
    return -1 if signature.attribute("sign") == "minus" else 1


def reference(signature: Signature, *arrays: Any) -> None:
    """The forward, in place."""
    named = signature.named(arrays)
    x, y = named["x"], named["y"]
    y[...] = _sign(signature) * x * named["weight"][:, None]
    if "offset" in named:
        y += named["offset"][:, None]
    if "totals" in named:
        for r, (b, span) in enumerate(_sequences(named)):
            named["totals"][r] = x[b, :, span].sum(axis=1)


def backward_reference(signature: Signature, *arrays: Any) -> None:
    """Its gradient, in place."""
    named = signature.named(arrays)
    x, dy, dx = named["x"], named["dy"], named["dx"]
    dx[...] = _sign(signature) * dy * named["weight"][:, None]
    if "dtotals" in named:
        for r, (b, span) in enumerate(_sequences(named)):
            dx[b, :, span] += named["dtotals"][r][:, None]
    named["dweight"][...] = _sign(signature) * (dy * x).sum(axis=(0, 2))
    if "doffset" in named:
        named["doffset"][...] = dy.sum(axis=(0, 2))


BACKWARD = Op(
    BACKWARD_CONTRACT,
    (CountingEngine(backward_reference),),
    "cudnn_core_toy",
    "channels_backward",
    is_gradient=True,
)
OP = Op(CONTRACT, (CountingEngine(reference),), "cudnn_core_toy", "channels", backward=BACKWARD)


def channels(x: Any, weight: Any, offset: Any = None, bounds: Any = None, *attributes: Any) -> Any:
    """The public function: [y, totals or None]."""
    return OP.run((x, weight, offset, bounds), attributes)


STORE_CONTRACT = Contract(
    "core/store",
    operands=(
        Array("x", ("N", "D", "S"), dtypes=FLOATS, droppable=True),
        Array("store", ("N", "D"), dtypes=FLOATS, mutated=True),
        Array("y", ("N", "D"), **SHARED),
    ),
    attributes=(choice("sign", "plus", ("plus", "minus")),),
    vital=("N", "D"),
    folds=(frozenset("N"),),
)


def store_reference(signature: Signature, x: Any, store: Any, y: Any) -> None:
    """y = store; store += the sum of x over S."""
    y[...] = store
    store += _sign(signature) * (x if x.ndim == 2 else x.sum(axis=2))


STORE = Op(
    STORE_CONTRACT,
    (CountingEngine(store_reference),),
    "cudnn_core_toy",
    "store",
    inference_only=True,
)
