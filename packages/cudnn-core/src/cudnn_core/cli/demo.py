"""`cudnn demo`: every built operation on the best engine here, checked and timed. May import rich.

What runs comes from the families' `_demo` modules (see `protocol`); this file runs and shows it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cudnn_core.cli import families, pictures, places
from cudnn_core.cli.console import Column, Steps, make_console, make_table
from cudnn_core.cli.protocol import Case, Study, feed_forward
from cudnn_core.cli.texts import show_error, show_seconds, three_digits

_COLUMNS = (
    Column("op"),
    Column("engine"),
    Column("input", spare=True),
    Column("shape", right=True),
    Column("formats"),
    Column("error", right=True),
    Column("also"),
    Column("time", right=True),
    Column("TFLOP/s", right=True, spare=True),
)


@dataclass(frozen=True)
class Measured:
    """A case that ran: errors by result name, seconds of one call."""

    case: Case
    engine: str
    errors: Mapping[str, float]
    seconds: float

    @property
    def misses(self) -> tuple[str, ...]:
        """Names of the results that lie beyond their tolerance; NaN counts as beyond."""
        return tuple(
            name for name, error in self.errors.items() if not error <= self.case.tolerance[name]
        )


def run(engine: str, repeat: int | None, plot: Path | None) -> int:
    """The whole demo; returns the exit status: 1 if a result lies beyond its tolerance."""
    if plot:
        pictures.check_plot(plot, "demo")
    console = make_console()
    place = places.choose(engine)
    console.print(
        f"Engine [bold]{place.engine}[/bold]: {escape(place.title)}.{_because(engine, place)}"
    )
    block = feed_forward()
    if block is None:
        console.print("Random input only: the real one comes with the distribution cudnn.")
    measured, studies = [], []
    for family, module in _demos():
        if hasattr(module, "cases"):
            cases = tuple(module.cases(place, block))
            measured += measure_all(place, cases, repeat or place.repeat, family)
        if hasattr(module, "studies"):
            studies += module.studies(place, block)
    if not measured:
        console.print("No installed family has an operation that is built.")
        return 1
    _show_cases(console, measured)
    shown = [(study, _show_study(console, study)) for study in studies]
    if plot:
        _draw(plot, [(study.draw, data) for study, data in shown if study.draw])
        console.print(f"Picture: {escape(str(plot))}", soft_wrap=True)
    return _verdict(console, measured)


def measure_all(
    place: places.Place, cases: Iterable[Case], repeat: int, title: str
) -> list[Measured]:
    """Run, check and time each case."""
    cases = tuple(cases)
    measured = []
    with Steps(title, len(cases)) as steps:
        for case in cases:
            steps.begin(f"{case.op} {case.formats} {case.shape}")
            trial = case.prepare()
            errors = trial.judge(trial.call())
            seconds = place.seconds(trial.call, repeat)
            measured.append(Measured(case, trial.engine, errors, seconds))
            steps.finish()
    return measured


def _demos() -> list[tuple[str, Any]]:
    """(family, its demo module) of the families that have one; their loggers report errors only."""
    found = []
    for family in families.installed():
        module = family.demo()
        if module is not None:
            # Operations warn when they read bytes as FP4, which is what a demo means them to do.
            logging.getLogger(family.module).setLevel(logging.ERROR)
            found.append((family.name, module))
    return found


def _because(asked: str, place: places.Place) -> str:
    if asked != "auto" or place.engine == "hopper":
        return ""
    return f" Not hopper: {places.why_not_hopper()}."


def _show_cases(console: Console, measured: list[Measured]) -> None:
    console.print()
    console.print(make_table(console, _COLUMNS, map(_cells, measured)))
    console.print()
    console.print(
        "shape: MxNxK, or the input's. error: relative, in the Frobenius norm, against\n"
        "float64 on the same operands. also: relative errors of the other results.\n"
        "time: median of one call."
    )
    if not any(row.misses for row in measured):
        console.print("Every error is within its tolerance.")


def _cells(row: Measured) -> tuple[str, ...]:
    case = row.case
    (main, *others) = row.errors
    return (
        case.op,
        row.engine,
        case.source,
        case.shape,
        case.formats,
        _marked(row, main, show_error(row.errors[main])),
        ", ".join(_marked(row, o, f"{o} {show_error(row.errors[o])}") for o in others),
        show_seconds(row.seconds),
        three_digits(case.flop / row.seconds / 1e12) if case.flop else "-",
    )


def _marked(row: Measured, name: str, text: str) -> str:
    return f"[bold red]{text}[/bold red]" if name in row.misses else text


def _show_study(console: Console, study: Study) -> list[Any]:
    """Run and print a study; returns the data of its rows."""
    cells, data = [], []
    with Steps(study.title.partition(":")[0], study.steps) as steps:
        for row, value in study.rows():
            cells.append(row)
            data.append(value)
            steps.finish(row[0])
    first, *rest = study.columns
    columns = (Column(first), *(Column(name, right=True) for name in rest))
    console.print()
    console.print(f"[bold]{escape(study.title)}[/bold]")
    console.print()
    console.print(make_table(console, columns, cells))
    console.print()
    for note in study.notes:
        console.print(note)
    return data


def _verdict(console: Console, measured: list[Measured]) -> int:
    wrong = [row for row in measured if row.misses]
    for row in wrong:
        for name in row.misses:
            error, allowed = (show_error(of[name]) for of in (row.errors, row.case.tolerance))
            console.print(
                f"[bold red]MISS[/bold red] {row.case.op} {row.case.formats} {row.case.shape}: "
                f"{name} is {error} off, {allowed} is allowed"
            )
    return 1 if wrong else 0


def _draw(plot: Path, parts: list[tuple[Callable[[Any, list[Any]], None], list[Any]]]) -> None:
    """One picture, a study below the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5 * len(parts)), layout="constrained")
    for (draw, data), part in zip(parts, figure.subfigures(len(parts), squeeze=False), strict=True):
        draw(part[0], data)
    figure.savefig(plot, dpi=150)
