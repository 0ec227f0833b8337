"""Which compiler and runtime library this environment has, found without importing the DSL.

May import: standard library.
"""

import ctypes
import functools
import importlib.util
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

_RUNTIME = "libcute_dsl_runtime.so"
_HINT = "pip install 'nvidia-cutlass-dsl[cu13]' apache-tvm-ffi"

# Environment variables of the DSL that do not change the code it generates. All others do, or may, and
# enter the key. CUTE_DSL_ARCH is ours to set (--gpu-arch); CUTE_DSL_LIBS, where the runtime library lies, is
# set by DSL 4.6 itself when it is imported.
_NEUTRAL = re.compile(
    r"CUTE_DSL_(ARCH|LIBS|CACHE_DIR|DUMP_DIR|KEEP.*|LOG_.*|PRINT_.*|NO_CACHE|DISABLE_FILE_CACHING"
    r"|JIT_.*|SHOW_STACKTRACE|FILTER_STACKTRACE|WARNINGS_IGNORE)"
)


@dataclass(frozen=True)
class Toolkit:
    """A flavour of the DSL: `variant` is "cu12", "cu13" or "single", `runtime` the library its kernels call."""

    variant: str
    runtime: Path


@functools.cache
def toolkit() -> Toolkit:
    """The flavour the DSL itself chooses here: the newest that the driver supports.

    Raises ImportError when the DSL is not installed, RuntimeError when no flavour fits the driver.
    """
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    found: dict[int, Path] = {}
    for root in roots:
        for compiler in root.glob("*/cutlass/_mlir/_mlir_libs/_cutlass_ir.cu*.so"):
            major = int(re.match(r"_cutlass_ir\.cu(\d+)", compiler.name).group(1))
            runtime = root / f"cu{major}" / "lib" / _RUNTIME
            if runtime.exists():
                found[major] = runtime
        # Releases with a single flavour keep its runtime here.
        if not found and (root / "lib" / _RUNTIME).exists():
            return Toolkit("single", root / "lib" / _RUNTIME)
    if not found:
        raise ImportError(f"CUDA kernels need the CuTe DSL, which is not installed; {_HINT}")
    driver = driver_major()
    usable = [major for major in found if driver is None or major <= driver]
    if not usable:
        raise RuntimeError(
            f"the CUDA driver supports CUDA {driver}, the installed DSL needs {min(found)} or newer"
        )
    return Toolkit(f"cu{max(usable)}", found[max(usable)])


def facts() -> dict[str, str]:
    """Everything about the toolchain that a compiled kernel depends on."""
    return {
        "dsl": _version("nvidia-cutlass-dsl"),
        "variant": toolkit().variant,
        "tvm_ffi": _version("apache-tvm-ffi"),
        "machine": platform.machine(),
        "dsl_environment": repr(
            sorted(
                item
                for item in os.environ.items()
                if item[0].startswith("CUTE_DSL_") and not _NEUTRAL.fullmatch(item[0])
            )
        ),
    }


@functools.cache
def _version(distribution: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        raise ImportError(
            f"CUDA kernels need {distribution}, which is not installed; {_HINT}"
        ) from error


def driver_major() -> int | None:
    """CUDA major version of the driver, None without one. Creates no context."""
    version = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuDriverGetVersion(ctypes.byref(version)) == 0:
            return version.value // 1000
    except (OSError, AttributeError):
        pass
    return None
