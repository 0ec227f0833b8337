"""dtypes: every spelling of every type, the materializers, and the refusals."""

import copy
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from cudnn_core import dtypes
from cudnn_core.dtypes import DType, as_dtype, data_type, torch_to_cudnn_data_type

NAMES = {
    "float64": (64, np.float64, "Float64", "DOUBLE"),
    "float32": (32, np.float32, "Float32", "FLOAT"),
    "float16": (16, np.float16, "Float16", "HALF"),
    "bfloat16": (16, ml_dtypes.bfloat16, "BFloat16", "BFLOAT16"),
    "int8": (8, np.int8, "Int8", "INT8"),
    "uint8": (8, np.uint8, "Uint8", "UINT8"),
    "int32": (32, np.int32, "Int32", "INT32"),
    "int64": (64, np.int64, "Int64", "INT64"),
    "bool": (8, np.bool_, "Boolean", "BOOLEAN"),
    "float8_e4m3fn": (8, ml_dtypes.float8_e4m3fn, "Float8E4M3FN", "FP8_E4M3"),
    "float8_e5m2": (8, ml_dtypes.float8_e5m2, "Float8E5M2", "FP8_E5M2"),
    "float8_e8m0fnu": (8, ml_dtypes.float8_e8m0fnu, "Float8E8M0FNU", "FP8_E8M0"),
    "float4_e2m1fn": (4, ml_dtypes.float4_e2m1fn, "Float4E2M1FN", "FP4_E2M1"),
}
every_name = pytest.mark.parametrize("name", NAMES)


def constant(name):
    return getattr(dtypes, name.upper())


def torch_dtype(name):
    torch = pytest.importorskip("torch")
    return getattr(torch, "float4_e2m1fn_x2" if name == "float4_e2m1fn" else name)


def assert_spelling(name, spelling):
    expected = constant(name)
    assert as_dtype(spelling) is expected
    assert expected == spelling
    assert spelling == expected
    others = [constant(other) for other in NAMES if other != name]
    assert not any(other == spelling for other in others)
    assert all(other != spelling for other in others)


@every_name
def test_a_constant_knows_its_facts(name):
    dtype = constant(name)
    assert (dtype.name, str(dtype), dtype.bits) == (name, name, NAMES[name][0])
    assert dtype.is_float8 == name.startswith("float8")
    assert dtype.is_fp4 == (name == "float4_e2m1fn")
    assert as_dtype(dtype) is dtype
    assert hash(dtype) == hash(name)


@every_name
def test_names_numpy_dtypes_and_scalar_types_are_spellings(name):
    scalar = NAMES[name][1]
    for spelling in (name, f"torch.{name}", NAMES[name][2], scalar, np.dtype(scalar)):
        assert_spelling(name, spelling)


@every_name
def test_a_torch_dtype_is_a_spelling(name):
    assert_spelling(name, torch_dtype(name))


@every_name
def test_a_jax_numpy_type_is_a_spelling(name):
    jnp = pytest.importorskip("jax.numpy")
    assert_spelling(name, getattr(jnp, "bool_" if name == "bool" else name))


@every_name
def test_a_dsl_class_is_a_spelling_and_cute_returns_it(name):
    cutlass = pytest.importorskip("cutlass")
    kind = getattr(cutlass, NAMES[name][2])
    assert_spelling(name, kind)
    assert constant(name).cute() is kind


