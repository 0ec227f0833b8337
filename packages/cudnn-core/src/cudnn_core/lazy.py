"""Lazy names: a package's public surface as a table, loaded when a name is first used.

May import the standard library's `sys` only: `import cudnn` goes through this file and must cost
next to nothing. Everything else is imported where it is needed, mostly on the way to an error.
"""

import sys

# The oldest compiler release that the kernels run on; pyproject.toml states the same floor.
DSL_DISTRIBUTION = "nvidia-cutlass-dsl"
DSL_FLOOR = (4, 6, 2)

# Missing one of these says nothing about what the user forgot to install: they come with the
# compiler, whose version is checked first.
_COMPILER_MODULES = frozenset({"cutlass", "tvm_ffi", "nvidia_cutlass_dsl", "cudnn"})

_COMPILER_HINT = (
    "install the compiler (Linux only): pip install --upgrade 'nvidia-cutlass-dsl[cu13]>="
    + ".".join(map(str, DSL_FLOOR))
    + "' apache-tvm-ffi"
)
_HINTS = {
    "torch": "pip install 'torch>=2.8'",
    "jax": "pip install 'jax>=0.10' jax-tvm-ffi",
    "jaxlib": "pip install 'jax>=0.10' jax-tvm-ffi",
    "jax_tvm_ffi": "pip install jax-tvm-ffi",
    "typer": "pip install typer rich",
    "rich": "pip install typer rich",
    "numpy": "pip install numpy ml-dtypes",
    "ml_dtypes": "pip install ml-dtypes",
}


def attach(module, names, *, submodules=(), needs=None, coming=None, only=None):
    """Return `(__getattr__, __dir__)` for the package called `module`.

    names: public name -> "home.module", or "home.module:attribute" where the names differ.
    submodules: names served by importing `module.<name>`; their own errors pass through.
    needs: submodule -> the module it means nothing without. `dir` leaves it out while that one is
        not installed, because `help` and `inspect` use every name that `dir` lists.
    coming: public name -> sentence. Using such a name raises NotImplementedError with it.
    only: the names to serve out of both tables; all when None.

    A resolved name is stored in the package, so each is looked up once; a failure is not stored,
    so a dependency installed meanwhile is found. What raises: AttributeError for an unknown name;
    NotImplementedError for a coming one; ImportError, with the original as its cause, for
    anything that goes wrong while a name loads.
    """
    needs = needs or {}
    coming = coming or {}
    if only is not None:
        names = {name: names[name] for name in only if name in names}
        coming = {name: coming[name] for name in only if name in coming}

    def __getattr__(name):
        if name in names:
            value = _resolve(module, name, names[name])
        elif name in submodules:
            value = _import(f"{module}.{name}")
        elif name in coming:
            raise NotImplementedError(f"{module}.{name} is not built yet: {coming[name]}")
        else:
            raise AttributeError(
                f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module]
            )
        setattr(sys.modules[module], name, value)
        return value

    def __dir__():
        # The tables themselves and what they were built with are nobody's business.
        here = vars(sys.modules[module])
        usable = (n for n in submodules if n not in needs or _installed(needs[n]))
        return sorted({*(n for n in here if n.startswith("__")), *names, *usable})

    return __getattr__, __dir__


def require(module, *needed):
    """Raise ImportError with an install hint unless every module of `needed` can be found.

    For packages that mean nothing without a framework (`cudnn.jax`); the framework itself is not
    imported.
    """
    for name in needed:
        if not _installed(name):
            error = ModuleNotFoundError(f"No module named {name!r}", name=name)
            raise ImportError(explain(module, error), name=name) from error


def _installed(module):
    from importlib.util import find_spec

    return module in sys.modules or find_spec(module) is not None


def explain(name, error):
    """The text of the ImportError that replaces `error`, raised while `name` was loading."""
    missing = _missing_module(error)
    root = missing.partition(".")[0]
    if missing and root not in _COMPILER_MODULES:
        hint = _HINTS.get(root, f"pip install {root.replace('_', '-')}")
        return f"{name} needs the module {missing!r}, which is not installed; {hint} ({error})"
    found = _dsl_version()
    if found and _release(found) < DSL_FLOOR:
        required = ".".join(map(str, DSL_FLOOR))
        return (
            f"{name} needs {DSL_DISTRIBUTION} {required} or newer, and {found} is installed; "
            f"pip install --upgrade '{DSL_DISTRIBUTION}[cu13]>={required}' ({error})"
        )
    if missing or found is None:
        return f"{name} requires optional dependencies; {_COMPILER_HINT} ({error})"
    return f"{name} requires optional dependencies that failed to load ({error})"


def foreign_cudnn():
    """Why the importable package `cudnn` is not this project's, or None when it is (or is absent).

    NVIDIA's wheel installs a package of that name too, and whichever wheel comes later overwrites
    the other's files. Nothing is imported: ours is known by its first file, which uses this one.
    """
    from importlib.util import find_spec

    spec = find_spec("cudnn")
    if spec is None:
        return None
    if spec.origin is not None:
        with open(spec.origin, "rb") as file:
            if b"from cudnn_core.lazy import attach" in file.read():
                return None
    where = spec.origin or list(spec.submodule_search_locations or ())
    return (
        f"the package 'cudnn' at {where} belongs to another distribution (NVIDIA's wheel "
        "nvidia-cudnn-frontend installs one of that name). Import the operations from their own "
        "packages, such as cudnn_gemm_dense, or reinstall the distribution 'cudnn' last"
    )


def _import(module):
    from importlib import import_module

    return import_module(module)


def _resolve(package, name, target):
    home, _, attribute = target.partition(":")
    try:
        return getattr(_import(home), attribute or name)
    except Exception as error:
        raise ImportError(explain(f"{package}.{name}", error), name=home) from error


def _missing_module(error):
    """Name of the first ModuleNotFoundError in the chain of causes, or ""."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return ""


def _dsl_version():
    from importlib import metadata

    try:
        return metadata.version(DSL_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def _release(version):
    """The numbers a version starts with: "4.8.1.dev0" -> (4, 8, 1)."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
