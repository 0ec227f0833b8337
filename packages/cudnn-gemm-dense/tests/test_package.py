"""cudnn-gemm-dense as a package: cheap to import, and honest about its names."""

from importlib import import_module, metadata

import pytest

import cudnn_core
import cudnn_gemm_dense
from cudnn_core.testing.imports import heavy_after, import_seconds
from cudnn_core.testing.stubs import stub_names

FUNCTIONS = [n for n in cudnn_gemm_dense.NAMES if n.islower() and not n.endswith("_sm100")]
CLASSES = [n for n in cudnn_gemm_dense.NAMES if n[0].isupper() and not n.endswith("Sm100")]


def test_import_loads_nothing_heavy():
    assert heavy_after("import cudnn_gemm_dense") == []


def test_import_is_cheap():
    assert import_seconds("cudnn_gemm_dense") < 0.06


def test_version_is_cores():
    assert metadata.version("cudnn-gemm-dense") == cudnn_core.__version__


@pytest.mark.parametrize("name", sorted(cudnn_gemm_dense.NAMES))
def test_name_resolves_to_its_home(name):
    home = import_module(cudnn_gemm_dense.NAMES[name])
    assert getattr(cudnn_gemm_dense, name) is getattr(home, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_upstream_function_is_the_same_object(name):
    assert getattr(cudnn_gemm_dense, f"{name}_sm100") is getattr(cudnn_gemm_dense, name)


@pytest.mark.parametrize("name", CLASSES)
def test_upstream_class_changes_only_its_name(name):
    canonical, upstream = getattr(cudnn_gemm_dense, name), getattr(cudnn_gemm_dense, f"{name}Sm100")
    assert issubclass(upstream, canonical) and upstream.__name__ == f"{name}Sm100"
    added = set(vars(upstream)) - {"__module__", "__doc__", "__abstractmethods__", "_abc_impl"}
    assert added <= {"__slots__", "__firstlineno__", "__static_attributes__"}


def test_editors_see_the_same_names():
    assert stub_names(cudnn_gemm_dense) == {*cudnn_gemm_dense.NAMES}
