"""The disk level: one folder of verified entries, safe for many processes.

May import: standard library, `cudnn_core.env`.

An entry is a pair NAME-DIGEST.so (or .o) and NAME-DIGEST.json. The second is written last and holds the
first one's size and SHA-256, so a half-written pair never verifies. Files appear by rename, writers hold
a lock per entry (flock: it goes away with its process), and readers need no lock: whatever they see
either verifies or counts as absent.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_core.env import VARIABLES

_FORMAT = 1
_LOCK_SECONDS = 900.0
_LOCK_POLL_SECONDS = 0.02
_STALE_SECONDS = 3600.0

# Descriptors of locks held now. A forked child gets copies, which would keep a lock alive after its
# owner died, so it closes them.
_held: set[int] = set()


class Damaged(Exception):
    """An entry exists and does not verify."""


@dataclass(frozen=True)
class CacheEntry:
    """One kernel on disk. `state`: "present" (was there) or "written" (compiled now)."""

    name: str
    digest: str
    arch: str
    path: Path
    bytes: int
    seconds: float
    state: str
    symbol: str


class Folder:
    """A cache folder that only its owner can write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, stem: str) -> CacheEntry | None:
        """The verified entry, or None when there is none. Raises Damaged."""
        try:
            meta = json.loads(_read_private(self.path / f"{stem}.json"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise Damaged(f"{stem}.json: {error}") from error
        try:
            if meta["format"] != _FORMAT or meta["kind"] not in ("so", "o"):
                raise Damaged(f"{stem}.json: unknown format")
            path = self.path / f"{stem}.{meta['kind']}"
            data = _read_private(path)
            if hashlib.sha256(data).hexdigest() != meta["sha256"]:
                raise Damaged(f"{path.name}: checksum mismatch")
            return _entry(meta, path, "present")
        except (OSError, KeyError, TypeError) as error:
            raise Damaged(f"{stem}: {error!r}") from error

    def write(self, stem: str, made: Path, meta: dict[str, Any]) -> CacheEntry:
        """Move the file `made` (from `scratch`) in as entry `stem`. The caller holds the lock."""
        data = made.read_bytes()
        kind = made.suffix.removeprefix(".")
        meta = meta | {
            "format": _FORMAT,
            "kind": kind,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        sidecar = made.parent / "sidecar.json"
        sidecar.write_text(json.dumps(meta, indent=1, sort_keys=True) + "\n")
        path = self.path / f"{stem}.{kind}"
        for source, target in ((made, path), (sidecar, self.path / f"{stem}.json")):
            source.chmod(0o600)
            _sync(source)
            os.replace(source, target)
        _sync(self.path)
        return _entry(meta, path, "written")

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private folder on the same file system, removed afterwards."""
        self._sweep()
        path = Path(tempfile.mkdtemp(prefix=".tmp-", dir=self.path))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, stem: str) -> Iterator[bool]:
        """Hold the entry's lock; yields False when it cannot be had (read-only folder, no flock)."""
        try:
            fd = os.open(self.path / f"{stem}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield False
            return
        _held.add(fd)
        try:
            yield _acquire(fd)
        finally:
            # Unlocked explicitly: a copy of the descriptor in a forked child must not prolong it.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            _held.discard(fd)
            os.close(fd)

    def entries(self) -> list[CacheEntry]:
        """All entries that verify, by name."""
        found = []
        for sidecar in sorted(self.path.glob("*.json")):
            with contextlib.suppress(Damaged):
                if entry := self.find(sidecar.stem):
                    found.append(entry)
        return found

    def clear(self) -> tuple[int, int]:
        """Remove everything the cache made; returns (entries, bytes) removed."""
        count = size = 0
        for path in self.path.iterdir() if self.path.exists() else ():
            if path.name.startswith(".tmp-"):
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix in (".so", ".o", ".json", ".lock"):
                length = path.lstat().st_size
                if path.is_dir() and not path.is_symlink():
                    continue  # not made by the cache
                path.unlink(missing_ok=True)
                count += path.suffix in (".so", ".o")
                size += length
        return count, size

    def _sweep(self) -> None:
        """Remove the scratch folders of processes that were killed."""
        for path in self.path.glob(".tmp-*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


def choose(environ: Mapping[str, str]) -> tuple[Folder | None, str]:
    """The folder to use, created if need be, or (None, why not)."""
    if not VARIABLES["CUDNN_CACHE"].value(environ):
        return None, "turned off by CUDNN_CACHE=0"
    if explicit := VARIABLES["CUDNN_CACHE_DIR"].value(environ):
        candidates = [Path(explicit).absolute()]
    else:
        candidates = [
            *(Path(base) / "cudnn" for base in (environ.get("XDG_CACHE_HOME"),) if base),
            *(Path(home) / ".cache" / "cudnn" for home in (environ.get("HOME"),) if home),
            Path(tempfile.gettempdir()) / f"cudnn-{os.geteuid()}",
        ]
    reasons = []
    for path in candidates:
        reason = _prepare(path)
        if reason is None:
            return Folder(path.absolute()), ""  # whatever the working directory becomes
        reasons.append(reason)
    return None, "; ".join(reasons)


def _prepare(path: Path) -> str | None:
    """Create `path` and say why it must not be used, None when it may."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        resolved = path.resolve()
        facts = resolved.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if facts.st_uid not in (os.geteuid(), 0):
        return f"{path}: belongs to another user"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path}: other users can write to it (chmod go-w)"
    # Whoever can write to a parent can put another folder in its place, unless the parent is sticky.
    for parent in resolved.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"{path}: other users can write to its parent {parent}"
    return None


def _read_private(path: Path) -> bytes:
    """Contents of a regular file that no other user can write; OSError otherwise."""
    # Without O_NONBLOCK a named pipe in the folder would block until somebody writes.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"{path.name} can be written by other users")
        return file.read()


def _entry(meta: dict[str, Any], path: Path, state: str) -> CacheEntry:
    if not all(type(meta[field]) is str for field in ("name", "digest", "arch", "symbol")):
        raise TypeError("names are no strings")
    if type(meta["bytes"]) is not int or type(meta["seconds"]) not in (int, float):
        raise TypeError("sizes and times are no numbers")
    return CacheEntry(
        name=meta["name"],
        digest=meta["digest"],
        arch=meta["arch"],
        path=path,
        bytes=meta["bytes"],
        seconds=meta["seconds"],
        state=state,
        symbol=meta["symbol"],
    )


def _acquire(fd: int) -> bool:
    """Wait for the lock, but not forever: a stuck holder costs a second compile, not a hang."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_LOCK_POLL_SECONDS)
        except OSError:
            return False
    return False


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _close_held() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_close_held)
