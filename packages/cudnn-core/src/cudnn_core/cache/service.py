"""The cache as its users see it: get, compile ahead, count, list, clear.

May import: standard library, its sibling modules; `cudnn_core.jit` when a compile is needed.
"""

import contextlib
import dataclasses
import logging
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from cudnn_core.cache import disk, linking
from cudnn_core.cache.disk import CacheEntry, Folder
from cudnn_core.cache.keys import KernelSource

_logger = logging.getLogger("cudnn_core.cache")


class Executable:
    """A loaded kernel.

    `call` is the raw TVM-FFI function, for callers that count nanoseconds. `origin` is "compiled" (by
    this process) or "disk"; `path` the file it was loaded from, None when it lives in memory only.
    """

    __slots__ = ("call", "digest", "name", "origin", "path")

    def __init__(self, call: Any, source: KernelSource, origin: str, path: Path | None) -> None:
        self.call = call
        self.name = source.name
        self.digest = source.digest
        self.origin = origin
        self.path = path

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def __repr__(self) -> str:
        return f"Executable({self.name}, {self.digest[:12]}, {self.origin})"


@dataclasses.dataclass(frozen=True)
class Stats:
    """What this process did. `damaged` and `failed_writes` are disk entries that did not verify or
    could not be stored; `seconds` is time spent compiling."""

    compiles: int
    disk_hits: int
    memory_hits: int
    written: int
    damaged: int
    failed_writes: int
    seconds: float


class _State:
    """Everything mutable; a forked child starts with fresh locks, for a thread it does not have may
    have held the old ones."""

    def __init__(self) -> None:
        self.memory: dict[str, Executable] = {}
        self.counts: Counter[str] = Counter()
        self.folders: dict[tuple[str | None, ...], Folder | None] = {}
        self.warned: set[str] = set()
        self.new_locks()

    def new_locks(self) -> None:
        self.guard = threading.Lock()
        self.keys: dict[str, threading.Lock] = {}

    def count(self, what: str, amount: float = 1) -> None:
        with self.guard:
            self.counts[what] += amount

    def key_lock(self, digest: str) -> threading.Lock:
        with self.guard:
            return self.keys.setdefault(digest, threading.Lock())

    def warn_once(self, message: str) -> None:
        with self.guard:
            if message in self.warned:
                return
            self.warned.add(message)
        _logger.warning(message)


_state = _State()
os.register_at_fork(after_in_child=lambda: _state.new_locks())


def get(source: KernelSource) -> Executable:
    """The executable of `source`: from memory, else from disk, else compiled and stored.

    Safe for many threads and processes; one of them compiles, the others wait. Disk trouble of any
    kind (no space, read-only, damaged entries) costs at most a compile and is logged once.
    """
    executable = _state.memory.get(source.digest)
    if executable is not None:
        _state.count("memory_hits")
        return executable
    with _state.key_lock(source.digest):
        executable = _state.memory.get(source.digest)
        if executable is None:
            executable = _obtain(source)
            _state.memory[source.digest] = executable
        else:
            _state.count("memory_hits")
    return executable


def compile_ahead(source: KernelSource, arch: str | None = None) -> CacheEntry:
    """Make sure that `source` is on disk, compiled for `arch` (default: its own). Needs no GPU.

    Raises OSError when there is no folder to write to.
    """
    if arch is not None and arch != source.arch:
        source = dataclasses.replace(source, arch=arch)
    folder, reason = disk.choose(os.environ)
    if folder is None:
        raise OSError(f"no cache folder to compile into: {reason}")
    with _state.key_lock(source.digest), folder.lock(_stem(source)):
        entry = _find(folder, source)
        return entry if entry is not None else _store(source, _run_compiler(source), folder)


def stats() -> Stats:
    """Counters of this process since it started."""
    with _state.guard:
        counts = dict(_state.counts)
    return Stats(
        **{field.name: counts.get(field.name, field.type(0)) for field in dataclasses.fields(Stats)}
    )


def compile_count() -> int:
    """How many kernels this process compiled; 0 in a process that found all of them on disk."""
    return stats().compiles


def directory() -> Path | None:
    """Folder of the disk level; None when it is off or no private folder can be had."""
    folder = _folder()
    return folder.path if folder else None


