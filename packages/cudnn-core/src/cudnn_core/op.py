"""Op: one operation behind all its doors. Wrapper calls, classes, torch ops and JAX primitives meet here.

A call is described once, bound by the contract, given to an engine and remembered: the next call with the same tensor
metadata goes straight to the executable. May import contract, engine, adapters and doors; no kernel, no framework.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from . import doors
from .adapters import adapter_of, common
from .adapters.base import Adapter
from .api_base import APIBase, check_buffers_disjoint
from .contract import Contract, Matrix, Problem, ScalarTensor
from .dtypes import DType
from .engine import Engine, select
from .errors import mismatch
from .prepared import (
    UNDECLARED,
    Latest,
    Prepared,
    executable_of,
    explain,
    full_shape,
    launcher_into,
)
from .tensor_desc import canonical_stride
from .tuple_dict import TupleDict
from .workspace import bytes_of, workspaces_of

REMEMBERED_CALLS = 4096
# How often another call may become the one that is known at a look.
LOOKS = 16

# Every Op of the packages imported so far, by its torch spelling "namespace::short_name".
REGISTRY: dict[str, Op] = {}


_told: set[tuple[str, str, str]] = set()


def log_reinterpretations(logger: logging.Logger, problem: Problem, packs_fp4: bool) -> None:
    """A WARNING, once a process, for each operand whose container says less than what it is taken for.

    packs_fp4: the framework has a dtype for packed FP4; in others uint8 is the only way, and nothing is said.
    """
    for operand in problem.signature.operands:
        told = (logger.name, operand.name, operand.container)
        if operand.container == "native" or told in _told:
            continue
        if operand.container == "uint8" and not packs_fp4:
            continue
        _told.add(told)
        if operand.container == "uint8":
            logger.warning("%s: uint8 treated as packed fp4 (float4_e2m1fn_x2)", operand.name)
        elif operand.container == "int8":
            logger.warning("%s: int8 treated as e8m0 (float8_e8m0fnu)", operand.name)


class Op:
    """contract + engines. `namespace` and `short_name` spell the torch op: ``namespace::short_name``.

    examples(everything) yields (label, problem) for `sources`: problems of typical extents, bound without arrays.
    backward: the op that `run` differentiates this one with. Its inputs are this one's, then "d" and an output's name
    for each output: the gradient that comes in. An output "dx" is the gradient of the input "x".
    is_gradient: it is such a backward op. The registered op refuses to be differentiated, whichever is used first.
    inference_only: `run` refuses tensors whose gradients are recorded. keeps_operands: operands may be dropped right
    after a call on a side stream, as there is no stream argument that says where they are used.
    """

    def __init__(
        self,
        contract: Contract,
        engines: Sequence[Engine],
        namespace: str,
        short_name: str,
        examples: Callable[[bool], Iterable[tuple[str, Problem]]] = lambda everything: (),
        backward: Op | None = None,
        is_gradient: bool = False,
        inference_only: bool = False,
        keeps_operands: bool = False,
    ) -> None:
        self.contract = contract
        self._examples = examples
        if backward is not None and not backward.is_gradient:
            raise ValueError(f"{short_name}: expected a backward op with is_gradient, got another")
        self.backward = backward
        self.is_gradient = is_gradient
        self.inference_only = inference_only
        self.keeps_operands = keeps_operands
        self.watches_gradient = inference_only or backward is not None
        self.engines = tuple(engines)
        self.namespace = namespace
        self.short_name = short_name
        self.qualified = f"{namespace}::{short_name}"
        self._attribute_names = tuple(a.name for a in contract.attributes)
        self._input_names = tuple(o.name for o in contract.inputs)
        self.output_names = tuple(o.name for o in contract.outputs)
        self._prepared: dict[Any, Prepared] = {}
        # The latest call, known again by one look at its tensors; see `recognized`.
        self._latest = Latest(LOOKS)
        self._lock = Lock()
        REGISTRY[self.qualified] = self

    def __call__(
        self,
        inputs: tuple[Any, ...],
        attributes: tuple[Any, ...],
        stream: Any = None,
        numbers: tuple[Any, ...] = (),
    ) -> TupleDict:
        """The wrapper door: TupleDict of fresh outputs. `attributes` and `numbers` in contract order."""
        if self.contract.numbers:
            numbers = self.contract.parse_numbers(numbers)
        adapter = adapter_of(inputs[0])
        # What is no array is never looked for among the remembered: a compiler may not be able to trace that.
        if adapter is not None:
            if adapter.watches():
                return doors.call(self, inputs, attributes, stream, numbers)
            latest = self._latest.call
            if latest is not None and recognized(latest, inputs, attributes) is not None:
                return latest[2](inputs, stream, numbers)
        try:
            key = (attributes, adapter.key(inputs))
            prepared = self._prepared.get(key)
        except (AttributeError, TypeError, RuntimeError):
            # An argument that is no strided tensor of this adapter, or an unhashable option: the slow way says which.
            key = prepared = None
        if prepared is None:
            # Only calls on plain tensors are remembered, so their types are looked at here alone.
            if adapter is not None and adapter.needs_op(inputs):
                return doors.call(self, inputs, attributes, stream, numbers)
            prepared = self.prepare(inputs, attributes, key)
        if key is not None:
            self._latest.remember(adapter, prepared.present(inputs), {attributes}, prepared)
        return prepared(inputs, stream, numbers)

    def run(
        self,
        inputs: tuple[Any, ...],
        attributes: tuple[Any, ...],
        ignore_gradient: bool = False,
    ) -> Sequence[Any]:
        """The outputs in contract order, None where one does not apply, on the current stream; differentiable.

        Mutated inputs are written in place; where arrays are immutable, their new contents follow the outputs.
        ignore_gradient: no gradient is recorded, and none refused.
        """
        adapter = adapter_of(inputs[0])
        if adapter is not None and adapter.traces():
            return self._run_watched(adapter, inputs, attributes, ignore_gradient)
        latest = self._latest.call
        unknown = latest is None or adapter is None
        present = None if unknown else recognized(latest, inputs, attributes)
        if present is not None:
            _, _, prepared, tracks = latest
        else:
            if adapter is not None and adapter.watches():
                return self._run_watched(adapter, inputs, attributes, ignore_gradient)
            try:
                key = (attributes, adapter.key(inputs))
                prepared = self._prepared.get(key)
            except (AttributeError, TypeError, RuntimeError):
                key = prepared = None
            if prepared is None:
                if adapter is not None and (
                    adapter.needs_op(inputs) or adapter.has_no_data(inputs)
                ):
                    return self._run_watched(adapter, inputs, attributes, ignore_gradient)
                prepared = self.prepare(inputs, attributes, key)
            present, tracks = prepared.present(inputs), adapter.tracks_gradient
            self._latest.remember(adapter, present, {attributes}, prepared)
        if self.watches_gradient and not ignore_gradient and tracks(present):
            if self.inference_only:
                self._refuse_gradient()
            gradient = prepared.gradient
            if gradient is None:
                gradient = prepared.gradient = doors.recorded(prepared)
            made = gradient(present)
        else:
            made = prepared.run(present)
        return made if prepared.places is None else prepared.placed(made)

    def _run_watched(
        self,
        adapter: Adapter,
        inputs: tuple[Any, ...],
        attributes: tuple[Any, ...],
        ignore_gradient: bool,
    ) -> Sequence[Any]:
        if ignore_gradient:
            with adapter.unrecorded():
                return doors.outputs(self, inputs, attributes)
        # An argument of another kind is the contract's to refuse.
        arrays = [x for x in inputs if adapter_of(x) is adapter] if self.inference_only else ()
        if self.inference_only and adapter.tracks_gradient(arrays):
            self._refuse_gradient()
        return doors.outputs(self, inputs, attributes)

    def _refuse_gradient(self) -> None:
        raise RuntimeError(
            f"{self.short_name} is inference-only: expected tensors that do not require grad, or "
            f"torch.no_grad(), got one that requires grad"
        )

    def call_jax(
        self,
        inputs: tuple[Any, ...],
        attributes: tuple[Any, ...],
        numbers: tuple[Any, ...] = (),
    ) -> tuple[Any, ...]:
        """The `*_jax` door: a plain tuple. ValueError unless the operands are JAX arrays."""
        numbers = self.contract.parse_numbers(numbers)
        name = self._input_names[0]
        adapter, _ = common(dict(zip(self._input_names, inputs, strict=True)), self.short_name)
        if adapter.name != "jax":
            raise ValueError(mismatch(name, "a JAX array", f"a {adapter.name} array"))
        if inputs[0] is None:
            raise ValueError(mismatch(name, "a tensor", None))
        return tuple(doors.call(self, inputs, attributes, None, numbers))

    def outputs_plain(
        self,
        inputs: tuple[Any, ...],
        attributes: tuple[Any, ...],
        numbers: tuple[float, ...] = (),
    ) -> list[Any]:
        """The outputs for plain tensors of any framework but JAX, on the current stream, no gradient recorded."""
        adapter = adapter_of(inputs[0])
        key = (attributes, adapter.key(inputs))
        prepared = self._prepared.get(key) or self.prepare(inputs, attributes, key)
        return prepared.outputs(inputs, None, numbers)

    def attributes_of_backward(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The attributes of a call of the backward op, from those of a call of this one."""
        return tuple(named[a.name] for a in self.backward.contract.attributes)

    def plain_attributes(self, attributes: Sequence[Any]) -> tuple[Any, ...]:
        """All attributes, canonical, as numbers, strings, tuples and None: what a graph can carry."""
        parsed = self.contract.parse_attributes(self.named(attributes))
        return tuple(v.name if isinstance(v, DType) else v for v in parsed.values())

    def named(self, attributes: Sequence[Any]) -> dict[str, Any]:
        """Attributes in contract order as a mapping; missing trailing ones take their defaults."""
        return dict(zip(self._attribute_names, attributes, strict=False))

    def bind(self, inputs: Sequence[Any], attributes: Sequence[Any]) -> tuple[Adapter, Problem]:
        """The adapter of a call's arrays and the problem they make; raises as the contract does."""
        self.contract.parse_attributes(self.named(attributes))  # options are refused before arrays
        named = dict(zip(self._input_names, inputs, strict=True))
        adapter, _ = common(named, self.short_name)
        descs = [None if x is None else adapter.describe(x, name) for name, x in named.items()]
        return adapter, self.contract.bind(descs, self.named(attributes))

    def prepare(
        self, inputs: Sequence[Any], attributes: Sequence[Any], key: Any = None
    ) -> Prepared:
        """Bind, select, compile or load; remembered under `key`, the oldest call forgotten beyond a bound."""
        adapter, problem = self.bind(inputs, attributes)
        logger = logging.getLogger(self.namespace)
        log_reinterpretations(logger, problem, adapter.packs_fp4)
        prepared = Prepared(self, adapter, problem)
        if key is not None:
            with self._lock:
                while len(self._prepared) >= REMEMBERED_CALLS:
                    del self._prepared[next(iter(self._prepared))]
                self._prepared[key] = prepared
        return prepared

    def sources(self, arch: str = "sm_90a", everything: bool = False) -> Iterator[tuple[str, Any]]:
        """(label, KernelSource) of the plans worth compiling ahead for `arch`, each once.

        `everything` asks for the whole product of formats and layouts instead of the common ones.
        """
        seen = set()
        for label, problem in self._examples(everything):
            for engine in self.engines:
                if getattr(engine, "arch", None) != arch or engine.why_not(problem) is not None:
                    continue
                plan = engine.plan(problem)
                if plan not in seen:
                    seen.add(plan)
                    yield label, engine.source(plan)

    def forget(self) -> None:
        """Drop remembered calls; compiled kernels stay in the compile cache."""
        with self._lock:
            self._prepared.clear()
            self._latest = Latest(LOOKS)


