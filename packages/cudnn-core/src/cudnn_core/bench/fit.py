"""A table of tile rules from measured times: the fit of a rule's numbers, the choice of few rules, and what it costs.

Pure functions. May import numpy and hopper.rules.

A rule's cost grows linearly with its lag and its join, and with the inverse of its speed. So, with one unit of cost and
one constant (launches, an operand rewritten first) for all rules of a table,

    seconds = constant + unit / speed * (depth + lag * finishes + join * joins)

is linear in constant, unit / speed, unit / speed * lag and unit / speed * join: a least-squares problem, in which
none of them may be negative. `Rule.cost` itself says what depth, finishes and joins of a problem are. Where the
measurements leave lag or join open, they stay what they were.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cudnn_core.hopper.rules import Rule

Extents = tuple[int, int, int]
# A table may be so much slower on average than the best one, if it has fewer tiles to compile.
NEAR = 0.002
# How much a rule's old lag and join count: like one measurement in which a change of the whole time weighs so much.
FAITH = 0.01
# Unknowns of a rule.
TERMS = 3
# Relative changes of the fit's objective below this are rounding.
_TINY = 1e-12


@dataclass(frozen=True)
class Timed:
    """One problem (M, N, K): seconds of every rule's tile, None where it was not measured or is not allowed.

    now: index of the rule whose tile is picked there at present; None if it is not among the rules.
    """

    problem: Extents
    seconds: tuple[float | None, ...]
    now: int | None = None

    @property
    def best(self) -> int:
        """Index of the fastest."""
        return min(self.measured, key=lambda i: self.seconds[i])

    @property
    def measured(self) -> list[int]:
        """Indices of the rules that have a time."""
        return [i for i, seconds in enumerate(self.seconds) if seconds is not None]


@dataclass(frozen=True)
class Fit:
    """The rules with fitted numbers; None for those without a measurement.

    constant: seconds that every call takes. errors: the model's seconds over the measured ones, less 1, as `Timed` has
    them.
    """

    rules: tuple[Rule | None, ...]
    constant: float
    errors: tuple[tuple[float | None, ...], ...]

    def sizes(self, indices: Sequence[int]) -> list[float]:
        """Sizes of the errors of some rules."""
        return [abs(row[i]) for row in self.errors for i in indices if row[i] is not None]


def terms(rule: Rule, problem: Extents, multiprocessors: int) -> tuple[float, float, float]:
    """(depth, finishes, joins): what a rule's cost is at speed 1 without lag and join, and what one of each adds."""
    bare = replace(rule, speed=1.0, lag=0, join=0)

    def cost(rule: Rule) -> float:
        return rule.cost(*problem, 1, multiprocessors)

    depth = cost(bare)
    return depth, cost(replace(bare, lag=1)) - depth, cost(replace(bare, join=1)) - depth


def fit(rules: Sequence[Rule], timed: Sequence[Timed], multiprocessors: int) -> Fit:
    """Speed, lag and join of every rule, such that the sum of squared relative errors is least.

    Speeds are relative to the fastest rule that is for any number of rows.
    """
    where = [(at, index) for at, row in enumerate(timed) for index in row.measured]
    matrix = np.zeros((len(where), 1 + TERMS * len(rules)))
    for line, (at, index) in zip(matrix, where, strict=True):
        # Over the measured time: relative errors count.
        found = (1.0, *terms(rules[index], timed[at].problem, multiprocessors))
        line[[0, *_columns(index)]] = np.asarray(found) / timed[at].seconds[index]
    prior = [line for index, rule in enumerate(rules) for line in _prior(rule, index, matrix)]
    target = np.concatenate([np.ones(len(where)), np.zeros(len(prior))])
    found = nonnegative(np.concatenate([matrix, *prior]), target)
    errors = [[None] * len(rules) for _ in timed]
    for (at, index), error in zip(where, matrix @ found - 1.0, strict=True):
        errors[at][index] = float(error)
    numbers = found[1:].reshape(len(rules), TERMS).tolist()
    return Fit(_fitted(rules, numbers), float(found[0]), tuple(map(tuple, errors)))


def _columns(index: int) -> list[int]:
    """Where the unknowns of a rule stand, behind the constant."""
    return [1 + TERMS * index + term for term in range(TERMS)]


def _prior(rule: Rule, index: int, matrix: np.ndarray) -> list[np.ndarray]:
    """Rows that say that a rule's lag and join are what they were."""
    slope, *rest = _columns(index)
    made = []
    for column, old in zip(rest, (rule.lag, rule.join), strict=True):
        weight = FAITH * matrix[:, column].max(initial=0.0)
        if weight > 0:
            line = np.zeros((1, matrix.shape[1]))
            line[0, [slope, column]] = -old * weight, weight
            made.append(line)
    return made


def _fitted(rules: Sequence[Rule], numbers: list[list[float]]) -> tuple[Rule | None, ...]:
    """The rules with what the unknowns mean: unit / speed, and that times lag and join."""
    pairs = list(zip(rules, numbers, strict=True))
    slopes = [slope for rule, (slope, _, _) in pairs if slope > 0 and rule.most_rows is None]
    slopes = slopes or [slope for _, (slope, _, _) in pairs if slope > 0]
    return tuple(
        replace(
            rule,
            speed=float(f"{min(slopes) / slope:.3g}"),
            lag=round(lag / slope),
            join=round(join / slope),
        )
        if slope > 0
        else None
        for rule, (slope, lag, join) in pairs
    )


