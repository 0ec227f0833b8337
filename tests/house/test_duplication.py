"""Duplication: at most 5 % of a package's code lines may repeat lines of another of its files.

The measure: comments, docstrings, blank lines and lone brackets are dropped; a line counts when it
lies in a run of 8 identical lines that also occurs in another file of the same package.
"""

import ast
import io
import tokenize
from collections import defaultdict

import pytest
from source import ROOT, sources

RUN = 8
SHARE = 0.05


def code_lines(text):
    """The lines of `text` that count, stripped of indentation and comments."""
    lines = text.splitlines()
    keep = [line.strip() for line in lines]
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                for number in range(value.lineno - 1, value.end_lineno):
                    keep[number] = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            keep[row - 1] = lines[row - 1][:column].strip()
    return [line for line in keep if line.strip("()[]{},: ")]


def duplicated_share(files):
    """Share of code lines in `files` (name -> text) that repeat a run of another file."""
    code = {name: code_lines(text) for name, text in files.items()}
    homes = defaultdict(set)
    for name, lines in code.items():
        for start in range(len(lines) - RUN + 1):
            homes[tuple(lines[start : start + RUN])].add(name)
    repeated = 0
    for lines in code.values():
        marked = set()
        for start in range(len(lines) - RUN + 1):
            if len(homes[tuple(lines[start : start + RUN])]) > 1:
                marked.update(range(start, start + RUN))
        repeated += len(marked)
    return repeated / max(1, sum(map(len, code.values())))


PACKAGES = sorted({path.parts[: path.parts.index("src") + 2] for path in sources()})


@pytest.mark.parametrize("package", PACKAGES, ids=lambda parts: parts[-1])
def test_package_repeats_little(package):
    files = {
        str(path): (ROOT / path).read_text()
        for path in sources()
        if path.parts[: len(package)] == package
    }
    share = duplicated_share(files)
    assert share <= SHARE, f"{share:.1%} of the lines repeat another file's"


def test_the_measure_finds_copies():
    body = "\n".join(f"x{i} = {i}" for i in range(RUN))
    assert duplicated_share({"a": body, "b": body}) == 1.0
    assert duplicated_share({"a": body, "b": body.replace("x3 = 3", "x3 = 4")}) == 0.0
    reformatted = "\n\n".join(f"    {line}  # why" for line in body.splitlines())
    assert duplicated_share({"a": body, "b": f"def f():\n    'doc'\n{reformatted}"}) > 0.9
