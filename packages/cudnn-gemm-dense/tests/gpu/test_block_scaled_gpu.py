"""The block-scaled kernel on the device: every code, every tile, few blocks for many tiles.

May import torch, numpy, the project's kernels, and the independent model of cudnn_core.testing.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest

from cudnn_core.hopper.tile import TileConfig
from cudnn_core.hopper.workspace import (
    counter_bytes,
    expanded_bytes,
    flag_bytes,
    following,
    partial_bytes,
)
from cudnn_core.plan import Plan
from cudnn_core.testing import gemm
from cudnn_gemm_dense.config import GemmAmaxConfig, Product, Side, scratch
from cudnn_gemm_dense.kernels import FEW_ROWS, MANY_ROWS, source, swapped

pytestmark = pytest.mark.gpu

TILES = {
    "256x128": MANY_ROWS,
    "128x128": (swapped(128, 128, 5, 5), None),
    "128x128 promoted": (swapped(128, 128, 5, 5, promote_k=128), None),
    "64x128": (swapped(64, 128, 8, 8), None),
    **{
        f"{few.bm} rows in streams{', promoted' if few.promote_k else ''}": (few, 1)
        for few, _ in FEW_ROWS
    },
    "64x256": (swapped(64, 256, 6, 5), None),
    "64x64": (swapped(64, 64, 8, 8, warpgroups=1), None),
    "a cluster of 256x128": (swapped(256, 128, 4, 4, cluster=(1, 2)), None),
}
# Beside which spare warps write the operands out.
FED = TileConfig(bm=128, bn=128, pingpong=True)


@functools.cache
def compiled(config):
    from cudnn_core import cache

    return cache.get(source(Plan("dense/amax", "hopper", "sm_90a", config))).call


def config_of(case, tile=None, split=None, forms="logical", **changes):
    """The case's configuration; changes: of the fields of GemmAmaxConfig, or `batch`."""
    recipe = case.format
    a, b = (
        Side(
            recipe.element,
            recipe.scale,
            recipe.vec,
            "k" if major == "k" else "mn",
            sf_form=forms,
        )
        for major in (case.a_major, case.b_major)
    )
    product = Product(
        a, b, case.l > 1, changes.pop("batch", "last"), split, changes.pop("glu", None)
    )
    if tile == FED:
        product = replace(product, decode=False, feed=True)
    if tile is None:
        tile = MANY_ROWS[0] if product.decodes else TileConfig(bm=128, bn=128)
    config = GemmAmaxConfig(replace(product, tile=tile), c_dtype=case.c_dtype, c_major=case.c_major)
    return replace(config, **changes)


def scratch_memory(product, case, blocks):
    """(the workspace, poisoned, or None; its regions by name)."""
    torch = pytest.importorskip("torch")
    extents = zip((case.m, case.n), product.treatments, strict=True)
    written = [(rows, target) for rows, target in extents if target is not None]
    sizes = {
        "expanded": sum(expanded_bytes(rows, case.k, case.l, target) for rows, target in written),
        "counters": counter_bytes([rows for rows, _ in written], case.k, case.l),
        "partials": partial_bytes(product.tile, blocks),
        "flags": flag_bytes(product.tile, blocks),
    }
    places, end = {}, 0
    for name in scratch(product):
        places[name] = slice(following(end), following(end) + sizes[name])
        end = places[name].stop
    if not places:
        return None, {}
    whole = torch.full((end,), 0xFF, dtype=torch.uint8, device="cuda")
    return whole, {name: whole[place] for name, place in places.items()}


def run(data, blocks=132, outer=False, **changes):
    """(C as (L, M, N) float64, amax as an array) of one call."""
    torch = pytest.importorskip("torch")
    case = data.case
    config = config_of(case, **changes)
    a, b, sfa, sfb = data.inputs("cuda")
    guarded = gemm.Guarded(case, "cuda")
    c = guarded.tensor
    amax = torch.full((1, 1, 1), float("-inf"), device="cuda")
    if outer:
        a, b, c = (x.permute(2, 0, 1) for x in (a, b, c))
        amax = torch.full((case.l, 1, 1), float("-inf"), device="cuda")
    workspace, space = scratch_memory(config.product, case, blocks)
    given = () if workspace is None else (workspace,)
    stream = torch.cuda.current_stream().cuda_stream
    compiled(config)(a, b, sfa, sfb, c, amax, *given, blocks, stream)
    torch.cuda.synchronize()
    guarded.assert_guards()
    if "flags" in space:
        from cudnn_core.hopper.stream import RAISED

        assert not (space["flags"].view(torch.int64) == RAISED).any()
    return gemm.values(guarded.tensor, case.c_dtype), gemm.host(amax).ravel()


