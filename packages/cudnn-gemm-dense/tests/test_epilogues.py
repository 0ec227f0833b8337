"""The family's epilogue functions compile for sm_90a, use the instructions they are built around, and spill nothing.

May import pytest and the project's device code; needs no GPU. The harness and the cases are those of the gpu tier.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile


def gpu_tests():
    path = Path(__file__).parent / "gpu" / "test_epilogues_gpu.py"
    spec = importlib.util.spec_from_file_location("epilogue_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("orientation", ["normal", "swapped"])
@pytest.mark.parametrize(
    ("op", "needed"),
    [
        ("swiglu", {"MUFU": 128, "STSM": 8, "UTMASTG": 3}),
        ("srelu", {"STSM": 16, "FMUL": 256}),
        ("dsrelu", {"LDSM": 16, "UTMALDG": 1, "SYNCS": 4}),
    ],
)
def test_machine_code(op, needed, orientation):
    from cudnn_core.testing import machine_code

    if machine_code.find_disassembler() is None:
        pytest.skip("nvdisasm is not installed (it comes with CUDA and with triton)")
    tests = gpu_tests()
    tile = replace(tests.NORMAL if orientation == "normal" else tests.SWAPPED, bm=256)
    # Fragments that stay in registers, as a main loop leaves them.
    case = tests.EpilogueCase(op, tile, dtype="bfloat16")
    harness, slots = tests.epilogue_harness(case, made=True)
    sass = machine_code.disassemble(harness.object_code(slots))
    counts = machine_code.instructions(sass)
    assert machine_code.spills(sass) == 0
    for opcode, least in needed.items():
        assert counts[opcode] >= least, f"{opcode}: {counts[opcode]}"
