"""From bound problems to Hopper kernels: configuration, tile rules, what to compile ahead.

Imports neither the DSL nor a framework: planning a call must stay cheap, and a process that finds its kernel on disk
never loads the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from cudnn_core.cache import KernelSource
from cudnn_core.contract import Contract, Problem, ScaleFactor, Signature
from cudnn_core.device_info import device_info
from cudnn_core.engine import Workspace
from cudnn_core.hopper.rules import EVENED, SQUARE, UNIT, WIDE, choose, rules_for, unit_of
from cudnn_core.hopper.tile import ACCUMULATORS, ROOMY_SUMS, TileConfig
from cudnn_core.hopper.workspace import (
    counter_bytes,
    expanded_bytes,
    flag_bytes,
    following,
    partial_bytes,
)
from cudnn_core.plan import Plan
from cudnn_core.tensor_desc import TensorDesc

from .config import RECIPES, FusedConfig, GemmAmaxConfig, Product, Side, Stored, scratch
from .operands import vec_of

# What kernels are traced from, beside core's own device code.
DEVICE_CODE = (
    "cudnn_gemm_dense.config",
    "cudnn_gemm_dense.epilogues",
    "cudnn_gemm_dense.product",
    "cudnn_gemm_dense.block_scaled",
    "cudnn_gemm_dense.fused",
)


def side_of(signature: Signature, side: int) -> Side:
    """The left (0) or the right (1) operand of a product, with its scales if it has them."""
    name, scale_name = (("a_tensor", "sfa_tensor"), ("b_tensor", "sfb_tensor"))[side]
    operand = signature.operand(name)
    made = Side(
        operand.dtype,
        contiguous="k" if operand.major == "k" else "mn",
        container=operand.container,
    )
    if not signature.has(scale_name):
        return made
    scale = signature.operand(scale_name)
    return replace(
        made,
        scale=scale.dtype,
        sf_vec=vec_of(signature, side),
        sf_container=scale.container,
        sf_form=scale.major,
    )


def product_of(problem: Problem) -> Product:
    """A B^T of a bound problem, with the tile that its extents call for."""
    signature = problem.signature
    product = Product(
        side_of(signature, 0),
        side_of(signature, 1),
        # JAX batches may mix extents of 1 and L, so they count as batched always.
        batched=problem.dims["L"] != 1 or signature.attribute("batch") == "outer",
        batch=signature.attribute("batch"),
        glu=dict(signature.attributes).get("glu_layout"),
    )
    staged, sums = room(signature)
    reads = signature.op.endswith("dsrelu")
    if product.decodes and staged:
        # Beside an epilogue that reads and quantizes ptxas spills, with the registers that are left.
        feed = not (reads and signature.has("sfd_tensor"))
        expanded = replace(product, decode=False, feed=feed)
        tile, _ = choose_tile(expanded, problem.dims, staged, sums)
        expanded = replace(expanded, tile=tile)
        if not worth_decoding(expanded, problem.dims, reads):
            return expanded
    tile, split = choose_tile(product, problem.dims, staged, sums)
    return replace(product, tile=tile, split=split)


# From so many rows of activations on, expanding the weights once costs less than a main loop that decodes them; their
# expanded form must fit this much memory. Measured on an H200 on 2026-12-02 and 03, torch.mm's time over ours from
# decoded and from expanded weights: SwiGLU of BF16 x MXFP8, MXFP4, NVFP4 at (8192, 8192, 8192) 0.92, 0.97, 0.96 and
# 1.01, 1.00, 1.00, of BF16 x MXFP4 at (2048, 28672, 4096) 0.97 to 1.02 and 0.97; of MXFP8 x MXFP8, whose activations
# are rewritten in any case and get their order for nothing, at (1024, 28672, 4096) 0.94 and 0.86, (2048, 28672, 4096)
# 0.90 to 0.94 and 0.96, (4096, 4096, 4096) 0.90 and 0.92, but 0.85 expanded ahead; amax of NVFP4 x NVFP4 and MXFP4 x
# MXFP4 there 0.93, 0.92 and 0.89, 0.89. dsrelu, whose epilogue reads a matrix, leaves decoding less time.
EXPANDED_ROWS, EXPANDED_ROWS_MXFP4, EXPANDED_ROWS_REWRITTEN = 2048, 4096, 6144
# Elements that spare warps write out are each to be multiplied by so many rows, on average, or tiles wait for them. An
# H200 writes 8192 in 2.0 us on each multiprocessor (MXFP8 at (4096, 4096, 4096), 2026-12-03), the time of 700 rows at
# 750 TFLOP/s. With 988, MXFP8 x MXFP8 at (1024, 28672, 4096), decoding was the better still, with 2048 rows of A, 1911,
# no longer.
FED_ROWS = 1024
LARGEST_EXPANDED = 2**30
# Offsets within a rewritten line, of four bytes an element at most, are 32-bit.
LONGEST_REWRITTEN = 2**29 - 128


def worth_decoding(expanded: Product, dims: Mapping[str, int], reads: bool = False) -> bool:
    """Whether block-scaled weights are better decoded in the main loop than expanded.

    expanded: the product that does that. reads: whether the epilogue reads a matrix, for which expanded weights leave
    more time.
    """
    b, treatments = expanded.b, expanded.treatments
    mxfp4 = (b.dtype, b.scale) == ("float4_e2m1fn", "float8_e8m0fnu")
    most = EXPANDED_ROWS_MXFP4 if mxfp4 else EXPANDED_ROWS
    if treatments[0] is not None and not reads and (b.bits == 4 or not expanded.feeds):
        most = EXPANDED_ROWS_REWRITTEN
    m, n, k, batches = (dims[symbol] for symbol in "MNKL")
    written = sum(rows for rows, target in zip((m, n), treatments, strict=True) if target)
    waited_for = expanded.feeds and m * n < FED_ROWS * written
    size = expanded_bytes(n, k, batches)
    # Decoded weights have activations rewritten.
    spares = expanded_bytes(m, k, batches) < size
    return m < most or waited_for or (size > LARGEST_EXPANDED and spares)


def room(signature: Signature) -> tuple[bool, int]:
    """(whether all outputs go through shared memory, how many sums of a thread leave the epilogue enough registers)."""
    names = ("c_tensor", "d_tensor", "ab12_tensor")
    outputs = [p for p in signature.operands if p.name in names]
    staged = all(plan.tma for plan in outputs)
    quantized = signature.has("sfc_tensor") or signature.has("sfd_tensor")
    two_kinds = quantized and any(plan.dtype == "float32" for plan in outputs)
    nvfp4 = dict(signature.attributes).get("out_format") == "nvfp4"
    # Beside 192 sums it spills, ptxas says.
    crowded = not staged or two_kinds or nvfp4
    return staged, ROOMY_SUMS if crowded else ACCUMULATORS


def amax_config(problem: Problem) -> GemmAmaxConfig:
    """The kernel configuration of a bound problem of GEMM + amax."""
    c = problem.signature.operand("c_tensor")
    return GemmAmaxConfig(
        product_of(problem),
        c_dtype=c.dtype,
        c_container=c.container,
        c_major=c.major,
        c_store="tma" if c.tma else "direct",
        amax=problem.signature.attribute("amax"),
    )


def why_not(problem: Problem) -> str | None:
    """The reason why no kernel multiplies the operands of a problem, or None."""
    product = product_of(problem)
    if product.glu == "concatenated" and problem.dims["N"] % 64:
        return f"halves of N = {problem.dims['N']} columns are not made of whole groups of 32"
    if any(product.treatments) and problem.dims["K"] > LONGEST_REWRITTEN:
        return f"K = {problem.dims['K']} of operands that are rewritten is longer than {LONGEST_REWRITTEN}"
    return product.why_not()


def fused_config(problem: Problem) -> FusedConfig:
    """The kernel configuration of a bound problem of a product with an activation."""
    signature = problem.signature
    plans = {plan.name.removesuffix("_tensor"): plan for plan in signature.operands}
    tiles = tuple(
        (name, Stored(p.dtype, p.container, p.major, "tma" if p.tma else "direct"))
        for name, p in plans.items()
        if name in ("ab12", "c", "d")
    )
    scales = plans.get("sfc") or plans.get("sfd")
    out_format = None
    if scales is not None:
        out_format = signature.attribute("out_format") or "mxfp8"
        if dict(tiles)[scales.name[2]].dtype == "float8_e5m2":
            out_format = "mxfp8_e5m2"
    per_batch = "amax" in plans and signature.attribute("amax") == "per_batch"
    return FusedConfig(
        signature.op.rpartition("/")[2],
        product_of(problem),
        tuple(plans),
        tiles,
        "per_batch" if per_batch else "global",
        out_format,
        "logical" if scales is None else scales.major,
    )


def workspaces(problem: Problem, product: Product | None = None) -> tuple[Workspace, ...]:
    """Scratch memory: one workspace for all regions, as each allocation costs a call 2 us; none without regions.

    product: None, or with another tile than the extents call for.
    """
    end, sizes = 0, regions(problem, product or product_of(problem))
    for size in sizes.values():
        end = following(end) + size
    return (Workspace(end),) if sizes else ()


def regions(problem: Problem, product: Product) -> dict[str, int]:
    """Bytes of the workspace's regions, in their order: the product's, then partial sums of rows for dprob."""
    m, n, k, batches = (problem.dims[symbol] for symbol in "MNKL")
    written = [
        (rows, target)
        for rows, target in zip((m, n), product.treatments, strict=True)
        if target is not None
    ]
    expanded = sum(expanded_bytes(rows, k, batches, target) for rows, target in written)
    walkers = device_info(problem.device.index or 0).sm_count if product.split else 0
    sizes = {
        "expanded": expanded,
        "counters": counter_bytes([rows for rows, _ in written], k, batches),
        "partials": partial_bytes(product.tile, walkers),
        "flags": flag_bytes(product.tile, walkers),
    }
    made = {name: sizes[name] for name in scratch(product)}
    if problem.signature.has("dprob_tensor"):
        made["row_sums"] = 4 * m * row_parts(product.tile, n) * batches
    return made


def row_parts(tile: TileConfig, n: int) -> int:
    """Partial sums of a row of n columns: RowSum's."""
    return -(-n // tile.bn) * (tile.sharers if tile.orientation == "swapped" else 1)


def source(plan: Plan) -> KernelSource:
    """What the compile cache needs to build the kernel of a plan."""

    def build():
        from . import block_scaled, fused

        module = block_scaled if isinstance(plan.config, GemmAmaxConfig) else fused
        return module.kernel(plan.config), module.fake_args(plan.config), ""

    name = f"gemm_{plan.op.rpartition('/')[2]}"
    return KernelSource(name, key=plan, build=build, sources=DEVICE_CODE)


# The tensor core truncates each sum it adds to, so long contractions drift towards zero; beyond this length the
# partial sums are promoted. At K = 8192 the relative error stays below 1e-5 without it.
LONGEST_PLAIN_K = 8192
# Of an H100 or H200; fewer tiles than ENOUGH_TILES leave too many of them idle.
MULTIPROCESSORS, ENOUGH_TILES = 132, 100


def swapped(bm: int, bn: int, stages: int, raw_stages: int, **more) -> TileConfig:
    """A tile for decoded weights: bn of them, and bm rows of activations."""
    return TileConfig(
        bm=bm, bn=bn, orientation="swapped", stages=stages, raw_stages=raw_stages, **more
    )


def few(bm: int, stages: int, **more) -> tuple[TileConfig, int]:
    """A tile for few rows of activations: long pieces of weights' rows, and warps enough to decode them."""
    tile = swapped(bm, 256, stages, stages, raw_pieces=2, units=0, warpgroups=4, **more)
    return tile, 4


# (tile, units that stream-K gives a block at least, or None). For decoded weights, by rows of activations. Where they
# are few, weights must always be on their way to every multiprocessor, and decoding them must keep up.
FEW_ROWS = (
    few(16, 5, promote_k=4096),
    few(32, 4, promote_k=4096),
    few(64, 3),
    # For long sums: twice as many registers hold them.
    few(64, 3, promote_k=4096),
    (swapped(128, 128, 5, 5, promote_k=4096), 4),
)
MANY_ROWS = (swapped(256, 128, 5, 3), None)
DECODED = (*FEW_ROWS, MANY_ROWS)
# K elements after which sums are promoted: a stage of each type that the tensor core multiplies.
STAGE_K = {None: 128, "float32": 32}


def choose_tile(
    product: Product, dims: Mapping[str, int], staged: bool, sums: int
) -> tuple[TileConfig, int | None]:
    """(tile, split) from the extents: one of few, so that no extent alone costs many compiles.

    staged, sums: as `room` says. Expanded weights take one tile of whatever extents: decoding has five already.
    """
    m, n, k, batches = (dims[symbol] for symbol in "MNKL")
    long = k > LONGEST_PLAIN_K
    if product.decodes:
        large, _ = MANY_ROWS
        plenty = -(-m // large.bm) * -(-n // large.bn) * batches >= ENOUGH_TILES
        if m > FEW_ROWS[-1][0].bm and plenty and staged and not long:
            return MANY_ROWS
        fitting = (each for each in FEW_ROWS[:-1] if m <= each[0].bm)
        tile, split = next(
            (
                (tile, split)
                for tile, split in fitting
                if tile.promote_k is not None
                or longest_sum(tile, split, m, n, k, batches, product.b.bits) <= LONGEST_PLAIN_K
            ),
            FEW_ROWS[-1],
        )
        # Where all of K is one stretch there is nothing to share, and no scratch memory to ask for.
        return tile, None if k <= split * UNIT else split
    # FP8 products are promoted always.
    promote_k = STAGE_K.get(product.meeting, 64) if long or product.meeting is None else None
    if not product.decode:
        return (SQUARE if promote_k is None else WIDE[promote_k]), None
    rule = choose(rules_for(promote_k, sums), m, n, k, batches)
    return rule.tile, rule.split


def longest_sum(
    tile: TileConfig, split: int, m: int, n: int, k: int, batches: int, bits: int
) -> int:
    """K elements that stream-K gives one of 132 blocks of a tile at most, with weights of so many bits."""
    tiles = -(-m // tile.bm) * -(-n // tile.bn) * batches
    if not 0 < tiles < MULTIPROCESSORS:
        return k
    unit = unit_of(tile, bits)
    each = -(-k // unit)
    sharers = max(1, min(MULTIPROCESSORS, tiles * each // max(1, split * UNIT // unit)))
    parts = sharers // tiles
    if parts and each % parts == 0 and parts * tiles * EVENED[1] >= sharers * EVENED[0]:
        sharers = parts * tiles
    return min(k, unit * -(-tiles * each // sharers))


def amax_examples(contract: Contract, everything: bool) -> Iterator[tuple[str, Problem]]:
    """(label, problem) to compile ahead: every recipe, the usual outputs, torch's and JAX's views of scales."""
    outputs = ["float32", "bfloat16", "float16"]
    extents = [(8192, 8192, 8192), (1024, 8192, 8192), (64, 8192, 8192), (16, 8192, 8192)]
    majors = [("k", "k", "n")]
    forms = ["logical"]
    if everything:
        outputs += ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
        majors = list(product("km", "kn", "nm"))
        forms = ["logical", "physical"]
        extents += [(32, 8192, 8192), (128, 8192, 8192)]
    for (name, recipe), c, major, form, extent in product(
        RECIPES.items(), outputs, majors, forms, extents
    ):
        fp4 = recipe[0] == "float4_e2m1fn"
        if (fp4 and major != ("k", "k", "n")) or (c == "float4_e2m1fn" and not fp4):
            continue
        a, b, o = major
        problem = example(contract, recipe, c, major, form, extent)
        tile = product_of(problem).tile
        shape = f"{tile.bm}x{tile.bn}" + (", promoted" if tile.promote_k else "")
        yield f"{name} {a}{b} -> {c} {o}-major, {form} scales, tile {shape}", problem


# (format of A, format of B): what people run, by the names that formats have here; others are dtypes.
USUAL_SIDES = (
    ("bfloat16", "bfloat16"),
    ("float8_e4m3fn", "float8_e4m3fn"),
    ("mxfp8", "mxfp8"),
    ("nvfp4", "nvfp4"),
    ("bfloat16", "mxfp8"),
    ("bfloat16", "mxfp4"),
    ("bfloat16", "nvfp4"),
)


def fused_examples(contract: Contract, everything: bool) -> Iterator[tuple[str, Problem]]:
    """(label, problem) of products with an activation to compile ahead: the usual operands, BF16 and MXFP8 results."""
    sides = USUAL_SIDES
    if everything:
        sides = tuple(product((*(s[0] for s in USUAL_SIDES[:2]), *RECIPES), repeat=2))
    shapes = [(8192, 8192, 8192), (1024, 8192, 8192), (16, 8192, 8192)]
    for (a, b), shape, out in product(sides, shapes, (None, "mxfp8")):
        if shape[0] == 1024 and b not in RECIPES:
            continue  # A tile of decoded weights.
        problem = fused_example(contract, a, b, shape, out)
        tile = product_of(problem).tile
        label = f"{a} x {b} -> {out or 'bfloat16'}, tile {tile.bm}x{tile.bn}"
        yield label, problem


def fused_example(
    contract: Contract,
    a: str,
    b: str,
    shape: tuple[int, int, int] = (8192, 8192, 8192),
    out_format: str | None = None,
    form: str = "logical",
    **attributes,
) -> Problem:
    """A problem of a product with an activation, bound without arrays; K-major operands, BF16 unless said."""
    m, n, k = shape
    vecs, descs = [], {}
    for name, format, rows in (("a", a, m), ("b", b, n)):
        element, scale, vec = RECIPES.get(format, (format, None, 16))
        vecs.append(vec)
        descs[f"{name}_tensor"] = _matrix(f"{name}_tensor", element, (rows, k), False)
        if scale is not None:
            descs[f"sf{name}_tensor"] = _scales(f"sf{name}_tensor", scale, rows, k, vec, form)
    descs["prob_tensor"] = TensorDesc.of("float32", (m, 1, 1), None, "cuda:0", "prob_tensor")
    descs["c_tensor"] = _matrix("c_tensor", "bfloat16", (m, n), False)
    named = {"sf_vec_size": tuple(vecs), "out_format": out_format}
    element = {None: "bfloat16", "mxfp8": "float8_e4m3fn"}.get(out_format, "float4_e2m1fn")
    for attribute in contract.attributes:
        if attribute.name in ("c_dtype", "d_dtype", "ab12_dtype"):
            named[attribute.name] = "bfloat16"
    named["d_dtype" if "d_dtype" in named else "c_dtype"] = element
    given = [descs.get(operand.name) for operand in contract.inputs]
    return contract.bind(given, named | attributes)


def example(
    contract: Contract,
    recipe: tuple[str, str, int],
    c_dtype: str,
    majors: tuple[str, str, str] = ("k", "k", "n"),
    form: str = "logical",
    extents: tuple[int, int, int] = (8192, 8192, 8192),
) -> Problem:
    """A problem of these formats and layouts, bound without arrays."""
    element, scale, vec = recipe
    m, n, k = extents
    a_major, b_major, c_major = majors
    descs = [
        _matrix("a_tensor", element, (m, k), a_major == "m"),
        _matrix("b_tensor", element, (n, k), b_major == "n"),
        _scales("sfa_tensor", scale, m, k, vec, form),
        _scales("sfb_tensor", scale, n, k, vec, form),
    ]
    return contract.bind(descs, {"sf_vec_size": vec, "c_dtype": c_dtype, "c_major": c_major})


def _matrix(name: str, dtype: str, shape: tuple[int, int], first_contiguous: bool) -> TensorDesc:
    rows, columns = shape
    stride = (1, rows, rows * columns) if first_contiguous else (columns, 1, rows * columns)
    return TensorDesc.of(dtype, (rows, columns, 1), stride, "cuda:0", name)


def _scales(name: str, dtype: str, rows: int, k: int, vec: int, form: str) -> TensorDesc:
    r, q = -(-rows // 128), -(-k // (4 * vec))
    shape = (1, r, q, 32, 4, 4) if form == "physical" else (32, 4, r, 4, q, 1)
    stride = ScaleFactor.strides(shape, form == "physical")
    return TensorDesc.of(dtype, shape, stride, "cuda:0", name)
