"""The plain body: what is refused, and the machine code of every operand format.

May import pytest, cudnn_core and the GEMM beside this file.
"""

import importlib.util
from pathlib import Path

import pytest

from cudnn_core.hopper.tile import TileConfig

E4, E5 = "float8_e4m3fn", "float8_e5m2"


@pytest.fixture(scope="module")
def plain():
    """The module of the GEMM without any operation."""
    path = Path(__file__).with_name("plain_gemm.py")
    spec = importlib.util.spec_from_file_location("plain_gemm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WIDE = TileConfig(bm=128, bn=256, cluster=(2, 1))
TALL = TileConfig(bm=256, bn=128, cluster=(1, 2))
LARGE = TileConfig(bm=256, bn=192, stages=3, cluster=(1, 2))
TURNS = TileConfig(bm=128, bn=192, pingpong=True, cluster=(2, 1))
SMALL = TileConfig(bm=64, bn=64, warpgroups=1)
PROMOTED = TileConfig(bm=128, bn=192, cluster=(2, 1), promote_k=128)

# (options, WGMMAs of a stage, fences of a stage)
KERNELS = {
    "bf16 cooperative": ({"tile": WIDE}, 4, 1),
    "bf16 two row blocks": ({"tile": LARGE}, 8, 1),
    "bf16 ping-pong": ({"tile": TURNS}, 8, 1),
    "bf16 one warpgroup": ({"tile": SMALL, "batched": True}, 4, 1),
    "fp16 m-major n-major": (
        {"a": "float16", "b": "float16", "a_major": "m", "b_major": "n", "tile": TURNS},
        8,
        1,
    ),
    "bf16 glu": ({"glu": True, "tile": TALL}, 8, 1),
    "bf16 glu n-major": ({"glu": True, "b_major": "n", "tile": WIDE}, 4, 1),
    "tf32": ({"a": "float32", "b": "float32", "c": "float32", "depth": 1, "tile": WIDE}, 4, 1),
    "fp8": ({"a": E4, "b": E4, "tile": TURNS}, 8, 1),
    "fp8 promoted": ({"a": E4, "b": E5, "tile": PROMOTED}, 8, 2),
    "fp8 promoted, two row blocks": (
        {"a": E5, "b": E4, "tile": TileConfig(bm=256, bn=128, promote_k=128)},
        8,
        2,
    ),
    "fp8 promoted, half the columns": (
        {"a": E4, "b": E4, "tile": TileConfig(bm=128, bn=256, promote_k=128)},
        8,
        2,
    ),
    "tf32 promoted": (
        {
            "a": "float32",
            "b": "float32",
            "tile": TileConfig(bm=128, bn=192, cluster=(2, 1), promote_k=32),
        },
        8,
        2,
    ),
    "bf16 promoted": (
        {"tile": TileConfig(bm=128, bn=128, promote_k=64)},
        4,
        1,
    ),
    "stream-k": ({"stream": 4, "tile": SMALL}, 4, 1),
}


@pytest.mark.compile
@pytest.mark.parametrize("name", KERNELS)
def test_machine_code(plain, name):
    from cudnn_core.testing import machine_code

    if machine_code.find_disassembler() is None:
        pytest.skip("nvdisasm is not installed (it comes with CUDA and with triton)")
    options, products, fences = KERNELS[name]
    config = plain.PlainGemm(**options)
    sass = machine_code.disassemble(
        machine_code.object_code(lambda: (plain.kernel(config), plain.fake_args(config), ""))
    )
    counts = machine_code.instructions(sass)
    assert counts["HGMMA"] + counts["QGMMA"] == products
    assert counts["UTMALDG"] >= 2
    assert counts["UTMASTG"] >= 1
    assert machine_code.spills(sass) == 0
    # More fences would mean that the compiler serialized the products.
    assert sass.count("WARPGROUP.ARRIVE") == fences
    assert (".MULTICAST" in sass) == (config.tile.blocks > 1)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"a": "bfloat16", "b": "float16"}, "multiply"),
        ({"a": E4, "b": "bfloat16"}, "multiply"),
        ({"a": E4, "b": E4, "a_major": "m"}, "K-major"),
        ({"a": "float32", "b": "float32", "b_major": "n"}, "K-major"),
        ({"b_major": "n", "tile": TileConfig(bn=72)}, "16 rows"),
        ({"glu": True, "tile": TileConfig(bn=96)}, "64 rows"),
        ({"a": E4, "b": E4, "tile": TileConfig(promote_k=256)}, "promote_k"),
        ({"tile": TileConfig(promote_k=128)}, "promote_k"),
        (
            {"a": E4, "b": E4, "tile": TileConfig(bm=128, pingpong=True, promote_k=128)},
            "cooperating",
        ),
        ({"a": E4, "b": E4, "tile": TileConfig(bn=192, promote_k=128)}, "no room"),
        ({"tile": TileConfig(bn=8, cluster=(2, 1))}, "share"),
        ({"tile": TileConfig(stages=9)}, "shared memory"),
    ],
)
def test_refusals(plain, options, word):
    config = plain.PlainGemm(**options)
    assert word in plain.why_not(config)
    with pytest.raises(NotImplementedError, match=word):
        plain.kernel(config)
