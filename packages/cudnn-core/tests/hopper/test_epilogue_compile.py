"""Epilogue resources compile for sm_90a, use the instructions they are built around, and spill nothing.

May import pytest and cudnn_core; needs no GPU. Harness and cases are those of the gpu tier.
"""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile


def load_cases():
    path = Path(__file__).with_name("test_epilogue_gpu.py")
    spec = importlib.util.spec_from_file_location("epilogue_gpu_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = load_cases()
WIDE = replace(cases.NORMAL, bm=256)
TURNED = replace(cases.SWAPPED, bm=256)


@pytest.mark.parametrize(
    ("kind", "case", "needed"),
    [
        ("store", cases.StoreCase("bfloat16", "n", WIDE), {"STSM": 16, "F2FP": 64}),
        ("store", cases.StoreCase("bfloat16", "n", TURNED), {"STSM": 16, "F2FP": 64}),
        ("store", cases.StoreCase("float8_e4m3fn", "n", TURNED), {"STS": 128, "F2FP": 64}),
        ("quantize", cases.QuantizeCase("mxfp8", 32, WIDE), {"SHFL": 32, "STG": 4}),
        ("quantize", cases.QuantizeCase("nvfp4", 16, TURNED), {"SHFL": 40, "STG": 4}),
        ("operands", cases.OperandCase("bfloat16", "n", cases.NORMAL), {"LDSM": 8, "UTMALDG": 2}),
        ("operands", cases.OperandCase("float32", "m", cases.SWAPPED), {"LDS": 32, "UTMALDG": 2}),
    ],
    ids=str,
)
def test_machine_code(kind, case, needed):
    from cudnn_core.testing import machine_code

    if machine_code.find_disassembler() is None:
        pytest.skip("nvdisasm is not installed (it comes with CUDA and with triton)")
    harness, slots = getattr(cases, f"{kind}_harness")(case, made=True)
    sass = machine_code.disassemble(harness.object_code(slots))
    counts = machine_code.instructions(sass)
    assert machine_code.spills(sass) == 0
    # Subnormals must live through every product of values.
    assert not re.findall(r"\b(?:FMUL|FFMA|FMNMX|F2FP)\S*FTZ", sass)
    for opcode, least in {**needed, "UTMASTG": 1}.items():
        assert counts[opcode] >= least, f"{opcode}: {counts[opcode]}"
