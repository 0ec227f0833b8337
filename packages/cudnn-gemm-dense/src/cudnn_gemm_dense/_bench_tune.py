"""The tables of tile rules as `cudnn bench dense --tune` measures them: candidates, problems, and calls with any tile.

Measured is SwiGLU with a BF16 result, AB12 not stored: the epilogue that most run. Listing imports no framework.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from cudnn_core.bench.fit import Extents
from cudnn_core.bench.protocol import Call
from cudnn_core.bench.tuning import Tuning, anywhere, variants
from cudnn_core.contract import Problem
from cudnn_core.engine import HopperEngine, Workspace
from cudnn_core.hopper.rules import DIRECT, PROMOTED, SHORT, SQUARE, TURNS, Rule
from cudnn_core.hopper.tile import TileConfig

from . import kernels
from .config import FusedConfig, Product
from .kernels import FEW_ROWS, LONGEST_PLAIN_K, MANY_ROWS, longest_sum, swapped

# M of the problems: a few tokens, all numbers of tiles from a part of a round to many rounds.
ROWS = (16, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192)
FEWER_ROWS = (16, 64, 128, 256, 1024, 4096)
DECODED_ROWS = (1, 16, 32, 48, 64, 96, 128, 256, 512, 1024, 4096, 8192)
# (N, K): narrow and wide, shallow and deep; a K beyond which sums are promoted has tables of its own.
WIDTHS = ((28672, 4096), (6144, 2048), (4096, 4096), (8192, 8192))
LONG = ((4096, 14336), (8192, 12288))
# Of each, the first that a short run measures: with one K, a tile's speed and lag could not be told apart.
QUICK_WIDTHS = 2
QUICK_ROWS = (16, 64, 128, 1024, 4096)
# Ragged in every extent: less than a tile, and more tiles than multiprocessors.
CHECKS = ((77, 448, 544), (1300, 4160, 1056))
# Numbers of tiles that no table has yet; lag and join stay where measurements leave them open.
SPEED, LAG, JOIN = 1.0, 64, 1500


def tunings() -> Iterator[Tuning]:
    """The tables of plain products, then those of decoded weights."""
    both = {"bfloat16": 64, "float32": 32}
    for dtype, stage in both.items():
        name = {"bfloat16": "bf16", "float32": "tf32"}[dtype]
        # A format's tables share six tiles: those for any K, and those for long sums.
        yield _tuning(f"{name}x{name}", "DIRECT", (dtype, dtype), DIRECT, direct(), WIDTHS, most=4)
        yield _tuning(
            f"{name} over long K",
            f"PROMOTED[{stage}]",
            (dtype, dtype),
            PROMOTED[stage],
            promoted(stage),
            LONG,
            FEWER_ROWS,
            most=2,
        )
    fp8 = "float8_e4m3fn"
    yield _tuning("fp8xfp8", "PROMOTED[128]", (fp8, fp8), PROMOTED[128], promoted(128), WIDTHS)
    for weights in ("mxfp8", "nvfp4", "mxfp4"):
        sides = ("bfloat16", weights)
        made = _tuning(
            f"bf16x{weights}",
            "DECODED",
            sides,
            decoded(),
            more_decoded(),
            (*WIDTHS, LONG[0]),
            DECODED_ROWS,
        )
        yield replace(
            made,
            problems=_in_registers(sides, made.problems),
            quick=_in_registers(sides, made.quick),
            allows=allows_decoded,
        )


def _in_registers(sides: tuple[str, str], problems: tuple[Extents, ...]) -> tuple[Extents, ...]:
    """The problems at which B is decoded in the main loop, with a tile of that body."""
    return tuple(p for p in problems if kernels.product_of(bound(sides, p)).decodes)


def _tuning(
    name: str,
    table: str,
    sides: tuple[str, str],
    rules: tuple[Rule, ...],
    others: tuple[Rule, ...],
    widths: tuple[tuple[int, int], ...],
    rows: tuple[int, ...] = ROWS,
    most: int = 6,
) -> Tuning:
    def problems(rows: tuple[int, ...], widths: tuple[tuple[int, int], ...]) -> tuple[Extents, ...]:
        return tuple((m, n, k) for (n, k), m in product(widths, rows))

    return Tuning(
        name,
        table,
        rules,
        others,
        problems(rows, widths),
        problems(QUICK_ROWS, widths[:QUICK_WIDTHS]),
        CHECKS,
        choose=partial(choose, sides),
        prepare=partial(Subject, sides),
        source=partial(source, sides),
        most=most,
    )


def direct() -> tuple[Rule, ...]:
    """Tiles to try for sums that stay in the tensor core."""
    large = (
        TileConfig(bm=256, bn=128),
        TileConfig(bm=256, bn=128, cluster=(2, 1)),
        TileConfig(bm=128, bn=256),
        TileConfig(bm=128, bn=192, cluster=(2, 1), pingpong=True),
        TileConfig(bm=64, bn=256, pingpong=True),
    )
    shared = variants(map(_rule, (TURNS, SQUARE)), (4, 8))
    return (*map(_rule, large), *shared, *_short(SHORT))


def promoted(stage: int) -> tuple[Rule, ...]:
    """Tiles to try for sums that leave the tensor core after each stage."""
    large = (
        TileConfig(bm=256, bn=128, promote_k=stage),
        TileConfig(bm=256, bn=128, cluster=(2, 1), promote_k=stage),
        TileConfig(bm=128, bn=192, stages=5, promote_k=stage),
        TileConfig(bm=128, bn=128, stages=5, promote_k=stage),
        TileConfig(bm=128, bn=128, stages=5, cluster=(2, 1), promote_k=stage),
    )
    shared = variants(map(_rule, (large[0], large[3])), (4, 8))
    return (*map(_rule, large), *shared, *_short(replace(SHORT, promote_k=stage)))


def _short(tile: TileConfig) -> tuple[Rule, ...]:
    """A tile for few rows, split and not."""
    return variants((replace(_rule(tile), most_rows=tile.bm),), (None, 2, 4, 8))


def decoded() -> tuple[Rule, ...]:
    """The tiles of decoded weights as rules: what picks them knows rows only, so the numbers are the fit's to find."""
    few = tuple(replace(_rule(tile, split), most_rows=tile.bm) for tile, split in FEW_ROWS)
    return (*few[:-1], replace(few[-1], most_rows=None), _rule(*MANY_ROWS))


