"""Scratch memory that kernels of this folder take: sizes, and regions of one workspace. Imports tile.py: planning
needs no DSL.
"""

from .tile import TileConfig

# Regions of a workspace begin at multiples of so many bytes, as the workspace does.
REGION = 256

# Rows and K elements whose writing beside the product is counted together: those of a tile, and of a piece.
GROUP, SLAB = 128, 256


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


def counters_of(groups, slabs, batches):
    """How many counters operands take that are written out beside the product: the next piece's, and one each slab."""
    return 1 + batches * groups * slabs


def counter_bytes(rows: list[int], k: int, batches: int) -> int:
    """Bytes of the workspace for counters, which may hold anything at first; rows: of each side that is written."""
    groups = sum(-(-each // GROUP) for each in rows)
    return 4 * counters_of(groups, -(-k // SLAB), batches)
