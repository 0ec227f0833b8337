"""How the command line looks: consoles, tables and progress. May import rich.

Everything is ASCII but for the rules of tables, which rich replaces where the terminal needs it. On
a pipe there are no control characters, no animations, and lines are as wide as 120 columns.
"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
_QUIET_SECONDS = 1.0


def make_console(*, stderr: bool = False) -> Console:
    """A console on standard output or error, without rich's guesses at what to colour."""
    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


@dataclass(frozen=True)
class Column:
    """A column of a table. `spare` ones are left out where the table would be too wide."""

    title: str
    right: bool = False
    spare: bool = False
    wrap: bool = False


def make_table(console: Console, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Table:
    """A table with one rule below its head; cells may carry rich markup.

    As airy as the console allows: wide gaps, else narrow ones, else without the spare columns.
    """
    rows = list(rows)
    kept = [i for i, column in enumerate(columns) if not column.spare]
    every = range(len(columns))
    for shown, gap in ((every, 1), (every, 0), (kept, 1), (kept, 0)):
        table = _build([columns[i] for i in shown], [[row[i] for i in shown] for row in rows], gap)
        unlimited = console.options.update(max_width=10_000)
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            break
    return table


def _build(columns: Sequence[Column], rows: Iterable[Sequence[str]], gap: int) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, gap), pad_edge=False, show_edge=False, header_style=""
    )
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
        )
    for row in rows:
        table.add_row(*row)
    return table


def print_pairs(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Name and value on each line. Long values wrap under themselves, and on a pipe not at all."""
    indent = 4 + max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        text = Text.from_markup(value)
        room = max(console.width - indent, 20) if console.is_terminal else len(text) or 1
        for index, line in enumerate(text.wrap(console, room, overflow="fold")):
            line.rstrip()
            head = "" if index else f"  {name}"
            console.print(Text(head.ljust(indent)) + line, soft_wrap=True)


class Steps:
    """Progress through `total` steps, on standard error.

    A bar on a terminal. Elsewhere a plain line, at most one a second, so that a log shows life and
    short runs stay silent.
    """

    def __init__(self, title: str, total: int) -> None:
        self._console = make_console(stderr=True)
        self._total = total
        self._done = 0
        self._last = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, now="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, label: str) -> None:
        """Say what runs now."""
        self._bar.update(self._task, now=label)
        self._say(label)

    def finish(self, label: str = "") -> None:
        """Count one step as done; `label` names it when it was not announced."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, **({"now": label} if label else {}))
        if label:
            self._say(label)

    def _say(self, label: str) -> None:
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last >= _QUIET_SECONDS:
            self._last = now
            self._console.print(f"[{self._done}/{self._total}] {label}", markup=False)
