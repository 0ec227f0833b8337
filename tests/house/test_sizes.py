"""Sizes: small files, small functions. "About" in the rule is a tenth here."""

import ast

import pytest
from source import ROOT, sources

FILE, HOST, DEVICE = 660, 66, 132


def is_device(function):
    """Whether the CuTe DSL traces `function`: one of its decorators is `cute.jit` or the like."""
    names = {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list}
    return any(name.split(".")[-1] in {"jit", "kernel"} for name in names)


def body_lines(function):
    """Lines from the first statement after the docstring to the end."""
    body = function.body[ast.get_docstring(function) is not None :]
    return function.end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", sources(), ids=str)
def test_file_and_function_sizes(path):
    text = (ROOT / path).read_text()
    assert len(text.splitlines()) <= FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            limit = DEVICE if is_device(node) else HOST
            assert body_lines(node) <= limit, f"{node.name}: {body_lines(node)} lines"


@pytest.mark.parametrize("path", sources(), ids=str)
def test_file_says_what_it_is(path):
    assert ast.get_docstring(ast.parse((ROOT / path).read_text())), "no module docstring"
