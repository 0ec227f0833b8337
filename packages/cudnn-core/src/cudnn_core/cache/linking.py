"""Links an exported object into a shared object, and loads either through TVM-FFI.

May import: standard library, `cudnn_core.cache.toolchain`; TVM-FFI when something is loaded; the DSL only
to load an object that no linker was there to link.

The linked file names its two libraries (the DSL's runtime, TVM-FFI) by soname and carries no path, so it
survives a moved or another environment: `load` brings in the libraries of the running environment first,
and the dynamic loader takes a library that is already there.
"""

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from cudnn_core.cache import toolchain

_LINK_SECONDS = 120.0


@functools.cache
def linker() -> str | None:
    """Path of a program that links shared objects: $CC, else the usual names; None without one."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang", "ld", "ld.lld"):
        # $CC may hold "ccache gcc"; only a plain program is understood.
        if name and (found := shutil.which(name)):
            return found
    return None


def link(object_file: Path, target: Path) -> bool:
    """Link `object_file` into `target`; False when there is no linker or it fails."""
    program = linker()
    if program is None:
        return False
    # -z now: an unresolved symbol fails when the file is loaded, not when the kernel is called.
    is_driver = not Path(program).name.startswith("ld")
    flags = ["-nostdlib", "-Wl,-z,now"] if is_driver else ["-z", "now"]
    import tvm_ffi

    libraries = [str(toolchain.toolkit().runtime), tvm_ffi.libinfo.find_libtvm_ffi()]
    command = [program, "-shared", *flags, "-o", str(target), str(object_file), *libraries]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LINK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and target.exists()


def load(path: Path, symbol: str) -> Any:
    """The TVM-FFI function `symbol` of a linked file (.so) or an object (.o)."""
    if path.suffix == ".o":
        from cutlass.cute import runtime

        return getattr(runtime.load_module(str(path), enable_tvm_ffi=True), symbol)
    import tvm_ffi

    _runtime_library()
    return tvm_ffi.load_module(str(path)).get_function(symbol)


@functools.cache
def _runtime_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(toolchain.toolkit().runtime))
