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
    pointers = adapter.data_pointers
    written = [(i, o.name) for i, o in inputs if o.mutated]
    frozen = written if adapter.has_read_only else ()
    others = [(i, o.name, i in dict(written)) for i, o in inputs]

    free: tuple[int, ...] | None = None

    def check(tensors: Sequence[Any]) -> None:
        nonlocal free
        for index, name in frozen:
            if not adapter.is_writable(tensors[index]):
                raise ValueError(mismatch(name, "an array to write into", "a read-only one"))
        at = pointers(tensors)
        # Extents and strides are the problem's, so the addresses of the latest call that was fine say all.
        if at != free:
            compare(at)
            free = at

    def compare(at: tuple[int, ...]) -> None:
        for index, name in written:
            below, above = reach[index]
            low, high = at[index] - below, at[index] + above
            for other, other_name, also_written in others:
                if other == index or (also_written and other < index):
                    continue
                below, above = reach[other]
                if at[other] - below < high and low < at[other] + above:
                    expected = f"memory that it does not share with {other_name}, as it is written"
                    raise ValueError(mismatch(name, expected, "an overlap"))

    return check


def byte_reach(desc: TensorDesc) -> tuple[int, int]:
    """(bytes below, bytes from there on) of the first element that an array spans; none where it is empty."""
    if 0 in desc.shape:
        return 0, 0
    reach = [(extent - 1) * step for extent, step in zip(desc.shape, desc.stride, strict=True)]
    below = -sum(r for r in reach if r < 0) * desc.dtype.bits // 8
    return below, -(-(sum(r for r in reach if r > 0) + 1) * desc.dtype.bits // 8)
