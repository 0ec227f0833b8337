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
# Everything but the device: a clock of the host, and no question whether a GPU is here.
ON_THE_HOST = """
import sys, time, types
from cudnn_core.cli import main, places

class Host:
    name, folder, multiprocessors = "NVIDIA H200", "h200", 132
    byte_rate, flop_rates, empty_call = 4e12, {"bfloat16": 7e14, "float8": 13e14}, 4e-6
    now = staticmethod(time.perf_counter)
    mark = staticmethod(time.perf_counter)
    drain = free = staticmethod(lambda: None)
    idle = staticmethod(lambda seconds: None)
    between = staticmethod(lambda start, end: end - start)

places.why_not_hopper = lambda: None
sys.modules["cudnn_core.bench.device"] = types.SimpleNamespace(Cuda=Host)
main()
"""


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
def on_the_host():
    """Code for `command` that takes the host for the device."""
    return ON_THE_HOST


@pytest.fixture
def fake_family(monkeypatch):
    """The fake family can be imported in this process."""
    monkeypatch.syspath_prepend(FAMILIES)
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "cudnn_fake"]:
        del sys.modules[name]
