"""Doors: how a framework's tracer meets an Op. Each module knows one framework and any contract.

May import the adapters and, inside `call`, the door of a framework whose arrays have come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..adapters import adapter_of, common
from ..tensor_desc import Device
from ..tuple_dict import TupleDict

if TYPE_CHECKING:
    from ..op import Op


def call(
    op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...], stream: Any = None
) -> TupleDict:
    """The outputs of an op, called in the form in which the framework of the inputs knows it."""
    adapter = adapter_of(inputs[0])
    # Import statements, because torch.compile traces through here.
    if adapter.name == "torch":
        from . import torch_op

        return torch_op.call(op, inputs, attributes, stream)
    from . import jax_primitive

    names = (operand.name for operand in op.contract.inputs)
    common(dict(zip(names, inputs, strict=True)), op.short_name)
    adapter.stream_handle(stream, Device("unknown"))  # refuses any: JAX runs on XLA's stream
    outputs = jax_primitive.call(op, inputs, attributes)
    return TupleDict(zip(op.output_names, outputs, strict=True))
