"""Runs epilogue_threads.py in a process of its own: it takes device functions as Python, which a compilation ends."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("epilogue_threads.py")


@pytest.mark.skipif(find_spec("cutlass") is None, reason="needs the DSL")
def test_device_functions_as_python():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
