"""Which families of operations are installed, found by name. May import the standard library only.

A family is an importable package `cudnn_<family>` beside `cudnn_core`. What it offers the command
line, each part optional:

    ops() -> iterable of cudnn_core.op.Op      the operations that are built
    module _demo                               see cudnn_core.cli.protocol
    module _bench                              see cudnn_core.bench.protocol

Core's own kernels, those of its formats, count as one more family where kernels are compiled.
"""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_PREFIX = "cudnn_"
_CORE = "cudnn_core"


@dataclass(frozen=True)
class Family:
    """An installed family: `name` is "gemm-dense", `module` is "cudnn_gemm_dense"."""

    name: str
    module: str

    @property
    def distribution(self) -> str:
        return self.module.replace("_", "-")

    @property
    def version(self) -> str:
        """The installed distribution's version; "" when it runs from a source tree."""
        return version_of(self.distribution) or ""

    def ops(self) -> tuple[Any, ...]:
        """The operations that are built, imported now; none for a family that is only planned."""
        listing = getattr(importlib.import_module(self.module), "ops", None)
        return () if listing is None else tuple(listing())

    def sources(self, arch: str, everything: bool) -> Iterator[tuple[str, Any]]:
        """(label, KernelSource) of every kernel to compile ahead, always in the same order."""
        for op in self.ops():
            for label, found in op.sources(arch, everything=everything):
                yield f"{op.contract.name} {label}", found

    def demo(self) -> ModuleType | None:
        """The family's `_demo` module, None without one."""
        return self._hook("_demo")

    def bench(self) -> ModuleType | None:
        """The family's `_bench` module, None without one."""
        return self._hook("_bench")

    def _hook(self, name: str) -> ModuleType | None:
        full = f"{self.module}.{name}"
        return importlib.import_module(full) if importlib.util.find_spec(full) else None


class Formats(Family):
    """Core's kernels that quantize; they belong to no operation."""

    def sources(self, arch: str, everything: bool) -> Iterator[tuple[str, Any]]:
        from cudnn_core.formats import kernels

        for config in kernels.configs(everything):
            found = kernels.source(config)
            if found.arch == arch:
                values = map(str, dataclasses.astuple(config))
                yield f"{found.name} {' '.join(values)}", found


class UnknownFamily(ValueError):
    """A name that no installed family has."""


def installed() -> tuple[Family, ...]:
    """All families that can be imported here, by name."""
    names = {
        module.name
        for module in pkgutil.iter_modules()
        if module.ispkg and module.name.startswith(_PREFIX) and module.name != _CORE
    }
    return tuple(Family(_plain(name), name) for name in sorted(names))


def compiled() -> tuple[Family, ...]:
    """The families that may have kernels to compile and to measure: core's formats, then the installed ones."""
    return (Formats("formats", "cudnn_core.formats"), *installed())


def named(names: Iterable[str], known: tuple[Family, ...] | None = None) -> tuple[Family, ...]:
    """The families called `names`: "gemm-dense", "cudnn_gemm_dense", or "dense" if that is enough.

    Raises UnknownFamily, naming the known ones.
    """
    known = installed() if known is None else known
    chosen = []
    for name in names:
        wanted = _plain(name)
        exact = [f for f in known if f.name == wanted]
        found = exact or [f for f in known if f.name.endswith(f"-{wanted}")]
        if len(found) != 1:
            listing = ", ".join(f.name for f in known) or "none is installed"
            raise UnknownFamily(f"unknown family {name!r}; known here: {listing}")
        if found[0] not in chosen:
            chosen.append(found[0])
    return tuple(chosen)


def version_of(distribution: str) -> str | None:
    """Version of an installed distribution, None without it; the distribution is not imported."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("cudnn-")
