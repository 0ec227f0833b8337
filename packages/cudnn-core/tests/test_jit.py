"""The compiler's front door, and the machine-code checks that kernels' tests rely on."""

import os
import struct
import sys
from pathlib import Path

import pytest

from cudnn_core import jit

sys.path.insert(0, str(Path(__file__).parent / "cache"))

needs_disassembler = pytest.mark.skipif(jit.find_disassembler() is None, reason="needs nvdisasm")

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 EXIT ;
        /*0020*/              @!P1 STL.64 [R1+0x8], R2 ;
        /*0030*/                   LDL R2, [R1] ;
        /*0040*/              @UP0 UTMALDG.2D [UR8], [UR4], desc[UR6] ;
        /*0050*/                   HGMMA.64x256x16.F32.BF16 R24, R4, gdesc[UR8], R24 ;
        /*0060*/                   HGMMA.64x256x16.F32.BF16 R24, R8, gdesc[UR8], R24, gsb0 ;
        /*0070*/             @!UPT UIADD3 URZ, URZ, URZ, URZ ;
.L_x_0:
        /*1080*/                   BRA `(.L_x_0);
"""


def tiny_build():
    import tiny_kernel

    return tiny_kernel.Scale(2.0), tiny_kernel.fake_args("Float32"), ""


def test_instructions_and_spills_are_counted_with_and_without_predicates():
    counts = jit.instructions(SASS)
    assert counts == {
        "LDC": 1, "EXIT": 1, "STL": 1, "LDL": 1, "UTMALDG": 1, "HGMMA": 2, "UIADD3": 1, "BRA": 1,
    }  # fmt: skip
    assert jit.spills(SASS) == 2
    assert jit.spills(SASS.replace("STL", "STS").replace("LDL", "LDS")) == 0


def elf(machine, size):
    header = bytearray(size)
    header[:4] = b"\x7fELF"
    struct.pack_into("<H", header, 18, machine)
    struct.pack_into("<QQ", header, 32, 0, 64)
    struct.pack_into("<HHHH", header, 54, 0, 0, 64, (size - 64) // 64)
    return bytes(header)


def test_cubins_are_found_inside_a_host_object():
    first, second = elf(190, 128), elf(190, 256)
    host = elf(62, 64)
    assert jit.cubins(first) == [first]
    assert jit.cubins(host + b"abc" + first + second + b"tail") == [first, second]
    assert jit.cubins(host) == jit.cubins(b"") == jit.cubins(b"\x7fELF") == []


def test_disassembling_something_else_says_so(monkeypatch):
    monkeypatch.setattr(jit, "find_disassembler", lambda: "/bin/true")
    with pytest.raises(ValueError, match="code: no GPU binary"):
        jit.disassemble(b"not an object")


def test_missing_disassembler_says_where_to_get_it(monkeypatch):
    monkeypatch.setattr(jit, "find_disassembler", lambda: None)
    with pytest.raises(FileNotFoundError, match="nvdisasm"):
        jit.disassemble(elf(190, 128))


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


@pytest.mark.compile
@needs_disassembler
class TestDisassembled:
    def test_machine_code_of_a_kernel(self):
        counts = jit.instructions(jit.disassemble(jit.object_code(tiny_build)))
        assert counts["LDG"] == counts["STG"] == 1 and counts["EXIT"] >= 1

    def test_a_file_serves_as_well(self, tmp_path):
        path = tmp_path / "kernel.o"
        path.write_bytes(jit.object_code(tiny_build))
        sass = jit.disassemble(path)
        assert jit.spills(sass) == 0 and sass == jit.disassemble(path.read_bytes())
