"""The two-level compile cache: memory, then disk, then the compiler.

May import: standard library, its own modules on first use. The DSL and TVM-FFI are imported when a kernel
is compiled or loaded.

    source = KernelSource("gemm_amax", key=plan, build=lambda: (fn, fake_args, options), sources=(module,))
    executable = cache.get(source)       # callable; executable.call is the raw TVM-FFI function
    entry = cache.compile_ahead(source)  # fill the disk cache, with or without a GPU
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudnn_core.cache.disk import CacheEntry
    from cudnn_core.cache.keys import KernelSource, canonical
    from cudnn_core.cache.service import (
        Executable,
        Stats,
        clear,
        compile_ahead,
        compile_count,
        directory,
        entries,
        get,
        stats,
    )

_HOMES = {
    "CacheEntry": "disk",
    "KernelSource": "keys",
    "canonical": "keys",
    **dict.fromkeys(
        (
            "Executable",
            "Stats",
            "clear",
            "compile_ahead",
            "compile_count",
            "directory",
            "entries",
            "get",
            "stats",
        ),
        "service",
    ),
}

__all__ = [
    "CacheEntry",
    "Executable",
    "KernelSource",
    "Stats",
    "canonical",
    "clear",
    "compile_ahead",
    "compile_count",
    "directory",
    "entries",
    "get",
    "stats",
]


def __getattr__(name: str) -> Any:
    # Lazy: engines are imported on machines where nothing is ever compiled.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
