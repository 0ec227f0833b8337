"""env: defaults, parsing and refusals of each variable."""

import dataclasses

import pytest

from cudnn_core import env


@pytest.mark.parametrize("name", env.VARIABLES)
def test_an_unset_variable_has_its_default(name, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    row = env.VARIABLES[name]
    assert row.name == name
    assert env.get(name) == row.default
    assert row.effect and row.read


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("CUDNN_CACHE", "0", False),
        ("CUDNN_CACHE", "1", True),
        ("CUDNN_CACHE", "", True),
        ("CUDNN_CACHE_DIR", "some/folder", "some/folder"),
        ("CUDNNFE_CLUSTER_OVERLAP_MARGIN", "3", 3),
        ("CUDNN_FE_GEMM_DYNAMIC_M", "0", True),
        ("CUDNN_FE_GEMM_DYNAMIC_MNKL", "", True),
        ("CUDNN_FE_GROUPED_GEMM_DYNAMIC_MNKL", "0", False),
        ("CUDNN_FE_GROUPED_GEMM_DYNAMIC_MNKL", "2", True),
        ("CUDNN_FE_GROUPED_GEMM_VALIDATE_DEVICE_VALUES", "1", True),
        ("CUDNN_FE_GROUPED_GEMM_VALIDATE_DEVICE_VALUES", "2", False),
        ("CUTE_DSL_ARCH", "sm_90a", "sm_90a"),
    ],
)
def test_values(name, text, value, monkeypatch):
    monkeypatch.setenv(name, text)
    assert env.get(name) == value
    assert env.VARIABLES[name].value({}) == env.VARIABLES[name].default


@pytest.mark.parametrize("text", ["", "two", "1.5", "-1"])
def test_a_margin_that_is_no_natural_number_is_refused_by_name(text, monkeypatch):
    monkeypatch.setenv("CUDNNFE_CLUSTER_OVERLAP_MARGIN", text)
    with pytest.raises(ValueError, match="CUDNNFE_CLUSTER_OVERLAP_MARGIN: expected"):
        env.get("CUDNNFE_CLUSTER_OVERLAP_MARGIN")


def test_only_variables_of_the_table_can_be_asked_for():
    with pytest.raises(KeyError):
        env.get("CUDNN_NO_SUCH_VARIABLE")
    with pytest.raises(dataclasses.FrozenInstanceError):
        env.VARIABLES["CUDNN_CACHE"].default = False
