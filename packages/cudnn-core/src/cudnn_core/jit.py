"""The only place that calls the CuTe DSL's compiler and exporter.

May import: standard library, `cudnn_core.cache.toolchain`; the DSL inside functions.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_core.cache import toolchain

Build = Callable[[], tuple[Callable[..., Any], Sequence[Any], str]]

# Tracing changes state that is global in the DSL: one compile at a time.
_compiling = threading.RLock()


def _new_lock() -> None:
    global _compiling
    _compiling = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel in this process: `call` is the raw TVM-FFI function, `seconds` what it took."""

    call: Any
    seconds: float
    function: Any

    def export(self, path: Path, symbol: str) -> None:
        """Write the object file; `symbol` is the name to load it by. OSError when it cannot."""
        with _compiling:
            self.function.export_to_c(object_file_path=str(path), function_name=symbol)


def compile_kernel(build: Build, arch: str = "sm_90a") -> CompiledKernel:
    """Compile what `build` returns - (jit function, fake arguments, options) - for `arch`, through TVM-FFI.

    Needs no GPU, launches nothing, and leaves the DSL's own settings alone.
    """
    with _compiling:
        cute = _import_dsl(arch)
        function, arguments, options = build()
        options = f"--enable-tvm-ffi --gpu-arch {arch} {options}".rstrip()
        start = time.perf_counter()
        compiled = cute.compile(function, *arguments, options=options)
        seconds = time.perf_counter() - start
    # A function with defaults or keywords comes wrapped; the wrapper costs Python time on every call.
    wrapped = getattr(compiled, "__tvm_ffi_object__", None)
    raw = wrapped() if wrapped else compiled
    return CompiledKernel(_foreign(arch) if raw is None else raw, seconds, compiled)


def _import_dsl(arch: str) -> Any:
    """cutlass.cute. Without a GPU the DSL assumes another architecture than ours and would not make
    its kernels callable here; it reads the setting once, when it is imported."""
    assume = toolchain.driver_major() is None and "CUTE_DSL_ARCH" not in os.environ
    if assume:
        os.environ["CUTE_DSL_ARCH"] = arch
    try:
        import cutlass.cute as cute
    finally:
        if assume:
            del os.environ["CUTE_DSL_ARCH"]
    return cute


def _foreign(arch: str) -> Callable[..., Any]:
    def call(*_: Any) -> None:
        raise RuntimeError(f"this kernel was compiled for {arch}, which this machine does not have")

    return call
