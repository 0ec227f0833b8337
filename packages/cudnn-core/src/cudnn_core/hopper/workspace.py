"""Scratch memory that kernels of this folder take: sizes, and regions of one workspace. Imports tile.py: planning
needs no DSL.
"""

from .tile import TileConfig

# Regions of a workspace begin at multiples of so many bytes, as the workspace does.
REGION = 256


def following(end):
    """Where the region begins that follows one which ends at byte `end`."""
    return (end + REGION - 1) // REGION * REGION


def pitch(k):
    """Elements from one expanded row to the next: those of whole raw stages, whose order they may have."""
    return (k + 127) // 128 * 128


def expanded_bytes(rows, k, batches, dtype: str = "bfloat16"):
    """Bytes that a (rows, k, batches) operand takes, rewritten as `dtype`; a multiple of 128."""
    size = {"float32": 4, "float16": 2, "bfloat16": 2}.get(dtype, 1)
    return batches * rows * pitch(k) * size


def partial_bytes(tile: TileConfig, blocks: int) -> int:
    """Bytes of the workspace for partial tiles, which may hold anything at first."""
    return blocks * tile.bm * tile.bn * 4


def flag_bytes(tile: TileConfig, blocks: int) -> int:
    """Bytes of the workspace for flags, which may hold anything at first."""
    return blocks * tile.sharers * 8
