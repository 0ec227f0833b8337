"""cudnn-attention as a package: cheap to import, and honest about its names."""

from importlib import metadata

import pytest

import cudnn_attention
import cudnn_core
from cudnn_core.testing.imports import heavy_after, import_seconds


def test_import_loads_nothing_heavy():
    assert heavy_after("import cudnn_attention") == []


def test_import_is_cheap():
    assert import_seconds("cudnn_attention") < 0.06


def test_version_is_cores():
    assert metadata.version("cudnn-attention") == cudnn_core.__version__


@pytest.mark.parametrize("name", sorted(cudnn_attention.COMING))
def test_coming_name_says_where_it_will_be(name):
    text = f"{name} is not built yet: .* cudnn-attention"
    with pytest.raises(NotImplementedError, match=text):
        getattr(cudnn_attention, name)
