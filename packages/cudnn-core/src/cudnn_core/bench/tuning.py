"""What a family puts into `cudnn bench --tune`, and the measurements: every tile of a table at many problems.

May import hopper.rules and, of this folder, fit, protocol and timing.

A family's module `_bench` may define

    tunings() -> iterable of Tuning

Listing them imports no framework and touches no device; `prepare` does.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from cudnn_core.hopper.rules import Rule
from cudnn_core.hopper.tile import TileConfig

from .fit import Extents, Timed
from .protocol import Call, WrongResult
from .timing import Clock, Effort, device_sampler, medians

_LOGGER = logging.getLogger(__name__)


class Subject(Protocol):
    """One problem on a device, with operands, for any tile."""

    def call(self, rule: Rule) -> Call:
        """One call with the rule's tile and split, compiled and ready."""

    def check(self, rule: Rule) -> None:
        """WrongResult if that call's result is wrong."""


def anywhere(rule: Rule, problem: Extents) -> bool:
    """Whether a rule is for a problem, by its rows."""
    return rule.most_rows is None or problem[0] <= rule.most_rows


@dataclass(frozen=True)
class Tuning:
    """A table of rules, and how to measure what is in it.

    name: of the operands that are measured, "bf16xbf16". table: the table's name in the code.
    rules: the table as it is. others: tiles to try beside it.
    problems: (M, N, K) to measure, and of those `quick` in a short run. checks: on which every tile is first checked.
    choose: the (tile, split) that the operations pick at a problem now.
    allows: whether a rule may be picked at a problem at all.
    prepare: (problem, device) -> Subject. source: what the compile cache needs to build a rule's kernel.
    most: tiles that the table may have.
    """

    name: str
    table: str
    rules: tuple[Rule, ...]
    others: tuple[Rule, ...]
    problems: tuple[Extents, ...]
    quick: tuple[Extents, ...]
    checks: tuple[Extents, ...]
    choose: Callable[[Extents], tuple[TileConfig, int | None]]
    prepare: Callable[[Extents, str], Subject]
    source: Callable[[Rule], Any]
    allows: Callable[[Rule, Extents], bool] = anywhere
    most: int = 6

    @property
    def candidates(self) -> tuple[Rule, ...]:
        """The table's rules, then the others; each tile with its split once."""
        found: dict[Any, Rule] = {}
        for rule in (*self.rules, *self.others):
            found.setdefault(kernel_of(rule), rule)
        return tuple(found.values())


def kernel_of(rule: Rule) -> tuple[TileConfig, int | None]:
    """What a rule has compiled."""
    return rule.tile, rule.split


@dataclass(frozen=True)
class Sweep:
    """What was measured of a table.

    rules: the first `known` are the table's, with their present numbers; then the others.
    dropped: label of a rule that was not measured -> why.
    """

    name: str
    table: str
    rules: tuple[Rule, ...]
    known: int
    timed: tuple[Timed, ...]
    multiprocessors: int
    most: int
    dropped: Mapping[str, str]


