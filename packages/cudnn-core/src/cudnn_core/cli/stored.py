"""`cudnn cache`: what the disk level of the compile cache holds. May import rich and the cache."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
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
# Module paths before a name, and the comma after a tuple's last item.
_NOISE = re.compile(r"\b(?:\w+\.)+(?=\w+[(<]|[A-Z]\w*\b)|,(?=\))")
# Parts of a Plan that other columns show.
_SHOWN = ("op", "engine", "arch")


class NoCache(RuntimeError):
    """There is no cache to work on; the message says why."""


def show() -> None:
    """Print every entry, then totals."""
    cache, folder = _cache()
    entries = cache.entries()
    console = make_console()
    if entries:
        rows, common = _rows(entries)
        console.print(make_table(console, _COLUMNS, rows))
        for name, settings in common.items():
            console.print(f"\nAll of {name}: {escape(_spelled(settings))}")
        size = show_bytes(sum(entry.bytes for entry in entries))
        seconds = show_seconds(sum(entry.seconds for entry in entries))
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


def read_settings(plan: str) -> dict[str, str]:
    """The text of a plan as name -> value, nested ones as "tile.bm", without the shown ones."""
    found = dict(_flatten(_NOISE.sub("", plan), ""))
    return {name: value for name, value in found.items() if name not in _SHOWN}


def _flatten(text: str, prefix: str) -> Iterator[tuple[str, str]]:
    """(name, value) of "Name(a=1, b=Other(c=2))"; a text of another kind is its own value."""
    match = re.fullmatch(r"\w+\((\w+=.*)\)", text)
    if match is None:
        yield prefix.removesuffix("."), text.strip("'")
        return
    for part in _split(match.group(1)):
        name, _, value = part.partition("=")
        # A Plan's configuration is all there is to see of it, so its name says nothing.
        yield from _flatten(value, prefix if name == "config" else f"{prefix}{name}.")


def _split(text: str) -> list[str]:
    """The parts of `text` between commas that stand in no parentheses."""
    parts, depth = [""], 0
    for piece in re.split(r"([(),])", text):
        depth += (piece == "(") - (piece == ")")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def _spelled(settings: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _cache() -> tuple[Any, Path]:
    if sys.platform != "linux":
        raise NoCache(f"kernels are compiled and kept on Linux only; this is {sys.platform}")
    from cudnn_core import cache

    folder = cache.directory()
    if folder is None:
        raise NoCache("the disk cache is off or has no usable folder; cudnn doctor says more")
    return cache, folder


def _rows(entries: list[Any]) -> tuple[list[tuple[str, ...]], dict[str, dict[str, str]]]:
    """(rows of the table, settings that several kernels of one name have in common, by name)."""
    settings = {entry.digest: _settings_of(entry) for entry in entries}
    common = {}
    for name in sorted({entry.name for entry in entries}):
        first, *rest = (settings[entry.digest] for entry in entries if entry.name == name)
        same = {
            key: value for key, value in first.items() if all(s.get(key) == value for s in rest)
        }
        if rest and same:
            common[name] = same
    rows = []
    for entry in entries:
        hidden = common.get(entry.name, {})
        own = {k: v for k, v in settings[entry.digest].items() if k not in hidden}
        rows.append(
            (
                entry.name,
                entry.arch,
                show_bytes(entry.bytes),
                show_seconds(entry.seconds),
                show_age(time.time() - entry.path.stat().st_mtime),
                escape(_spelled(own)),
            )
        )
    return sorted(rows, key=lambda row: (row[0], row[1], row[-1])), common


def _settings_of(entry: Any) -> dict[str, str]:
    description = json.loads(entry.path.with_suffix(".json").read_text()).get("description")
    plan = description.get("plan") if isinstance(description, dict) else None
    return read_settings(plan) if isinstance(plan, str) else {}
