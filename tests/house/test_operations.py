"""One stem for one operation: its file, its test and its page of the documentation.

An operation is a module of a family's package that assigns `OP`.
"""

import ast

import pytest
from source import ROOT, sources


def declares_operation(path):
    return any(
        isinstance(target, ast.Name) and target.id == "OP"
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


OPERATIONS = [
    (path.parts[1].removeprefix("cudnn-"), path.stem)
    for path in sources()
    if path.parts[0] == "packages" and path.parts[1] != "cudnn-core" and declares_operation(path)
]


def short(family):
    """The family as ids and folders name it: gemm-dense -> dense."""
    return family.removeprefix("gemm-")


def test_there_are_operations():
    assert ("gemm-dense", "amax") in OPERATIONS


@pytest.mark.parametrize(("family", "stem"), OPERATIONS)
def test_operation_has_a_test(family, stem):
    assert (ROOT / f"packages/cudnn-{family}/tests/test_{stem}.py").is_file()


@pytest.mark.parametrize(("family", "stem"), OPERATIONS)
def test_operation_has_a_page(family, stem):
    assert (ROOT / f"docs/ops/{short(family)}/{stem}.md").is_file()


def test_every_page_has_an_operation():
    pages = {(p.parent.name, p.stem) for p in (ROOT / "docs/ops").glob("*/*.md")}
    assert pages == {(short(family), stem) for family, stem in OPERATIONS}