def more_decoded() -> tuple[Rule, ...]:
    """Tiles to try for decoded weights."""
    few = (
        swapped(64, 128, 8, 7, promote_k=4096),
        *(rule.tile for rule in decoded()[:3]),
    )
    short = (replace(_rule(tile), most_rows=tile.bm) for tile in few)
    large = (
        swapped(192, 128, 5, 4),
        FEW_ROWS[-1][0],
    )
    return (*variants(short, (2, 4, 8)), *variants(map(_rule, large), (None, 8)))


def allows_decoded(rule: Rule, problem: Extents) -> bool:
    """Long sums, of one block, are for tiles that promote them, whichever weights have them."""
    m, n, depth = problem
    if rule.split is not None:
        depth = max(longest_sum(rule.tile, rule.split, m, n, depth, 1, bits) for bits in (4, 8))
    is_short = depth <= LONGEST_PLAIN_K or rule.tile.promote_k is not None
    return is_short and anywhere(rule, problem)


def _rule(tile: TileConfig, split: int | None = None) -> Rule:
    return Rule(tile, SPEED, LAG, split, JOIN)


def bound(sides: tuple[str, str], problem: Extents) -> Problem:
    """A problem of SwiGLU in these formats, without arrays."""
    from .swiglu import CONTRACT

    return kernels.fused_example(CONTRACT, *sides, problem, ab12_dtype=None)


def choose(sides: tuple[str, str], problem: Extents) -> tuple[TileConfig, int | None]:
    """The tile and the split that the operation picks at a problem."""
    picked = kernels.product_of(bound(sides, problem))
    return picked.tile, picked.split


def source(sides: tuple[str, str], rule: Rule) -> Any:
    """The kernel with a rule's tile; extents do not matter to it."""
    made = engine(rule)
    return made.source(made.plan(bound(sides, CHECKS[0])))


def engine(rule: Rule) -> HopperEngine:
    """The operation's engine, but for what picks the tile."""

    def with_tile(problem: Problem) -> Product:
        return replace(kernels.product_of(problem), tile=rule.tile, split=rule.split)

    def configure(problem: Problem) -> FusedConfig:
        return replace(kernels.fused_config(problem), product=with_tile(problem))

    def workspaces(problem: Problem) -> tuple[Workspace, ...]:
        return kernels.workspaces(problem, with_tile(problem))

    return HopperEngine(configure, kernels.source, kernels.why_not, workspaces)


class Subject:
    """Operands of one problem on a device; see cudnn_core.bench.tuning."""

    def __init__(self, sides: tuple[str, str], problem: Extents, device: str) -> None:
        import torch

        from cudnn_core.adapters import adapter_of

        from ._bench_work import Work

        m, n, _ = problem
        self._work = Work("swiglu", problem, *sides, "bfloat16", device)
        self._problem = bound(sides, problem)
        a, b = self._work.a, self._work.b
        self._inputs = [x for x in (a.data, b.data, a.scale, b.scale) if x is not None]
        self._adapter = adapter_of(a.data)
        self._c = torch.empty(m, n // 2, 1, dtype=torch.bfloat16, device=device)

    def call(self, rule: Rule) -> Call:
        """One call into the same output, as the wrapper makes it."""
        from cudnn_core.prepared import executable_of, launcher

        from .swiglu import OP

        made = engine(rule)
        executable = executable_of(made, self._problem)
        launch = launcher(OP, self._adapter, self._problem, made, executable)
        tensors, numbers = (*self._inputs, self._c), (self._work.alpha,)
        return lambda: launch(tensors, None, numbers)

    def check(self, rule: Rule) -> None:
        """WrongResult unless C is right in every element."""
        from ._bench_work import AMAX_ERROR

        self._c.fill_(float("nan"))
        self.call(rule)()
        self._work.check_results({"c_tensor": self._c}, self._work.noise, AMAX_ERROR)