def recognized(
    latest: tuple[Any, ...], inputs: tuple[Any, ...], attributes: tuple[Any, ...]
) -> Sequence[Any] | None:
    """The inputs that are present, if this is the latest call again, else None."""
    same, known, prepared, _ = latest
    try:
        if attributes not in known:
            return None
    except TypeError:  # an unhashable option: the slow way says which
        return None
    # By identity: arrays of another framework may compare element by element.
    for index in prepared.absent:
        if inputs[index] is not None:
            return None
    present = prepared.present(inputs)
    return present if same(*present) else None


class OpClass(APIBase):
    """The class door: samples give metadata, `execute` writes into the caller's tensors.

    Subclasses set `op` and spell constructor and execute. Tensors given to execute must match the samples in dtype,
    shape and strides (strides of extent-1 axes are free); scalars may leave out unit axes.
    """

    op: Op

    def __init__(self, samples: dict[str, Any], attributes: dict[str, Any]) -> None:
        super().__init__()
        adapter, _ = common(samples, type(self).__name__, allow_metadata=True)
        self._packs_fp4 = adapter.packs_fp4
        self._descs = tuple(
            None if x is None else replace(adapter_of(x).describe(x, name), name=name)
            for name, x in samples.items()
        )
        self._sample_names = tuple(samples)
        self._attributes = attributes
        self._launchers: dict[type, Callable[..., None]] = {}
        self._launchers_in: dict[type, Callable[..., None]] = {}

    def check_support(self) -> bool:
        """True, or ValueError / NotImplementedError for the tensors and options, then RuntimeError for the device."""
        bind = self.op.contract.bind
        self._problem = bind(self._descs, self._attributes, self._sample_names)
        log_reinterpretations(self._logger, self._problem, self._packs_fp4)
        self._engine = select(self.op.engines, self._problem)
        self._is_supported = True
        return True

    def compile(self) -> None:
        """Compiles once, or loads from the cache; runs `check_support` when nobody did."""
        if self._is_compiled:
            return
        self._ensure_support_checked()
        self._engine.scalars(self._problem)  # a margin that leaves no block is an error now
        self._executable = executable_of(self._engine, self._problem)
        operands = list(enumerate(zip(self.op.contract.operands, self._descs, strict=True)))
        # What the executable itself does not check: scale factors against their matrix.
        self._unchecked = {
            index: tuple(desc.shape)
            for index, (operand, desc) in operands
            if desc is not None and not self._is_checked(operand)
        }
        # What it knows in one rank only.
        self._ranked = [
            (index, full_shape(operand, desc))
            for index, (operand, desc) in operands
            if desc is not None and isinstance(operand, ScalarTensor)
        ]
        self._expected = tuple(
            None if d is None else (tuple(d.shape), canonical_stride(d.shape, d.stride), d.dtype)
            for d in self._descs
        )
        self._is_compiled = True

    @functools.cached_property
    def workspace_size(self) -> int:
        """Bytes of scratch memory that `execute` takes as `workspace`; runs `check_support` when nobody did."""
        self._ensure_support_checked()
        return bytes_of(workspaces_of(self._problem, self._engine))

    def _is_checked(self, operand: Any) -> bool:
        """Whether the executable compares the operand's extents with the others', or its rank is looked at apart."""
        derived = {derived.symbol for derived in self.op.contract.derived}
        if isinstance(operand, Matrix):
            return derived.isdisjoint(operand.dims)
        return isinstance(operand, ScalarTensor)

    def _run(
        self,
        tensors: tuple[Any, ...],
        stream: Any,
        numbers: tuple[float, ...] = (),
        workspace: Any = None,
    ) -> None:
        if workspace is None:
            launch = self._launchers.get(type(tensors[0])) or self._launcher(tensors)
        else:
            launch = self._launchers_in.get(type(tensors[0])) or self._launcher(tensors, True)
        try:
            if workspace is None:
                launch(tensors, stream, numbers)
            else:
                launch(tensors, stream, numbers, workspace)
        except (AttributeError, TypeError, ValueError):
            # A refusal by the executable, or an absent tensor: told in the contract's words.
            self._verify(tensors)
            explain(self.op, tensors)
            seen = self._full_rank(tensors)
            if seen is tensors:
                raise
            launch(seen, stream, numbers, *(() if workspace is None else (workspace,)))

    def _launcher(self, tensors: tuple[Any, ...], given: bool = False) -> Callable[..., None]:
        """The way to the executable for arrays of one type, remembered; given: in the caller's workspace.

        JAX arrays cannot be written.
        """
        self._require_compiled()
        self._verify(tensors)
        adapter = adapter_of(tensors[0])
        # A descriptor may have said "cuda" and left the ordinal to the tensors.
        problem = replace(self._problem, device=adapter.device(tensors[0]))
        launch = launcher_into(
            self.op,
            adapter,
            problem,
            self._engine,
            self._executable,
            given,
            self._unchecked,
            self._verify,
        )
        if self._engine.platform == "cpu":
            checked = launch

            def launch(
                tensors: Sequence[Any], stream: Any, numbers: Sequence[float] = (), *given: Any
            ) -> None:
                self._verify(tensors)
                checked(tensors, stream, numbers, *given)

        known = self._launchers_in if given else self._launchers
        known[type(tensors[0])] = launch
        return launch

    def _full_rank(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """Verified `tensors` with scalars seen in their full rank; the same object if they have it."""
        seen = list(tensors)
        for index, shape in self._ranked:
            if tuple(seen[index].shape) != shape:
                seen[index] = seen[index].reshape(shape)
        return tensors if all(x is y for x, y in zip(seen, tensors, strict=True)) else tuple(seen)

    def _verify(self, tensors: Sequence[Any]) -> None:
        """ValueError unless every tensor has its sample's metadata."""
        names = [operand.name for operand in self.op.contract.operands]
        named = dict(zip(names, tensors, strict=True))
        adapter, device = common(named, type(self).__name__)
        self._refuse_unwritable(adapter, tensors)
        wanted = self._problem.device
        if device.type != wanted.type or wanted.index not in (None, device.index):
            expected = f"a tensor on {wanted} (the sample's device)"
            raise ValueError(mismatch(names[0], expected, device))
        for operand, x, want in zip(
            self.op.contract.operands, tensors, self._expected, strict=True
        ):
            name = operand.name
            if (x is None) != (want is None):
                expected = UNDECLARED if want is None else "a tensor"
                raise ValueError(mismatch(name, expected, "None" if x is None else "a tensor"))
            if x is None:
                continue
            desc = adapter.describe(x, name)
            if isinstance(operand, ScalarTensor) and math.prod(desc.shape) == 1 == math.prod(
                want[0]
            ):
                # Rank and strides say nothing.
                desc = replace(desc, shape=want[0], stride=want[1], stride_order=None)
            got = (tuple(desc.shape), canonical_stride(desc.shape, desc.stride), desc.dtype)
            if got != want:
                expected = f"shape {want[0]}, strides {want[1]}, {want[2].name} (the sample's)"
                came = f"shape {got[0]}, strides {tuple(desc.stride)}, {got[2].name}"
                raise ValueError(mismatch(name, expected, came))
        self._check_writable(adapter, named)

    def _refuse_unwritable(self, adapter: Adapter, tensors: Sequence[Any]) -> None:
        """NotImplementedError where arrays cannot be written in place, or have no memory to write into."""
        what = f"{type(self).__name__}.execute"
        if adapter.name == "jax":
            raise NotImplementedError(
                f"{what}: JAX arrays are immutable, so nothing can be written into them; use "
                f"{self.op.short_name}_jax"
            )
        if adapter.has_no_data(tensors):
            expected = "tensors with memory to write into"
            came = "ones without, as under torch.compile, in transforms and on the device meta"
            hint = f"use {self.op.short_name}_wrapper there"
            raise NotImplementedError(mismatch(what, expected, came, hint))

    def _check_writable(self, adapter: Adapter, named: dict[str, Any]) -> None:
        """ValueError for outputs that cannot be written, or share memory with another operand."""
        written = [(o.name, named[o.name]) for o in self.op.contract.outputs]
        for name, x in written:
            if x is not None and not adapter.is_writable(x):
                raise ValueError(mismatch(name, "an array to write into", "a read-only one"))
        read = [(o.name, named[o.name]) for o in self.op.contract.inputs]
        check_buffers_disjoint(written, read, type(self).__name__)
