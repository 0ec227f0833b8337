"""The only place that calls the CuTe DSL's compiler and exporter, and the machine-code checks of tests.

May import: standard library, `cudnn_core.cache.toolchain`; the DSL inside functions.
"""

import collections
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from cudnn_core.cache import toolchain

Build = Callable[[], tuple[Callable[..., Any], Sequence[Any], str]]

_ELF = b"\x7fELF"
_EM_CUDA = 190
_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)

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


def object_code(build: Build, arch: str = "sm_90a") -> bytes:
    """The object file of a kernel, for `disassemble`."""
    kernel = compile_kernel(build, arch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        kernel.export(path, "kernel")
        return path.read_bytes()


def cubins(code: bytes) -> list[bytes]:
    """The GPU binaries embedded in an object, a linked file, or a cubin itself."""
    found, start = [], code.find(_ELF)
    while start >= 0:
        header = code[start : start + 64]
        size = 0
        if len(header) == 64 and struct.unpack_from("<H", header, 18)[0] == _EM_CUDA:
            size = _elf_size(header)
            found.append(code[start : start + size])
        start = code.find(_ELF, start + max(size, 4))
    return found


def disassemble(code: bytes | Path) -> str:
    """SASS of every GPU binary in an object, a linked file or a cubin.

    Raises FileNotFoundError without nvdisasm (it comes with CUDA and with triton), ValueError when
    there is no GPU binary in `code`.
    """
    tool = find_disassembler()
    if tool is None:
        raise FileNotFoundError(
            "nvdisasm: not on PATH, not under CUDA_HOME, and triton is not installed"
        )
    binaries = cubins(code.read_bytes() if isinstance(code, Path) else code)
    if not binaries:
        raise ValueError("code: no GPU binary in it")
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        for binary in binaries:
            path.write_bytes(binary)
            done = subprocess.run(
                [tool, "-c", str(path)], capture_output=True, text=True, check=True
            )
            texts.append(done.stdout)
    return "\n".join(texts)


def find_disassembler() -> str | None:
    """Path of nvdisasm, None when there is none."""
    if found := shutil.which("nvdisasm"):
        return found
    folders = [
        Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ
    ]
    folders.append(Path("/usr/local/cuda/bin"))
    if (triton := util.find_spec("triton")) and triton.origin:
        folders.append(Path(triton.origin).parent / "backends" / "nvidia" / "bin")
    return next((str(f / "nvdisasm") for f in folders if (f / "nvdisasm").is_file()), None)


def instructions(sass: str) -> collections.Counter[str]:
    """How often each opcode occurs, without its modifiers: {"HGMMA": 64, "UTMALDG": 3, ...}."""
    return collections.Counter(opcode.split(".")[0] for opcode in _LINE.findall(sass))


def spills(sass: str) -> int:
    """Number of loads and stores of local memory: register spills and local arrays."""
    counts = instructions(sass)
    return counts["LDL"] + counts["STL"]


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


def _elf_size(header: bytes) -> int:
    """End of a 64-bit ELF file, from its tables: the section headers or program headers come last."""
    phoff, shoff = struct.unpack_from("<QQ", header, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", header, 54)
    return max(shoff + shentsize * shnum, phoff + phentsize * phnum)
