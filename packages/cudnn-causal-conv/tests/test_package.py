"""cudnn-causal-conv as a package: cheap to import, and honest about its names."""

from importlib import metadata

import pytest

import cudnn_causal_conv
import cudnn_core
from cudnn_core.testing.imports import heavy_after, import_seconds


def test_import_loads_nothing_heavy():
    assert heavy_after("import cudnn_causal_conv") == []


def test_import_is_cheap():
    assert import_seconds("cudnn_causal_conv") < 0.06


def test_version_is_cores():
    assert metadata.version("cudnn-causal-conv") == cudnn_core.__version__


@pytest.mark.parametrize("name", sorted(cudnn_causal_conv.COMING))
def test_coming_name_says_where_it_will_be(name):
    text = f"{name} is not built yet: .* cudnn-causal-conv"
    with pytest.raises(NotImplementedError, match=text):
        getattr(cudnn_causal_conv, name)
