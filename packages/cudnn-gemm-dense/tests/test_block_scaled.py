"""The kernels compile for sm_90a, use the instructions they are built around, and spill nothing.

May import the project's kernels and compiler; needs no GPU.
"""

from dataclasses import replace

import pytest

from cudnn_core.hopper.tile import TileConfig
from cudnn_gemm_dense.config import GemmAmaxConfig, Product, Side
from cudnn_gemm_dense.kernels import DECODED, FEW_ROWS, MANY_ROWS, swapped

E4, E5, F4, E8 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "float8_e8m0fnu"
BF16, MXFP8, MXFP8_E5 = Side("bfloat16"), Side(E4, E8), Side(E5, E8)
MXFP4, NVFP4 = Side(F4, E8), Side(F4, E4, 16)
BYTES = Side(F4, E8, 32, "k", "uint8", "uint8", "physical")
ROWS = Side(E4, E8, 32, "mn")
LARGE = MANY_ROWS[0]


def gemm(a, b, tile=LARGE, c_dtype="float32", c_major="n", c_store="tma", **more):
    """A configuration; what is not about C goes to the product."""
    container, amax = more.pop("c_container", "native"), more.pop("amax", "global")
    product = Product(a, b, tile=tile, **more)
    return GemmAmaxConfig(product, c_dtype, container, c_major, c_store, amax)


CONFIGS = {
    "mxfp8": gemm(MXFP8, MXFP8),
    "e5m2 by e4m3, A M-major, B N-major, column-major fp8 C": gemm(
        Side(E5, E8, 32, "mn"), ROWS, swapped(128, 128, 5, 5), E4, "m"
    ),
    "mxfp8 promoted": gemm(MXFP8, MXFP8, swapped(128, 128, 5, 5, promote_k=4096)),
    "nvfp4, direct fp4 C in bytes": gemm(
        NVFP4, NVFP4, DECODED[4][0], F4, c_container="uint8", c_store="direct", split=4
    ),
    "mxfp4, batch outermost, amax per batch": gemm(
        BYTES, BYTES, c_dtype="bfloat16", batched=True, batch="outer", amax="per_batch"
    ),
    "bf16 by mxfp4 in blocks of 16, few rows, stream-K": gemm(
        BF16, Side(F4, E8, 16), swapped(64, 128, 8, 8), "bfloat16", split=4
    ),
    "two row blocks a warpgroup": gemm(BF16, NVFP4, swapped(64, 256, 6, 5), "float16"),
    "one consumer warpgroup": gemm(BF16, MXFP8_E5, swapped(64, 64, 8, 8, warpgroups=1), "float16"),
    "a cluster that shares A": gemm(BF16, MXFP8, swapped(256, 128, 4, 4, cluster=(1, 2))),
}


for few, split in DECODED[:-1]:
    name = f"{few.bm} rows" + (", promoted" if few.promote_k else "")
    CONFIGS |= {
        f"{name}, of mxfp4": gemm(BF16, MXFP4, few, "bfloat16", split=split),
        f"{name}, of mxfp8": gemm(BF16, MXFP8, few, split=split),
    }


@pytest.mark.compile
@pytest.mark.parametrize("name", CONFIGS)
def test_machine_code(name):
    from cudnn_core.testing import machine_code
    from cudnn_gemm_dense import block_scaled, product

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
    body = product.body_of(config.product)
    assert sass.count("WARPGROUP.ARRIVE") <= body.groups * body.stage_units


@pytest.mark.compile
@pytest.mark.parametrize(
    ("config", "word"),
    [
        (gemm(Side(E4, E8, 16), MXFP8), "16 elements"),
        (gemm(MXFP8, Side(F4, E8, contiguous="mn")), "K-major"),
        (gemm(MXFP8, Side(F4)), "scales"),
        (gemm(MXFP4, MXFP4, c_dtype=F4, c_major="m"), "N-major"),
        (gemm(MXFP8, MXFP8, TileConfig()), "swapped"),
        (gemm(MXFP8, MXFP8, swapped(256, 512, 9, 4, warpgroups=4)), "registers"),
        (gemm(MXFP8, MXFP8, swapped(256, 128, 4, 4, cluster=(2, 1))), "cluster"),
        (gemm(MXFP8, MXFP8, swapped(64, 256, 4, 4, promote_k=4096)), "promoted"),
    ],
)
def test_refusals(config, word):
    from cudnn_gemm_dense import block_scaled

    assert word in block_scaled.why_not(config)
    with pytest.raises(NotImplementedError, match=word):
        block_scaled.kernel(config)


@pytest.mark.parametrize(
    ("a", "b", "meeting", "rewritten"),
    [
        (BF16, BF16, "bfloat16", (None, None)),
        (Side("float16", contiguous="mn"), Side("float16"), "float16", (None, None)),
        (Side("float32"), Side("float32", contiguous="mn"), "float32", (None, "float32")),
        (Side(E4), Side(E5), None, (None, None)),
        (Side(E4, contiguous="mn"), Side(E5), None, (E4, None)),
        (BF16, Side(E4), "bfloat16", (None, "bfloat16")),
        (Side(E5), Side("float16"), "float16", ("float16", None)),
        (BF16, Side("float16"), "float32", ("float32", "float32")),
        (BF16, MXFP4, "bfloat16", ("bfloat16", None)),
        (MXFP8, NVFP4, "bfloat16", ("bfloat16", None)),
        (Side(E4), MXFP8, "bfloat16", ("bfloat16", None)),
        (ROWS, ROWS, "bfloat16", ("bfloat16", E4)),
        (NVFP4, BF16, "bfloat16", ("bfloat16", None)),
        (NVFP4, Side(E5), "bfloat16", ("bfloat16", "bfloat16")),
        (Side("float16"), NVFP4, "float32", ("float32", "float32")),
    ],
)
def test_how_each_side_gets_to_the_tensor_core(a, b, meeting, rewritten):
    product = Product(a, b)
    assert product.meeting == meeting
    assert product.decodes == (b.scale is not None and meeting == "bfloat16")
    assert product.treatments == rewritten
    assert product.why_not() is None


def test_activations_of_few_rows_are_sorted_on_their_way():
    for (tile, _), few in zip(FEW_ROWS, (True, True, False, False, False), strict=True):
        for a in (BF16, replace(BF16, contiguous="mn"), MXFP8):
            product = Product(a, NVFP4, tile=tile)
            assert product.sorts == (few and a == BF16)
            assert product.treatments == (None if product.sorts else "bfloat16", None)
    assert not Product(BF16, BF16, tile=FEW_ROWS[0][0]).sorts