@dataclass(frozen=True)
class Tuner:
    """Where and how a table is measured.

    begin, finish: told of every step, a check of a tile or the times of a problem.
    """

    clock: Clock
    device: str
    multiprocessors: int
    effort: Effort
    begin: Callable[[str], None] = lambda label: None
    finish: Callable[[], None] = lambda: None

    def sweep(self, tuning: Tuning, problems: Sequence[Extents]) -> Sweep:
        """Check every candidate, then time those that are right at every problem, in turns."""
        right, dropped = self.check(tuning)
        timed = []
        for problem in problems:
            self.begin(f"{tuning.name} {shown(problem)}")
            row = self._time(tuning, problem, right)
            if row.measured:
                timed.append(row)
            self.clock.free()
            self.finish()
        return Sweep(
            tuning.name,
            tuning.table,
            right,
            sum(rule in tuning.rules for rule in right),
            tuple(timed),
            self.multiprocessors,
            tuning.most,
            dropped,
        )

    def check(self, tuning: Tuning) -> tuple[tuple[Rule, ...], dict[str, str]]:
        """The candidates that compute the right thing, and why the others are left out."""
        subjects = [tuning.prepare(problem, self.device) for problem in tuning.checks]
        right, dropped = [], {}
        for rule in tuning.candidates:
            self.begin(f"{tuning.name} check {label(rule)}")
            try:
                for subject in subjects:
                    subject.check(rule)
                right.append(rule)
            except WrongResult as error:
                dropped[label(rule)] = f"WRONG: {error}"
            # A tile that cannot be built, or fails, must not stop the others.
            except Exception as error:
                _LOGGER.debug("%s %s", tuning.name, label(rule), exc_info=True)
                dropped[label(rule)] = f"{type(error).__name__}: {error}"
            self.finish()
        return tuple(right), dropped

    def _time(self, tuning: Tuning, problem: Extents, rules: Sequence[Rule]) -> Timed:
        subject = tuning.prepare(problem, self.device)
        samplers = {
            index: device_sampler(self.clock, subject.call(rule))
            for index, rule in enumerate(rules)
            if tuning.allows(rule, problem)
        }
        times = medians(self.clock, samplers, self.effort) if samplers else {}
        # To a nanosecond, as they are written: stored times are fitted to the same table.
        times = {index: round(seconds * 1e6, 3) / 1e6 for index, seconds in times.items()}
        kernels, chosen = [kernel_of(rule) for rule in rules], tuning.choose(problem)
        now = kernels.index(chosen) if chosen in kernels else None
        return Timed(problem, tuple(times.get(index) for index in range(len(rules))), now)


def steps(tuning: Tuning, problems: Sequence[Extents]) -> int:
    """How many steps a sweep takes."""
    return len(tuning.candidates) + len(problems)


def shown(problem: Extents) -> str:
    """A problem as the results call it: "8192,8192,8192"."""
    return ",".join(map(str, problem))


def label(rule: Rule) -> str:
    """A rule's tile in a few signs: "128x192 pp s4"; a table of them explains itself by `SIGNS`."""
    tile, plain = rule.tile, TileConfig()
    cluster = "c{}x{}".format(*tile.cluster) if tile.blocks > 1 else ""
    rings = f"s{tile.stages}"
    if tile.orientation == "swapped":
        rings += f"/{tile.raw_stages}"
        # The others of a table agree in it.
        rings += f" p{tile.promote_k}" if tile.promote_k is not None else ""
    signs = (
        f"{tile.bm}x{tile.bn}",
        "pp" if tile.pingpong else "",
        f"w{tile.warpgroups}" if tile.warpgroups != plain.warpgroups else "",
        cluster,
        rings,
        f"r{tile.raster}" if tile.raster != plain.raster else "",
        *(
            f"{field.name}={getattr(tile, field.name)}"
            for field in fields(tile)
            if field.name not in _SIGNED and getattr(tile, field.name) != field.default
        ),
        f"k{rule.split}" if rule.split is not None else "",
    )
    return " ".join(filter(None, signs))


# Fields of a tile that have a sign, and those that are the same all over a table.
_SIGNED = (
    *("bm", "bn", "pingpong", "warpgroups", "cluster", "stages", "raw_stages", "raster"),
    *("orientation", "promote_k"),
)
SIGNS = (
    "tile: rows x columns of C; pp: ping-pong; w1: one consumer warpgroup, not two; c2x1: a cluster; "
    "s4: stages, s4/3: and raw ones; p4096: sums promoted after so many of K; k8: stream-K in stretches of 8 "
    "units at least."
)


def variants(rules: Iterable[Rule], splits: Iterable[int | None]) -> tuple[Rule, ...]:
    """Each rule's tile with each split."""
    splits = tuple(splits)
    return tuple(replace(rule, split=split) for rule in rules for split in splits)
