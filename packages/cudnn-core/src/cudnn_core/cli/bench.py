"""`cudnn bench`: operations against their peers, each checked before it is timed. May import rich.

What runs comes from the families' `_bench` modules (see `cudnn_core.bench.protocol`); this file selects, runs and
shows.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cudnn_core.bench import chart, measure, results, timing
from cudnn_core.bench.protocol import Case
from cudnn_core.cli import families, pictures, places
from cudnn_core.cli.console import Column, Steps, make_console, make_table
from cudnn_core.cli.texts import three_digits

# Where the rows of a clone are kept; elsewhere rows are written only when a file is named.
RESULTS = Path("benchmarks") / "results"
# `--peers targets`: only what a case's targets name.
TARGETS = "targets"

# A table is one operation's. Where there is little room, names fold: numbers never lose their ends.
_CASES = (
    Column("case", wrap=True),
    Column("dtype", wrap=True),
    Column("targets", wrap=True),
    Column("is"),
)
_ROWS = (
    Column("case", wrap=True),
    Column("dtype", wrap=True),
    Column("ours", right=True),
    Column("TFLOP/s", right=True, spare=True),
    Column("TB/s", right=True, spare=True),
    Column("roofline", right=True, spare=True),
    Column("host", right=True, spare=True),
    Column("against", wrap=True),
    Column("theirs", right=True),
    Column("ratio", right=True),
    Column("target", right=True),
    Column(""),
)


class CannotBench(RuntimeError):
    """Nothing can be measured here, or nothing was asked for; the message says why."""


@dataclass(frozen=True)
class Selection:
    """Which cases and peers: texts that names must hold; nothing given means everything."""

    ops: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    quick: bool = False
    peers: str | None = None

    def takes(self, op: str, case: str, dtype: str) -> bool:
        """Whether a row of this identity is selected."""
        named = not self.ops or any(text in op for text in self.ops)
        return named and (
            not self.cases or any(text in case or text in dtype for text in self.cases)
        )

    def wants(self, case: Case, peer: str) -> bool:
        """Whether a case's peer or bound of this name is to run."""
        if self.peers is None or self.peers == TARGETS:
            return self.peers is None or peer in case.targets
        return any(text.strip() in peer for text in self.peers.split(",") if text.strip())


@dataclass(frozen=True)
class Output:
    """Files that were asked for."""

    json: Path | None = None
    plot: Path | None = None


def list_cases(names: Sequence[str], selection: Selection) -> int:
    """Print the cases of families, all that have any when none is named."""
    console = make_console()
    tables: dict[str, list[tuple[str, ...]]] = {}
    for _, cases in _selected(names, selection):
        for case in cases:
            reason = case.not_built()
            targets = ", ".join(f"{name} {ratio:g}" for name, ratio in case.targets.items())
            state = "built" if reason is None else "not built"
            cells = tuple(map(escape, (case.case, case.dtype, targets, state)))
            tables.setdefault(case.op, []).append(cells)
    _print_tables(console, _CASES, tables)
    states = [row[-1] for rows in tables.values() for row in rows]
    missing = sum(state != "built" for state in states)
    unbuilt = f", {missing} of them of operations that are not built" if missing else ""
    console.print(f"{_cases(len(states))}{unbuilt}.")
    return 0


def show(path: Path, selection: Selection, output: Output) -> int:
    """Print, and draw when asked, the selected rows of a file."""
    if output.plot:
        pictures.check_plot(output.plot, "bench")
    rows = [r for r in results.read(path) if selection.takes(r["op"], r["case"], r["dtype"])]
    if not rows:
        raise CannotBench(f"{path}: no row is selected")
    console = make_console()
    show_rows(console, rows)
    if output.plot:
        _draw(console, output.plot, rows, f"{path.stem} on {path.absolute().parent.name}")
    return 0


