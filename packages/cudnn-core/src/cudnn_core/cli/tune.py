"""`cudnn bench --tune`: tables of tile rules, measured and fitted again. May import rich.

What is measured comes from the families' `_bench` modules (see `cudnn_core.bench.tuning`); this file selects, runs and
shows.
"""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cudnn_core.bench import fit, results, tables, timing
from cudnn_core.bench.fit import Refit, Regret
from cudnn_core.bench.tuning import SIGNS, Sweep, Tuner, Tuning, label, shown, steps
from cudnn_core.cli import ahead, families, places
from cudnn_core.cli.bench import CannotBench, Output, Selection
from cudnn_core.cli.console import Column, Steps, make_console, make_table
from cudnn_core.cli.texts import three_digits

# Enough to tell tiles apart by a few percent, of which there are ten at forty problems.
EFFORT = timing.Effort(seconds=0.2, least=9, most=30)

_TABLES = (
    Column("operands", wrap=True),
    Column("table", wrap=True),
    Column("tiles", right=True),
    Column("tried", right=True),
    Column("problems", right=True),
)
_RULES = (
    Column("tile", wrap=True),
    Column("rows", right=True, spare=True),
    Column("speed", right=True),
    Column("lag", right=True),
    Column("join", right=True),
    Column("error", right=True, spare=True),
    Column("table"),
)
_PROBLEMS = (
    Column("M,N,K"),
    Column("best", wrap=True),
    Column("us", right=True),
    Column("now", wrap=True),
    Column("regret", right=True),
    Column("refitted", wrap=True),
    Column("regret", right=True),
)

_NUMBERS = (
    "rows: of C that a tile is for. error: the model's, the median in percent. "
    "table: whether a tile stays, goes or comes."
)
_REGRET = (
    "regret: how much longer than the best tile the picked one takes, in percent; "
    "refitted: on the problems of the fit."
)


def main(
    names: Sequence[str],
    selection: Selection,
    output: Output,
    stored: Path | None,
    listing: bool,
    check_only: bool,
) -> int:
    """What the options ask for; returns the exit status."""
    if selection.ops or selection.peers is not None or output.plot:
        raise CannotBench("--tune measures tiles: --op, --peers and --plot have no meaning with it")
    if stored is not None:
        return show(stored, selection)
    if listing:
        return list_tables(names, selection)
    return run(names, selection, output, check_only=check_only)


def list_tables(names: Sequence[str], selection: Selection) -> int:
    """Print the tables of families, and how much a run measures."""
    rows = [
        (
            tuning.name,
            tuning.table,
            str(len(tuning.rules)),
            str(len(tuning.candidates)),
            str(len(_problems(tuning, selection))),
        )
        for _, tunings in _selected(names, selection)
        for tuning in tunings
    ]
    make_console().print(make_table(make_console(), _TABLES, rows))
    return 0


def show(path: Path, selection: Selection) -> int:
    """Fit the selected sweeps of a file again, and print what comes of it."""
    found = [one for one in tables.read(path) if _takes(selection, one["name"], one["table"])]
    if not found:
        raise CannotBench(f"{path}: no table is selected")
    console = make_console()
    for one in found:
        sweep = tables.sweep_of(one)
        _report(console, sweep, _refit(sweep), f"{one['gpu']}, {one['date']}")
    return 0


def run(names: Sequence[str], selection: Selection, output: Output, *, check_only: bool) -> int:
    """Measure and fit; returns the exit status: 1 if a tile computes something wrong."""
    if not names:
        known = ", ".join(family.name for family in _tunable())
        raise CannotBench(f"name a family to tune; those with tables of tiles: {known or 'none'}")
    chosen = list(_selected(names, selection))
    if len(chosen) > 1 and output.json:
        raise CannotBench("--json names one file: tune one family at a time")
    kept = tables.read(output.json) if output.json and output.json.exists() else []
    reason = places.why_not_hopper()
    if reason is not None:
        raise CannotBench(
            f"nothing can be measured here: {reason}. cudnn bench --tune --list and --show need no GPU"
        )
    from cudnn_core.bench.device import Cuda

    console, clock, wrong = make_console(), Cuda(), False
    for name, tunings in chosen:
        _compile(name, tuple(tuning.name for tuning in tunings))
        for tuning in tunings:
            if check_only:
                wrong |= _check(console, clock, tuning)
                continue
            sweep = sweep_with_progress(clock, tuning, selection)
            wrong |= _is_wrong(sweep.dropped)
            if not sweep.timed:
                _report_dropped(console, sweep.dropped)
                continue
            found = _refit(sweep)
            _report(console, sweep, found, clock.name)
            if output.json:
                made = tables.entry(sweep, clock.name, found.table, results.versions())
                kept = tables.merge(kept, [made])
                tables.write(output.json, kept)
                console.print(f"Times: {escape(str(output.json))}", soft_wrap=True)
    return 1 if wrong else 0


def sweep_with_progress(clock: Any, tuning: Tuning, selection: Selection) -> Sweep:
    """Measure a table on a clock's device."""
    problems = _problems(tuning, selection)
    with Steps(f"Tuning {tuning.name}", steps(tuning, problems)) as progress:
        effort = timing.QUICK if selection.quick else EFFORT
        return _tuner(clock, progress, effort).sweep(tuning, problems)


def _check(console: Console, clock: Any, tuning: Tuning) -> bool:
    """Check a table's tiles; whether one is wrong."""
    with Steps(f"Checking {tuning.name}", steps(tuning, ())) as progress:
        right, dropped = _tuner(clock, progress, timing.QUICK).check(tuning)
    console.print(f"{escape(tuning.name)}: {_count(len(right), 'tile')} right; nothing was timed.")
    _report_dropped(console, dropped)
    return _is_wrong(dropped)


