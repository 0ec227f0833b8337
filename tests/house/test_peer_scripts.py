"""The script that builds a peer asks the compiler for one architecture, whatever the peer's own build asks for."""

import os
import subprocess

import pytest
from source import ROOT

SCRIPT = ROOT / "benchmarks/peers/build_causal_conv1d.sh"

# What torch's build would run, and what else the peer's might; the path has a space.
PYTHON = """#!/bin/sh
case $1$2$3 in
-mpipinstall)
    pwd >"$LOG/folder"; echo "$@" >"$LOG/pip"
    "$PYTORCH_NVCC" -O3 -gencode arch=compute_75,code=sm_75 -gencode arch=compute_90,code=sm_90 \\
        -gencode=arch=compute_80,code=sm_80 --generate-code=arch=compute_90,code=sm_90 -c 'a b.cu' -o a.o
    ;;
esac
"""
NVCC = """#!/bin/sh
for argument; do echo "$argument"; done >"$LOG/nvcc"
"""


@pytest.fixture
def build(tmp_path):
    """Run the script with stand-ins for python and nvcc that write down what they are told."""
    source, home = tmp_path / "source folder", tmp_path / "cuda"
    (source / "csrc").mkdir(parents=True)
    (source / "setup.py").write_text("")
    (home / "bin").mkdir(parents=True)
    for path, text in ((home / "bin/nvcc", NVCC), (tmp_path / "python", PYTHON)):
        path.write_text(text)
        path.chmod(0o755)

    def run(folder=source, cuda_home=home):
        return subprocess.run(
            ["sh", SCRIPT, folder, tmp_path / "python"],
            env={**os.environ, "CUDA_HOME": str(cuda_home), "LOG": str(tmp_path)},
            capture_output=True,
            text=True,
        )

    return run


def test_other_architectures_are_dropped(build, tmp_path):
    done = build()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "nvcc").read_text().splitlines() == [
        "-O3",
        "-gencode",
        "arch=compute_90,code=sm_90",
        "--generate-code=arch=compute_90,code=sm_90",
        "-c",
        "a b.cu",
        "-o",
        "a.o",
    ]


def test_it_fetches_nothing_and_builds_in_a_copy(build, tmp_path):
    assert build().returncode == 0
    assert "--no-index --no-deps --no-build-isolation" in (tmp_path / "pip").read_text()
    assert not (tmp_path / "folder").read_text().startswith(str(tmp_path))


def test_refusals(build, tmp_path):
    for done, told in (
        (build(tmp_path / "cuda"), "not a checkout of causal-conv1d"),
        (build(cuda_home=tmp_path), "no nvcc at"),
    ):
        assert done.returncode == 2 and told in done.stderr
