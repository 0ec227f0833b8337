"""Contract: operands, attributes and rules of one operation; Problem: the frozen result of binding it.

`Contract.bind` is the only validator: wrappers, classes, torch fake kernels and JAX abstract evaluation all call it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import mismatch
from ..tensor_desc import Device, TensorDesc
from .attributes import Attribute, Number
from .dims import Dims
from .operands import Operand, OperandPlan


@dataclass(frozen=True)
class Signature:
    """What selects generated code: operands as bound and attributes. Hashable, free of extents."""

    op: str
    operands: tuple[OperandPlan, ...]
    attributes: tuple[tuple[str, Hashable], ...]
    numbers: tuple[str, ...] = ()

    def operand(self, name: str) -> OperandPlan:
        """The plan of the operand called `name`; KeyError if it is absent."""
        for plan in self.operands:
            if plan.name == name:
                return plan
        raise KeyError(name)

    def has(self, name: str) -> bool:
        """Whether the operand called `name` is present."""
        return any(plan.name == name for plan in self.operands)

    def named(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """An executable's arrays, those of the operands that are present, and its numbers, by name."""
        names = (*(plan.name for plan in self.operands), *self.numbers)
        return dict(zip(names, arguments, strict=True))

    def attribute(self, name: str) -> Any:
        """The value of the attribute called `name`."""
        return dict(self.attributes)[name]


@dataclass(frozen=True)
class Problem:
    """A bound call: the signature, the extents, the device, every operand's metadata, the outputs to allocate.

    `descs` has all operands and `outputs` all outputs in contract order; None stands for those that are absent.
    """

    signature: Signature
    dims: Mapping[str, int] = field(hash=False, compare=False)
    device: Device = field(compare=False)
    descs: tuple[TensorDesc | None, ...] = field(hash=False, compare=False, default=())
    outputs: tuple[TensorDesc | None, ...] = field(hash=False, compare=False, default=())
    vital: tuple[str, ...] = field(compare=False, default=())

    @property
    def is_empty(self) -> bool:
        """Whether some extent that counts is 0, so that there is nothing to compute."""
        return any(self.dims.get(symbol, 1) == 0 for symbol in self.vital or self.dims)


@dataclass(frozen=True)
class Derived:
    """An extent that follows from another one: `symbol` = function(`base`). The inputs bind `base`."""

    symbol: str
    base: str
    function: Callable[[int], int]


@dataclass(frozen=True)
class Contract:
    """One operation. `name` is `family/stem`; operands stand in call order, outputs last.

    The first operand is always present: its type says which framework a call belongs to.

    rules: functions of (signature, dims) that raise ValueError or NotImplementedError for combinations.
    numbers: what a call gives at run time beside its tensors. derived: extents of outputs that no input has.
    early: functions of (names of the tensors that are given, attributes) that do so before any tensor is looked at.
    aliases(given names): symbols that are another name of a symbol in such a call.
    vital: the symbols whose extent of 0 makes a problem empty; all of them when there is none.
    folds: groups of symbols along which operands are independent, for `jax.vmap` to merge a mapped axis with.
    """

    name: str
    operands: tuple[Operand, ...]
    attributes: tuple[Attribute, ...]
    rules: tuple[Callable[[Signature, Mapping[str, int]], None], ...] = ()
    numbers: tuple[Number, ...] = ()
    derived: tuple[Derived, ...] = ()
    early: tuple[Callable[[frozenset[str], Mapping[str, Any]], None], ...] = ()
    aliases: Callable[[frozenset[str]], Mapping[str, str]] = lambda given: {}
    vital: tuple[str, ...] = ()
    folds: tuple[frozenset[str], ...] = ()

    def __post_init__(self) -> None:
        if self.operands[0].may_be_absent:
            name = self.operands[0].name
            raise ValueError(mismatch(name, "a first operand that no call leaves out", "another"))

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if not o.output)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.output)

    @property
    def mutated(self) -> tuple[Operand, ...]:
        """The inputs that are written in place."""
        return tuple(o for o in self.operands if o.mutated)

    @property
    def outputs_vary(self) -> bool:
        """Whether calls without given outputs make more of them or fewer, as conditions say."""
        return any(o.when is not None or o.by_default is not None for o in self.outputs)

    def parse_attributes(self, values: Mapping[str, Any]) -> dict[str, Hashable]:
        """Canonical attribute values; the names are those of the public parameters."""
        return {a.name: a.parse(values.get(a.name, a.default), a.name) for a in self.attributes}

    def parse_numbers(self, values: Sequence[Any]) -> tuple[float, ...]:
        """Run-time numbers in contract order; missing trailing ones take their defaults."""
        given = len(values)
        if given == len(self.numbers) == 1 and type(values[0]) is float:
            return (values[0],)  # what `parse` says of it, in a third of the time
        return tuple(
            number.parse(values[i]) if i < given else number.default
            for i, number in enumerate(self.numbers)
        )

    def selecting(self, parsed: Mapping[str, Hashable]) -> dict[str, Hashable]:
        """The parsed attributes that are in the signature: those that do more than shape an output."""
        return {a.name: parsed[a.name] for a in self.attributes if not a.of_output}

    def bind(
        self,
        descs: Sequence[TensorDesc | None],
        attributes: Mapping[str, Any],
        names: Sequence[str] = (),
    ) -> Problem:
        """Check `descs` (all inputs, then all outputs or none) and attributes; raise or return the Problem.

        Messages call each tensor by its desc's name, so a class says ``sample_a`` and a wrapper ``a_tensor``; names
        are what the caller calls those that may be missing.
        """
        parsed = self.parse_attributes(attributes)
        operands = self.operands if len(descs) == len(self.operands) else self.inputs
        if len(descs) != len(operands):
            raise ValueError(mismatch(self.name, f"{len(operands)} tensors", len(descs)))
        kept = self.selecting(parsed)
        given = frozenset(o.name for o, d in zip(operands, descs, strict=True) if d is not None)
        for rule in self.early:
            rule(given, parsed)
        dims, plans, made, bound, dtypes = Dims(self.aliases(given)), [], [], {}, {}

        def add(operand: Operand, desc: TensorDesc) -> None:
            plan = operand.bind(desc, dims, parsed)
            bound[operand.name] = desc
            dtypes[operand.name] = plan.dtype
            plans.append(plan)

        names = names or tuple(operand.name for operand in operands)
        for operand, desc, name in zip(operands, descs, names, strict=True):
            if operand.output:
                self._derive(dims)
            applies = operand.applies(kept, dtypes)
            if desc is not None:
                if not applies:
                    expected = "None, as it does not apply to these operands and options"
                    raise ValueError(mismatch(desc.name or operand.name, expected, "a tensor"))
                add(operand, desc)
            elif applies and not operand.optional:
                raise ValueError(mismatch(name, "a tensor", "None"))
        device = next(desc.device for desc in descs if desc is not None)
        if operands is not self.operands:
            self._derive(dims)
            for operand in self.outputs:
                desc = None
                if operand.is_made(parsed, kept, dtypes):
                    desc = operand.make(dims, parsed, device, bound)
                    add(operand, desc)
                made.append(desc)
        numbers = tuple(number.name for number in self.numbers)
        signature = Signature(self.name, tuple(plans), tuple(kept.items()), numbers)
        for rule in self.rules:
            rule(signature, dims)
        every = (*descs, *made)
        return Problem(signature, dims.extents(), device, every, tuple(made), self.vital)

    def _derive(self, dims: Dims) -> None:
        for derived in self.derived:
            extent = derived.function(dims[derived.base])
            dims.bind(derived.symbol, extent, dims.source(derived.base))
