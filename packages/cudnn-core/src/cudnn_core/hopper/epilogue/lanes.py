"""Reductions across the lanes of a fragment.

May import: the CuTe DSL.

The four lanes of a quad hold one fragment row; the eight lanes with equal lane % 4 hold one
fragment column.
"""

import cutlass.cute as cute
from cutlass import Int32
from cutlass.cutlass_dsl import select_


def choose(condition: Int32, x, y):
    """x where the condition is not 0, otherwise y."""
    return type(x)(select_(condition != 0, x, y))


def across_quad(value, combine):
    """`combine` over the four lanes of a row; all of them get the result."""
    for distance in (1, 2):
        value = combine(value, cute.arch.shuffle_sync_bfly(value, distance))
    return value


def across_rows(values: list, lane: Int32, combine) -> tuple[list, Int32]:
    """`combine` over the eight lanes of a column, for a list of columns.

    Each exchange halves the list where it can: a lane gives away one half and keeps the other.
    Returns what the lane kept and the number of its first column; the rest follow.
    """
    first = Int32(0)
    for distance in (16, 8, 4):
        bit = lane & distance
        half = len(values) // 2
        if len(values) % 2 == 0:
            low, high = values[:half], values[half:]
            kept = [choose(bit, y, x) for x, y in zip(low, high, strict=True)]
            given = [choose(bit, x, y) for x, y in zip(low, high, strict=True)]
            first = first + choose(bit, Int32(half), Int32(0))
        else:
            kept = given = values
        values = [
            combine(x, cute.arch.shuffle_sync_bfly(y, distance))
            for x, y in zip(kept, given, strict=True)
        ]
    return values, first
