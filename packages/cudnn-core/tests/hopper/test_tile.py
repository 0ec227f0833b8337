"""TileConfig: what is refused, and why.

May import the standard library and pytest.
"""

import pytest

from cudnn_core.hopper.tile import TileConfig, why_not


@pytest.mark.parametrize(
    ("tile", "word"),
    [
        (TileConfig(warpgroups=5), "warpgroups"),
        (TileConfig(warpgroups=1, bm=64, pingpong=True), "pingpong"),
        (TileConfig(bm=192), "bm"),
        (TileConfig(bm=256, pingpong=True), "bm"),
        (TileConfig(bn=264), "bn"),
        (TileConfig(bn=100), "bn"),
        (TileConfig(bm=64, bn=64, orientation="swapped"), "bn"),
        (TileConfig(bm=260, bn=128, orientation="swapped"), "bm"),
        (TileConfig(orientation="turned"), "orientation"),
        (TileConfig(bm=256, bn=256), "accumulator registers"),
        (TileConfig(bm=128, bn=256, pingpong=True), "accumulator registers"),
        (TileConfig(bm=128, promote_k=100), "promote_k"),
        (TileConfig(cluster=(2, 2)), "cluster"),
        (TileConfig(stages=1), "stages"),
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
        TileConfig(bm=128, bn=256, cluster=(2, 1)),
        TileConfig(bm=256, bn=192, cluster=(1, 2)),
        TileConfig(bm=128, bn=192, pingpong=True),
        TileConfig(bm=64, bn=256, pingpong=True),
        TileConfig(bm=128, bn=192, promote_k=128),
        TileConfig(bm=16, bn=128, orientation="swapped"),
        TileConfig(bm=64, bn=64, warpgroups=1),
    ],
)
def test_tiles_in_use(tile):
    assert why_not(tile) is None
    assert tile.registers_why_not(*tile.registers) is None


@pytest.mark.parametrize(
    "warpgroups, consumers, producers, fit",
    [
        # 384 threads are launched with 168 each, not with 170.
        (2, 240, 24, True),
        (2, 216, 72, True),
        (2, 224, 64, False),
        (3, 160, 32, True),
        (3, 160, 40, False),
        (4, 104, 64, True),
        (4, 112, 40, False),
    ],
)
def test_threads_that_ask_for_too_many_registers_would_wait_for_ever(
    warpgroups, consumers, producers, fit
):
    reason = TileConfig(warpgroups=warpgroups).registers_why_not(consumers, producers)
    assert (reason is None) == fit


def test_orientation_says_which_extent_is_the_fragments_rows():
    swapped = TileConfig(bm=32, bn=256, orientation="swapped")
    assert (swapped.rows, swapped.columns, swapped.m_blocks) == (256, 32, 2)
    normal = TileConfig(bm=256, bn=32)
    assert (normal.rows, normal.columns, normal.m_blocks) == (256, 32, 2)


def test_in_pingpong_a_warpgroup_owns_all_rows_of_its_tile():
    assert TileConfig(bm=128, pingpong=True).m_blocks == 2
    assert TileConfig(bm=128).m_blocks == 1
