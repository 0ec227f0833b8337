"""Attributes of an operation: compile-time options with a default and a parser that refuses clearly."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import index
from typing import Any

from ..dtypes import DType, as_dtype
from ..errors import mismatch, one_of


@dataclass(frozen=True)
class Attribute:
    """One option. `parse(value, name)` returns the canonical hashable value or raises.

    An attribute that only says how to make an output (`of_output`) stays out of the signature: the output's own
    OperandPlan carries it, so a wrapper's allocation and a class's sample give the same compile key.
    """

    name: str
    default: Any
    parse: Callable[[Any, str], Hashable]
    of_output: bool = False


def choice(name: str, default: Any, allowed: Iterable[Any], of_output: bool = False) -> Attribute:
    """An attribute whose value is one of a few. Any integer type passes for an integer, a boolean never."""
    values = tuple(allowed)

    def parse(value: Any, argument: str) -> Hashable:
        # First without conversion: a tracing compiler can compare a symbolic integer, not convert it.
        for candidate in values:
            if type(candidate) is type(value) and candidate == value:
                return candidate
        if hasattr(value, "__index__") and type(value) is not bool:
            for candidate in values:
                if type(candidate) is int and candidate == index(value):
                    return candidate
        raise ValueError(mismatch(argument, one_of(map(repr, values)), repr(value)))

    return Attribute(name, default, parse, of_output)


def dtype_attribute(
    name: str, default: DType, allowed: Iterable[DType], of_output: bool = False
) -> Attribute:
    """An attribute that is a dtype in any spelling (spec core, section 3.1)."""
    names = {dtype.name: dtype for dtype in allowed}

    def parse(value: Any, argument: str) -> Hashable:
        dtype = as_dtype(value, argument)
        if dtype.name not in names:
            raise ValueError(mismatch(argument, one_of(names), dtype.name))
        return names[dtype.name]

    return Attribute(name, default, parse, of_output)


def tile_hint(
    name: str, default: Any, allowed: tuple[tuple[int, ...], tuple[int, ...]]
) -> Attribute:
    """A pair such as ``mma_tiler_mn``: None means "choose", legal pairs are hints to the engine."""

    def parse(value: Any, argument: str) -> Hashable:
        if value is None:
            return None
        try:
            pair = tuple(index(extent) for extent in value)
        except TypeError:
            pair = ()
        if len(pair) != 2:
            raise ValueError(mismatch(argument, "a pair of integers or None", repr(value)))
        for mode, legal in enumerate(allowed):
            if pair[mode] not in legal:
                raise ValueError(mismatch(f"{argument}[{mode}]", one_of(legal), pair[mode]))
        return pair

    return Attribute(name, default, parse)