def run(names: Sequence[str], selection: Selection, output: Output, *, check_only: bool) -> int:
    """Measure; returns the exit status: 1 if a result is wrong or a case failed."""
    if not names:
        known = ", ".join(family.name for family in _measurable())
        raise CannotBench(f"name a family to measure; known here: {known}")
    if output.plot:
        pictures.check_plot(output.plot, "bench")
    chosen = list(_selected(names, selection))
    if len(chosen) > 1 and (output.json or output.plot):
        raise CannotBench("--json and --plot name one file: measure one family at a time")
    reason = places.why_not_hopper()
    if reason is not None:
        raise CannotBench(
            f"nothing can be measured here: {reason}. cudnn bench --list needs no GPU"
        )
    from cudnn_core.bench.device import Cuda

    console, clock = make_console(), Cuda()
    bench = measure.Bench(
        clock=clock,
        device="cuda",
        rates=lambda: (clock.byte_rate, clock.flop_rates),
        effort=timing.QUICK if selection.quick else timing.Effort(),
        versions=results.versions(),
        wanted=selection.wants,
        check_only=check_only,
    )
    if check_only:
        output = Output()
    failed = False
    for name, cases in chosen:
        path = None if check_only else output.json or _default_file(clock.folder, name, selection)
        outcomes = run_cases(bench, name, cases, path)
        _report(console, name, outcomes, clock)
        rows = [outcome.row for outcome in outcomes if outcome.row is not None]
        if rows:
            where = "no file; name one by --json" if path is None else str(path)
            console.print(f"Rows: {escape(where)}", soft_wrap=True)
        if rows and output.plot:
            _draw(console, output.plot, rows, f"{name} on {clock.name}")
        failed |= any(outcome.is_failure for outcome in outcomes)
    return 1 if failed else 0


def run_cases(
    bench: measure.Bench, family: str, cases: Sequence[Case], path: Path | None = None
) -> tuple[measure.Outcome, ...]:
    """Run each case, with progress. Its row goes to `path` at once: a long run that ends early keeps what it found."""
    outcomes = []
    kept = results.read(path) if path is not None and path.exists() else []
    with Steps(f"Measuring {family}", len(cases)) as steps:
        for case in cases:
            steps.begin(f"{case.op} {case.case} {case.dtype}")
            outcome = bench.run(case)
            outcomes.append(outcome)
            if path is not None and outcome.row is not None:
                kept = results.merge(kept, [outcome.row])
                results.write(path, kept)
            # What a case allocated is free now; the next may need the whole memory.
            bench.clock.free()
            steps.finish()
    return tuple(outcomes)


def _measurable() -> list[families.Family]:
    return [family for family in families.compiled() if family.bench() is not None]


def _selected(names: Sequence[str], selection: Selection) -> Iterator[tuple[str, tuple[Case, ...]]]:
    """(family, its selected cases) of the families called `names`; of all that have some when none is named."""
    known, found = tuple(_measurable()), False
    for family in families.named(names, known) if names else known:
        logging.getLogger(family.module).setLevel(logging.ERROR)
        cases = tuple(
            case
            for case in family.bench().cases()
            if selection.takes(case.op, case.case, case.dtype)
            and (case.quick or not selection.quick)
        )
        if cases:
            found = True
            yield family.name, cases
        elif names:
            raise CannotBench(f"{family.name}: no case is selected; cudnn bench --list shows them")
    if not found:
        raise CannotBench("no case is selected; cudnn bench --list shows them")


def _report(console: Console, family: str, outcomes: Sequence[measure.Outcome], clock: Any) -> None:
    """Table and notes."""
    rows = [outcome.row for outcome in outcomes if outcome.row is not None]
    if rows:
        console.print(f"[bold]{family}[/bold] on {escape(clock.name)}")
        console.print()
        show_rows(console, rows)
        console.print(
            f"Host time of torch.add(x, 1, out=y) here: {clock.empty_call * 1e6:.1f} us. "
            f"Copy: {clock.byte_rate * 1e-12:.2f} TB/s."
        )
    show_notes(console, outcomes)


def _default_file(gpu: str, family: str, selection: Selection) -> Path | None:
    """The file of a clone's results; short looks do not overwrite what long ones found."""
    if selection.quick or not RESULTS.is_dir():
        return None
    return RESULTS / gpu / f"{family}.json"