def nonnegative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """x >= 0 with least |matrix x - target|: the active-set method of Lawson and Hanson."""
    sizes = np.linalg.norm(matrix, axis=0)
    used = np.flatnonzero(sizes > 0)
    scaled = matrix[:, used] / sizes[used]
    x = np.zeros(len(used))
    free = np.zeros(len(used), bool)
    for _ in range(10 * len(used)):
        gain = np.where(free, -math.inf, scaled.T @ (target - scaled @ x))
        if free.all() or gain.max() <= _TINY * np.linalg.norm(target):
            break
        free[gain.argmax()] = True
        while free.any():
            step = np.zeros_like(x)
            step[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            low = free & (step <= 0)
            if not low.any():
                x = step
                break
            # As far as the first of them reaches zero, where it stays.
            x = x + (x[low] / (x[low] - step[low])).min() * (step - x)
            free &= x > _TINY * x.max(initial=0.0)
            x[~free] = 0.0
    result = np.zeros(matrix.shape[1])
    result[used] = x / sizes[used]
    return result


def pick(
    rules: Sequence[Rule | None], row: Timed, among: Sequence[int], multiprocessors: int
) -> int | None:
    """Index of the rule of least cost at a problem, of those `among` that have a time there; the first of equals."""
    able = [i for i in among if rules[i] is not None and row.seconds[i] is not None]
    costs = {i: rules[i].cost(*row.problem, 1, multiprocessors) for i in able}
    return min(able, key=costs.__getitem__, default=None)


def regret(row: Timed, index: int | None) -> float | None:
    """How much longer than the fastest a rule's tile takes: 0.02 is 2 %. None without a time."""
    if index is None or row.seconds[index] is None:
        return None
    return row.seconds[index] / row.seconds[row.best] - 1.0


@dataclass(frozen=True)
class Regret:
    """Of a way of picking, over the problems where its tile has a time; `where` is the problem of the worst."""

    median: float
    worst: float
    where: Extents
    problems: int


def regrets(timed: Sequence[Timed], picks: Sequence[int | None]) -> Regret | None:
    """The summary; None if no pick has a time."""
    found = [
        (value, row.problem)
        for row, index in zip(timed, picks, strict=True)
        if (value := regret(row, index)) is not None
    ]
    if not found:
        return None
    worst, where = max(found)
    median = statistics.median(value for value, _ in found)
    return Regret(median, worst, where, len(found))


def few(
    rules: Sequence[Rule | None], timed: Sequence[Timed], most: int, multiprocessors: int
) -> tuple[int, ...]:
    """Indices of at most `most` rules whose choice loses least time, on average over problems of the relative time.

    A smaller table is preferred if it is nearly as good. A table in which some problem finds no rule is none. Found by
    adding the best rule, then exchanging: tables of six of two dozen rules are too many to try.
    """
    able = [i for i, rule in enumerate(rules) if rule is not None]
    timed = [row for row in timed if any(row.seconds[i] is not None for i in able)]
    shape = (len(timed), len(rules))
    costs, losses = np.full(shape, math.inf), np.full(shape, math.inf)
    for at, row in enumerate(timed):
        for i in able:
            if row.seconds[i] is not None:
                costs[at, i] = rules[i].cost(*row.problem, 1, multiprocessors)
                losses[at, i] = math.log(row.seconds[i] / row.seconds[row.best])

    def loss(chosen: tuple[int, ...]) -> float:
        columns = list(chosen)
        picked = np.asarray(columns)[costs[:, columns].argmin(axis=1)]
        return float(losses[np.arange(len(timed)), picked].mean())

    tables: list[tuple[float, tuple[int, ...]]] = []
    chosen: tuple[int, ...] = ()
    for _ in range(min(most, len(able))):
        chosen = _grown(chosen, able, loss)
        tables.append((loss(chosen), chosen))
    near = min((least for least, _ in tables), default=math.inf) + NEAR
    return next((chosen for least, chosen in tables if least <= near < math.inf), ())


def _grown(
    chosen: tuple[int, ...], able: Sequence[int], loss: Callable[[tuple[int, ...]], float]
) -> tuple[int, ...]:
    """The best table with one rule more, then with rules exchanged as long as that helps. Indices stay in order."""

    def best(tables: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        return min((tuple(sorted(table)) for table in tables), key=loss)

    rest = [i for i in able if i not in chosen]
    chosen = best((*chosen, i) for i in rest)
    while True:
        rest = [i for i in able if i not in chosen]
        exchanged = best(
            [chosen, *((*(j for j in chosen if j != out), i) for out in chosen for i in rest)]
        )
        if loss(exchanged) >= loss(chosen):
            return chosen
        chosen = exchanged


@dataclass(frozen=True)
class Refit:
    """A table made of measurements, and what it costs beside the present one.

    kept: indices of the table's rules. now, new: for each problem, what is picked at present, and by the table.
    """

    fit: Fit
    kept: tuple[int, ...]
    now: tuple[int | None, ...]
    new: tuple[int | None, ...]
    regret_now: Regret | None
    regret_new: Regret | None

    @property
    def table(self) -> tuple[Rule, ...]:
        return tuple(self.fit.rules[i] for i in self.kept)


def refit(rules: Sequence[Rule], timed: Sequence[Timed], most: int, multiprocessors: int) -> Refit:
    """The best table of at most `most` of the rules, with fitted numbers."""
    found = fit(rules, timed, multiprocessors)
    kept = few(found.rules, timed, most, multiprocessors)
    now = tuple(row.now for row in timed)
    new = tuple(pick(found.rules, row, kept, multiprocessors) for row in timed)
    return Refit(found, kept, now, new, regrets(timed, now), regrets(timed, new))
