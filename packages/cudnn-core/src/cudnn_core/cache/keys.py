"""What identifies a compiled kernel: its Plan, the sources it is traced from, and the toolchain.

May import: standard library, `cudnn_core.cache.toolchain`. Nothing here imports the DSL: a process that
only loads kernels must not pay for it.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib.util
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from types import ModuleType
from typing import Any

from cudnn_core.cache import toolchain

_CORE = Path(__file__).resolve().parents[1]
# Device code that any kernel may inline, and the module that sets the compile options.
_CORE_SOURCES = ("hopper", "formats/kernels", "float_env.py", "jit.py")

Source = ModuleType | Path | str


@dataclasses.dataclass(frozen=True, eq=False)
class KernelSource:
    """One kernel that can be compiled.

    name:     short name for file and symbol names, e.g. "gemm_amax".
    key:      everything that is fixed at compile time: the Plan, a frozen dataclass (see `canonical`).
    build:    called only when a compile is needed; returns (jit function, fake arguments, options).
              What it returns must depend on `key` and on the code in `sources` alone.
    sources:  the code the kernel is traced from, beside core's own device code: modules, dotted
              module names (not imported, only located) or paths. A package or folder counts whole.
    arch:     target, e.g. "sm_90a".

    Keep the object when it is used often: the digest is computed once per object.
    """

    name: str
    key: Hashable
    build: Callable[[], tuple[Callable[..., Any], tuple[Any, ...] | list[Any], str]]
    sources: tuple[Source, ...] = ()
    arch: str = "sm_90a"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.name):
            raise ValueError(f"name: letters, digits and _ expected, got {self.name!r}")

    @functools.cached_property
    def description(self) -> dict[str, str]:
        """The parts of the key, readable; stored beside every disk entry."""
        return {
            "name": self.name,
            "plan": canonical(self.key),
            "sources": fingerprint(self.sources),
            "arch": self.arch,
            **toolchain.facts(),
        }

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over `description`."""
        text = "\n".join(f"{name}={value!r}" for name, value in sorted(self.description.items()))
        return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: Any) -> str:
    """A text that is equal for equal keys, in any process, and differs for different ones.

    Accepts None, bool, int, float, str, bytes, enum members, tuples, frozensets, frozen dataclasses of
    these, and objects whose `__cache_key__()` returns one of these. Anything else raises TypeError: a
    repr that hides a difference would hand out the wrong kernel.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{_name(kind)}.{value.name}"
    if hasattr(kind, "__cache_key__"):
        return f"{_name(kind)}<{canonical(value.__cache_key__())}>"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not kind.__dataclass_params__.frozen:
            raise TypeError(f"compile key: dataclass {_name(kind)} is not frozen")
        fields = (
            f"{f.name}={canonical(getattr(value, f.name))}" for f in dataclasses.fields(value)
        )
        return f"{_name(kind)}({', '.join(fields)})"
    if isinstance(value, tuple):
        prefix = "" if kind is tuple else _name(kind)
        return f"{prefix}({', '.join(canonical(item) for item in value)},)"
    if kind is frozenset:
        return f"{{{', '.join(sorted(canonical(item) for item in value))}}}"
    raise TypeError(
        f"compile key: a {_name(kind)} cannot be part of it; expected None, bool, int, float, str, bytes,"
        " Enum, tuple, frozenset, a frozen dataclass, or an object with __cache_key__()"
    )


def fingerprint(sources: tuple[Source, ...]) -> str:
    """SHA-256 over the contents of core's device code and of `sources`, by name and not by location."""
    return _fingerprint(tuple(_root(source) for source in sources))


@functools.lru_cache(maxsize=256)
def _fingerprint(roots: tuple[tuple[str, Path], ...]) -> str:
    core = ((f"cudnn_core/{part}", _CORE / part) for part in _CORE_SOURCES)
    files: dict[str, Path] = {}
    # Core's own parts may be missing from an install that carries no kernels; a source may not.
    for label, root in [*((label, path) for label, path in core if path.exists()), *roots]:
        if root.is_dir():
            files |= {f"{label}/{p.relative_to(root).as_posix()}": p for p in root.rglob("*.py")}
        else:
            files[label] = root
    digest = hashlib.sha256()
    for label in sorted(files):
        digest.update(
            f"{label}\0{hashlib.sha256(files[label].read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()


def _root(source: Source) -> tuple[str, Path]:
    """(label independent of where things are installed, file or folder) of a source."""
    if isinstance(source, Path):
        return source.name, source
    if isinstance(source, ModuleType):
        spec, name = source.__spec__, source.__name__
        origin = spec.origin if spec else getattr(source, "__file__", None)
    else:
        spec, name = importlib.util.find_spec(source), source
        origin = spec.origin if spec else None
    if not origin or not Path(origin).is_file():
        raise ValueError(f"sources: no readable source file for module {name!r}")
    path = Path(origin)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return name.replace(".", "/"), path.parent if is_package else path


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
