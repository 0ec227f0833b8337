"""Rows of results: their schema, their files, and whether targets are met. May import the standard library only.

A file is a JSON list of rows, `benchmarks/results/<gpu>/<family>.json`. Times are microseconds, rates TFLOP/s and TB/s,
`roofline` a fraction: what the work takes at the rates that torch.mm and a copy reach in the same run, over ours.
"""

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

Row = dict[str, Any]
KEYS = (
    "op",
    "case",
    "dtype",
    "ours_us",
    "host_us",
    "peers",
    "targets",
    "bounds",
    "tflops",
    "tb_s",
    "roofline",
    "torch",
    "dsl",
    "date",
)
# What tells one row from the others.
IDENTITY = ("op", "case", "dtype")


class BadRows(ValueError):
    """A file that does not hold rows of results; the message says where and why."""


def versions() -> dict[str, str]:
    """Versions and date that every row carries; "" for what is not installed."""
    found = {"torch": "torch", "dsl": "nvidia-cutlass-dsl"}
    dated = {"date": datetime.date.today().isoformat()}
    return {key: _version(distribution) for key, distribution in found.items()} | dated


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def make_row(
    case: Any,
    trial: Any,
    ours: float,
    host: float | None,
    peers: Mapping[str, float],
    bounds: Mapping[str, float],
    least: float,
    versions: Mapping[str, str],
) -> Row:
    """A row from seconds; `least` is the roofline's time, NaN where the work has none."""
    return {
        "op": case.op,
        "case": case.case,
        "dtype": case.dtype,
        "ours_us": _microseconds(ours),
        "host_us": None if host is None else _microseconds(host),
        "peers": {name: _microseconds(seconds) for name, seconds in peers.items()},
        "targets": dict(case.targets),
        "bounds": {name: _microseconds(seconds) for name, seconds in bounds.items()},
        "tflops": round(trial.flops / ours * 1e-12, 1) if trial.flops else None,
        "tb_s": round(trial.nbytes / ours * 1e-12, 3) if trial.nbytes else None,
        "roofline": None if math.isnan(least) else round(least / ours, 3),
        **versions,
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 2)


@dataclass(frozen=True)
class Comparison:
    """A row against one peer or bound. `us` is None when it was not measured, `target` when none is set."""

    name: str
    us: float | None
    ratio: float | None
    target: float | None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None when there is none, or nothing to judge by."""
        if self.target is None or self.ratio is None:
            return None
        return self.ratio >= self.target


def comparisons(row: Row) -> list[Comparison]:
    """Those with targets first, then the other peers, then the other bounds."""
    times = {**row["peers"], **row["bounds"]}
    found = []
    for name in dict.fromkeys((*row["targets"], *times)):
        us = times.get(name)
        # As shown: three digits decide, so that the table and the verdict never disagree.
        ratio = None if us is None else round(us / row["ours_us"], 3)
        found.append(Comparison(name, us, ratio, row["targets"].get(name)))
    return found


def check_rows(rows: Any, where: str) -> list[Row]:
    """`rows` if they follow the schema, key for key; BadRows otherwise."""
    if not isinstance(rows, list):
        raise BadRows(f"{where}: expected a list of rows, got {type(rows).__name__}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or tuple(row) != KEYS:
            got = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise BadRows(f"{where}: row {number}: expected the keys {', '.join(KEYS)}; got {got}")
        strings = ("op", "case", "dtype", "torch", "dsl", "date")
        mappings = ("peers", "targets", "bounds")
        good = (
            all(isinstance(row[key], str) for key in strings)
            and all(_is_number(n) for key in mappings for n in row[key].values())
            and _is_number(row["ours_us"])
            and all(
                row[key] is None or _is_number(row[key])
                for key in ("host_us", "tflops", "tb_s", "roofline")
            )
        )
        if not good:
            raise BadRows(f"{where}: row {number}: a value is of the wrong kind in {row}")
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read(path: Path) -> list[Row]:
    """The rows of a file. BadRows when it cannot be read or does not hold any."""
    try:
        rows = json.loads(path.read_text())
    except OSError as error:
        raise BadRows(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadRows(f"{path}: expected a JSON list of rows ({error})") from error
    return check_rows(rows, str(path))


def merge(old: Sequence[Row], new: Iterable[Row]) -> list[Row]:
    """`old` with the rows of the same identity replaced, and the others of `new` behind."""
    found = {identity(row): row for row in old}
    return list((found | {identity(row): row for row in new}).values())


def identity(row: Row) -> tuple[str, ...]:
    return tuple(row[key] for key in IDENTITY)


def write(path: Path, rows: list[Row]) -> None:
    """Write checked rows; the folder is made when it is not there."""
    check_rows(rows, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # A run that is stopped here leaves the file as it was.
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(rows, indent=1) + "\n")
    beside.replace(path)
