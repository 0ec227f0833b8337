"""Which tile a plain product takes: a few tiles a format, and what measurements say of each.

May import: tile.py. Needs neither the DSL nor a GPU: planning stays cheap.
"""

from dataclasses import dataclass, replace

from .tile import TileConfig

# K elements of stream-K's unit of work, at least.
UNIT = 128
# Which share of its walkers stream-K keeps at least to give each an equal part of one tile.
EVENED = (15, 16)


def unit_of(tile: TileConfig, bits: int) -> int:
    """K elements of stream-K's unit where the weights have so many bits and are decoded: those of a raw stage."""
    return max(UNIT, tile.raw_k(bits))


@dataclass(frozen=True)
class Rule:
    """A tile, and how long it takes.

    speed: products per multiprocessor and time at large sizes, relative to the format's fastest
    tile. lag: what of a tile's epilogue no main loop hides, in elements of K. split: None, or
    stream-K in which a stretch has at least so many units of 128 K elements. join: what finishing
    split tiles costs, in elements of K. most_rows: of C that the tile is for, None for any number.
    """

    tile: TileConfig
    speed: float
    lag: int
    split: int | None = None
    join: int = 0
    most_rows: int | None = None

    def cost(self, m: int, n: int, k: int, batches: int, multiprocessors: int) -> float:
        """Time, in a unit that all rules of a format share."""
        tile = self.tile
        rows, columns = -(-m // tile.bm), -(-n // tile.bn)
        tiles = -(-rows // tile.cluster[0]) * -(-columns // tile.cluster[1]) * batches
        walkers = max(1, multiprocessors // tile.blocks)
        rounds, rest = divmod(tiles, walkers)
        depth = (rounds + (rest > 0)) * (k + self.lag)
        if self.split is not None and rest:
            units = rest * max(1, -(-k // UNIT))
            sharers = max(1, min(walkers, units // self.split))
            depth = rounds * (k + self.lag) + UNIT * -(-units // sharers) + self.lag + self.join
        return depth * tile.bm * tile.bn / self.speed


def choose(
    rules: tuple[Rule, ...], m: int, n: int, k: int, batches: int = 1, multiprocessors: int = 132
) -> Rule:
    """The rule of least cost, the first of equals."""
    rules = tuple(rule for rule in rules if rule.most_rows is None or m <= rule.most_rows)
    return min(rules, key=lambda rule: rule.cost(m, n, k, batches, multiprocessors))


# Speeds measured on an H200 on 2026-12-02, at (8192,8192,8192), (8192,28672,4096) and (4096,4096,4096), by SwiGLU with
# BF16 outputs: those of DIRECT's tiles and of FP8's 128x192 and 256x128; squares of promoted sums have a guess. Short
# tiles wait for memory: their speed says no more than that half as many rows cost less. Stages: as many as are of use.
TURNS = TileConfig(bm=128, bn=192, pingpong=True)
SQUARE = TileConfig(bm=128, bn=128, pingpong=True, stages=5)
SHORT = TileConfig(bm=64, bn=128, warpgroups=1, stages=8)
# The tensor core adds up all of K.
DIRECT = (
    Rule(TURNS, 1.0, 64),
    Rule(SQUARE, 0.99, 64),
    Rule(SQUARE, 0.99, 64, 8, 1500),
    Rule(SHORT, 0.6, 64, 4, 1500, most_rows=64),
)


def promoted(promote_k: int) -> tuple[Rule, ...]:
    """Rules for sums that leave the tensor core after `promote_k` elements, those of a stage."""
    square = TileConfig(bm=128, bn=128, stages=5, promote_k=promote_k)
    return (Rule(WIDE[promote_k], 1.0, 600), Rule(square, 0.85, 600, 8, 1500))


WIDE = {
    promote_k: TileConfig(bm=128, bn=192, cluster=(2, 1), stages=5, promote_k=promote_k)
    for promote_k in (32, 64, 128)
}
TALL_FP8 = TileConfig(bm=256, bn=128, cluster=(1, 2), promote_k=128)
SHORT_FP8 = replace(SHORT, promote_k=128)
PROMOTED = {promote_k: promoted(promote_k) for promote_k in WIDE}
PROMOTED[128] += (
    Rule(TALL_FP8, 0.93, 600),
    Rule(SHORT_FP8, 0.6, 600, 4, 1500, most_rows=64),
)


def rules_for(promote_k: int | None, sums: int = 192) -> tuple[Rule, ...]:
    """promote_k: None, or the K elements of a stage: 32 (TF32), 64 (16-bit) or 128 (FP8).

    sums: how many of a thread's registers an epilogue leaves to them.
    """
    rules = DIRECT if promote_k is None else PROMOTED[promote_k]
    return tuple(rule for rule in rules if rule.tile.sums <= sums)
