"""`cudnn doctor`: what is installed, which engines can run here, and why not the others.

May import rich and core. Imports no framework and no compiler, for it asks for versions and files,
and creates no CUDA context.
"""

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.markup import escape

from cudnn_core import device_info, lazy
from cudnn_core.cli import families
from cudnn_core.cli.console import make_console, print_pairs
from cudnn_core.cli.texts import show_bytes
from cudnn_core.env import VARIABLES

_FRAMEWORKS = ("torch", "jax", "jax-tvm-ffi")
_REQUIRED = ("numpy", "ml-dtypes")
_COMPILER = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
_ALSO_READ = ("XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES", "CC")
_CUDA_BUILD = re.compile(r"^cuda\b.*?=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


class State(Enum):
    """fine: as it should be. absent: legal, something is less useful. broken: must be mended."""

    FINE = "fine"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found."""

    name: str
    found: str
    state: State = State.FINE


def run() -> int:
    """Print the report; returns the exit status: 1 if something is broken."""
    console = make_console()
    broken = []
    for title, look in SECTIONS.items():
        findings = list(_guarded(title, look))
        broken += [f for f in findings if f.state is State.BROKEN]
        console.print(f"[bold]{title}[/bold]")
        print_pairs(console, [(f.name, _coloured(f)) for f in findings])
        console.print()
    if not broken:
        console.print("Nothing is broken.")
        return 0
    console.print(f"[bold red]Broken:[/bold red] {', '.join(f.name for f in broken)}")
    return 1


def _guarded(title: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a section; an error becomes a finding, so that the rest is still reported."""
    try:
        yield from look()
    except Exception as error:
        yield Finding(title, f"{type(error).__name__}: {error}", State.BROKEN)


def _coloured(finding: Finding) -> str:
    text = escape(finding.found)
    if finding.state is State.BROKEN:
        return f"[bold red]BROKEN[/bold red] {text}"
    return f"[dim]{text}[/dim]" if finding.state is State.ABSENT else text


def look_at_packages() -> Iterator[Finding]:
    """Python, the project's distributions, and what they require."""
    yield Finding(
        "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    from cudnn_core import __version__

    yield Finding("cudnn-core", __version__)
    for family in families.installed():
        yield _sibling(family.distribution, family.version, __version__, len(family.ops()))
    for name in _REQUIRED:
        version = families.version_of(name)
        yield Finding(name, version or "missing", State.FINE if version else State.BROKEN)


def _sibling(name: str, version: str, core: str, ops: int) -> Finding:
    built = f"{ops} operation{'s' * (ops != 1)} built" if ops else "nothing built yet"
    if version and version != core:
        return Finding(
            name, f"{version}, but cudnn-core is {core}; install both in one version", State.BROKEN
        )
    return Finding(name, f"{version or 'from its source tree'}, {built}")


def look_at_import_name() -> Iterator[Finding]:
    """Whether `import cudnn` gets this project's package."""
    reason = lazy.foreign_cudnn()
    if reason:
        yield Finding("cudnn", reason, State.BROKEN)
        return
    spec = importlib.util.find_spec("cudnn")
    if spec is None or spec.origin is None:
        yield Finding(
            "cudnn", "not installed; the families' own packages work without", State.ABSENT
        )
    else:
        version = families.version_of("cudnn") or "from its source tree"
        yield Finding("cudnn", f"{version}, ours: {spec.origin}")


def look_at_frameworks() -> Iterator[Finding]:
    """Array frameworks; none is required."""
    for name in _FRAMEWORKS:
        version = families.version_of(name)
        if version is None:
            yield Finding(name, "not installed", State.ABSENT)
        elif name == "torch":
            build = _torch_cuda()
            yield Finding(
                name, f"{version}, {f'made for CUDA {build}' if build else 'without CUDA'}"
            )
        else:
            yield Finding(name, version)
    if families.version_of("jax"):
        found = _jax_cuda()
        state = State.FINE if found else State.ABSENT
        yield Finding(
            "jax on CUDA", found or "no plugin (jax-cuda13-plugin, jax-cuda12-plugin)", state
        )


def look_at_compiler() -> Iterator[Finding]:
    """The CuTe DSL, its flavour and the programs beside it."""
    for name in _COMPILER:
        version = families.version_of(name)
        if version is None:
            yield Finding(name, "not installed (exists for Linux)", State.ABSENT)
        elif name == lazy.DSL_DISTRIBUTION and _numbers(version) < lazy.DSL_FLOOR:
            floor = ".".join(map(str, lazy.DSL_FLOOR))
            yield Finding(name, f"{version}; {floor} or newer is needed", State.BROKEN)
        else:
            yield Finding(name, version)
    if sys.platform != "linux":
        return
    from cudnn_core.cache import linking, toolchain

    if importlib.util.find_spec("nvidia_cutlass_dsl"):
        toolkit = toolchain.toolkit()
        yield Finding("flavour", f"{toolkit.variant}, {toolkit.runtime}")
    linker = linking.linker()
    yield Finding(
        "linker",
        linker or "none (cc, gcc, clang, ld, ld.lld): cached kernels then need the DSL to load",
        State.FINE if linker else State.ABSENT,
    )


def look_at_devices() -> Iterator[Finding]:
    """The driver and the GPUs that this process sees."""
    version = _driver_version()
    yield Finding("driver", version or "none", State.FINE if version else State.ABSENT)
    for ordinal in range(device_info.device_count()):
        info = device_info.device_info(ordinal)
        major, minor = info.compute_capability
        yield Finding(
            f"cuda:{ordinal}",
            f"{info.device_name}, compute capability {major}.{minor}, {info.sm_count} SMs",
        )
    if device_info.device_count() == 0:
        yield Finding("GPUs", "none is visible to this process", State.ABSENT)


def look_at_cache() -> Iterator[Finding]:
    """The disk level of the compile cache."""
    if sys.platform != "linux":
        yield Finding("folder", "none: kernels are compiled on Linux only", State.ABSENT)
        return
    from cudnn_core import cache

    folder = cache.directory()
    if folder is None:
        if os.environ.get("CUDNN_CACHE") == "0":
            yield Finding("folder", "turned off by CUDNN_CACHE=0", State.ABSENT)
        else:
            yield Finding("folder", f"none can be used: {_why_no_folder()}", State.BROKEN)
        return
    writable = os.access(folder, os.W_OK | os.X_OK)
    # A read-only folder filled ahead of time is a way to deploy, so it is no fault.
    yield Finding("folder", f"{folder} ({'writable' if writable else 'read-only'})")
    entries = cache.entries()
    yield Finding("kernels", f"{len(entries)}, {show_bytes(sum(entry.bytes for entry in entries))}")


def look_at_environment() -> Iterator[Finding]:
    """Variables that are set and that the project, or what it stands on, reads."""
    found = False
    for name in sorted(
        {*VARIABLES, *_ALSO_READ, *(n for n in os.environ if n.startswith("CUTE_DSL_"))}
    ):
        text = os.environ.get(name)
        if text is None:
            continue
        found = True
        try:
            if name in VARIABLES:
                VARIABLES[name].value()
            yield Finding(name, text)
        except ValueError as error:
            yield Finding(name, str(error), State.BROKEN)
    if not found:
        yield Finding("variables", "none is set", State.ABSENT)


def look_at_engines() -> Iterator[Finding]:
    """Each engine of the built operations: on which device it runs, or why it cannot."""
    engines = {
        engine.name: engine
        for family in families.installed()
        for op in family.ops()
        for engine in op.engines
    }
    if not engines:
        yield Finding("engines", "no installed family has an operation that is built", State.ABSENT)
    for name, engine in engines.items():
        runs, reasons = [], []
        for device in _devices(engine.platform):
            reason = engine.why_not_device(device)
            runs += [] if reason else [str(device)]
            reasons += [reason] if reason else []
        missing = _missing_for_cuda() if engine.platform == "cuda" else []
        if engine.platform == "cuda" and not runs and not reasons:
            reasons.append("no CUDA device is visible to this process")
        if runs and not missing:
            yield Finding(name, f"runs on {', '.join(runs)}")
        else:
            yield Finding(name, "cannot run here: " + "; ".join([*reasons, *missing]), State.ABSENT)


SECTIONS: dict[str, Callable[[], Iterable[Finding]]] = {
    "Packages": look_at_packages,
    "Import name": look_at_import_name,
    "Frameworks": look_at_frameworks,
    "Compiler": look_at_compiler,
    "Devices": look_at_devices,
    "Kernel cache": look_at_cache,
    "Environment": look_at_environment,
    "Engines": look_at_engines,
}


def _devices(platform_name: str) -> list:
    from cudnn_core.tensor_desc import Device

    if platform_name == "cpu":
        return [Device("cpu")]
    return [Device("cuda", ordinal) for ordinal in range(device_info.device_count())]


def _missing_for_cuda() -> list[str]:
    """What a CUDA engine needs beside the GPU, and this installation lacks."""
    missing = []
    if not all(families.version_of(name) for name in _COMPILER):
        missing.append(
            "the compiler is not installed: pip install 'nvidia-cutlass-dsl[cu13]' apache-tvm-ffi"
        )
    if not (_torch_cuda() or _jax_cuda()):
        missing.append(
            "no framework here makes CUDA arrays: install a CUDA build of torch, or jax[cuda13]"
        )
    return missing


def _torch_cuda() -> str | None:
    """CUDA version that the installed torch was made for, read from its file; None without."""
    spec = importlib.util.find_spec("torch")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(root) / "version.py"
        if path.is_file() and (match := _CUDA_BUILD.search(path.read_text())):
            return match.group(1)
    return None


def _jax_cuda() -> str | None:
    """Name and version of JAX's CUDA plugin; None without one."""
    for name in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        if version := families.version_of(name):
            return f"{name} {version}"
    return None


def _driver_version() -> str | None:
    """Newest CUDA version that the driver supports; None without a driver. Makes no context."""
    import ctypes

    version = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        if driver.cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    release = _kernel_driver()
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}" + (
        f", driver {release}" if release else ""
    )


def _kernel_driver() -> str:
    """Release of the loaded kernel driver, as Linux tells it; "" elsewhere."""
    path = Path("/proc/driver/nvidia/version")
    if not path.is_file():
        return ""
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", path.read_text())
    return match.group(1) if match else ""


def _why_no_folder() -> str:
    from cudnn_core.cache import disk

    return disk.choose(os.environ)[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
