"""The fit of tile rules: times that rules made give the rules back, noise or not, and few rules are chosen well."""

from dataclasses import replace

import numpy as np
import pytest

from cudnn_core.bench import fit
from cudnn_core.bench.fit import Timed
from cudnn_core.hopper.rules import Rule, choose
from cudnn_core.hopper.tile import TileConfig

TALL, WIDE = TileConfig(bm=256, bn=128), TileConfig(bm=128, bn=192, pingpong=True)
SQUARE, SHORT = TileConfig(bm=128, bn=128), TileConfig(bm=64, bn=128, warpgroups=1)
TRUTH = (
    Rule(WIDE, 1.0, 150),
    Rule(SQUARE, 0.93, 80),
    Rule(SQUARE, 0.95, 80, 8, 1200),
    Rule(TALL, 0.85, 400),
    Rule(SHORT, 0.5, 100, 4, 900, most_rows=64),
)
# The same tiles and splits, and nothing known of them.
UNKNOWN = tuple(replace(rule, speed=1.0, lag=64, join=1500) for rule in TRUTH)
PROBLEMS = tuple(
    (m, n, k)
    for n, k in ((4096, 4096), (28672, 4096), (6144, 2048), (8192, 8192))
    for m in (16, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192)
)
# Multiprocessors, seconds of a unit of cost at speed 1, and of a launch.
SMS, UNIT, CONSTANT = 132, 1.3e-11, 6e-6


def made(rules=TRUTH, noise=0.0, problems=PROBLEMS, seed=0):
    """What a device would measure if these rules were the truth."""
    rng = np.random.default_rng(seed)

    def seconds(rule, problem):
        if rule.most_rows is not None and problem[0] > rule.most_rows:
            return None
        exact = CONSTANT + UNIT * rule.cost(*problem, 1, SMS)
        return float(exact * np.exp(noise * rng.standard_normal()))

    return tuple(Timed(p, tuple(seconds(rule, p) for rule in rules), 0) for p in problems)


def test_terms_are_those_of_the_cost():
    for rule in TRUTH:
        for problem in PROBLEMS:
            depth, finishes, joins = fit.terms(rule, problem, SMS)
            cost = (depth + rule.lag * finishes + rule.join * joins) / rule.speed
            assert cost == pytest.approx(rule.cost(*problem, 1, SMS))


def test_rules_come_back_from_their_own_times():
    found = fit.fit(UNKNOWN, made(), SMS)
    assert found.constant == pytest.approx(CONSTANT, rel=0.01)
    for rule, truth in zip(found.rules, TRUTH, strict=True):
        assert (rule.tile, rule.split, rule.most_rows) == (
            truth.tile,
            truth.split,
            truth.most_rows,
        )
        assert rule.speed == pytest.approx(truth.speed, rel=0.002)
        assert rule.lag == pytest.approx(truth.lag, abs=5)
        assert rule.join == pytest.approx(truth.join if truth.split else 0, abs=10)
    assert max(found.sizes(range(len(TRUTH)))) < 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_noise_moves_the_numbers_little_and_the_choice_less(seed):
    timed = made(noise=0.02, seed=seed)
    found = fit.refit(UNKNOWN, timed, 5, SMS)
    for rule, truth in zip(found.fit.rules, TRUTH, strict=True):
        if truth.most_rows is None:
            assert rule.speed == pytest.approx(truth.speed, rel=0.05)
            assert rule.lag == pytest.approx(truth.lag, abs=150)
    # Against the times without noise: what a user of the table would wait.
    losses = [fit.regret(exact, index) for exact, index in zip(made(), found.new, strict=True)]
    assert np.median(losses) == 0 and max(losses) < 0.06
    assert found.regret_new.median < 0.01


def test_a_number_that_nothing_tells_stays_what_it_was():
    """With one K, lag and speed cannot be told apart: only what they make together is known."""
    rules = tuple(replace(rule, lag=111) for rule in TRUTH[:2])
    timed = made(TRUTH[:2], problems=PROBLEMS[:10])
    found = fit.fit(rules, timed, SMS)
    assert [rule.lag for rule in found.rules] == [111, 111]
    assert found.rules[1].speed == pytest.approx(0.93 * (4096 + 150) / (4096 + 80), rel=0.01)
    assert max(found.sizes(range(2))) < 1e-3


