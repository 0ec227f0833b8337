"""TileConfig: what is refused, and why.

May import the standard library and pytest.
"""

import pytest

from cudnn_core.hopper.tile import TileConfig, why_not


@pytest.mark.parametrize(
    ("tile", "word"),
    [
        (TileConfig(warpgroups=3), "warpgroups"),
        (TileConfig(bm=192), "bm"),
        (TileConfig(bn=256), "bn"),
        (TileConfig(promote_k=2048), "accumulator registers"),
        (TileConfig(bm=128, promote_k=100), "promote_k"),
        (TileConfig(raw_stages=1), "stages"),
        (TileConfig(raster=0), "raster"),
    ],
)
def test_refusals_name_the_field(tile, word):
    assert word in why_not(tile)


@pytest.mark.parametrize(
    "tile",
    [
        TileConfig(),
        TileConfig(bm=128),
        TileConfig(bm=128, bn=64),
        TileConfig(bm=128, promote_k=4096),
        TileConfig(bm=64, bn=64, warpgroups=1),
    ],
)
def test_tiles_in_use(tile):
    assert why_not(tile) is None
    consumer, converter, producer = tile.registers
    assert 128 * (tile.warpgroups * consumer + converter + producer) <= 65536
