"""From bound problems of swiglu, srelu and dsrelu to kernels: plans on the host, and machine code for sm_90a.

May import the project's contracts, planning and compiler.
"""

from importlib import import_module
from types import SimpleNamespace

import pytest

from cudnn_core.hopper.tile import TileConfig
from cudnn_gemm_dense import kernels
from cudnn_gemm_dense.config import FusedConfig, scratch

OPS = ("swiglu", "srelu", "dsrelu")
every_op = pytest.mark.parametrize("op", OPS)


def operation(op):
    return import_module(f"cudnn_gemm_dense.{op}").OP


def problem(op, a="bfloat16", b="bfloat16", m=8192, n=8192, k=8192, out=None, **attributes):
    return kernels.fused_example(operation(op).contract, a, b, (m, n, k), out, **attributes)


def engine(op):
    return next(e for e in operation(op).engines if e.name == "hopper")


def plan(*args, **more):
    return engine(args[0]).plan(problem(*args, **more))


# --- planning --------------------------------------------------------------------------------------------------------


@every_op
def test_extents_alone_make_few_plans(op):
    sizes = (1, 7, 16, 17, 63, 64, 65, 100, 129, 1000, 2048, 4096, 8192)
    for a, b in (("bfloat16", "bfloat16"), ("bfloat16", "nvfp4"), ("mxfp8", "mxfp8")):
        for k in (1024, 16384):
            assert len({plan(op, a, b, m, n, k) for m in sizes for n in (1024, 8192)}) <= 6


@every_op
def test_what_makes_a_plan_of_its_own(op):
    plain = plan(op)
    assert plan(op, m=8150) == plain
    for other in (
        plan(op, "float16", "float16"),
        plan(op, out="mxfp8"),
        plan(op, out="nvfp4"),
        plan(op, "bfloat16", "mxfp8"),
        plan(op, "bfloat16", "mxfp8", form="physical"),
    ):
        assert other != plain
    if op == "swiglu":
        assert plan(op, glu_layout="concatenated") != plain != plan(op, ab12_dtype=None)
    major = {"d_major" if op == "dsrelu" else "c_major": "m"}
    assert plan(op, **major) != plain
    # Nothing of it reaches a kernel: hints, and how an amax that is not there would be reduced.
    assert plan(op, mma_tiler_mn=(128, 128), cluster_shape_mn=(2, 2)) == plain
    assert plan(op, amax="none") == plain


def test_weights_are_expanded_where_rows_are_many_and_memory_suffices():
    decoded, plain, both = ("bfloat16", None), (None, "bfloat16"), ("bfloat16", "bfloat16")
    for op, a, m, n, treatments in (
        ("swiglu", "bfloat16", 1024, 8192, decoded),
        ("swiglu", "bfloat16", 4096, 8192, plain),
        ("swiglu", "bfloat16", 4096, 131072, decoded),
        ("swiglu", "mxfp8", 2047, 8192, decoded),
        ("swiglu", "mxfp8", 4096, 1024, decoded),
        ("swiglu", "mxfp8", 4096, 8192, both),
        ("dsrelu", "mxfp8", 1024, 8192, decoded),
        ("dsrelu", "mxfp8", 4096, 8192, both),
        ("swiglu", "mxfp8", 8192, 8192, both),
        ("swiglu", "mxfp8", 8192, 131072, decoded),
        ("swiglu", "bfloat16", 1 << 20, 69632, plain),
    ):
        assert plan(op, a, "mxfp8", m, n).config.product.treatments == treatments


@pytest.mark.parametrize("extents", [(64, 0, 512), (33, 0, 64), (64, 0, 14336), (0, 0, 512)])
@pytest.mark.parametrize("op", ["swiglu", "srelu", "dsrelu"])
def test_empty_problems_have_a_plan(op, extents):
    m, n, k = extents
    assert plan(op, "bfloat16", "mxfp8", m, n, k).config.product.tile.rows > 0


def test_long_lines_that_are_rewritten_are_refused():
    """Their offsets are 32-bit; operands that are not rewritten have no such limit."""

    def why_not(format, k):
        return kernels.why_not(problem("swiglu", format, format, 16, 64, k))

    longest = 2**29 - 128
    assert why_not("mxfp8", longest) is None
    assert f"K = {longest + 128}" in why_not("mxfp8", longest + 128)
    assert why_not("bfloat16", longest + 128) is None


