"""Whether what an operation writes in place shares memory with what it reads. May import contract types and adapters.

Addresses are no part of a problem, so this is asked at every call, and made cheap beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .adapters.base import Adapter
from .contract import Contract, Problem
from .errors import mismatch
from .tensor_desc import TensorDesc


def overlap_check(
    contract: Contract, adapter: Adapter, problem: Problem
) -> Callable[[Sequence[Any]], None]:
    """check(present inputs): ValueError where a mutated operand cannot be written or shares bytes with another."""
    given = zip(contract.inputs, problem.descs, strict=False)
    present = [(operand, desc) for operand, desc in given if desc is not None]
    inputs = [(i, operand) for i, (operand, _) in enumerate(present)]
    reach = [byte_reach(desc) for _, desc in present]
    pointer = adapter.data_pointer
    written = [(i, o.name) for i, o in inputs if o.mutated]
    others = [(i, o.name, i in dict(written)) for i, o in inputs]

    def check(tensors: Sequence[Any]) -> None:
        for index, name in written:
            x = tensors[index]
            if not adapter.is_writable(x):
                raise ValueError(mismatch(name, "an array to write into", "a read-only one"))
            base, (below, above) = pointer(x), reach[index]
            low, high = base - below, base + above
            for at, other, also_written in others:
                if at == index or (also_written and at < index):
                    continue
                base, (below, above) = pointer(tensors[at]), reach[at]
                if base - below < high and low < base + above:
                    expected = f"memory that it does not share with {other}, as it is written"
                    raise ValueError(mismatch(name, expected, "an overlap"))

    return check


def byte_reach(desc: TensorDesc) -> tuple[int, int]:
    """(bytes below, bytes from there on) of the first element that an array spans; none where it is empty."""
    if 0 in desc.shape:
        return 0, 0
    reach = [(extent - 1) * step for extent, step in zip(desc.shape, desc.stride, strict=True)]
    below = -sum(r for r in reach if r < 0) * desc.dtype.bits // 8
    return below, -(-(sum(r for r in reach if r > 0) + 1) * desc.dtype.bits // 8)
