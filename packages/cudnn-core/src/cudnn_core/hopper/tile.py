"""The tile of a Hopper GEMM: what one thread block computes, and with which resources.

May import: the standard library only, so that planning needs neither the DSL nor a GPU.
"""

from dataclasses import dataclass

# Bytes of shared memory that one block may have.
SHARED_MEMORY = 232448


@dataclass(frozen=True)
class TileConfig:
    """Compile-time shape of the persistent kernel.

    bm, bn: rows and columns of C per tile. warpgroups: consumer warpgroups, which split the rows.
    raw_stages: ring depth of operand bytes as they lie in global memory.
    bf16_stages: ring depth of the side that goes to the tensor core through shared memory.
    promote_k: None, or how many K elements the tensor core sums before its FP32 result is added
    to a second FP32 accumulator; the tensor core truncates each addition, so long sums drift.
    raster: how many tile rows are walked together, for reuse in the L2 cache.
    """

    bm: int = 256
    bn: int = 128
    warpgroups: int = 2
    raw_stages: int = 4
    bf16_stages: int = 3
    promote_k: int | None = None
    raster: int = 8

    @property
    def m_blocks(self) -> int:
        """64-row WGMMA blocks that each consumer warpgroup owns."""
        return self.bm // (64 * self.warpgroups)

    @property
    def threads(self) -> int:
        """Consumers, one converter warpgroup, one producer warpgroup."""
        return 128 * (self.warpgroups + 2)

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers per thread of (consumer, converter, producer) warpgroups."""
        if self.warpgroups == 2:
            return 200, 88, 24
        return 232, 128, 40


def why_not(tile: TileConfig) -> str | None:
    """The reason why no kernel can be built with this tile, or None."""
    if tile.warpgroups not in (1, 2):
        return f"warpgroups must be 1 or 2, got {tile.warpgroups}"
    if tile.bm not in (64 * tile.warpgroups, 128 * tile.warpgroups):
        return f"bm must be 64 or 128 rows per consumer warpgroup, got {tile.bm}"
    if tile.bn not in (64, 128):
        # 256 columns need more registers than a thread of 512 has when the kernel starts.
        return f"bn must be 64 or 128, got {tile.bn}"
    accumulators = tile.m_blocks * tile.bn // 2
    if tile.promote_k is not None:
        accumulators *= 2
        if tile.promote_k <= 0 or tile.promote_k % 128:
            return f"promote_k must be a positive multiple of 128, got {tile.promote_k}"
    if accumulators > 128:
        return f"the tile needs {accumulators} accumulator registers a thread, 128 are there"
    if tile.raw_stages < 2 or tile.bf16_stages < 2:
        return "every ring needs two stages at least"
    if tile.raster < 1:
        return f"raster must be positive, got {tile.raster}"
    return None
