"""The compiler's front door."""

import os
import sys
from pathlib import Path

import pytest

from cudnn_core import jit

sys.path.insert(0, str(Path(__file__).parent / "cache"))


def tiny_build():
    import tiny_kernel

    return tiny_kernel.Scale(2.0), tiny_kernel.fake_args("Float32"), ""


@pytest.mark.compile
class TestCompiled:
    def test_compiles_without_a_gpu_and_leaves_the_environment_alone(self, monkeypatch):
        monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
        kernel = jit.compile_kernel(tiny_build)
        assert kernel.seconds > 0 and "CUTE_DSL_ARCH" not in os.environ
        with pytest.raises(TypeError, match="x_tensor"):
            kernel.call(1, 2, 0)

    def test_exported_symbol_carries_the_given_name(self, tmp_path):
        path = tmp_path / "kernel.o"
        jit.compile_kernel(tiny_build).export(path, "some_name")
        assert b"__tvm_ffi_some_name" in path.read_bytes()

    def test_export_to_nowhere_is_an_os_error(self, tmp_path):
        with pytest.raises(OSError):
            jit.compile_kernel(tiny_build).export(tmp_path / "missing" / "kernel.o", "name")

    def test_kernel_for_another_architecture_says_so_when_called(self):
        kernel = jit.compile_kernel(tiny_build, "sm_80")
        with pytest.raises(RuntimeError, match="sm_80"):
            kernel.call(1, 2, 0)
