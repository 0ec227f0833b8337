"""Gradients in torch, of any Op that names its backward op: an autograd.Function for eager calls on plain tensors, and
a formula for the registered op, which is what the compiler and dispatch modes see.

May import torch: only the torch doors come here. First-order only: asking for more is a RuntimeError that says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..dtypes import as_dtype

if TYPE_CHECKING:
    from ..op import Op, Prepared


def outputs(prepared: Prepared, inputs: tuple[Any, ...]) -> Sequence[torch.Tensor | None]:
    """The outputs of a prepared call in contract order, with their gradient recorded."""
    made = _Call.apply(prepared, *inputs)
    return made if type(made) is tuple else (made,)


class _Call(torch.autograd.Function):
    """A prepared call; its backward is the same way to another op. Nothing but the inputs is saved."""

    @staticmethod
    def forward(ctx: Any, prepared: Prepared, *inputs: Any) -> Any:
        ctx.prepared = prepared
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        made = prepared.outputs(inputs)
        return made[0] if len(made) == 1 else tuple(made)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        inputs, prepared = ctx.saved_tensors, ctx.prepared
        op = prepared.op
        for given, spare in zip(cotangents, op.spare_cotangents, strict=True):
            if given is None and not spare:
                cotangents = completed(inputs[0], cotangents, op.spare_cotangents, prepared.made)
                break
        given = (*inputs, *cotangents)
        if torch.is_grad_enabled():
            made = _Once.apply(op.backward, prepared.backward_attributes, *given)
        else:
            made = op.backward.outputs_plain(given, prepared.backward_attributes)
        return (None, *[None if at is None else made[at] for at in op.gradients])


class _Once(torch.autograd.Function):
    """The gradient where torch records it (create_graph=True): right once, and an error when asked for again."""

    @staticmethod
    def forward(ctx: Any, op: Op, attributes: tuple[Any, ...], *inputs: Any) -> Any:
        ctx.op = op
        return tuple(op.outputs_plain(inputs, attributes))

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        refuse_twice(ctx.op)


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

    made: of each output, something with its shape and dtype; None where it does not apply.
    """
    return [
        given
        if given is not None or can_do_without or like is None
        else x.new_zeros((), dtype=as_dtype(like.dtype).torch()).expand(tuple(like.shape))
        for given, can_do_without, like in zip(cotangents, spare, made, strict=True)
    ]


def register(op: Op, library: torch.library.Library, placed: Callable[..., list[Any]]) -> None:
    """Give the registered op its gradient, which is the registered backward op, or a refusal where it is one.

    placed: see torch_op.
    """
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
        ctx.made = [
            None if x is None else _Like(x.shape, x.dtype)
            for x in placed(op, tensors, attributes, output)
        ]
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        flat = iter(grads[0] if op.contract.outputs_vary else grads)
        given = [None if like is None else next(flat) for like in ctx.made]
        given = completed(inputs[0], given, op.spare_cotangents, ctx.made)
        made = target(*inputs, *given, *ctx.attributes)
        made = placed(op.backward, (*inputs, *given), ctx.attributes, made)
        gradients = [None if at is None else made[at] for at in op.gradients]
        return (*gradients, *[None for _ in op.contract.attributes])

    torch.library.register_autograd(
        op.qualified, backward, setup_context=setup_context, lib=library
    )


def _refuse(op: Op, ctx: Any, *grads: Any) -> None:
    refuse_twice(op)


class _Like(NamedTuple):
    """Shape and dtype of an output."""

    shape: Any
    dtype: torch.dtype
