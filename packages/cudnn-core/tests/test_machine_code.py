"""The machine-code checks that kernels' tests rely on."""

import struct
import sys
from pathlib import Path

import pytest

from cudnn_core.testing import machine_code

sys.path.insert(0, str(Path(__file__).parent / "cache"))

needs_disassembler = pytest.mark.skipif(
    machine_code.find_disassembler() is None, reason="needs nvdisasm"
)

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
    counts = machine_code.instructions(SASS)
    assert counts == {
        "LDC": 1, "EXIT": 1, "STL": 1, "LDL": 1, "UTMALDG": 1, "HGMMA": 2, "UIADD3": 1, "BRA": 1,
    }  # fmt: skip
    assert machine_code.spills(SASS) == 2
    assert machine_code.spills(SASS.replace("STL", "STS").replace("LDL", "LDS")) == 0


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
    assert machine_code.cubins(first) == [first]
    assert machine_code.cubins(host + b"abc" + first + second + b"tail") == [first, second]
    assert (
        machine_code.cubins(host)
        == machine_code.cubins(b"")
        == machine_code.cubins(b"\x7fELF")
        == []
    )


def test_disassembling_something_else_says_so(monkeypatch):
    monkeypatch.setattr(machine_code, "find_disassembler", lambda: "/bin/true")
    with pytest.raises(ValueError, match="code: no GPU binary"):
        machine_code.disassemble(b"not an object")


def test_missing_disassembler_says_where_to_get_it(monkeypatch):
    monkeypatch.setattr(machine_code, "find_disassembler", lambda: None)
    with pytest.raises(FileNotFoundError, match="nvdisasm"):
        machine_code.disassemble(elf(190, 128))


@pytest.mark.compile
@needs_disassembler
class TestDisassembled:
    def test_machine_code_of_a_kernel(self):
        counts = machine_code.instructions(
            machine_code.disassemble(machine_code.object_code(tiny_build))
        )
        assert counts["LDG"] == counts["STG"] == 1 and counts["EXIT"] >= 1

    def test_a_file_serves_as_well(self, tmp_path):
        path = tmp_path / "kernel.o"
        path.write_bytes(machine_code.object_code(tiny_build))
        sass = machine_code.disassemble(path)
        assert machine_code.spills(sass) == 0 and sass == machine_code.disassemble(
            path.read_bytes()
        )
