"""The machine code of compiled kernels, for tests: which instructions it holds and whether it spills.

Apart from `jit` because that file is part of every compile key, and this one changes no kernel. May import the
standard library and `cudnn_core.jit`.
"""

import collections
import os
import re
import shutil
import struct
import subprocess
import tempfile
from importlib import util
from pathlib import Path

from cudnn_core.jit import Build, compile_kernel

_ELF = b"\x7fELF"
_EM_CUDA = 190
_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


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


def _elf_size(header: bytes) -> int:
    """End of a 64-bit ELF file, from its tables: the section headers or program headers come last."""
    phoff, shoff = struct.unpack_from("<QQ", header, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", header, 54)
    return max(shoff + shentsize * shnum, phoff + phentsize * phnum)
