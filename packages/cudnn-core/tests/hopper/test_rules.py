"""The choice of tiles: what is chosen where, and that every rule can be built.

May import pytest and cudnn_core.hopper's tile and rules.
"""

import pytest

from cudnn_core.hopper import rules
from cudnn_core.hopper.tile import SHARED_MEMORY, TileConfig, why_not

LONG = {f"long, {k}": rules.rules_for(k) for k in (32, 64)}
FORMATS = LONG | {"16-bit": rules.rules_for(None), "fp8": rules.rules_for(128)}
# For barriers and alignment.
RESERVE = 2048


@pytest.mark.parametrize("name", FORMATS)
def test_few_tiles_that_can_be_built(name):
    assert len({(rule.tile, rule.split) for rule in FORMATS[name]}) <= 6
    for rule in FORMATS[name]:
        assert why_not(rule.tile) is None
        # Stages of 128 bytes of each row, and a staging buffer of BF16 for every warpgroup.
        stages = (rule.tile.bm + rule.tile.bn) * 128 * rule.tile.stages
        assert stages + 64 * 64 * 2 * rule.tile.warpgroups + RESERVE <= SHARED_MEMORY
        # GLU pairs lie in the same tile.
        assert rule.tile.bn % 64 == 0


@pytest.mark.parametrize(
    ("name", "problem", "bm", "bn", "split"),
    [
        ("16-bit", (8192, 8192, 8192), 128, 192, False),
        ("16-bit", (8192, 28672, 4096), 128, 192, False),
        ("16-bit", (4096, 4096, 4096), 128, 128, False),
        ("16-bit", (256, 4096, 14336), 128, 128, True),
        ("16-bit", (64, 28672, 4096), 64, 128, True),
        ("16-bit", (16, 4096, 14336), 64, 128, True),
        ("fp8", (8192, 8192, 8192), 128, 192, False),
        ("fp8", (8192, 28672, 4096), 128, 192, False),
        ("fp8", (4096, 4096, 4096), 256, 128, False),
        ("fp8", (16, 4096, 14336), 64, 128, True),
    ],
)
def test_choices(name, problem, bm, bn, split):
    rule = rules.choose(FORMATS[name], *problem)
    assert (rule.tile.bm, rule.tile.bn, rule.split is not None) == (bm, bn, split)


@pytest.mark.parametrize("problem", [(1, 8, 8), (1, 1, 0), (2**20, 2**17, 2**15)])
def test_every_problem_finds_a_rule(problem):
    for found in FORMATS.values():
        assert rules.choose(found, *problem, batches=3) in found


def test_a_split_never_costs_more_rounds():
    whole, shared = (rules.Rule(TileConfig(), 1.0, 64, split) for split in (None, 1))
    for n in range(128, 20000, 640):
        costs = [rule.cost(4096, n, 8192, 1, 132) for rule in (whole, shared)]
        assert costs[1] <= costs[0]


def test_epilogues_that_need_registers_leave_smaller_tiles():
    tiles = {(rule.tile.bm, rule.tile.bn) for rule in rules.rules_for(None, sums=128)}
    assert tiles == {(128, 128), (64, 128)}


def test_a_format_and_its_long_sums_make_few_tiles():
    for promote_k in (32, 64):
        together = (*rules.rules_for(None), *rules.rules_for(promote_k))
        assert len({(rule.tile, rule.split) for rule in together}) <= 6


def test_promoted_rules_say_so():
    for promote_k in (32, 64, 128):
        assert {rule.tile.promote_k for rule in rules.rules_for(promote_k)} == {promote_k}
    assert {rule.tile.promote_k for rule in rules.rules_for(None)} == {None}