def _tuner(clock: Any, progress: Steps, effort: timing.Effort) -> Tuner:
    return Tuner(
        clock, "cuda", clock.multiprocessors, effort, begin=progress.begin, finish=progress.finish
    )


def _tunable() -> list[families.Family]:
    return [
        family
        for family in families.compiled()
        if family.bench() is not None and hasattr(family.bench(), "tunings")
    ]


def _selected(
    names: Sequence[str], selection: Selection
) -> Iterator[tuple[str, tuple[Tuning, ...]]]:
    """(family, its selected tables) of the families called `names`; of all that have some when none is named."""
    tunable = tuple(_tunable())
    chosen = families.named(names, families.compiled()) if names else tunable
    for family in chosen:
        if family not in tunable:
            known = ", ".join(other.name for other in tunable) or "none"
            raise CannotBench(
                f"{family.name} has no table of tiles to tune; families that have: {known}"
            )
        found = tuple(t for t in family.bench().tunings() if _takes(selection, t.name, t.table))
        if not found:
            raise CannotBench(
                f"{family.name}: no table is selected; cudnn bench --tune --list shows them"
            )
        yield family.name, found


def _takes(selection: Selection, name: str, table: str) -> bool:
    return not selection.cases or any(text in name or text in table for text in selection.cases)


def _problems(tuning: Tuning, selection: Selection) -> tuple[fit.Extents, ...]:
    return tuning.quick if selection.quick else tuning.problems


def kernels(family: str, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """(label, source) of every candidate of a family's tables, each kernel once."""
    (found,) = families.named([family], families.compiled())
    sources: dict[str, tuple[str, Any]] = {}
    for tuning in found.bench().tunings():
        if tuning.name in names:
            for rule in tuning.candidates:
                source = tuning.source(rule)
                sources.setdefault(source.digest, (f"{tuning.name} {label(rule)}", source))
    return list(sources.values())


def _compile(family: str, names: tuple[str, ...]) -> None:
    """Compile what the sweeps need, side by side. What fails is told when its turn comes."""
    from cudnn_core import cache
    from cudnn_core.engine import HopperEngine

    if cache.directory() is not None:
        ahead.compile_all(partial(kernels, family, names), HopperEngine.arch)


def _refit(sweep: Sweep) -> Refit:
    return fit.refit(sweep.rules, sweep.timed, sweep.most, sweep.multiprocessors)


def _is_wrong(dropped: Any) -> bool:
    return any(reason.startswith("WRONG") for reason in dropped.values())


def _report(console: Console, sweep: Sweep, found: Refit, where: str) -> None:
    """What was fitted, where each way of picking loses, and the table to paste."""
    console.print(
        f"[bold]{escape(sweep.table)}[/bold] by {escape(sweep.name)} on {escape(where)}: "
        f"{_count(len(sweep.rules), 'tile')}, {_count(len(sweep.timed), 'problem')}"
    )
    console.print()
    console.print(make_table(console, _RULES, _rule_rows(sweep, found)))
    console.print(f"\n{SIGNS}\n{_NUMBERS}\n")
    console.print(make_table(console, _PROBLEMS, _problem_rows(sweep, found)))
    console.print()
    _report_dropped(console, sweep.dropped)
    for what, regret in (("now", found.regret_now), ("refitted", found.regret_new)):
        console.print(f"Regret, {what}: {_summary(regret, len(sweep.timed))}.")
    console.print(_REGRET)
    console.print()
    console.print(tables.python(sweep.table, found.table), markup=False, soft_wrap=True)
    console.print()


def _rule_rows(sweep: Sweep, found: Refit) -> list[tuple[str, ...]]:
    rows = []
    for index, (rule, fitted) in enumerate(zip(sweep.rules, found.fit.rules, strict=True)):
        old, new = index < sweep.known, index in found.kept
        place = {(True, True): "stays", (True, False): "goes", (False, True): "comes"}
        numbers = ("-", "-", "-")
        if fitted is not None:
            join = "-" if rule.split is None else str(fitted.join)
            numbers = (f"{fitted.speed:g}", str(fitted.lag), join)
        most = "-" if rule.most_rows is None else f"<= {rule.most_rows}"
        sizes = found.fit.sizes([index])
        rows.append(
            (
                label(rule),
                most,
                *numbers,
                _percent(statistics.median(sizes)) if sizes else "-",
                place.get((old, new), ""),
            )
        )
    return rows


def _problem_rows(sweep: Sweep, found: Refit) -> list[tuple[str, ...]]:
    rows = []
    for row, now, new in zip(sweep.timed, found.now, found.new, strict=True):
        cells = [shown(row.problem), label(sweep.rules[row.best])]
        cells.append(three_digits(row.seconds[row.best] * 1e6))
        for index in (now, new):
            lost = fit.regret(row, index)
            if lost is None:
                cells += ["not measured", "-"]
            else:
                cells += [
                    "best" if index == row.best else label(sweep.rules[index]),
                    _percent(lost),
                ]
        rows.append(tuple(cells))
    return rows


def _report_dropped(console: Console, dropped: Any) -> None:
    for name, reason in dropped.items():
        console.print(
            f"left out: {escape(name)}: {escape(' '.join(reason.split())[:300])}", soft_wrap=True
        )


def _summary(regret: Regret | None, problems: int) -> str:
    if regret is None:
        return "nothing that is picked was measured"
    worst = f"worst {_percent(regret.worst)} % at {shown(regret.where)}"
    missing = problems - regret.problems
    unknown = f"; not measured at {missing} of {problems} problems" if missing else ""
    return f"median {_percent(regret.median)} %, {worst}{unknown}"


def _count(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def _percent(share: float) -> str:
    """0.0123 -> "1.2"."""
    return f"{100 * share:.1f}"
