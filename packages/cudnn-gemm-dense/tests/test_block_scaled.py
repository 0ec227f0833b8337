"""The kernels compile for sm_90a, use the instructions they are built around, and spill nothing.

May import the project's kernels and compiler; needs no GPU.
"""

import pytest

from cudnn_core.hopper.tile import TileConfig
from cudnn_gemm_dense.config import BlockScaledGemm

E4, E5, F4, E8 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "float8_e8m0fnu"
SMALL = TileConfig(bm=128, bn=64)

CONFIGS = {
    "mxfp8": BlockScaledGemm(E4, E4, E8, 32),
    "mixed fp8, both MN-major, column-major fp8 C": BlockScaledGemm(
        E4, E5, E8, 32, a_major="m", b_major="n", c_dtype=E4, c_major="m", tile=SMALL
    ),
    "mxfp8 promoted": BlockScaledGemm(E4, E4, E8, 32, tile=TileConfig(bm=128, promote_k=4096)),
    "nvfp4, direct fp4 C in bytes": BlockScaledGemm(
        F4, F4, E4, 16, c_dtype=F4, c_container="uint8", c_store="direct"
    ),
    "mxfp4, batch outermost, amax per batch": BlockScaledGemm(
        F4,
        F4,
        E8,
        32,
        c_dtype="bfloat16",
        batched=True,
        batch="outer",
        amax="per_batch",
        a_container="uint8",
        b_container="uint8",
        sfa_form="physical",
        sfb_form="physical",
    ),
    "one consumer warpgroup": BlockScaledGemm(
        E5, E5, E8, 32, c_dtype="float16", tile=TileConfig(bm=64, bn=64, warpgroups=1)
    ),
}


@pytest.mark.compile
@pytest.mark.parametrize("name", CONFIGS)
def test_machine_code(name):
    from cudnn_core.testing import machine_code
    from cudnn_gemm_dense import block_scaled

    if machine_code.find_disassembler() is None:
        pytest.skip("nvdisasm is not installed (it comes with CUDA and with triton)")
    config = CONFIGS[name]
    sass = machine_code.disassemble(
        machine_code.object_code(
            lambda: (block_scaled.kernel(config), block_scaled.fake_args(config), "")
        )
    )
    counts = machine_code.instructions(sass)
    for opcode in block_scaled.expected_instructions(config):
        assert counts[opcode], opcode
    assert machine_code.spills(sass) == 0
    # One fence for each batch of WGMMAs: more would mean that the compiler serialized them.
    batches = 2 * (2 if config.a_dtype == F4 else 1)
    assert sass.count("WARPGROUP.ARRIVE") <= batches + (2 if config.tile.promote_k else 0)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("config", "word"),
    [
        (BlockScaledGemm(E4, E4, E8, 16), "16 elements"),
        (BlockScaledGemm(E4, F4, E8, 32), "width"),
        (BlockScaledGemm(F4, F4, E8, 32, a_major="m"), "K-major"),
        (BlockScaledGemm(F4, F4, E8, 32, c_dtype=F4, c_major="m"), "N-major"),
        (BlockScaledGemm("bfloat16", E4, E8, 32), "bfloat16"),
        (BlockScaledGemm(E4, E4, E8, 32, tile=TileConfig(raw_stages=9)), "shared memory"),
    ],
)
def test_refusals(config, word):
    from cudnn_gemm_dense import block_scaled

    assert word in block_scaled.why_not(config)
    with pytest.raises(NotImplementedError, match=word):
        block_scaled.kernel(config)
