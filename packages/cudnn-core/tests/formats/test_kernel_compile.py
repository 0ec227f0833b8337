"""The Hopper kernels compile for sm_90a without a GPU, and their machine code is what we expect."""

import re

import numpy as np
import pytest

from cudnn_core.formats import cases, reference
from cudnn_core.formats.kernels import configs, source
from cudnn_core.formats.kernels.config import AmaxConfig, QuantizeConfig
from cudnn_core.formats.spec import E2M1
from cudnn_core.testing import machine_code

ALL = list(configs(everything=True))
# Every value of every field, and the pairs that meet in the machine code.
COVER = [
    QuantizeConfig("bfloat16", "mxfp8", 32, "vector", "atom", "none"),
    QuantizeConfig("bfloat16", "nvfp4", 16, "vector", "atom", "computed"),
    QuantizeConfig("bfloat16", "mxfp4", 32, "strided", "plain", "none"),
    QuantizeConfig("float16", "mxfp8_e5m2", 32, "vector", "plain", "none"),
    QuantizeConfig("float16", "nvfp4", 16, "strided", "atom", "given"),
    QuantizeConfig("float32", "mxfp4", 16, "vector", "atom", "none"),
    QuantizeConfig("float32", "mxfp8", 32, "strided", "plain", "none"),
    QuantizeConfig("float32", "nvfp4", 16, "vector", "plain", "none"),
    AmaxConfig("bfloat16", "vector"),
    AmaxConfig("float16", "strided"),
    AmaxConfig("float32", "vector"),
]


def check_machine_code(config):
    sass = machine_code.disassemble(machine_code.object_code(source(config).build))
    assert machine_code.spills(sass) == 0
    # Subnormals must live through every product, sum and maximum of values.
    assert not re.findall(r"\b(?:FMUL|FFMA|FMNMX|F2F|F2FP)\S*FTZ", sass)
    if config.path == "vector":
        assert sass.count("LDG.E.128") == 2 * config.rows_in_flight
    if isinstance(config, AmaxConfig):
        return
    pairs = 0 if config.fmt.is_fp4 else config.chunk // 2
    scales = 0 if config.fmt.scale_is_e8m0 else 1
    conversions = len(re.findall(r"F2FP\S*\.(?:E4M3|E5M2)\.F32", sass))
    assert conversions == config.rows_in_flight * (pairs + scales)
    if config.scale_layout == "atom":
        assert "STG.E.128" in sass


@pytest.fixture
def disassembler():
    if machine_code.find_disassembler() is None:
        pytest.skip("no nvdisasm here")


@pytest.mark.compile
@pytest.mark.parametrize("config", COVER, ids=str)
def test_machine_code(config, disassembler):
    check_machine_code(config)


@pytest.mark.compile_all
@pytest.mark.parametrize("config", [c for c in ALL if c not in COVER], ids=str)
def test_machine_code_of_the_rest(config, disassembler):
    check_machine_code(config)


def test_all_configurations_are_distinct():
    assert len(set(ALL)) == len(ALL)
    assert set(COVER) <= set(ALL)
    assert set(configs()) <= set(ALL)


def test_tiles_are_whole_atoms():
    for config in ALL:
        if isinstance(config, QuantizeConfig):
            assert config.tile_k % (4 * config.block) == 0
            assert config.block % config.chunk == 0
        if config.path == "vector":
            assert config.steps * config.rows_in_flight * config.threads // 32 == 128


def test_listing_kernels_needs_no_compiler():
    code = (
        "import sys; from cudnn_core.formats.kernels import configs, source;"
        "[source(c) for c in configs(True)];"
        "assert not {'torch', 'cutlass', 'tvm_ffi', 'jax'} & set(sys.modules)"
    )
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", code], check=True)


def fp4_as_the_kernel_does(p: np.ndarray) -> np.ndarray:
    """hopper.convert.fp4_biased in FP32, step by step; the products are exact."""
    two23 = np.float32(2.0**23)
    lines = [
        np.float32(2) * p + two23,
        p + (two23 + np.float32(2)),
        np.float32(0.5) * p + (two23 + np.float32(4)),
        np.full_like(p, two23 + np.float32(7)),
    ]
    return (np.minimum.reduce(lines).view(np.uint32) - two23.view(np.uint32)).astype(np.uint8)


def test_the_kernels_fp4_rounding_is_the_law():
    rng = np.random.default_rng(4)
    words = [
        cases.boundaries(E2M1).view(np.uint32) & np.uint32(0x7FFFFFFF),
        rng.integers(0, 0x7F800001, 200_000, dtype=np.uint32),
        rng.integers(0x3E000000, 0x41000000, 200_000, dtype=np.uint32),
    ]
    p = np.concatenate(words).view(np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(fp4_as_the_kernel_does(p), reference.encode(p, E2M1))
