"""adapters: how an argument finds its framework, and what a call's arguments must have in common."""

import subprocess
import sys
import types

import numpy as np
import pytest

from cudnn_core.adapters import adapter_of, common
from cudnn_core.tensor_desc import Device, TensorDesc

ARRAY = np.zeros((2, 3), np.float32)
CUDA_DESC = TensorDesc.of("float32", (2, 3), device="cuda:0")


class Foreign:
    """An array of a library that nobody here knows; its strides are in bytes, as such libraries count."""

    dtype, shape, strides, itemsize, device = np.dtype("float32"), (2, 3), (16, 4), 4, "cuda:1"


def test_types_find_their_adapters():
    assert adapter_of(ARRAY).name == "numpy"
    assert adapter_of(ARRAY) is adapter_of(np.zeros(3, np.int8))
    assert adapter_of(type("Sub", (np.ndarray,), {})((2,))).name == "numpy"
    assert adapter_of(CUDA_DESC).name == "metadata"
    assert adapter_of(Foreign()).name == "metadata"


@pytest.mark.parametrize(
    "x", [None, 3, 3.0, "x", [1.0], (1,), np.float32(1), object(), np, np.float32]
)
def test_what_is_no_array_has_no_adapter(x):
    assert adapter_of(x) is None


def test_objects_of_one_foreign_type_are_judged_one_by_one():
    assert adapter_of(types.SimpleNamespace(dtype="float32", shape=(2,))).name == "metadata"
    assert adapter_of(types.SimpleNamespace(dtype="float32")) is None


def test_torch_and_jax_types():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    assert adapter_of(torch.zeros(1)).name == "torch"
    assert adapter_of(torch.nn.Parameter(torch.zeros(1))) is adapter_of(torch.zeros(1))
    assert adapter_of(jax.numpy.zeros(1)).name == "jax"
    assert adapter_of(jax.ShapeDtypeStruct((1,), "float32")).name == "jax"
    assert adapter_of(jax.numpy.float32) is None
    assert adapter_of(jax.devices()[0]) is None
    assert adapter_of(torch.float32) is None
    seen = []
    jax.eval_shape(lambda x: seen.append(adapter_of(x).name) or x, jax.numpy.zeros(1))
    assert seen == ["jax"]


