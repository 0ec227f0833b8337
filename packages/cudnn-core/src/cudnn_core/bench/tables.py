"""Measured tables of tile rules: their files, and the rules as Python. May import fit, results and tuning.

A file is a JSON list of sweeps, one for each table and the operands that were measured. It holds every time, so that a
table can be fitted again without a GPU.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cudnn_core.hopper.rules import Rule
from cudnn_core.hopper.tile import TileConfig

from .fit import Timed
from .results import BadRows
from .tuning import Sweep

Entry = dict[str, Any]
KEYS = (
    "name",
    "table",
    "gpu",
    "multiprocessors",
    "most",
    "rules",
    "known",
    "times",
    "dropped",
    "refitted",
    "torch",
    "dsl",
    "date",
)
IDENTITY = ("name", "table")
LINE = 100


def entry(sweep: Sweep, gpu: str, refitted: Sequence[Rule], facts: dict[str, str]) -> Entry:
    """A sweep as it is written. Times are microseconds, one for each rule, null where there is none.

    `now` is the index of the rule whose tile was picked; `refitted` the table that the fit gives.
    """
    times = [
        {
            "problem": list(row.problem),
            "us": [None if s is None else round(s * 1e6, 3) for s in row.seconds],
            "now": row.now,
        }
        for row in sweep.timed
    ]
    return {
        "name": sweep.name,
        "table": sweep.table,
        "gpu": gpu,
        "multiprocessors": sweep.multiprocessors,
        "most": sweep.most,
        "rules": [_plain(rule) for rule in sweep.rules],
        "known": sweep.known,
        "times": times,
        "dropped": dict(sweep.dropped),
        "refitted": [_plain(rule) for rule in refitted],
        **facts,
    }


def sweep_of(entry: Entry) -> Sweep:
    """What `entry` has written."""
    timed = [
        Timed(
            tuple(row["problem"]),
            tuple(None if us is None else us / 1e6 for us in row["us"]),
            row["now"],
        )
        for row in entry["times"]
    ]
    return Sweep(
        entry["name"],
        entry["table"],
        tuple(map(_rule, entry["rules"])),
        entry["known"],
        tuple(timed),
        entry["multiprocessors"],
        entry["most"],
        entry["dropped"],
    )


def _plain(rule: Rule) -> dict[str, Any]:
    return {**dataclasses.asdict(rule), "tile": _given(rule.tile)}


def _rule(plain: dict[str, Any]) -> Rule:
    tile = {k: tuple(v) if isinstance(v, list) else v for k, v in plain["tile"].items()}
    return Rule(**{**plain, "tile": TileConfig(**tile)})


def _given(tile: TileConfig) -> dict[str, Any]:
    """The fields of a tile that have not their defaults, and always its extents."""
    return {
        field.name: getattr(tile, field.name)
        for field in dataclasses.fields(tile)
        if field.name in ("bm", "bn") or getattr(tile, field.name) != field.default
    }


def read(path: Path) -> list[Entry]:
    """The sweeps of a file. BadRows when it cannot be read or does not hold any."""
    try:
        entries = json.loads(path.read_text())
    except OSError as error:
        raise BadRows(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadRows(f"{path}: expected a JSON list of sweeps ({error})") from error
    good = isinstance(entries, list) and all(
        isinstance(one, dict) and tuple(one) == KEYS and _sound(one) for one in entries
    )
    if not good:
        raise BadRows(f"{path}: expected a list of sweeps, as cudnn bench --tune --json writes")
    return entries


def _sound(one: Entry) -> bool:
    """Whether a sweep can be made of it, with a positive time, or none, for every rule."""
    try:
        sweep = sweep_of(one)
        every = range(len(sweep.rules))
        return all(
            len(row.seconds) == len(sweep.rules)
            and all(s is None or 0 < s < math.inf for s in row.seconds)
            and row.measured
            and (row.now is None or row.now in every)
            and len(row.problem) == 3
            for row in sweep.timed
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return False


def merge(old: Iterable[Entry], new: Iterable[Entry]) -> list[Entry]:
    """`old` with the sweeps of the same table and operands replaced, and the others of `new` behind."""
    found = {tuple(one[key] for key in IDENTITY): one for one in old}
    found |= {tuple(one[key] for key in IDENTITY): one for one in new}
    return list(found.values())


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Write sweeps; a run that is stopped here leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(entries, indent=1) + "\n")
    beside.replace(path)


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call to write down; an argument may be one too, `name=` goes before it."""

    name: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"

    def lines(self, indent: str) -> list[str]:
        """On one line, else with the arguments on a line of their own, else with a line for each."""
        inner = f"{indent}    "
        if len(f"{indent}{self},") <= LINE:
            return [f"{indent}{self},"]
        together = inner + ", ".join(map(str, self.arguments))
        body = [together]
        if len(together) > LINE:
            body = [line for one in self.arguments for line in _lines(one, inner)]
        return [f"{indent}{self.name}(", *body, f"{indent}),"]


def _lines(argument: Any, indent: str) -> list[str]:
    return argument.lines(indent) if isinstance(argument, _Call) else [f"{indent}{argument},"]


def python(table: str, rules: Sequence[Rule]) -> str:
    """The assignment of a table, laid out as the formatter would."""
    return "\n".join(
        [f"{table} = (", *(line for r in rules for line in _spelled(r).lines("    ")), ")"]
    )


def _spelled(rule: Rule) -> _Call:
    """What makes a rule: tile, speed and lag, and the rest where it says something."""
    given = _given(rule.tile).items()
    # The formatter's quotation marks.
    fields = (f"{k}={json.dumps(v) if isinstance(v, str) else repr(v)}" for k, v in given)
    named = {"split": rule.split, "join": rule.join or None, "most_rows": rule.most_rows}
    rest = (f"{name}={value}" for name, value in named.items() if value is not None)
    return _Call("Rule", (_Call("TileConfig", tuple(fields)), rule.speed, rule.lag, *rest))
