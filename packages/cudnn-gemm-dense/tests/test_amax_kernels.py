"""The Hopper kernels of GEMM + amax, compiled for sm_90a without a GPU: instructions, spills, what selects a kernel.

In CI a fixed pairwise cover of the configurations is compiled; `nox -s compile-all` adds every kernel that
`cudnn compile --all` would write.
"""

from dataclasses import replace
from itertools import product

import pytest

from cudnn_core.hopper.rules import SQUARE, WIDE
from cudnn_core.plan import Plan
from cudnn_core.testing.gemm import RECIPES, Case, describe_inputs
from cudnn_core.testing.precompile import machine_codes, pairwise, plan_of
from cudnn_gemm_dense.amax import CONTRACT, OP
from cudnn_gemm_dense.config import GemmAmaxConfig, Product, Side
from cudnn_gemm_dense.kernels import DECODED, MANY_ROWS

MODULE = "cudnn_gemm_dense.amax"
C_TYPES = (
    ("float32", "native"),
    ("float16", "native"),
    ("bfloat16", "native"),
    ("float8_e4m3fn", "native"),
    ("float8_e5m2", "native"),
    ("float4_e2m1fn", "native"),
    ("float4_e2m1fn", "uint8"),
)
# Where both sides are expanded, beside the main loop or ahead of it.
EXPANDED = ((SQUARE, None), (WIDE[64], None))
FACTORS = {
    "recipe": tuple(RECIPES),
    "container": ("native", "uint8"),
    "a_major": ("k", "m"),
    "b_major": ("k", "n"),
    "c": C_TYPES,
    "c_major": ("n", "m"),
    "sfa_form": ("logical", "physical"),
    "sfb_form": ("logical", "physical"),
    "sfa_container": ("native", "int8"),
    "sfb_container": ("native", "int8"),
    "c_store": ("tma", "direct"),
    "batch": (("last", "global"), ("outer", "per_batch")),
    "tile": (*DECODED, *EXPANDED),
}


def legal(made):
    """Whether the contract lets a call have these properties."""
    recipe = RECIPES[made["recipe"]]
    fp4_out = made["c"][0] == "float4_e2m1fn"
    outer = made["batch"][0] == "outer"
    return not (
        (recipe.fp4 and (made["a_major"], made["b_major"]) != ("k", "k"))
        or (not recipe.fp4 and (made["container"] == "uint8" or fp4_out))
        or (
            recipe.scale != "float8_e8m0fnu"
            and "int8" in (made["sfa_container"], made["sfb_container"])
        )
        or (fp4_out and made["c_major"] == "m")
        or (made["c_store"] == "direct" and made["tile"] in (MANY_ROWS, *EXPANDED))
        # JAX's arrays: row-major, packed bytes, physical scales.
        or (outer and (made["a_major"], made["b_major"], made["c_major"]) != ("k", "k", "n"))
        or (outer and (made["sfa_form"], made["sfb_form"]) != ("physical", "physical"))
        or (outer and made["container"] == "native" and recipe.fp4)
        or (outer and made["c"] == ("float4_e2m1fn", "native"))
    )


def config(made):
    recipe = RECIPES[made["recipe"]]
    a, b = (
        Side(
            recipe.element,
            recipe.scale,
            recipe.vec,
            "k" if made[f"{side}_major"] == "k" else "mn",
            made["container"],
            made[f"sf{side}_container"],
            made[f"sf{side}_form"],
        )
        for side in "ab"
    )
    (tile, split), (batch, amax) = made["tile"], made["batch"]
    decode = made["tile"] not in EXPANDED
    product = Product(
        a, b, batch == "outer", batch, split, tile=tile, decode=decode, feed=not decode
    )
    return GemmAmaxConfig(product, *made["c"], made["c_major"], made["c_store"], amax)


COVER = [Plan("dense/amax", "hopper", "sm_90a", config(made)) for made in pairwise(FACTORS, legal)]


def label(plan):
    """What tells plans apart."""
    config, tile = plan.config, plan.config.product.tile
    sides = (config.product.a, config.product.b)
    texts = [
        f"{s.dtype}.{s.scale}.{s.sf_vec}.{s.contiguous}.{s.container}.{s.sf_container}.{s.sf_form}"
        for s in sides
    ]
    texts += [config.c_dtype, config.c_container, config.c_major, config.c_store, config.amax]
    return "-".join([*texts, f"{tile.bm}x{tile.bn}"])


@pytest.fixture(scope="module")
def code(request):
    """plan -> counts of opcodes, for every plan whose test was selected."""
    plans = [
        item.callspec.params["plan"]
        for item in request.session.items
        if item.path == request.path
        and "plan" in getattr(getattr(item, "callspec", None), "params", {})
    ]
    plans = list(dict.fromkeys(plans))
    return dict(zip(plans, machine_codes(MODULE, plans), strict=True))