def test_epilogues_without_room_take_smaller_tiles():
    for attributes, bn in (
        ({}, 192),
        ({"out": "mxfp8", "ab12_dtype": None}, 192),
        ({"out": "mxfp8", "ab12_dtype": "float32"}, 128),
        ({"out": "nvfp4", "ab12_dtype": None}, 128),
    ):
        assert plan("swiglu", **attributes).config.product.tile.bn == bn
    # Rows of so many columns are not stored through shared memory.
    assert plan("srelu", n=8190).config.product.tile.bn == 128
    assert plan("srelu", "mxfp8", "mxfp8", n=8190).config.product.decodes


@pytest.mark.parametrize(
    "op, a, b, extents, out, decodes, feeds",
    [
        ("swiglu", "mxfp8", "mxfp8", (4096, 4096, 4096), None, False, True),
        ("swiglu", "mxfp8", "mxfp8", (2048, 28672, 4096), None, False, True),
        ("swiglu", "mxfp8", "mxfp8", (2047, 28672, 4096), None, True, False),
        ("swiglu", "nvfp4", "nvfp4", (4096, 4096, 4096), None, True, False),
        ("swiglu", "nvfp4", "nvfp4", (6144, 4096, 4096), None, False, True),
        # Sides of two formats are expanded ahead.
        ("swiglu", "nvfp4", "mxfp8", (4096, 4096, 4096), None, True, False),
        ("swiglu", "nvfp4", "mxfp8", (6144, 4096, 4096), None, False, False),
        # Two sides of few rows each would be waited for.
        ("srelu", "mxfp8", "mxfp8", (2048, 1024, 4096), None, True, False),
        ("srelu", "bfloat16", "mxfp8", (2048, 1024, 4096), None, False, True),
        # Weights that are not decoded leave nothing to weigh.
        ("srelu", "mxfp8", "bfloat16", (4096, 4096, 4096), None, False, False),
        ("dsrelu", "mxfp8", "mxfp8", (4096, 4096, 4096), None, False, True),
        ("dsrelu", "mxfp8", "mxfp8", (4096, 4096, 4096), "mxfp8", False, False),
        # What the gpu tier multiplies.
        ("dsrelu", "bfloat16", "mxfp8", (2200, 2432, 160), None, False, True),
        ("srelu", "nvfp4", "nvfp4", (6200, 2432, 320), None, False, True),
        ("swiglu", "mxfp8", "mxfp8", (2200, 2432, 288), None, False, True),
        # Long sums are promoted, in wider tiles.
        ("swiglu", "mxfp8", "mxfp8", (4096, 4096, 65536), None, True, False),
        ("swiglu", "mxfp8", "mxfp8", (8192, 4096, 65536), None, False, False),
        ("swiglu", "bfloat16", "bfloat16", (4096, 4096, 4096), None, False, False),
    ],
)
def test_where_block_scaled_operands_become_bf16(op, a, b, extents, out, decodes, feeds):
    product = kernels.product_of(problem(op, a, b, *extents, out))
    assert (product.decodes, product.feeds) == (decodes, feeds)
    assert ("counters" in scratch(product)) == feeds


@every_op
def test_amax_and_its_absence(op):
    config = plan(op, "nvfp4", "nvfp4").config
    assert isinstance(config, FusedConfig) and "amax" in config.order
    assert "amax" not in plan(op, "nvfp4", "nvfp4", amax="none").config.order


