"""Attributes of an operation: compile-time options with a default and a parser that refuses clearly.

And its numbers: scalars of a call that kernels take at run time, such as alpha.
"""

from __future__ import annotations

import math
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
    schema: the type in a torch schema, where the default does not tell it.
    """

    name: str
    default: Any
    parse: Callable[[Any, str], Hashable]
    of_output: bool = False
    schema: str = ""


@dataclass(frozen=True)
class Number:
    """A number that a kernel takes in FP32 at run time: in no signature, no compile key, no remembered call.

    It is known on the host, as nothing is read from a device: Python and NumPy numbers, and single elements of arrays
    in host memory.
    """

    name: str
    default: float

    def parse(self, value: Any) -> float:
        """A Python float (one NaN stands for all); TypeError for what is no number, ValueError for one elsewhere."""
        if type(value) is float:
            # A tracing compiler passes here too, with a symbolic number that it must not compare.
            return value
        place = getattr(value, "device", None)
        # torch calls the kind of a device its type, JAX its platform.
        if getattr(place, "type", getattr(place, "platform", "cpu")) != "cpu":
            expected = "a number on the host, as nothing is read from a device"
            raise ValueError(mismatch(self.name, expected, f"a tensor on {place}"))
        try:
            number = value.item() if hasattr(value, "item") else value
            if isinstance(number, NO_NUMBERS):
                raise TypeError
            number = float(number)
        except OverflowError:
            raise ValueError(mismatch(self.name, "a number that a double holds", "more")) from None
        except (TypeError, ValueError):
            came = value if isinstance(value, NO_NUMBERS) else type(value).__name__
            expected = "a number known on the host, before any tracing"
            raise TypeError(mismatch(self.name, expected, repr(came))) from None
        return number if number == number else math.nan


# Which float() takes, or says to be complex.
NO_NUMBERS = (str, bytes, bytearray, memoryview, complex)


def as_integer(value: Any) -> int | None:
    """The integer that an integer of any type is; None for a boolean, and for what is none."""
    if type(value) is bool or not hasattr(value, "__index__"):
        return None
    try:
        return index(value)
    except TypeError:  # an array of several, a NumPy boolean
        return None


def choice(name: str, default: Any, allowed: Iterable[Any], of_output: bool = False) -> Attribute:
    """An attribute whose value is one of a few. Any integer type passes for an integer, a boolean never."""
    values = tuple(allowed)

    def parse(value: Any, argument: str) -> Hashable:
        # First without conversion: a tracing compiler can compare a symbolic integer, not convert it.
        for candidate in values:
            if type(candidate) is type(value) and candidate == value:
                return candidate
        integer = as_integer(value)
        if integer is not None:
            for candidate in values:
                if type(candidate) is int and candidate == integer:
                    return candidate
        raise ValueError(mismatch(argument, one_of(map(repr, values)), repr(value)))

    return Attribute(name, default, parse, of_output)


def dtype_attribute(
    name: str,
    default: DType,
    allowed: Iterable[DType],
    of_output: bool = False,
    optional: bool = False,
) -> Attribute:
    """An attribute that is a dtype in any spelling (spec core, section 3.1); optional: None is one more value."""
    names = {dtype.name: dtype for dtype in allowed}

    def parse(value: Any, argument: str) -> Hashable:
        if optional and value is None:
            return None
        dtype = as_dtype(value, argument)
        if dtype.name not in names:
            raise ValueError(mismatch(argument, one_of(names), dtype.name))
        return names[dtype.name]

    return Attribute(name, default, parse, of_output, "str?" if optional else "")


def block_sizes(name: str, default: int, allowed: Iterable[int]) -> Attribute:
    """Elements in a block: one number, or a pair of them for the left and the right operand.

    Canonical is the number where both are equal.
    """
    one = choice(name, default, allowed)

    def parse(value: Any, argument: str) -> Hashable:
        if not isinstance(value, tuple | list):
            return one.parse(value, argument)
        if len(value) != 2:
            raise ValueError(mismatch(argument, "a number or a pair of numbers", repr(value)))
        pair = tuple(one.parse(v, f"{argument}[{side}]") for side, v in enumerate(value))
        return pair[0] if pair[0] == pair[1] else pair

    return Attribute(name, default, parse, schema="int[2]")


def tile_hint(
    name: str,
    default: Any,
    allowed: tuple[tuple[int, ...], tuple[int, ...]],
    largest_product: int | None = None,
) -> Attribute:
    """A pair such as ``mma_tiler_mn``: None means "choose", legal pairs are hints to the engine."""

    def parse(value: Any, argument: str) -> Hashable:
        if value is None:
            return None
        try:
            pair = tuple(value)
        except TypeError:
            pair = ()
        pair = tuple([as_integer(extent) for extent in pair])
        if len(pair) != 2 or None in pair:
            raise ValueError(mismatch(argument, "a pair of integers or None", repr(value)))
        for mode, legal in enumerate(allowed):
            if pair[mode] not in legal:
                raise ValueError(mismatch(f"{argument}[{mode}]", one_of(legal), pair[mode]))
        if largest_product is not None and pair[0] * pair[1] > largest_product:
            expected = f"a product of at most {largest_product}"
            raise ValueError(mismatch(argument, expected, repr(pair)))
        return pair

    return Attribute(name, default, parse)
