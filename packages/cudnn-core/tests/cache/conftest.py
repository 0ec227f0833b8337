"""Fixtures of the cache tests: a private cache folder and subprocesses that use it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from processes import result


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache folder that this process and its children use; the memory level is empty too."""
    from cudnn_core.cache import service

    path = tmp_path / "kernels"
    monkeypatch.setenv("CUDNN_CACHE_DIR", str(path))
    monkeypatch.delenv("CUDNN_CACHE", raising=False)
    service._state.memory.clear()
    yield path
    service._state.memory.clear()


@pytest.fixture
def start(folder):
    """Start Python code in a new process; the code prints one line of JSON last."""

    def run(code, **env):
        paths = [str(HERE), *(p for p in sys.path if p)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | env
        environment = {name: value for name, value in environment.items() if value is not None}
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.fixture
def run(start):
    """Run code in a new process to its end; returns what it printed last, decoded."""

    def finish(code, **env):
        return result(start(code, **env))

    return finish
