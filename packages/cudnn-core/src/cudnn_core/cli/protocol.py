"""What a family puts into `cudnn demo`. May import NumPy; no framework, no rich, no engine.

A family's module `_demo` defines any of

    cases(place, block) -> iterable of Case       rows of the first table
    studies(place, block) -> iterable of Study    a table of its own each, and a picture

`place` says where arrays live (see `places`); `block` is the FeedForward of a real network, or None
where the meta-package that carries it is not installed.
"""

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_DATA = Path("data") / "minilm_ffn.npz"


@dataclass(frozen=True)
class Trial:
    """A case made ready: inputs stand where the engine wants them.

    engine: name of the engine that runs it.
    call: one call of the operation, as a user would write it; returns its outputs.
    judge: outputs -> relative error of each result against float64, the main result first.
    """

    engine: str
    call: Callable[[], Any]
    judge: Callable[[Any], Mapping[str, float]]


@dataclass(frozen=True)
class Case:
    """One row: an operation on one input.

    op: the contract's name, "dense/amax"; source: where the input comes from, in two words; shape
    and formats: as the table shows them; flop: work of one call, 0 where a rate of it would say
    nothing; tolerance: largest error of each result, by the names that the trial's `judge` uses;
    prepare: makes the Trial.
    """

    op: str
    source: str
    shape: str
    formats: str
    flop: float
    tolerance: Mapping[str, float]
    prepare: Callable[[], Trial]


@dataclass(frozen=True)
class Study:
    """A table with a point to make. `rows()` yields them one by one, each after its work is done.

    steps: how many rows there will be. notes: sentences below the table. draw: fills a matplotlib
    figure, or a part of one, from the data of all rows; a row is (cells, data).
    """

    title: str
    columns: tuple[str, ...]
    steps: int
    rows: Callable[[], Iterable[tuple[tuple[str, ...], Any]]]
    notes: tuple[str, ...] = ()
    draw: Callable[[Any, list[Any]], None] | None = None


@dataclass(frozen=True)
class FeedForward:
    """y = gelu(x W_in^T + b_in) W_out^T + b_out of a published sentence encoder, and a real input.

    x: (tokens, 384), w_in: (1536, 384), w_out: (384, 1536), float16; biases float32.
    """

    x: np.ndarray
    w_in: np.ndarray
    b_in: np.ndarray
    w_out: np.ndarray
    b_out: np.ndarray


def feed_forward() -> FeedForward | None:
    """The block that the meta-package carries; None when that package is not installed.

    Looked up without importing the package: the folder stays where it is even when another
    distribution has overwritten the package's own first file.
    """
    spec = importlib.util.find_spec("cudnn")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(root) / _DATA
        if path.is_file():
            with np.load(path) as arrays:
                return FeedForward(**{name: arrays[name] for name in FeedForward.__annotations__})
    return None


def engine_of(op: Any, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> str:
    """Name of the engine that runs `op` on these inputs."""
    from cudnn_core.engine import select

    return select(op.engines, op.bind(inputs, attributes)[1]).name
