"""Fixtures of the command line's tests: the command in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

FAMILIES = Path(__file__).parent / "families"
MAIN = "from cudnn_core.cli import main; main()"


@pytest.fixture
def command(tmp_path):
    """Run `cudnn ARGUMENTS` on pipes; the process sees the fake family and a private cache."""

    def run(*arguments, path=(FAMILIES,), code=MAIN, stdin="", **environment):
        paths = [*map(str, path), *(p for p in sys.path if p)]
        variables = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "CUDNN_CACHE_DIR": str(tmp_path / "kernels"),
        }
        variables |= environment
        variables = {k: v for k, v in variables.items() if v is not None}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def fake_family(monkeypatch):
    """The fake family can be imported in this process."""
    monkeypatch.syspath_prepend(FAMILIES)
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "cudnn_fake"]:
        del sys.modules[name]
