"""`cudnn compile`: fills the disk cache ahead of time, in worker processes.

May import rich; the cache when it runs.

What to compile is the families' to say, as (label, KernelSource). A source holds a closure and does
not travel between processes, so a worker lists the same sources again and is told positions in that
list.
"""

import importlib.util
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from cudnn_core.cli import families
from cudnn_core.cli.console import Steps, make_console
from cudnn_core.cli.stored import count_kernels
from cudnn_core.cli.texts import show_bytes, show_seconds

# Gives (label, KernelSource) of every kernel, in an order that is the same in every process, to which it travels.
Listing = Callable[[], Iterable[tuple[str, Any]]]


class CannotCompile(RuntimeError):
    """Nothing can be compiled here, or nothing was asked for; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """What became of one kernel; `state` is "written", "present" or "failed"."""

    label: str
    state: str
    bytes: int = 0
    seconds: float = 0.0
    reason: str = ""


def run(names: list[str], arch: str, jobs: int | None, everything: bool) -> int:
    """Compile; returns the exit status: 1 if a kernel failed."""
    known = families.compiled()
    chosen = families.named(names, known) if names else known
    folder = _check_machine()
    start = time.perf_counter()
    outcomes = compile_all(partial(_sources, chosen, arch, everything), arch, jobs)
    if not outcomes:
        raise CannotCompile(_nothing(chosen, arch))
    return _report(outcomes, time.perf_counter() - start, folder)


def compile_all(listing: Listing, arch: str, jobs: int | None = None) -> list[Outcome]:
    """Compile every kernel of a listing, with progress."""
    count = len(list(listing()))
    workers = min(jobs or os.cpu_count() or 1, count)
    outcomes = []
    with Steps(f"Compiling for {arch}", count) as steps:
        for outcome in _outcomes(listing, count, workers):
            outcomes.append(outcome)
            steps.finish(f"{outcome.label}: {outcome.state}")
    return outcomes


def _check_machine() -> Path:
    if sys.platform != "linux":
        raise CannotCompile(f"kernels are compiled on Linux only; this is {sys.platform}")
    if _missing_compiler():
        raise CannotCompile(
            "the kernel compiler is not installed; "
            "pip install 'nvidia-cutlass-dsl[cu13]' apache-tvm-ffi"
        )
    from cudnn_core import cache

    folder = cache.directory()
    if folder is None:
        raise CannotCompile("the disk cache is off or has no usable folder; cudnn doctor says more")
    return folder


def _missing_compiler() -> bool:
    return importlib.util.find_spec("cutlass") is None


def _sources(
    chosen: tuple[families.Family, ...], arch: str, everything: bool
) -> Iterator[tuple[str, Any]]:
    """(label, source) of every kernel, in an order that is the same in every process."""
    for family in chosen:
        yield from family.sources(arch, everything)


def _nothing(chosen: tuple[families.Family, ...], arch: str) -> str:
    from cudnn_core.engine import HopperEngine

    names = ", ".join(family.name for family in chosen)
    known = HopperEngine.arch
    if arch != known:
        return f"no kernel of {names} is written for {arch!r}; known architectures: {known}"
    return f"no operation is built yet in the chosen families ({names})"


def _outcomes(listing: Listing, count: int, workers: int) -> Iterator[Outcome]:
    """Outcomes as they come. A worker process each, or this process when one is enough."""
    if workers <= 1:
        _begin(listing)
        yield from map(_compile_one, range(count))
        return
    # Spawned, not forked: the compiler starts threads, and a fork would copy their locks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(listing,)
    ) as pool:
        for future in as_completed([pool.submit(_compile_one, i) for i in range(count)]):
            yield future.result()


_listed: list[tuple[str, Any]] = []


def _begin(listing: Listing) -> None:
    """List the sources in this process."""
    _listed[:] = listing()


def _compile_one(index: int) -> Outcome:
    from cudnn_core import cache

    label, source = _listed[index]
    try:
        entry = cache.compile_ahead(source)
    # A kernel that does not compile must not stop the others; what the compiler raises is its own.
    except Exception as error:
        return Outcome(label, "failed", reason=f"{type(error).__name__}: {error}")
    return Outcome(label, entry.state, entry.bytes, entry.seconds)


def _report(outcomes: list[Outcome], seconds: float, folder: Path) -> int:
    console = make_console()
    written = [o for o in outcomes if o.state == "written"]
    failed = [o for o in outcomes if o.state == "failed"]
    present = len(outcomes) - len(written) - len(failed)
    size = show_bytes(sum(o.bytes for o in written))
    failures = f", {len(failed)} failed" if failed else ""
    console.print(
        f"Wrote {count_kernels(len(written))} ({size}) in {show_seconds(seconds)}, "
        f"{present} already present{failures}, in {escape(str(folder))}",
        soft_wrap=True,
    )
    for outcome in failed:
        console.print(f"FAILED {escape(outcome.label)}: {escape(outcome.reason)}")
    return 1 if failed else 0
