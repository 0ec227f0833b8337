"""The torch door: one `torch.library` op per Op, with a fake kernel that is the contract itself.

Used only while compiling, under dispatch modes, or for tensor subclasses; plain eager calls never come here.
May import torch: only `doors.call` comes here, and only with torch tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from ..adapters import common
from ..dtypes import DType, as_dtype
from ..errors import mismatch
from . import torch_autograd

if TYPE_CHECKING:
    from ..op import Op

_registered: set[str] = set()
_libraries: dict[str, torch.library.Library] = {}
_lock = Lock()


def register(qualified: str) -> None:
    """Define the op `namespace::name`, its kernels and its fake kernel. A second call does nothing.

    Takes a name and not the Op, because dynamo runs it while tracing, with constants only.
    """
    from ..op import REGISTRY

    op = REGISTRY[qualified]
    if op.backward is not None:
        register(op.backward.qualified)
    with _lock:
        if qualified in _registered:
            return
        if op.namespace not in _libraries:
            _libraries[op.namespace] = torch.library.Library(op.namespace, "FRAGMENT")
        library = _libraries[op.namespace]
        library.define(f"{op.short_name}{schema(op)}", tags=(torch.Tag.pt2_compliant_tag,))
        kernel = _kernel(op)
        library.impl(op.short_name, kernel, "CPU")
        library.impl(op.short_name, kernel, "CUDA")
        torch.library.register_fake(qualified, _fake(op), lib=library)
        torch_autograd.register(op, library, placed)
        if not op.contract.mutated:
            torch.library.register_vmap(qualified, _one_by_one(op), lib=library)
        _registered.add(qualified)


# Lets dynamo run the registration natively when it first meets the op inside a compiled region.
register._dynamo_marked_constant = True


def outputs(
    op: Op,
    inputs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    numbers: tuple[float, ...] = (),
) -> Sequence[torch.Tensor | None]:
    """The outputs of the registered op, in contract order, None where one does not apply."""
    register(op.qualified)
    if not all(x is None or isinstance(x, torch.Tensor) for x in inputs):
        names = (operand.name for operand in op.contract.inputs)
        common(dict(zip(names, inputs, strict=True)), op.short_name)  # which says what is no tensor
    target = getattr(getattr(torch.ops, op.namespace), op.short_name)
    made = target(*inputs, *op.plain_attributes(attributes), *numbers)
    return placed(op, inputs, attributes, made)


def placed(
    op: Op, inputs: Sequence[Any], attributes: Sequence[Any], made: Any
) -> list[torch.Tensor | None]:
    """What the registered op returned as outputs in contract order, None where one does not apply.

    Dynamo traces this: constants only.
    """
    if not op.contract.outputs_vary:
        return list(made) if len(op.output_names) > 1 else [made]
    parsed = op.contract.parse_attributes(op.named(attributes))
    selecting = op.contract.selecting(parsed)
    dtypes = {
        operand.name: operand.logical(as_dtype(x.dtype)).name
        for operand, x in zip(op.contract.inputs, inputs, strict=True)
        if x is not None
    }
    outputs, used = [], 0
    for operand in op.contract.outputs:
        x = None
        if operand.is_made(parsed, selecting, dtypes):
            x = made[used]
            used += 1
            dtypes[operand.name] = operand.logical(as_dtype(x.dtype)).name
        outputs.append(x)
    return outputs


def schema(op: Op) -> str:
    """``(Tensor a, ..., str c_major="n", ..., Scalar alpha=1.0) -> (Tensor, Tensor)`` from the contract.

    Inputs that may be absent are ``Tensor?``, mutated ones ``Tensor(a!)``; where outputs may be absent, the result
    is a list of those that exist, ``Tensor[]``.
    """
    letters = iter("abcdefgh")
    arguments = [
        f"Tensor{f'({next(letters)}!)' if o.mutated else ''}{'?' if o.may_be_absent else ''} {o.name}"
        for o in op.contract.inputs
    ]
    for attribute in op.contract.attributes:
        kind, default = _schema_type(attribute.default)
        # The dispatcher leaves out arguments that are as by default, and then torch's own wrapper of a gradient for
        # lists of tensors miscounts them: no defaults where there is a gradient.
        ending = f"={default}" if op.backward is None else ""
        arguments.append(f"{attribute.schema or kind} {attribute.name}{ending}")
    arguments += [f"Scalar {number.name}={number.default!r}" for number in op.contract.numbers]
    results = f"({', '.join('Tensor' for _ in op.contract.outputs)})"
    return f"({', '.join(arguments)}) -> {'Tensor[]' if op.contract.outputs_vary else results}"


def _schema_type(default: Any) -> tuple[str, str]:
    """The schema's type and default for an attribute, from its default value."""
    if isinstance(default, DType):
        return "str", f'"{default.name}"'
    if isinstance(default, bool):
        return "bool", str(default)
    if isinstance(default, int):
        return "int", str(default)
    if isinstance(default, float):
        return "float", repr(default)
    if isinstance(default, str):
        return "str", f'"{default}"'
    if default is None:
        return "int[]?", "None"
    raise TypeError(f"no torch schema type for the default {default!r}")