def test_a_torch_that_is_still_being_imported_is_no_framework_yet(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert adapter_of(type("New", (Foreign,), {})()).name == "metadata"


def test_one_call_one_adapter_and_device():
    adapter, device = common({"a": ARRAY, "b": None, "c": ARRAY}, "op")
    assert (adapter.name, device) == ("numpy", Device("cpu"))


@pytest.mark.parametrize(
    "x, came",
    [
        (3, r"3 \(int\)"),
        (1.5, r"1.5 \(float\)"),
        ([1], "an object of type list"),
        (np.float32(2), "float32"),
    ],
)
def test_what_is_no_tensor_is_a_type_error_that_names_the_argument(x, came):
    with pytest.raises(TypeError, match=f"gemm: alpha: expected a tensor, got .*{came}"):
        common({"a": ARRAY, "alpha": x}, "gemm")
    with pytest.raises(TypeError, match="^alpha: expected a tensor"):
        common({"alpha": x})


def test_no_tensor_at_all():
    with pytest.raises(TypeError, match="op: expected a tensor in one of a, b, got none"):
        common({"a": None, "b": None}, "op")


def test_mixed_frameworks_name_both_arguments():
    torch = pytest.importorskip("torch")
    with pytest.raises(
        ValueError, match="op: c: expected a numpy array, as a is, got a torch array"
    ):
        common({"a": ARRAY, "b": None, "c": torch.zeros(1)}, "op")


def test_mixed_devices_name_both_arguments():
    torch = pytest.importorskip("torch")
    a, b = torch.zeros(1), torch.zeros(1, device="meta")
    with pytest.raises(ValueError, match="op: b: expected it on cpu, as a is, got meta"):
        common({"a": a, "b": b}, "op")
    desc = TensorDesc.of("float32", (2, 3), device="cuda:1")
    with pytest.raises(ValueError, match="b: expected it on cuda:0, as a is, got cuda:1"):
        common({"a": CUDA_DESC, "b": desc}, allow_metadata=True)


def test_metadata_stands_for_arrays_only_where_it_is_allowed():
    adapter, device = common({"a": CUDA_DESC, "b": CUDA_DESC}, allow_metadata=True)
    assert (adapter.name, device) == ("metadata", Device("cuda", 0))
    cpu = TensorDesc.of("float32", (2, 3))
    assert common({"a": cpu, "b": ARRAY}, allow_metadata=True)[0].name == "numpy"
    with pytest.raises(ValueError, match="op: b: expected a torch, JAX or NumPy array.*TensorDesc"):
        common({"a": ARRAY, "b": cpu}, "op")
    with pytest.raises(ValueError, match=r"op: a: expected a torch, JAX or NumPy array.*Foreign"):
        common({"a": Foreign()}, "op")


def test_an_unknown_device_agrees_with_every_other():
    jax = pytest.importorskip("jax")
    devices = []

    def traced(x):
        devices.append(common({"a": x, "b": jax.numpy.zeros(1)})[1].type)
        devices.append(common({"b": jax.numpy.zeros(1), "a": x})[1].type)
        return x

    jax.jit(traced)(jax.numpy.zeros(1))
    assert set(devices) <= {"cpu", "unknown"}


# metadata objects


def test_foreign_arrays_are_described():
    desc = adapter_of(Foreign()).describe(Foreign(), "x")
    assert (desc.shape, desc.stride, str(desc.device), desc.name) == ((2, 3), (4, 1), "cuda:1", "x")
    assert desc.dtype == "float32"


@pytest.mark.parametrize("stride", [(1, 2), lambda: (1, 2)], ids=["tuple", "method"])
def test_foreign_strides_in_elements(stride):
    made = types.SimpleNamespace(dtype="float32", shape=(2, 3), stride=stride)
    desc = adapter_of(made).describe(made)
    assert (desc.stride, desc.device.type) == ((1, 2), "unknown")


def test_foreign_arrays_without_strides_are_row_major():
    made = types.SimpleNamespace(dtype="float32", shape=(2, 3), device="cpu", data_ptr=lambda: 64)
    adapter = adapter_of(made)
    assert adapter.describe(made).stride == (3, 1)
    assert adapter.data_pointer(made) == 64


def test_metadata_holds_no_data():
    adapter = adapter_of(CUDA_DESC)
    assert adapter.describe(CUDA_DESC, "x") is CUDA_DESC
    assert adapter.metadata(CUDA_DESC) == CUDA_DESC
    for refused in (adapter.empty, adapter.to_numpy, adapter.data_pointer):
        with pytest.raises(ValueError, match="TensorDesc has no"):
            refused(CUDA_DESC)


# nothing is imported on behalf of a caller who does not use it


@pytest.mark.parametrize(
    "made, absent",
    [
        ("import numpy; x = numpy.zeros(3)", ["torch", "jax", "tvm_ffi", "cutlass"]),
        ("import torch; x = torch.zeros(3)", ["jax", "cutlass"]),
        ("import jax.numpy; x = jax.numpy.zeros(3)", ["torch", "cutlass"]),
        ("x = None", ["numpy", "torch", "jax", "ml_dtypes", "tvm_ffi", "cutlass"]),
    ],
)
def test_frameworks_are_not_imported_for_each_other(made, absent):
    framework = made.split()[1].split(".")[0].rstrip(";")
    if made.startswith("import"):
        pytest.importorskip(framework)
    code = f"""
import sys
{made}
from cudnn_core import adapters, api_base, determinism, env, streams
found = adapters.adapter_of(x)
if found is not None:
    desc = found.describe(x)
    found.full(desc, 1)
    found.metadata(x)
    found.stream_handle(None, found.device(x))
    determinism.resolve(None, found, True, "op")
assert not set({absent!r}) & set(sys.modules), sorted(set({absent!r}) & set(sys.modules))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
