"""`cudnn cache`: what the disk level of the compile cache holds. May import rich and the cache."""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.markup import escape

from cudnn_core.cli.console import Column, make_console, make_table
from cudnn_core.cli.texts import show_age, show_bytes, show_seconds

_COLUMNS = (
    Column("kernel"),
    Column("arch"),
    Column("size", right=True),
    Column("compiled in", right=True),
    Column("age", right=True),
    Column("configuration", wrap=True),
)
# What other columns show, module paths, and the comma after a tuple's last item.
_NOISE = re.compile(
    r"\b(?:op|engine|arch)='[^']*', |\bconfig=|\b(?:\w+\.)+(?=\w+[(<]|[A-Z]\w*\b)|,(?=\))"
)


class NoCache(RuntimeError):
    """There is no cache to work on; the message says why."""


def show() -> None:
    """Print every entry, then totals."""
    cache, folder = _cache()
    entries = cache.entries()
    console = make_console()
    if entries:
        size = show_bytes(sum(entry.bytes for entry in entries))
        seconds = show_seconds(sum(entry.seconds for entry in entries))
        console.print(make_table(console, _COLUMNS, [_row(entry) for entry in entries]))
        console.print(
            f"\n{count_kernels(len(entries))}, {size}, compiled in {seconds}, "
            f"in {escape(str(folder))}",
            soft_wrap=True,
        )
    else:
        console.print(f"No kernel in {escape(str(folder))}", soft_wrap=True)
    damaged = len(list(folder.glob("*.json"))) - len(entries)
    if damaged:
        console.print(f"{damaged} entries do not verify; they are compiled again when needed.")


def clear(confirm: Callable[[str], bool]) -> None:
    """Remove everything, if `confirm` agrees to the question it is given."""
    cache, folder = _cache()
    console = make_console()
    entries = cache.entries()
    if not any(folder.iterdir()):
        console.print(f"Nothing to remove in {escape(str(folder))}")
        return
    size = show_bytes(sum(entry.bytes for entry in entries))
    if confirm(f"Remove {count_kernels(len(entries))} ({size}) from {folder}?"):
        count, removed = cache.clear()
        console.print(f"Removed {count_kernels(count)}, {show_bytes(removed)}.")
    else:
        console.print("Nothing removed.")


def count_kernels(count: int) -> str:
    """ "1 kernel", "2 kernels"."""
    return f"{count} kernel" + "s" * (count != 1)


def summary(plan: str) -> str:
    """The text of a plan without what other columns show and without module paths."""
    return _NOISE.sub("", plan).removeprefix("Plan(").removesuffix(")")


def _cache() -> tuple[Any, Path]:
    if sys.platform != "linux":
        raise NoCache(f"kernels are compiled and kept on Linux only; this is {sys.platform}")
    from cudnn_core import cache

    folder = cache.directory()
    if folder is None:
        raise NoCache("the disk cache is off or has no usable folder; cudnn doctor says more")
    return cache, folder


def _row(entry: Any) -> tuple[str, ...]:
    description = json.loads(entry.path.with_suffix(".json").read_text())["description"]
    return (
        entry.name,
        entry.arch,
        show_bytes(entry.bytes),
        show_seconds(entry.seconds),
        show_age(time.time() - entry.path.stat().st_mtime),
        escape(summary(description["plan"])),
    )
