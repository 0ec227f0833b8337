"""cudnn-causal-conv as a package: cheap to import, and honest about its names."""

from importlib import import_module, metadata

import pytest

import cudnn_causal_conv
import cudnn_core
from cudnn_core.testing.imports import heavy_after, import_seconds, run
from cudnn_core.testing.stubs import stub_names


def test_import_loads_nothing_heavy():
    assert heavy_after("import cudnn_causal_conv") == []


def test_import_is_cheap():
    assert import_seconds("cudnn_causal_conv") < 0.06


def test_using_the_names_needs_no_framework_and_no_compiler():
    code = "import numpy as np, cudnn_causal_conv as c; c.causal_conv1d(np.ones((1, 2, 3)), np.ones((2, 2)))"
    assert not {"torch", "jax", "cutlass", "tvm_ffi"} & {*heavy_after(code)}


def test_version_is_cores():
    assert metadata.version("cudnn-causal-conv") == cudnn_core.__version__


@pytest.mark.parametrize("name", sorted(cudnn_causal_conv.NAMES))
def test_name_is_the_function_at_its_home(name):
    assert getattr(cudnn_causal_conv, name) is getattr(
        import_module(cudnn_causal_conv.NAMES[name]), name
    )


def test_editors_see_the_same_names():
    assert stub_names(cudnn_causal_conv) == {*cudnn_causal_conv.NAMES, "compat"}


def test_compat_is_reached_from_the_package():
    assert (
        run("import cudnn_causal_conv as c; print(c.compat.causal_conv1d_fn.__name__)")
        == "causal_conv1d_fn\n"
    )


def test_operations_are_listed():
    names = [op.contract.name for op in cudnn_causal_conv.ops()]
    stems = ("conv1d", "backward", "update")
    assert names == [f"conv/{stem}" for stem in stems]


@pytest.mark.parametrize("everything, least", [(False, 6), (True, 100)])
def test_kernels_to_compile_ahead(everything, least):
    """Each once, under a label of its own, for both directions."""
    for op in cudnn_causal_conv.ops()[:2]:
        labels = [label for label, _ in op.sources(everything=everything)]
        assert least <= len(labels) == len(set(labels))
    assert len(list(cudnn_causal_conv.ops()[2].sources(everything=everything))) >= 3
