"""From bound problems to Hopper kernels: configuration, tile rules, what to compile ahead.

Imports neither the DSL nor a framework: planning a call must stay cheap, and a process that finds its kernel on disk
never loads the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from cudnn_core.cache import KernelSource
from cudnn_core.contract import Contract, Problem, ScaleFactor
from cudnn_core.hopper.tile import TileConfig
from cudnn_core.plan import Plan
from cudnn_core.tensor_desc import TensorDesc

from .config import RECIPES, BlockScaledGemm

# What kernels are traced from, beside core's own device code.
DEVICE_CODE = ("cudnn_gemm_dense.config", "cudnn_gemm_dense.block_scaled")


def block_scaled_config(problem: Problem) -> BlockScaledGemm:
    """The kernel configuration of a bound problem."""
    signature = problem.signature
    a, b, sfa, sfb, c = (
        signature.operand(n)
        for n in ("a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor", "c_tensor")
    )
    return BlockScaledGemm(
        a_dtype=a.dtype,
        b_dtype=b.dtype,
        sf_dtype=sfa.dtype,
        sf_vec=signature.attribute("sf_vec_size"),
        c_dtype=c.dtype,
        a_container=a.container,
        b_container=b.container,
        c_container=c.container,
        sfa_container=sfa.container,
        sfb_container=sfb.container,
        a_major=a.major,
        b_major=b.major,
        c_major=c.major,
        sfa_form=sfa.major,
        sfb_form=sfb.major,
        c_store="tma" if c.tma else "direct",
        # JAX batches may mix extents of 1 and L, so they count as batched always.
        batched=problem.dims["L"] != 1 or signature.attribute("batch") == "outer",
        batch=signature.attribute("batch"),
        amax=signature.attribute("amax"),
        tile=choose_tile(problem),
    )


# The tensor core truncates each sum it adds to, so long contractions drift towards zero; beyond this length the
# partial sums are promoted. At K = 8192 the relative error stays below 1e-5 without it.
LONGEST_PLAIN_K = 8192
PROMOTED = TileConfig(bm=128, bn=128, promote_k=4096)
# From the fastest on large outputs to the one that makes most tiles of small ones.
TILES = (TileConfig(), TileConfig(bm=128, bn=128), TileConfig(bm=128, bn=64))
# Fewer tiles than this leave too many multiprocessors idle (an H200 has 132).
ENOUGH_TILES = 100


def choose_tile(problem: Problem) -> TileConfig:
    """The tile from the extents: one of four, so that no extent alone costs many compiles."""
    m, n, k, batches = (problem.dims[symbol] for symbol in "MNKL")
    if k > LONGEST_PLAIN_K:
        return PROMOTED
    for tile in TILES:
        if -(-m // tile.bm) * -(-n // tile.bn) * batches >= ENOUGH_TILES:
            return tile
    return TILES[-1]


def block_scaled_source(plan: Plan) -> KernelSource:
    """What the compile cache needs to build the kernel of a plan."""

    def build():
        from . import block_scaled

        return block_scaled.kernel(plan.config), block_scaled.fake_args(plan.config), ""

    return KernelSource(
        "gemm_amax",
        key=plan,
        build=build,
        sources=DEVICE_CODE,
    )


def examples(contract: Contract, everything: bool) -> Iterator[tuple[str, Problem]]:
    """(label, problem) to compile ahead: every recipe, the usual outputs, torch's and JAX's views of scales."""
    outputs = ["float32", "bfloat16", "float16"]
    extents = [(8192, 8192, 8192), (1024, 1024, 1024)]
    majors = [("k", "k", "n")]
    forms = ["logical"]
    if everything:
        outputs += ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
        majors = list(product("km", "kn", "nm"))
        forms = ["logical", "physical"]
        extents += [(2048, 1024, 1024), (8192, 8192, 16384)]
    for (name, recipe), c, major, form, extent in product(
        RECIPES.items(), outputs, majors, forms, extents
    ):
        fp4 = recipe[0] == "float4_e2m1fn"
        if (fp4 and major != ("k", "k", "n")) or (c == "float4_e2m1fn" and not fp4):
            continue
        a, b, o = major
        problem = example(contract, recipe, c, major, form, extent)
        tile = choose_tile(problem)
        shape = f"{tile.bm}x{tile.bn}" + (", promoted" if tile.promote_k else "")
        yield f"{name} {a}{b} -> {c} {o}-major, {form} scales, tile {shape}", problem


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
