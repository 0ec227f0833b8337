"""Guides: every path, session and command that README, CONTRIBUTING and docs name must exist."""

import ast
import re

import pytest
from source import ROOT, tracked

GUIDES = [path for path in tracked() if path.suffix == ".md"]
TOP = {path.parts[0] for path in tracked()}
SESSIONS = {
    keyword.value.value
    for node in ast.walk(ast.parse((ROOT / "noxfile.py").read_text()))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "nox.session"
    for keyword in node.keywords
    if keyword.arg == "name"
} | {"lint", "docs", "wheels", "lowest"}


def code(path):
    """Inline code and fenced blocks of a page, as one text."""
    text = (ROOT / path).read_text()
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.M | re.S)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", text)])


@pytest.mark.parametrize("path", GUIDES, ids=str)
def test_named_paths_exist(path):
    named = set(re.findall(r"(?<![\w./-])[\w.-]+(?:/[\w.-]+)+/?", code(path)))
    absent = [
        name
        for name in named
        if name.split("/")[0] in TOP
        and not (ROOT / name).exists()
        and not (path.parent / name).exists()
    ]
    assert absent == []


@pytest.mark.parametrize("path", GUIDES, ids=str)
def test_links_lead_somewhere(path):
    text = re.sub(r"^```.*?^```", "", (ROOT / path).read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    assert [link for link in links if not (ROOT / path.parent / link).exists()] == []


@pytest.mark.parametrize("path", GUIDES, ids=str)
def test_named_sessions_exist(path):
    named = set(re.findall(r"nox -s ([\w-]+)", code(path)))
    assert named <= SESSIONS


def test_ci_runs_the_readmes_test_command():
    first, second = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[
        :2
    ]
    assert first.strip().endswith("uv run cudnn demo")
    command = second.strip().splitlines()[-1].partition("&& ")[2]
    assert command and (ROOT / ".ci/run").read_text().rstrip().endswith(f"\n{command}")