def _draw(console: Console, plot: Path, rows: Sequence[results.Row], title: str) -> None:
    dates = sorted({row["date"] for row in rows})
    try:
        chart.draw(plot, rows, f"{title}, {dates[-1]}")
    except ValueError as error:
        raise CannotBench(f"--plot: {error}") from None
    console.print(f"Picture: {escape(str(plot))}", soft_wrap=True)


def show_rows(console: Console, rows: Sequence[results.Row]) -> None:
    """A table for each operation, a line for each comparison, and how many targets are met."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    verdicts = []
    for row in rows:
        found = results.comparisons(row)
        verdicts += [c.met for c in found if c.target is not None]
        head, cells = _head(row), tables.setdefault(row["op"], [])
        for index, comparison in enumerate(found or [None]):
            cells.append((*(head if index == 0 else ("",) * len(head)), *_against(comparison)))
    _print_tables(console, _ROWS, tables)
    met, missed, open_ = (sum(v is kind for v in verdicts) for kind in (True, False, None))
    unjudged = f", {open_} not measured" if open_ else ""
    colour = "red" if missed else "green"
    console.print(
        f"[bold {colour}]Targets: {met} met, {missed} missed{unjudged}.[/bold {colour}]\n"
        "Times in microseconds. ratio: theirs over ours; met: it is at least the target."
    )


def _print_tables(
    console: Console, columns: Sequence[Column], tables: Mapping[str, list[tuple[str, ...]]]
) -> None:
    """Operation -> rows: its name above its table."""
    for op, rows in tables.items():
        console.print(f"[bold]{escape(op)}[/bold]")
        console.print(make_table(console, columns, rows))
        console.print()


def _head(row: results.Row) -> tuple[str, ...]:
    def number(key: str, digits: int | None = None) -> str:
        value = row[key]
        if value is None:
            return "-"
        return three_digits(value) if digits is None else f"{value:.{digits}f}"

    return (
        escape(row["case"]),
        escape(row["dtype"]),
        number("ours_us"),
        number("tflops"),
        number("tb_s", 2),
        number("roofline", 2),
        number("host_us", 1),
    )


def _against(comparison: results.Comparison | None) -> tuple[str, ...]:
    if comparison is None:
        return ("-",) * 4 + ("",)
    c = comparison
    us = "-" if c.us is None else three_digits(c.us)
    ratio = "-" if c.ratio is None else f"{c.ratio:.3f}"
    target = "-" if c.target is None else f"{c.target:g}"
    verdict = {True: "[green]met[/green]", False: "[bold red]MISSED[/bold red]", None: ""}[c.met]
    if c.target is not None and c.us is None:
        verdict = "not measured"
    return escape(c.name), us, ratio, target, verdict


def show_notes(console: Console, outcomes: Sequence[measure.Outcome]) -> None:
    """What was not built, not timed, or had peers missing; equal reasons once."""
    checked = sum(outcome.state == measure.CHECKED for outcome in outcomes)
    if checked:
        console.print(f"{checked} cases are right; nothing was timed.")
    absent: dict[tuple[str, str], int] = {}
    unbuilt: dict[tuple[str, str], int] = {}
    for outcome in outcomes:
        for name, reason in outcome.absent.items():
            absent[name, reason] = absent.get((name, reason), 0) + 1
        if outcome.state == measure.NOT_BUILT:
            key = (outcome.case.op, outcome.note)
            unbuilt[key] = unbuilt.get(key, 0) + 1
    for (name, reason), count in absent.items():
        console.print(f"no {escape(name)} ({_cases(count)}): {escape(reason)}", soft_wrap=True)
    for (op, reason), count in unbuilt.items():
        console.print(
            f"not built: {escape(op)} ({_cases(count)}): {escape(reason)}", soft_wrap=True
        )
    for outcome in outcomes:
        if outcome.is_failure:
            case = outcome.case
            console.print(
                f"[bold red]{outcome.state}[/bold red] {escape(case.op)} {escape(case.case)} "
                f"{escape(case.dtype)}: {escape(outcome.note)}",
                soft_wrap=True,
            )


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"