def test_a_rule_without_times_is_left_out():
    timed = tuple(replace(row, seconds=(*row.seconds[:3], None, row.seconds[4])) for row in made())
    found = fit.refit(UNKNOWN, timed, 5, SMS)
    assert found.fit.rules[3] is None and 3 not in found.kept
    assert found.fit.sizes([3]) == []


def test_the_fastest_rule_for_any_rows_has_speed_1():
    quick = replace(TRUTH[4], speed=2.0)
    found = fit.fit((*UNKNOWN[:4], quick), made((*TRUTH[:4], quick)), SMS).rules
    assert max(rule.speed for rule in found[:4]) == 1.0
    assert found[4].speed == pytest.approx(2.0, rel=0.01)


def test_few_keeps_what_is_needed_and_no_more():
    useless = Rule(TileConfig(bm=128, bn=64), 0.2, 900)
    rules = (useless, *TRUTH)
    timed = made(rules)
    assert fit.few(rules, timed, 6, SMS) == fit.few(rules, timed, 5, SMS)
    assert 0 not in fit.few(rules, timed, 6, SMS)
    # One tile must serve every problem, so the short one cannot be it.
    (only,) = fit.few(rules, timed, 1, SMS)
    assert rules[only].most_rows is None


def test_few_is_as_good_as_trying_every_table():
    from itertools import combinations

    rng = np.random.default_rng(3)
    rules = tuple(
        replace(rule, speed=rule.speed * rng.uniform(0.8, 1), lag=int(rng.uniform(20, 500)))
        for rule in TRUTH
        for _ in range(2)
    )
    timed = made(rules, noise=0.05, seed=7)

    def loss(table):
        picks = [fit.pick(rules, row, table, SMS) for row in timed]
        if None in picks:
            return np.inf
        return np.mean([np.log1p(fit.regret(row, i)) for row, i in zip(timed, picks, strict=True)])

    best = min(loss(table) for size in (1, 2, 3) for table in combinations(range(10), size))
    assert loss(fit.few(rules, timed, 3, SMS)) <= best + 2 * fit.NEAR


def test_nothing_to_choose_from():
    assert fit.few((None, None), made(TRUTH[:2]), 6, SMS) == ()
    assert fit.few(TRUTH[4:], made(TRUTH[4:], problems=[(64, 512, 512)]), 6, SMS) == (0,)
    # Problems that no rule serves count for none.
    assert fit.few((None, TRUTH[4]), made((TRUTH[0], TRUTH[4])), 6, SMS) == (1,)


def test_picks_are_those_of_the_rules_own_choice():
    timed = made(TRUTH[:4])
    for row in timed:
        index = fit.pick(TRUTH[:4], row, range(4), SMS)
        assert TRUTH[index] == choose(TRUTH[:4], *row.problem, multiprocessors=SMS)


def test_regret_is_relative_to_the_best_measured():
    row = Timed((8, 8, 8), (3e-6, 2e-6, None), 2)
    assert row.best == 1 and row.measured == [0, 1]
    assert fit.regret(row, 0) == pytest.approx(0.5) and fit.regret(row, 1) == 0
    assert fit.regret(row, 2) is None and fit.regret(row, None) is None
    other = Timed((9, 9, 9), (1e-6, 2e-6, None), 0)
    found = fit.regrets((row, other), (0, 0))
    assert (found.worst, found.where, found.problems) == (pytest.approx(0.5), (8, 8, 8), 2)
    assert found.median == pytest.approx(0.25)
    assert fit.regrets((row, other), (None, 0)).problems == 1
    assert fit.regrets((row,), (None,)) is None


@pytest.mark.parametrize("seed", range(8))
def test_least_squares_without_negative_numbers(seed):
    """At the solution the gradient vanishes where x > 0 and does not ask for more where x = 0."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((30, 8)) * 10.0 ** rng.uniform(-6, 6, 8)
    matrix[:, 5] = matrix[:, 4] if seed % 2 else 0.0
    target = rng.standard_normal(30)
    x = fit.nonnegative(matrix, target)
    gradient = matrix.T @ (target - matrix @ x) / np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    assert (x >= 0).all()
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-9
    assert gradient[x == 0].max(initial=0) < 1e-9