def entries() -> list[CacheEntry]:
    """The entries on disk that verify."""
    folder = _folder()
    return folder.entries() if folder else []


def clear(*, memory: bool = True) -> tuple[int, int]:
    """Empty the disk level, and the memory level too unless `memory` is False.

    Kernels that are loaded stay usable. Returns (entries, bytes) removed from disk.
    """
    if memory:
        _state.memory.clear()
    folder = _folder()
    return folder.clear() if folder else (0, 0)


def _folder() -> Folder | None:
    """The folder for the present environment, chosen once per setting."""
    setting = tuple(
        os.environ.get(name)
        for name in ("CUDNN_CACHE", "CUDNN_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
    )
    with contextlib.suppress(KeyError):
        return _state.folders[setting]
    folder, reason = disk.choose(os.environ)
    if folder is None and setting[0] != "0":
        _state.warn_once(f"compiled kernels are not kept on disk: {reason}")
    _state.folders[setting] = folder
    return folder


def _stem(source: KernelSource) -> str:
    return f"{source.name}-{source.digest}"


def _symbol(source: KernelSource) -> str:
    return f"cudnn_{source.name}_{source.digest[:16]}"


def _obtain(source: KernelSource) -> Executable:
    folder = _folder()
    if folder is None:
        return _compile(source, None)
    executable = _load(source, _find(folder, source, last=False))
    if executable is not None:
        return executable
    with folder.lock(_stem(source)):
        # Another process may have compiled it while this one waited.
        executable = _load(source, _find(folder, source))
        return executable if executable is not None else _compile(source, folder)


def _find(folder: Folder, source: KernelSource, *, last: bool = True) -> CacheEntry | None:
    """The entry, None if absent or damaged. Damage is counted on the `last` look only: without the
    lock, a pair that is being replaced looks damaged too."""
    try:
        return folder.find(_stem(source))
    except disk.Damaged as error:
        if last:
            _state.count("damaged")
            _logger.info("damaged cache entry, compiling again: %s", error)
        return None


def _load(source: KernelSource, entry: CacheEntry | None) -> Executable | None:
    if entry is None:
        return None
    try:
        call = linking.load(entry.path, entry.symbol)
    # What a loader raises for a file it does not like is not specified; any failure means: compile.
    except Exception as error:
        _state.count("damaged")
        _logger.info("cache entry does not load, compiling again: %s: %s", entry.path.name, error)
        return None
    _state.count("disk_hits")
    return Executable(call, source, "disk", entry.path)


def _compile(source: KernelSource, folder: Folder | None) -> Executable:
    """Compile, and store when there is a folder; without one the kernel lives in memory."""
    kernel = _run_compiler(source)
    entry = call = None
    if folder is not None:
        try:
            entry = _store(source, kernel, folder)
            # What later processes will run is what this one runs.
            call = linking.load(entry.path, entry.symbol)
        except OSError as error:
            _state.count("failed_writes")
            _state.warn_once(
                f"cannot keep compiled kernels in {folder.path}: {error.strerror or error}"
            )
        except Exception as error:
            _state.warn_once(f"cannot load compiled kernels from {folder.path}: {error}")
    if call is None:
        return Executable(kernel.call, source, "compiled", None)
    return Executable(call, source, "compiled", entry.path)


def _run_compiler(source: KernelSource) -> Any:
    from cudnn_core import jit

    kernel = jit.compile_kernel(source.build, source.arch)
    _state.count("compiles")
    _state.count("seconds", kernel.seconds)
    _logger.debug("compiled %s in %.2f s", _stem(source), kernel.seconds)
    return kernel


def _store(source: KernelSource, kernel: Any, folder: Folder) -> CacheEntry:
    symbol = _symbol(source)
    meta = {
        "name": source.name,
        "digest": source.digest,
        "arch": source.arch,
        "symbol": symbol,
        "seconds": round(kernel.seconds, 3),
        "description": source.description,
    }
    with folder.scratch() as scratch:
        made = scratch / "kernel.o"
        kernel.export(made, symbol)
        linked = made.with_suffix(".so")
        entry = folder.write(_stem(source), linked if linking.link(made, linked) else made, meta)
    _state.count("written")
    return entry
