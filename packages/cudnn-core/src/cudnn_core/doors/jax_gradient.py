"""Gradients in JAX of any Op that names its backward op, by `jax.custom_vjp`: reverse mode, first order.

May import jax; only the JAX door comes here. The backward op has no rule of its own, so JAX refuses a second derivative
by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from ..op import Op

Call = Callable[..., Sequence[jax.Array | None]]


@cache
def differentiable(
    op: Op, call: Call, attributes: tuple[tuple[str, Any], ...], given: tuple[bool, ...]
) -> Callable[..., tuple[jax.Array | None, ...]]:
    """call(op, inputs, attributes) for the inputs that are `given`, with its gradient; None for absent outputs."""
    values = tuple(value for _, value in attributes)
    of_backward = op.attributes_of_backward(dict(attributes))

    def full(args: Sequence[Any]) -> tuple[Any, ...]:
        left = iter(args)
        return tuple(next(left) if there else None for there in given)

    @jax.custom_vjp
    def outputs(*args: jax.Array) -> tuple[jax.Array | None, ...]:
        return tuple(call(op, full(args), values))

    def forward(*args: jax.Array) -> tuple[Any, Any]:
        return outputs(*args), args

    def backward(args: Sequence[jax.Array], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        inputs = full(args)
        made = call(op.backward, (*inputs, *cotangents), of_backward)
        gradients = dict(zip(op.backward.output_names, made, strict=True))
        wanted = [gradients.get(f"d{operand.name}") for operand in op.contract.inputs]
        return tuple(g for g, there in zip(wanted, given, strict=True) if there)

    outputs.defvjp(forward, backward)
    return outputs