def check(plan, counts):
    from cudnn_gemm_dense.block_scaled import expected_instructions

    expected = expected_instructions(plan.config)
    assert {"HGMMA", "UTMALDG"} <= set(expected)
    assert [name for name in expected if not counts.get(name)] == []
    if plan.config.c_store == "direct":
        assert "UTMASTG" not in counts
    spilled = {name: counts[name] for name in ("LDL", "STL") if name in counts}
    assert spilled == {}, "registers spill to local memory"


@pytest.mark.compile
@pytest.mark.parametrize("plan", COVER, ids=label)
def test_machine_code(plan, code):
    check(plan, code[plan])


def all_plans():
    """What `cudnn compile --all` writes, less what the cover holds."""
    plans = (source.key for _, source in OP.sources(everything=True))
    return list(dict.fromkeys(plan for plan in plans if plan not in COVER))


@pytest.mark.compile_all
@pytest.mark.parametrize("plan", all_plans(), ids=label)
def test_machine_code_of_all(plan, code):
    check(plan, code[plan])


# --- what selects a kernel: no compiler needed -----------------------------------------------------------------------


def test_the_cover_is_small_and_fixed():
    assert len(COVER) == len(set(COVER)) <= 60
    assert COVER == [
        Plan("dense/amax", "hopper", "sm_90a", config(m)) for m in pairwise(FACTORS, legal)
    ]
    for values in product(RECIPES, C_TYPES[:5]):
        recipe = RECIPES[values[0]]
        want = (recipe.element, recipe.scale, recipe.vec, *values[1])
        assert any(
            want
            == (c.product.a.dtype, c.product.a.scale, c.product.a.sf_vec, c.c_dtype, c.c_container)
            for c in (plan.config for plan in COVER)
        )


def plan(case, **options):
    return plan_of(MODULE, describe_inputs(case), case.options() | options)


BASE = Case(304, 272, 608, 2)


def test_sizes_do_not_select_a_kernel():
    """200 calls that differ in M alone: one kernel. Any sizes at all: no more than there are tiles."""
    many = replace(BASE, n=1008)
    assert len({plan(replace(many, m=m)) for m in range(1000, 1200)}) == 1
    extents = (16, 32, 64, 272, 1008, 8192)
    some = [
        replace(BASE, m=m, n=n, k=k)
        for m in extents
        for n in (*extents, 32768)
        for k in (32, 608, 16384)
    ]
    tiles = {plan(case).config.product.tile for case in some}
    assert tiles == {tile for tile, _ in (*DECODED, *EXPANDED)}
    # Without stream-K where all of K is one stretch.
    short = {plan(case).config.product.tile for case in some if case.k == 32}
    assert len({plan(case) for case in some}) <= len(tiles) + len(short)


def test_strides_of_unit_extents_do_not_select_a_kernel():
    descs = describe_inputs(replace(BASE, l=1))
    plans = set()
    for step in (0, 1, 10**9):
        moved = [replace(d, stride=(*d.stride[:-1], step), stride_order=None) for d in descs]
        plans.add(plan_of(MODULE, moved, BASE.options()))
    assert len(plans) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "mxfp8_e5m2"},
        {"recipe": "mxfp4"},
        {"a_major": "m"},
        {"b_major": "n"},
        {"c_major": "m"},
        {"c_dtype": "bfloat16"},
        {"c_dtype": "float8_e4m3fn"},
        {"scale_view": "physical"},
        {"scale_container": "int8"},
        {"n": 35},
    ],
    ids=str,
)
def test_each_property_selects_a_kernel_in_either_order(change):
    """X then Y and Y then X give the same two plans, and the two differ."""
    other = replace(BASE, **change)
    forward = (plan(BASE), plan(other))
    backward = (plan(other), plan(BASE))
    assert forward == backward[::-1] and forward[0] != forward[1]
    assert hash(forward[0]) == hash(backward[1])


@pytest.mark.parametrize(
    "pair", [("mxfp4", "mxfp4_16"), ("mxfp4_16", "nvfp4"), ("mxfp8", "mxfp8_e5m2")]
)
def test_recipes_differ_in_their_kernels(pair):
    first, second = (plan(replace(BASE, recipe=name)) for name in pair)
    assert first != second


def test_every_attribute_reaches_the_signature_or_an_output():
    """An attribute that neither the key nor an output's plan holds could select nothing."""
    problem = CONTRACT.bind(describe_inputs(BASE), BASE.options())
    kept = {name for name, _ in problem.signature.attributes}
    assert kept | {a.name for a in CONTRACT.attributes if a.of_output} == {
        a.name for a in CONTRACT.attributes
    }
