"""The tile of a Hopper GEMM: what one thread block computes, and with which resources.

May import: the standard library only, so that planning needs neither the DSL nor a GPU.
"""

from dataclasses import dataclass

# Bytes of shared memory that one block may have.
SHARED_MEMORY = 232448
# Registers of a multiprocessor.
REGISTERS = 1 << 16
# A thread's sums beyond this leave too few registers for addresses and the epilogue.
ACCUMULATORS = 208
# Sums beside which an epilogue has registers for all that it would like to keep.
ROOMY_SUMS = 128


@dataclass(frozen=True)
class TileConfig:
    """Compile-time shape of the persistent kernel.

    bm, bn: rows and columns of C per tile. warpgroups: consumer warpgroups. pingpong: each of two
    consumer warpgroups owns whole tiles, and one's epilogue runs under the other's main loop;
    otherwise the warpgroups split a tile's fragment rows.
    orientation: "normal" - the rows of the tensor core's fragments are rows of C - or "swapped" -
    they are columns of C, and the kernel computes tiles of its transpose.
    cluster: thread blocks along M and along N that work side by side and share what they load.
    stages: ring depth of operands that the tensor core reads. raw_stages: of those that are decoded.
    raw_pieces: pieces of 64 bytes of each row in a raw stage. units: of 64 K elements in a stage that
    the tensor core reads beside decoded operands; 0: as many as in a raw stage.
    promote_k: None, or how many K elements the tensor core sums before its FP32 result is added
    to a second FP32 accumulator; the tensor core truncates each addition, so long sums drift.
    raster: how many tile rows are walked together, for reuse in the L2 cache.
    """

    bm: int = 256
    bn: int = 128
    warpgroups: int = 2
    pingpong: bool = False
    orientation: str = "normal"
    cluster: tuple[int, int] = (1, 1)
    stages: int = 4
    raw_stages: int = 4
    raw_pieces: int = 1
    units: int = 1
    promote_k: int | None = None
    raster: int = 8

    @property
    def rows(self) -> int:
        """Fragment rows of a tile."""
        return self.bm if self.orientation == "normal" else self.bn

    @property
    def columns(self) -> int:
        """Fragment columns of a tile, the N extent of a WGMMA."""
        return self.bn if self.orientation == "normal" else self.bm

    @property
    def sharers(self) -> int:
        """Consumer warpgroups that work on the same tile."""
        return 1 if self.pingpong else self.warpgroups

    @property
    def m_blocks(self) -> int:
        """64-row WGMMA blocks of a tile that each consumer warpgroup owns."""
        return self.rows // (64 * self.sharers)

    @property
    def sums(self) -> int:
        """FP32 sums of a consumer thread."""
        return self.m_blocks * self.columns // 2

    def raw_k(self, bits: int) -> int:
        """K elements of a raw stage whose elements have so many bits: pieces of 64 bytes."""
        return self.raw_pieces * 512 // bits

    @property
    def blocks(self) -> int:
        """Thread blocks of a cluster."""
        return self.cluster[0] * self.cluster[1]

    @property
    def threads(self) -> int:
        """Consumer and producer warpgroups of a thread block, in threads."""
        return 128 * (self.warpgroups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers per thread of (consumer, producer) warpgroups; 0: as launched."""
        # 256 threads have all the registers that a thread can address from the start.
        return {1: (0, 0), 2: (240, 24), 3: (160, 24), 4: (112, 24)}[self.warpgroups]

    def registers_why_not(self, consumers: int, producers: int) -> str | None:
        """The reason why threads cannot have so many registers, for which they would wait for ever, or None."""
        groups = self.warpgroups + 1
        # A thread is launched with a multiple of 8.
        launched = REGISTERS // (128 * groups) // 8 * 8 * groups
        wanted = self.warpgroups * consumers + producers
        if wanted <= launched:
            return None
        return f"{self.warpgroups} x {consumers} + {producers} registers, of {launched} that {groups} warpgroups have"


def why_not(tile: TileConfig) -> str | None:
    """The reason why no kernel can be built with this tile, or None."""
    return _shape(tile) or _accumulators(tile) or _schedule(tile)


def _shape(tile: TileConfig) -> str | None:
    if tile.orientation not in ("normal", "swapped"):
        return f'orientation must be "normal" or "swapped", got {tile.orientation!r}'
    if tile.warpgroups not in (1, 2, 3, 4):
        return f"warpgroups must be from 1 to 4, got {tile.warpgroups}"
    if tile.pingpong and tile.warpgroups != 2:
        return f"pingpong takes warpgroups of 2, got {tile.warpgroups}"
    rows, columns = ("bm", "bn") if tile.orientation == "normal" else ("bn", "bm")
    if tile.rows not in (64 * tile.sharers, 128 * tile.sharers):
        return f"{rows} must be 64 or 128 per warpgroup that shares the tile, got {tile.rows}"
    if tile.columns % 8 or not 8 <= tile.columns <= 256:
        return f"{columns} must be a multiple of 8 from 8 to 256, got {tile.columns}"
    return None


def _accumulators(tile: TileConfig) -> str | None:
    if tile.promote_k is not None:
        if tile.promote_k <= 0 or tile.promote_k % 32:
            return f"promote_k must be a positive multiple of 32, got {tile.promote_k}"
    if tile.sums > ACCUMULATORS:
        return (
            f"the tile needs {tile.sums} accumulator registers a thread, {ACCUMULATORS} are there"
        )
    return None


def _schedule(tile: TileConfig) -> str | None:
    if tile.cluster not in ((1, 1), (2, 1), (1, 2)):
        return f"cluster must be (1, 1), (2, 1) or (1, 2), got {tile.cluster}"
    if min(tile.stages, tile.raw_stages) < 2:
        return "every ring needs two stages at least"
    if max(tile.stages, tile.raw_stages) > 32:
        return "rings have 32 stages at most: nothing counts the memory that their barriers take"
    if tile.raster < 1:
        return f"raster must be positive, got {tile.raster}"
    return None