def _split(
    op: Op, arguments: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """(inputs, attributes, numbers). The numbers, which may be symbolic while a graph is made, are left alone."""
    tensors = len(op.contract.inputs)
    options = tensors + len(op.contract.attributes)
    attributes = (tuple(v) if isinstance(v, list) else v for v in arguments[tensors:options])
    return arguments[:tensors], tuple(attributes), arguments[options:]


def _kernel(op: Op):
    results = _results(op)

    def kernel(*arguments: Any) -> torch.Tensor | Sequence[torch.Tensor]:
        inputs, attributes, numbers = _split(op, arguments)
        # torch leaves out trailing arguments that equal their defaults.
        return results(op.outputs_plain(inputs, attributes, op.contract.parse_numbers(numbers)))

    return kernel


def _results(op: Op):
    """From the outputs in contract order to what the op of the schema returns."""
    if op.contract.outputs_vary:
        return _existing
    return tuple if len(op.output_names) > 1 else _only


def _only(outputs: Sequence[Any]) -> Any:
    (output,) = outputs
    return output


def _existing(outputs: Iterable[Any]) -> list[Any]:
    return [x for x in outputs if x is not None]


def _one_by_one(op: Op):
    """The rule of `torch.func.vmap`. torch's own fallback makes nothing of lists, and forgets the order in memory."""
    target = getattr(getattr(torch.ops, op.namespace), op.short_name)

    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        if info.batch_size == 0:
            raise ValueError(mismatch(op.short_name, "a mapped axis that is not empty", "extent 0"))
        made = []
        for i in range(info.batch_size):
            axes = zip(arguments, in_dims, strict=True)
            made.append(target(*[x.select(d, i) if isinstance(d, int) else x for x, d in axes]))
        if isinstance(made[0], torch.Tensor):
            return _stacked(made), 0
        stacked = [_stacked(results) for results in zip(*made, strict=True)]
        return type(made[0])(stacked), type(made[0])([0] * len(stacked))

    return rule


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Along a new first axis, each in the memory order that it has: that of scales is their layout."""
    first = tensors[0]
    if as_dtype(first.dtype).is_fp4:  # torch copies only its bytes
        return _stacked([x.view(torch.uint8) for x in tensors]).view(first.dtype)
    outermost_first = sorted(range(first.ndim), key=lambda axis: -first.stride(axis))
    back = sorted(range(first.ndim), key=outermost_first.__getitem__)
    made = torch.stack([x.permute(outermost_first) for x in tensors])
    return made.permute(0, *(1 + axis for axis in back))


def _fake(op: Op):
    results = _results(op)

    def fake(*arguments: Any) -> torch.Tensor | Sequence[torch.Tensor]:
        inputs, attributes, _ = _split(op, arguments)
        adapter, problem = op.bind(inputs, attributes)
        return results([None if d is None else adapter.empty(d) for d in problem.outputs])

    return fake
