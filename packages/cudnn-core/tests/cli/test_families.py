"""Families are found by name, and named as people name them."""

import pytest

from cudnn_core.cli import families
from cudnn_core.cli.families import Family

DENSE = Family("gemm-dense", "cudnn_gemm_dense")
GROUPED = Family("gemm-grouped", "cudnn_gemm_grouped")
CONV = Family("causal-conv", "cudnn_causal_conv")
KNOWN = (DENSE, GROUPED, CONV)


@pytest.mark.parametrize(
    "name",
    ["gemm-dense", "gemm_dense", "cudnn-gemm-dense", "cudnn_gemm_dense", "dense", "Dense"],
)
def test_spellings_of_a_family(name):
    assert families.named([name], KNOWN) == (DENSE,)


def test_order_is_kept_and_repeats_are_dropped():
    assert families.named(["conv", "dense", "causal-conv"], KNOWN) == (CONV, DENSE)


@pytest.mark.parametrize("name", ["nosuch", "gemm", "", "ense"])
def test_unknown_family_names_the_known(name):
    with pytest.raises(families.UnknownFamily, match="gemm-dense, gemm-grouped, causal-conv"):
        families.named([name], KNOWN)


def test_without_any_family_the_message_says_so():
    with pytest.raises(families.UnknownFamily, match="none is installed"):
        families.named(["dense"], ())


def test_ambiguous_name_is_refused():
    twice = (Family("a-x", "cudnn_a_x"), Family("b-x", "cudnn_b_x"))
    with pytest.raises(families.UnknownFamily):
        families.named(["x"], twice)


def test_installed_families_are_found(fake_family):
    found = {family.name: family for family in families.installed()}
    assert found["fake"].module == "cudnn_fake" and "core" not in found
    assert [op.contract.name for op in found["fake"].ops()] == ["fake/scale"]
    assert found["fake"].demo().__name__ == "cudnn_fake._demo"
    assert found["fake"].version == ""


def test_a_planned_family_has_no_operations(tmp_path, monkeypatch):
    package = tmp_path / "cudnn_planned"
    package.mkdir()
    (package / "__init__.py").write_text('"""Planned."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    planned = Family("planned", "cudnn_planned")
    assert planned.ops() == () and planned.demo() is None
