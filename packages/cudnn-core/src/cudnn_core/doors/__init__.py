"""Doors: how a framework's tracer meets an Op. Each module knows one framework and any contract.

May import the adapters and, inside `call`, the door of a framework whose arrays have come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..adapters import adapter_of, common
from ..errors import mismatch
from ..tensor_desc import Device
from ..tuple_dict import TupleDict

if TYPE_CHECKING:
    from ..op import Op, Prepared


def call(
    op: Op,
    inputs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    stream: Any = None,
    numbers: tuple[float, ...] = (),
) -> TupleDict:
    """The outputs of an op, called in the form in which the framework of the inputs knows it."""
    adapter = adapter_of(inputs[0])
    if stream is not None and adapter.name == "torch":
        expected = "None inside torch.compile, under dispatch modes and with tensor subclasses"
        raise ValueError(mismatch("stream", expected, repr(stream)))
    if adapter.name == "jax":
        adapter.stream_handle(stream, Device("unknown"))  # refuses any: JAX runs on XLA's stream
    made = outputs(op, inputs, attributes, numbers)
    return TupleDict(zip(op.output_names, made, strict=True))


def outputs(
    op: Op,
    inputs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    numbers: tuple[float, ...] = (),
) -> Sequence[Any]:
    """The outputs in contract order, None where one does not apply; of JAX, then what mutated inputs have become."""
    # Import statements, because torch.compile traces through here.
    if adapter_of(inputs[0]).name == "torch":
        from . import torch_op

        return torch_op.outputs(op, inputs, attributes, numbers)
    from . import jax_primitive

    names = (operand.name for operand in op.contract.inputs)
    common(dict(zip(names, inputs, strict=True)), op.short_name)
    return jax_primitive.call(op, inputs, attributes, numbers)


def recorded(prepared: Prepared) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """`prepared.run` for plain torch tensors, with the op's gradient recorded."""
    from . import torch_autograd

    return torch_autograd.recorded(prepared)
