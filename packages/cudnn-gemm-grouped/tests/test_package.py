"""cudnn-gemm-grouped as a package: cheap to import, and honest about its names."""

from importlib import metadata

import pytest

import cudnn_core
import cudnn_gemm_grouped
from cudnn_core.testing.imports import heavy_after, import_seconds


def test_import_loads_nothing_heavy():
    assert heavy_after("import cudnn_gemm_grouped") == []


def test_import_is_cheap():
    assert import_seconds("cudnn_gemm_grouped") < 0.06


def test_version_is_cores():
    assert metadata.version("cudnn-gemm-grouped") == cudnn_core.__version__


@pytest.mark.parametrize("name", sorted(cudnn_gemm_grouped.COMING))
def test_coming_name_says_where_it_will_be(name):
    with pytest.raises(
        NotImplementedError, match=f"{name} is not built yet: .* cudnn-gemm-grouped"
    ):
        getattr(cudnn_gemm_grouped, name)