@pytest.mark.parametrize(
    "alias, name",
    [
        ("half", "float16"),
        ("fp16", "float16"),
        ("float", "float32"),
        ("fp32", "float32"),
        ("double", "float64"),
        ("bf16", "bfloat16"),
        ("e4m3", "float8_e4m3fn"),
        ("e5m2", "float8_e5m2"),
        ("e8m0", "float8_e8m0fnu"),
        ("e2m1", "float4_e2m1fn"),
        ("float4_e2m1fn_x2", "float4_e2m1fn"),
        (np.longlong, "int64"),
        (np.dtype("=f4"), "float32"),
    ],
)
def test_aliases(alias, name):
    assert_spelling(name, alias)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "float8_e4m3",
        ml_dtypes.float8_e4m3,
        "Float",
        "",
        float,
        int,
        np.complex64,
        np.floating,
        np.dtype(">f4"),
        np.dtype([("a", "f4")]),
        np.zeros(3),
        3,
        [],
        object(),
    ],
    ids=repr,
)
def test_what_is_no_dtype_is_refused_by_name(bad):
    with pytest.raises(ValueError, match=r"^c_dtype: expected a dtype.*got") as caught:
        as_dtype(bad, "c_dtype")
    assert type(bad).__name__ in str(caught.value)
    assert not any(bad is not None and constant(name) == bad for name in ("float32", "int64"))
    assert torch_to_cudnn_data_type(bad) is None


def test_torch_dtypes_outside_the_set_are_refused():
    torch = pytest.importorskip("torch")
    for bad in (torch.complex64, torch.float8_e4m3fnuz, torch.int16):
        with pytest.raises(ValueError, match="dtype"):
            as_dtype(bad)


@every_name
def test_numpy_is_the_element_type(name):
    assert constant(name).numpy() == np.dtype(NAMES[name][1])


@every_name
def test_torch_is_the_packed_type_for_fp4(name):
    pytest.importorskip("torch")
    assert constant(name).torch() is torch_dtype(name)


def test_torch_without_the_dtype_is_a_clear_error(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.delattr(torch, "float4_e2m1fn_x2", raising=False)
    with pytest.raises(ValueError, match="float4_e2m1fn_x2"):
        dtypes.FLOAT4_E2M1FN.torch()


def test_jax_has_no_packed_fp4():
    assert dtypes.FLOAT8_E4M3FN.jax() == np.dtype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(ValueError, match="uint8"):
        dtypes.FLOAT4_E2M1FN.jax()


@every_name
def test_cudnn_enum(name):
    expected = data_type[NAMES[name][3]]
    assert torch_to_cudnn_data_type(constant(name)) is expected
    assert torch_to_cudnn_data_type(torch_dtype(name)) is expected


@every_name
def test_a_singleton_survives_copies_and_pickling(name):
    dtype = constant(name)
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_a_dtype_is_frozen():
    with pytest.raises(AttributeError, match="immutable"):
        dtypes.FLOAT32.bits = 8
    with pytest.raises(AttributeError, match="immutable"):
        del dtypes.FLOAT32.bits
    with pytest.raises(AttributeError):
        dtypes.FLOAT32.extra = 1


def test_dtypes_differ_from_unrelated_objects():
    assert dtypes.FLOAT32 != 32
    assert dtypes.FLOAT32 is not None and dtypes.FLOAT32 != []
    assert len({constant(name) for name in NAMES}) == len(NAMES)
    assert {dtypes.FLOAT32: 1}["float32"] == 1
    assert isinstance(dtypes.FLOAT32, DType)


def test_names_resolve_without_any_framework():
    code = """
import sys
from cudnn_core.dtypes import FLOAT32, as_dtype
assert as_dtype("half").name == "float16"
assert FLOAT32 != object() and FLOAT32 != 1 and FLOAT32 != float
assert not {"numpy", "torch", "jax", "ml_dtypes", "cutlass"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torchs_dtypes_may_first_come_while_compiling():
    """After NumPy's: a graph would write the table anew, which it cannot with NumPy's types as keys."""
    pytest.importorskip("torch")
    code = """
import numpy as np, torch
from cudnn_core.dtypes import as_dtype
as_dtype(np.dtype("uint8"))
double = torch.compile(lambda x: x * as_dtype(torch.float16).bits, fullgraph=True, backend="eager")
assert double(torch.ones(2)).tolist() == [16.0, 16.0]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
