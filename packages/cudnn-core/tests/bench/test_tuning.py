"""Sweeps on a clock that counts: what is checked, what is timed, and that the fit sees it."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from clock import FakeClock

from cudnn_core.bench import fit, tuning
from cudnn_core.bench.protocol import WrongResult
from cudnn_core.bench.timing import Effort
from cudnn_core.bench.tuning import Tuner, Tuning, label
from cudnn_core.hopper.rules import Rule
from cudnn_core.hopper.tile import TileConfig

SQUARE = Rule(TileConfig(bm=128, bn=128), 0.9, 100)
TALL = Rule(TileConfig(bm=256, bn=128), 1.0, 300)
SHARED = replace(SQUARE, split=8, join=1000)
SHORT = Rule(TileConfig(bm=64, bn=128, warpgroups=1), 0.5, 60, most_rows=64)
TRUTH = (SQUARE, TALL, SHARED, SHORT)
PROBLEMS = tuple((m, n, k) for n, k in ((4096, 4096), (8192, 2048)) for m in (64, 512, 2000, 8192))
UNIT, CONSTANT = 1e-11, 5e-6


def a_tuning(clock, wrong=(), broken=(), **changes):
    """The rules but the last are the table; times are those of TRUTH."""

    class Subject:
        def __init__(self, problem, device):
            self.problem = problem
            assert device == "fake"

        def call(self, rule):
            truth = next(t for t in TRUTH if tuning.kernel_of(t) == tuning.kernel_of(rule))
            seconds = CONSTANT + UNIT * truth.cost(*self.problem, 1, 132)
            return clock.call(label(rule), 1e-6, seconds)

        def check(self, rule):
            if label(rule) in wrong:
                raise WrongResult("c_tensor is off")
            if label(rule) in broken:
                raise NotImplementedError("no room")

    start = tuple(replace(rule, speed=1.0, lag=64) for rule in TRUTH)
    made = Tuning(
        "a x b",
        "TABLE",
        start[:2],
        start[1:],
        PROBLEMS,
        PROBLEMS[:2],
        ((8, 8, 8),),
        choose=lambda problem: (SQUARE.tile, None),
        prepare=Subject,
        source=lambda rule: None,
    )
    return replace(made, **changes)


def sweep(clock, made, problems=PROBLEMS, **how):
    return Tuner(clock, "fake", 132, Effort(0.01, 3, 5), **how).sweep(made, problems)


def test_candidates_are_each_tile_and_split_once():
    assert list(map(label, a_tuning(FakeClock()).candidates)) == list(map(label, TRUTH))


def test_a_sweep_gives_the_rules_that_made_its_times():
    clock = FakeClock()
    found = sweep(clock, a_tuning(clock))
    assert (found.name, found.table, found.known, found.multiprocessors) == (
        "a x b",
        "TABLE",
        2,
        132,
    )
    assert [row.problem for row in found.timed] == list(PROBLEMS)
    assert [row.now for row in found.timed] == [0] * len(PROBLEMS)
    exact = CONSTANT + UNIT * TALL.cost(*PROBLEMS[1], 1, 132)
    assert found.timed[1].seconds[1] == pytest.approx(exact)
    refit = fit.refit(found.rules, found.timed, found.most, 132)
    for rule, truth in zip(refit.fit.rules[:3], TRUTH, strict=False):
        assert rule.speed == pytest.approx(truth.speed, rel=0.01)
        assert rule.lag == pytest.approx(truth.lag, abs=10)
    assert refit.regret_new.worst < 1e-6
    assert clock.freed == len(PROBLEMS)


def test_tiles_are_timed_only_where_they_are_for():
    clock = FakeClock()
    found = sweep(clock, a_tuning(clock))
    assert [row.seconds[3] is None for row in found.timed] == [m > 64 for m, _, _ in PROBLEMS]
    only = a_tuning(clock, allows=lambda rule, problem: rule.tile == TALL.tile)
    assert {tuple(row.measured) for row in sweep(clock, only).timed} == {(1,)}


def test_what_is_wrong_or_cannot_be_built_is_not_timed():
    clock = FakeClock()
    found = sweep(clock, a_tuning(clock, wrong=[label(SQUARE)], broken=[label(SHORT)]))
    assert list(map(label, found.rules)) == [label(TALL), label(SHARED)] and found.known == 1
    assert found.dropped == {
        label(SQUARE): "WRONG: c_tensor is off",
        label(SHORT): "NotImplementedError: no room",
    }
    assert not {label(SQUARE), label(SHORT)} & set(clock.log)
    # What is picked now is gone, and its loss not known.
    assert {row.now for row in found.timed} == {None}
    assert fit.refit(found.rules, found.timed, 6, 132).regret_now is None


def test_problems_without_any_time_are_left_out():
    clock = FakeClock()
    none = a_tuning(clock, allows=lambda rule, problem: problem[0] == 512)
    assert {row.problem[0] for row in sweep(clock, none).timed} == {512}


def test_every_step_is_told():
    clock, told = FakeClock(), []
    made = a_tuning(clock)
    how = {"begin": told.append, "finish": lambda: told.append(None)}
    sweep(clock, made, PROBLEMS[:2], **how)
    assert told.count(None) == tuning.steps(made, PROBLEMS[:2]) == 6
    assert told[0] == f"a x b check {label(SQUARE)}" and told[-2] == "a x b 512,4096,4096"


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (SQUARE, "128x128 s4"),
        (SHARED, "128x128 s4 k8"),
        (SHORT, "64x128 w1 s4"),
        (
            Rule(TileConfig(pingpong=True, cluster=(2, 1), raster=4), 1, 1),
            "256x128 pp c2x1 s4 r4",
        ),
        (Rule(TileConfig(orientation="swapped", raw_stages=3), 1, 1), "256x128 s4/3"),
    ],
)
def test_labels(rule, text):
    assert label(rule) == text


def test_what_has_no_sign_is_spelled():
    @dataclass(frozen=True)
    class Tile(TileConfig):
        banks: int = 1

    assert label(replace(SHARED, tile=Tile(banks=2))) == "256x128 s4 banks=2 k8"
    assert label(replace(SHARED, tile=Tile())) == "256x128 s4 k8"


def test_variants():
    found = tuning.variants([SQUARE, TALL], (None, 4))
    assert [(rule.tile, rule.split) for rule in found] == [
        (SQUARE.tile, None),
        (SQUARE.tile, 4),
        (TALL.tile, None),
        (TALL.tile, 4),
    ]


def test_a_call_that_fails_stops_the_sweep():
    """A launch that fails leaves no device to go on with."""
    clock = FakeClock()

    def prepare(problem, device):
        return SimpleNamespace(check=lambda rule: None, call=lambda rule: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        sweep(clock, a_tuning(clock, prepare=prepare))