@pytest.mark.parametrize("specials", [False, True], ids=["ordinary", "with NaN and Inf"])
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("recipe", gemm.RECIPES)
def test_every_element_code_with_every_scale_code(recipe, side, specials):
    """Row r of one side has all element codes under scale code r; the other side is the identity."""
    case = gemm.Case(256, 256, 256, recipe=recipe)
    form = case.format
    table = gemm.table(form.element)
    codes = np.tile((np.arange(256) % len(table)).astype(np.uint8), (1, 256, 1))
    usual = np.where(np.isfinite(table), np.arange(len(table)), 0).astype(np.uint8)
    # Specials in some rows only: their neighbours in a warp must not change.
    rows = np.s_[:, 1::8] if specials else np.s_[:, :0]
    kept = codes[rows].copy()
    codes = usual[codes]
    codes[rows] = kept
    scales = np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (1, 1, case.blocks))
    one = gemm.encode(np.float64(1.0), form.element)
    identity = (np.eye(256, dtype=np.uint8) * one)[None]
    ones = np.full_like(scales, gemm.encode(np.float64(1.0), "float8_e4m3fn"))
    if form.scale == "float8_e8m0fnu":
        ones = np.full_like(scales, 127)
    sides = (codes, identity, scales, ones) if side == "a" else (identity, codes, ones, scales)
    data = gemm.Data(case, *sides)
    c, _ = run(data)
    np.testing.assert_array_equal(c, data.accumulator())


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp8_e5m2", "mxfp4", "mxfp4_16", "nvfp4"])
@pytest.mark.parametrize("tile", TILES)
def test_each_tile_with_many_items_for_a_block(tile, recipe):
    """Three blocks walk all tiles: rings, staging and accumulators are used again and again."""
    data = gemm.exact(gemm.Case(520, 200, 288, 2, recipe=recipe))
    config, split = TILES[tile]
    c, amax = run(data, blocks=3 * config.blocks, tile=config, split=split)
    np.testing.assert_array_equal(c, data.expected())
    np.testing.assert_array_equal(amax, [data.amax()])


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4_16", "nvfp4"])
@pytest.mark.parametrize("tile", ["256x128", "64 rows in streams", "64x256", "64x64"])
@pytest.mark.parametrize("n", [64, 192, 448, 832])
@pytest.mark.parametrize("glu", ["interleaved", "concatenated"])
def test_glu_pairs_meet_in_a_thread_and_leave_c_as_it_is(glu, n, tile, recipe):
    """Halves that begin anywhere in a scale atom; NaN scales in the padding."""
    data = gemm.exact(gemm.Case(72, n, 288, 2, recipe=recipe))
    config, split = TILES[tile]
    c, amax = run(data, blocks=5, tile=config, split=split, glu=glu)
    np.testing.assert_array_equal(c, data.expected())
    np.testing.assert_array_equal(amax, [data.amax()])


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp8_e5m2", "mxfp4", "mxfp4_16", "nvfp4"])
@pytest.mark.parametrize("blocks", [1, 3, 132])
@pytest.mark.parametrize(
    "m, n, k, l",
    [
        # Batches of rows that end anywhere in a piece, pieces in a group, and groups in a band.
        *[(m, 16, 32, 1) for m in (1, 7, 8, 9, 31, 39, 129)],
        *[(16, n, 64, 2) for n in (8, 40, 136, 248)],
        (1160, 200, 288, 3),
        (200, 2600, 544, 1),
        # More slabs than are looked at together.
        (136, 264, 33 * 256 + 32, 2),
    ],
)
def test_operands_that_are_written_out_beside_the_product(m, n, k, l, blocks, recipe):
    """A producer reads nothing before it is written, in a workspace full of numbers that no counter has."""
    if recipe == "nvfp4" and k % 64:
        k += 32
    case = gemm.Case(m, n, k, l, recipe=recipe)
    data = gemm.exact(case)
    assert config_of(case, FED).product.feeds
    c, amax = run(data, blocks=blocks, tile=FED)
    np.testing.assert_array_equal(c, data.expected())
    np.testing.assert_array_equal(amax, [data.amax()])


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("n", [64, 192, 448, 832])
@pytest.mark.parametrize("glu", ["interleaved", "concatenated"])
def test_glu_halves_that_are_written_out_beside_the_product(glu, n, recipe):
    data = gemm.exact(gemm.Case(72, n, 576, 2, recipe=recipe, c_dtype="bfloat16"))
    assert config_of(data.case, FED, glu=glu).product.feeds
    c, amax = run(data, blocks=5, tile=FED, glu=glu)
    np.testing.assert_array_equal(c, data.expected())
    np.testing.assert_array_equal(amax, [data.amax()])


@pytest.mark.parametrize("k", [4, 36, 100, 188])
@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp8_e5m2"])
def test_k_of_operands_that_are_turned_may_end_anywhere(recipe, k):
    """What meets decoded weights has zeros up to a whole raw stage; its memory held NaN."""
    data = gemm.exact(gemm.Case(208, 144, k, 2, recipe=recipe, a_major="m", b_major="n"))
    c, amax = run(data, blocks=3)
    np.testing.assert_array_equal(c, data.expected())
    np.testing.assert_array_equal(amax, [data.amax()])


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
def test_batch_outermost_with_amax_per_batch(recipe):
    case = gemm.Case(300, 160, 224, 3, recipe=recipe, scale_view="physical")
    data = gemm.exact(case)
    changes = {"batch": "outer", "amax": "per_batch"}
    c, amax = run(data, blocks=5, outer=True, forms="physical", **changes)
    np.testing.assert_array_equal(c, data.expected())
    np.testing.assert_array_equal(amax, np.abs(data.accumulator()).max(axis=(1, 2)))


@pytest.mark.parametrize("c_store", ["tma", "direct"])
@pytest.mark.parametrize("c_dtype", ["float32", "float16", "float8_e4m3fn", "float4_e2m1fn"])
def test_infinite_and_nan_results(c_dtype, c_store):
    """Rows of +Inf, NaN, -Inf, a large number and an ordinary one, in every kind of output."""
    case = gemm.Case(64, 64, 128, recipe="mxfp4", c_dtype=c_dtype)
    codes, scales = np.full((1, 64, 128), 2, np.uint8), np.full((1, 64, 4), 127, np.uint8)
    codes[:, 0], scales[:, 0] = 7, 254
    scales[:, 1] = 255
    codes[:, 2], scales[:, 2] = 15, 254
    scales[:, 3] = 187
    plain = np.full_like(codes, 2), np.full_like(scales, 127)
    data = gemm.Data(case, codes, plain[0], scales, plain[1])
    c, amax = run(data, c_store=c_store)
    np.testing.assert_array_equal(c, data.expected())
    assert np.isnan(amax).all()
