"""The two-level compile cache: memory, then disk, then the compiler.

May import: `cudnn_core.lazy`, its own modules on first use. The DSL and TVM-FFI are imported when a kernel
is compiled or loaded.

    source = KernelSource("gemm_amax", key=plan, build=lambda: (fn, fake_args, options), sources=(module,))
    executable = cache.get(source)       # callable; executable.call is the raw TVM-FFI function
    entry = cache.compile_ahead(source)  # fill the disk cache, with or without a GPU
"""

from typing import TYPE_CHECKING

from cudnn_core.lazy import attach

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

_SERVICE = (
    "Executable",
    "Stats",
    "clear",
    "compile_ahead",
    "compile_count",
    "directory",
    "entries",
    "get",
    "stats",
)

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

# Lazy: engines are imported on machines where nothing is ever compiled.
__getattr__, __dir__ = attach(
    __name__,
    {
        "CacheEntry": f"{__name__}.disk",
        **dict.fromkeys(("KernelSource", "canonical"), f"{__name__}.keys"),
        **dict.fromkeys(_SERVICE, f"{__name__}.service"),
    },
)
