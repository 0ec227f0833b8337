"""Gradients in torch, of any Op that names its backward op: an autograd.Function for eager calls on plain tensors, and
a formula for the registered op, which is what the compiler and dispatch modes see. Results of other ops have none.

May import torch: only the torch doors come here. First-order only: asking for more is a RuntimeError that says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd import forward_ad

from ..dtypes import as_dtype
from ..errors import mismatch
from ..prepared import Latest

if TYPE_CHECKING:
    from ..op import Op, Prepared

# Metadata of gradients that a problem's backward remembers: their layouts, few in any one program.
REMEMBERED = 64
# How often one of them may become the one that is known at a look.
LOOKS = 4


def recorded(prepared: Prepared) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
    """`prepared.run`, with the gradient of its outputs recorded."""
    tape = _Tape(prepared)

    def one(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        return (_apply(tape, *inputs),)

    def several(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        return _apply(tape, *inputs)

    run = one if tape.single else several
    run.tape = tape
    return run


class _Tape:
    """What the calls of a prepared problem have in common: how to run them, and their gradients. Holds no tensor."""

    def __init__(self, prepared: Prepared) -> None:
        op, problem = prepared.op, prepared.problem
        self.run = prepared.run
        self.single = len(prepared.made) == 1
        self.made = prepared.made
        self.key = prepared.adapter.key
        self.resolved = prepared.adapter.resolved
        self.adapter = prepared.adapter
        self.op = op.backward
        self.attributes = op.attributes_of_backward(dict(problem.signature.attributes))
        self.backwards: dict[Any, Callable[..., Sequence[Any]]] = {}
        self.latest = Latest(LOOKS if self.single else 0)
        given = [desc is not None for desc in (*problem.descs[: len(op.contract.inputs)],)]
        self.given = (*given, *(desc is not None for desc in problem.outputs))
        made = [o.name for o in op.contract.outputs if problem.signature.has(o.name)]
        self.spare = spare_cotangents(op, made)
        self.needed = [at for at, spare in enumerate(self.spare) if not spare]
        names = [o.name for o, there in zip(op.contract.inputs, given, strict=True) if there]
        gradients = [n[1:] for n in op.backward.output_names if n[1:] in names]
        # The tape has none; then of each present input its own.
        places = [gradients.index(name) if name in gradients else None for name in names]
        self.order = (None, *places)

    def gradients(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """None, then the gradients of the present inputs, from these and the gradients of the outputs."""
        tensors = self.resolved(tensors)
        key = self.key(tensors)
        run = self.backwards.get(key)
        if run is None:
            if len(self.backwards) >= REMEMBERED:
                self.backwards.clear()
            prepared = self.op.prepare(self.full(tensors), self.attributes)
            run = self.backwards[key] = prepared.runner(order=self.order)
        self.latest.remember(self.adapter, tensors, run)
        return run([x for x in tensors if x is not None])

    def full(self, tensors: Sequence[Any]) -> list[Any]:
        """The operands of the backward op in contract order."""
        given = iter(tensors)
        return [next(given) if there else None for there in self.given]


class _Call(torch.autograd.Function):
    """A prepared call. Nothing but the inputs is saved, and they are asked for once."""

    @staticmethod
    def forward(ctx: Any, tape: _Tape, *inputs: Any) -> Any:
        ctx.tape = tape
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        made = tape.run(inputs)
        return made[0] if tape.single else tuple(made)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        tape, inputs = ctx.tape, ctx.saved_tensors
        tensors = (*inputs, *cotangents)
        latest = tape.latest.call
        # A gradient that is None makes it another call.
        if latest is not None and latest[0](*tensors) and not torch.is_grad_enabled():
            return latest[1](tensors)
        for at in tape.needed:
            if cotangents[at] is None:
                tensors = (*inputs, *completed(inputs[0], cotangents, tape.spare, tape.made))
                break
        return _Once.apply(tape, *tensors) if torch.is_grad_enabled() else tape.gradients(tensors)


# What torch calls in a backward pass, without looking first which of two spellings of it there is.
_Call._backward_cls.apply = _Call.backward
# Without what `Function.apply` does for functorch: under its transforms calls go to the registered op.
_apply = super(torch.autograd.Function, _Call).apply


class _Once(torch.autograd.Function):
    """The gradient where torch records it (create_graph=True): right once, and an error when asked for again."""

    @staticmethod
    def forward(ctx: Any, tape: _Tape, *tensors: Any) -> Any:
        ctx.op = tape.op
        return tape.gradients(tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        refuse_twice(ctx.op)


def spare_cotangents(op: Op, made: Iterable[str]) -> tuple[bool, ...]:
    """Of each output that is made, whether the backward op can do without its gradient."""
    taken = {o.name: o.may_be_absent for o in op.backward.contract.inputs}
    return tuple(taken[f"d{name}"] for name in made)


def refuse_twice(op: Op) -> None:
    """The RuntimeError of a second derivative."""
    raise RuntimeError(
        f"{op.namespace}::{op.short_name} is a gradient and not differentiable itself: expected one backward "
        f"through the operation, got a derivative of its gradient (not differentiable twice)"
    )


def completed(
    x: torch.Tensor, cotangents: Sequence[Any], spare: Sequence[bool], made: Sequence[Any]
) -> list[torch.Tensor | None]:
    """Gradients of outputs, of which those that nothing used, and that are needed, are zeros: one, seen everywhere.

    made: of each output, something with its shape and dtype.
    """
    return [
        given
        if given is not None or can_do_without
        else x.new_zeros((), dtype=as_dtype(like.dtype).torch()).expand(tuple(like.shape))
        for given, can_do_without, like in zip(cotangents, spare, made, strict=True)
    ]


def register(op: Op, library: torch.library.Library, placed: Callable[..., list[Any]]) -> None:
    """Give the registered op its gradient, which is the registered backward op, or a refusal where it is one.

    An op that is neither gives results without gradients, as plain eager calls of it do. placed: see torch_op.
    """
    library = _Guarded(op, library)
    if op.backward is None and not op.is_gradient:
        if not op.contract.mutated:
            library.impl(op.short_name, _detaching(op), "Autograd", with_keyset=True)
        return
    if op.backward is None:
        refuse = functools.partial(_refuse, op)
        torch.library.register_autograd(op.qualified, refuse, lib=library)
        return
    count = len(op.contract.inputs)
    target = getattr(getattr(torch.ops, op.backward.namespace), op.backward.short_name)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, attributes = inputs[:count], inputs[count:]
        ctx.save_for_backward(*tensors)
        ctx.attributes = op.attributes_of_backward(op.named(attributes))
        made = placed(op, tensors, attributes, output)
        ctx.made = [None if x is None else _Like(x.shape, x.dtype) for x in made]
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        names = [n for n, like in zip(op.output_names, ctx.made, strict=True) if like is not None]
        likes = [like for like in ctx.made if like is not None]
        flat = list(grads[0] if op.contract.outputs_vary else grads)
        flat = completed(inputs[0], flat, spare_cotangents(op, names), likes)
        given = dict(zip(names, flat, strict=True))
        operands = (*inputs, *[given.get(name) for name in op.output_names])
        made = placed(op.backward, operands, ctx.attributes, target(*operands, *ctx.attributes))
        gradients = dict(zip(op.backward.output_names, made, strict=True))
        return (
            *[gradients.get(f"d{operand.name}") for operand in op.contract.inputs],
            *[None for _ in op.contract.attributes],
        )

    torch.library.register_autograd(
        op.qualified, backward, setup_context=setup_context, lib=library
    )


def _detaching(op: Op) -> Callable[..., Any]:
    """The autograd kernel of an op whose results are constants to torch, whatever the operands record.

    Without one they would seem to have a gradient, which backward then leaves out with no more than a warning.
    """
    target = getattr(getattr(torch.ops, op.namespace), op.short_name).default

    def kernel(keyset: Any, *arguments: Any, **named: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return target.redispatch(keyset & torch._C._after_autograd_keyset, *arguments, **named)

    return kernel


class _Guarded:
    """A library whose autograd kernels refuse what torch would get wrong in silence, or in words of its own.

    Here, because under the transforms of torch.func only a kernel sees the tensors of each level.
    """

    def __init__(self, op: Op, library: torch.library.Library) -> None:
        self.op = op
        self.library = library
        self.expected = "gradients by torch.autograd (backward)"
        if op.backward is None and not op.is_gradient:
            self.expected = "no derivative to be taken, as it has none"

    def impl(self, name: str, kernel: Callable[..., Any], key: str, **options: Any) -> None:
        def guarded(keyset: Any, *arguments: Any, **named: Any) -> Any:
            tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
            if forward_ad._current_level >= 0 and any(map(_has_tangent, tensors)):
                got = "a tangent of forward mode (jvp)"
            elif torch._C._are_functorch_transforms_active() and (
                torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
            ):
                got = "a transform of torch.func"
            else:
                return kernel(keyset, *arguments, **named)
            raise NotImplementedError(mismatch(self.op.short_name, self.expected, got))

        self.library.impl(name, guarded, key, **options)


def _has_tangent(x: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(x).tangent is not None


def _refuse(op: Op, ctx: Any, *grads: Any) -> None:
    refuse_twice(op)


class _Like(NamedTuple):
    """Shape and dtype of an output."""

    shape: Any
    dtype: torch.dtype