def test_workspace_of_dprob_ends_with_a_sum_for_each_row_and_tile(monkeypatch):
    monkeypatch.setattr(kernels, "device_info", lambda ordinal: SimpleNamespace(sm_count=132))
    for a, b in (("bfloat16", "bfloat16"), ("bfloat16", "mxfp8")):
        bound = problem("dsrelu", a, b, m=1000, n=1000)
        tile = kernels.product_of(bound).tile
        sizes = kernels.regions(bound, kernels.product_of(bound))
        parts = -(-1000 // tile.bn) * (tile.sharers if tile.orientation == "swapped" else 1)
        assert list(sizes)[-1] == "row_sums" and sizes["row_sums"] == 4 * 1000 * parts


@every_op
def test_one_workspace_holds_all_regions_each_where_memory_is_aligned(op, monkeypatch):
    monkeypatch.setattr(kernels, "device_info", lambda ordinal: SimpleNamespace(sm_count=132))
    for a, b, m in (("bfloat16",) * 2 + (1000,), ("mxfp8", "mxfp8", 40), ("mxfp8", "mxfp8", 5000)):
        bound = problem(op, a, b, m=m, n=1024, k=4096)
        sizes = kernels.regions(bound, kernels.product_of(bound))
        workspaces = kernels.workspaces(bound)
        assert len(workspaces) == bool(sizes)
        if sizes:
            *first, last = sizes.values()
            wanted = sum(-(-size // 256) * 256 for size in first) + last
            assert workspaces[0].nbytes == wanted and not workspaces[0].zeroed


def test_row_parts_are_those_of_the_resource():
    pytest.importorskip("cutlass")
    from cudnn_core.hopper.epilogue import Fragments, RowSum

    for tile in (TileConfig(), kernels.swapped(64, 256, 4, 4, warpgroups=4), kernels.MANY_ROWS[0]):
        for n in (1, 128, 129, 1000):
            assert RowSum(Fragments(tile)).parts(n) == kernels.row_parts(tile, n)


def test_halves_that_break_groups_are_declined():
    bound = problem("swiglu", n=200, glu_layout="concatenated")
    assert "N = 200" in engine("swiglu").why_not(bound)
    assert engine("swiglu").why_not(problem("swiglu", n=192, glu_layout="concatenated")) is None


@every_op
def test_what_cudnn_compile_makes(op):
    labels = [label for label, _ in operation(op).sources()]
    assert len(labels) == len(set(labels)) >= 14
    everything = [label for label, _ in operation(op).sources(everything=True)]
    assert len(everything) > len(labels)


# --- machine code ----------------------------------------------------------------------------------------------------

COMPILED = [
    ("swiglu", "bfloat16", "bfloat16", 8192, None, {}),
    ("swiglu", "float16", "float16", 256, "mxfp8", {"ab12_dtype": None}),
    ("swiglu", "float32", "float32", 8192, None, {"c_dtype": "float32", "ab12_dtype": "float32"}),
    ("swiglu", "float8_e4m3fn", "float8_e5m2", 8192, None, {}),
    ("swiglu", "mxfp8", "mxfp8", 8192, "mxfp8", {"ab12_dtype": None}),
    ("swiglu", "mxfp8", "mxfp8", 1024, "mxfp8", {"ab12_dtype": None}),
    ("swiglu", "mxfp4", "nvfp4", 8192, None, {"k": 16384}),
    ("swiglu", "nvfp4", "nvfp4", 8192, "nvfp4", {}),
    ("swiglu", "bfloat16", "nvfp4", 16, None, {"glu_layout": "concatenated"}),
    ("swiglu", "bfloat16", "mxfp8", 64, "mxfp4", {}),
    ("swiglu", "bfloat16", "bfloat16", 8192, None, {"glu_layout": "concatenated", "c_major": "m"}),
    ("srelu", "bfloat16", "mxfp4", 8192, None, {"c_major": "m"}),
    ("srelu", "mxfp8", "mxfp8", 8192, "mxfp8", {}),
    ("srelu", "nvfp4", "nvfp4", 8192, None, {"c_dtype": "float32", "d_dtype": "float32"}),
    ("dsrelu", "bfloat16", "bfloat16", 8192, None, {}),
    ("dsrelu", "mxfp8", "mxfp8", 8192, "mxfp8", {}),
    ("dsrelu", "bfloat16", "mxfp8", 64, None, {"d_major": "m"}),
]


@pytest.mark.compile
@pytest.mark.parametrize("op, a, b, m, out, attributes", COMPILED)
def test_machine_code(op, a, b, m, out, attributes):
    """The instructions that the kernel is built around, and no local memory."""
    from cudnn_core.testing import machine_code
    from cudnn_gemm_dense import fused

    if machine_code.find_disassembler() is None:
        pytest.skip("nvdisasm is not installed (it comes with CUDA and with triton)")
    config = plan(op, a, b, m, out=out, **attributes).config
    sass = machine_code.disassemble(
        machine_code.object_code(lambda: (fused.kernel(config), fused.fake_args(config), ""))
    )
    counts = machine_code.instructions(sass)
    for opcode in fused.expected_instructions(config):
        assert counts[opcode], opcode
    assert machine_code.spills(sass) == 0


@pytest.mark.compile
def test_what_no_kernel_can_be_built_for():
    from dataclasses import replace

    from cudnn_gemm_dense import fused

    config = plan("swiglu", "bfloat16", "mxfp8", 1024).config
    tile = replace(config.product.tile, orientation="normal")
    config = replace(config, product=replace(config.product, tile=tile))
    assert "swapped" in fused.why_not(config)
    with pytest.raises(NotImplementedError, match="swapped"):
        fused.kernel(config)
