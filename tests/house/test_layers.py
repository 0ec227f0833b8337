"""Layers: imports point one way only (design: functions, contract, engine, kernels)."""

import ast

import pytest
from source import ROOT, imports, module_name, sources

FAMILIES = (
    "cudnn_attention",
    "cudnn_causal_conv",
    "cudnn_gemm_dense",
    "cudnn_gemm_grouped",
    "cudnn_proj_rope",
)
CORE = "cudnn_core"

# What stands above the contract; nothing below it may know these.
_UPPER = ("op", "prepared", "doors", "bench", "cli", "jax_bridge", "testing")
_MIDDLE = ("contract", "engine", "plan", "api_base", *_UPPER)

# A folder or module of core -> the parts of core it must not import.
BELOW = {
    "lazy": (*_MIDDLE, "adapters", "cache", "formats", "hopper", "jit", "dtypes"),
    "tuple_dict": (*_MIDDLE, "adapters", "cache", "formats", "hopper", "jit"),
    "errors": (*_MIDDLE, "adapters", "cache", "formats", "hopper", "jit"),
    "dtypes": (*_MIDDLE, "adapters", "cache", "formats", "hopper", "jit"),
    "tensor_desc": (*_MIDDLE, "adapters", "cache", "formats", "hopper", "jit"),
    "env": (*_MIDDLE, "adapters", "cache", "formats", "hopper", "jit"),
    # Leaves: an adapter describes and allocates arrays and knows nothing of operations. It does hand
    # calls that its framework traces to the door made for that framework.
    "adapters": (
        *(part for part in _MIDDLE if part != "doors"),
        "cache",
        "formats",
        "hopper",
        "jit",
    ),
    # Device code: kernels know no operation, no array framework, no cache.
    "hopper": (*_MIDDLE, "adapters", "cache", "formats"),
    "cache": (*_UPPER, "adapters", "formats", "hopper"),
    "contract": (*_UPPER, "cache", "formats", "hopper", "jit"),
    "plan": (*_UPPER, "adapters", "cache", "formats", "hopper", "jit"),
}

# Frameworks are known to the adapters, to the doors made for one, to the dtype table and the pytree
# registration of TupleDict, to the benchmarks, and to the command line, which reports what is installed.
FRAMEWORK_HOMES = {
    "torch": (
        "adapters.torch",
        "bench",
        "doors.torch_autograd",
        "doors.torch_op",
        "formats._bench",
        "formats.torch_impl",
        "formats.torch_op",
        "formats.kernels",
        "dtypes",
        "cli",
    ),
    "jax": (
        "adapters.jax",
        "doors.jax_ffi",
        "doors.jax_fold",
        "doors.jax_gradient",
        "doors.jax_primitive",
        "formats.jax_impl",
        "jax_bridge",
        "tuple_dict",
        "cli",
    ),
}

SOURCES = sources()


def within(name, root):
    return name == root or name.startswith(f"{root}.")


def top(path):
    return module_name(path).partition(".")[0]


@pytest.mark.parametrize("path", [p for p in SOURCES if top(p) in FAMILIES], ids=str)
def test_family_imports_core_only(path):
    others = {*FAMILIES, "cudnn"} - {top(path)}
    assert not {name for name in imports(path) if name.partition(".")[0] in others}


@pytest.mark.parametrize("path", [p for p in SOURCES if top(p) == CORE], ids=str)
def test_core_imports_no_family(path):
    assert not {name for name in imports(path) if name.partition(".")[0] in {*FAMILIES, "cudnn"}}


@pytest.mark.parametrize("path", [p for p in SOURCES if top(p) == CORE], ids=str)
def test_core_layers(path):
    own = module_name(path).removeprefix(f"{CORE}.")
    for layer, forbidden in BELOW.items():
        if within(own, layer):
            used = {n for n in imports(path) for f in forbidden if within(n, f"{CORE}.{f}")}
            assert not used, f"{own} stands below {sorted(used)}"


@pytest.mark.parametrize("framework", FRAMEWORK_HOMES)
def test_framework_is_known_to_its_homes_only(framework):
    homes = [f"{CORE}.{home}" for home in FRAMEWORK_HOMES[framework]]
    strangers = [
        str(path)
        for path in SOURCES
        if any(within(name, framework) for name in imports(path))
        and not any(within(module_name(path), home) for home in homes)
        # A family's benchmarks run the frameworks' own operations as peers.
        and not path.stem.startswith("_bench")
    ]
    assert strangers == []


@pytest.mark.parametrize("path", [p for p in SOURCES if "hopper" in p.parts], ids=str)
def test_skeleton_names_no_operation(path):
    operations = [p.stem for p in SOURCES if top(p) in FAMILIES and p.stem != "__init__"]
    text = (ROOT / path).read_text()
    named = [op for op in operations if f"gemm_{op}" in text or f"{op}_wrapper" in text]
    assert named == []


def test_layers_that_are_ruled_on_exist():
    parts = {
        module_name(path).split(".")[1]
        for path in SOURCES
        if path.name != "__init__.py" and top(path) == CORE
    }
    assert set(BELOW) <= parts, "a rule about a module that is gone"


# Host code that lives in a folder of device code.
LAUNCHERS = ("cudnn_core.formats.kernels", "cudnn_core.formats.kernels.host")


def assigned_strings(path, name):
    """The strings of the tuple that a module assigns to `name`."""
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    return ()


def test_what_kernels_are_traced_from_is_in_their_cache_key():
    """Device code may import device code only: what it inlines from elsewhere would be in no key."""
    modules = {module_name(path): path for path in SOURCES}
    keys = next(path for name, path in modules.items() if name == "cudnn_core.cache.keys")
    whole = [
        f"{CORE}.{part.removesuffix('.py').replace('/', '.')}"
        for part in assigned_strings(keys, "_CORE_SOURCES")
    ]
    listed = set()
    for path in SOURCES:
        listed.update(assigned_strings(path, "DEVICE_CODE"))
    assert {"cudnn_core.formats.spec", "cudnn_gemm_dense.block_scaled"} <= listed
    covered = {name for name in modules if name in listed or any(within(name, w) for w in whole)}
    assert listed <= covered
    for name in sorted(covered - {*LAUNCHERS, "cudnn_core.jit"}):
        used = imports(modules[name]) & modules.keys()
        packages = {other for other in used if modules[other].name == "__init__.py"}
        assert used - packages <= covered, f"{name} inlines what no cache key holds"
