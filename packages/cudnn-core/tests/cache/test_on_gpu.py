"""Kernels from the cache compute on a GPU: compiled here, read from disk, and in another process."""

import pytest
from tiny_source import TinyPlan, tiny

from cudnn_core import cache
from cudnn_core.cache import service

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def check(torch, executable, step):
    for n in (0, 1, 1000):
        x = torch.arange(n, dtype=torch.float32, device="cuda")
        y = torch.full((n,), float("nan"), device="cuda")
        if n:
            executable(x, y, torch.cuda.current_stream().cuda_stream)
        assert torch.equal(y, x * step)


def test_compiled_and_read_kernels_compute(folder, monkeypatch, torch):
    monkeypatch.setattr(service, "_state", service._State())
    check(torch, cache.get(tiny()), 2.0)
    monkeypatch.setattr(service, "_state", service._State())
    executable = cache.get(tiny())
    assert executable.origin == "disk"
    check(torch, executable, 2.0)


def test_kernels_in_memory_compute(folder, monkeypatch, torch):
    monkeypatch.setenv("CUDNN_CACHE", "0")
    monkeypatch.setattr(service, "_state", service._State())
    executable = cache.get(tiny(TinyPlan(step=3.0)))
    assert executable.path is None
    check(torch, executable, 3.0)


def test_wrong_arguments_are_named(folder, torch):
    x = torch.ones(4, device="cuda")
    executable = cache.get(tiny())
    with pytest.raises((ValueError, TypeError), match="y_tensor"):
        executable(x, x.half(), 0)
    with pytest.raises((ValueError, TypeError), match="y_tensor"):
        executable(x, x.cpu(), 0)


def test_another_process_computes_without_the_dsl(folder, run, torch):
    cache.compile_ahead(tiny())
    code = """
import json, sys, torch
from tiny_source import tiny
from cudnn_core import cache
x = torch.ones(1000, device="cuda")
y = torch.empty_like(x)
cache.get(tiny())(x, y, torch.cuda.current_stream().cuda_stream)
print(json.dumps([float(y.sum()), cache.compile_count(), "cutlass" in sys.modules]))
"""
    assert run(code) == [2000.0, 0, False]
