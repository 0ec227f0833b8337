"""cudnn-core as a package: cheap to import, honest about its names."""

from importlib import import_module, metadata

import pytest

import cudnn_core
from cudnn_core.testing.imports import heavy_after, import_seconds
from cudnn_core.testing.stubs import stub_names


def test_import_loads_nothing_heavy():
    assert heavy_after("import cudnn_core") == []


def test_import_is_cheap():
    assert import_seconds("cudnn_core") < 0.06


@pytest.mark.parametrize("name", sorted(cudnn_core.NAMES))
def test_name_resolves_to_its_home(name):
    home = import_module(cudnn_core.NAMES[name])
    assert getattr(cudnn_core, name) is getattr(home, name)


def test_version_is_the_distributions():
    assert metadata.version("cudnn-core") == cudnn_core.__version__


def test_compiler_floor_is_the_requirement():
    from cudnn_core.lazy import DSL_DISTRIBUTION, DSL_FLOOR

    floor = ".".join(map(str, DSL_FLOOR))
    needed = [r for r in metadata.requires("cudnn-core") if r.startswith(DSL_DISTRIBUTION)]
    assert len(needed) == 1 and f">={floor}" in needed[0], needed


def test_editors_see_the_same_names():
    assert stub_names(cudnn_core) == {*cudnn_core.NAMES}
