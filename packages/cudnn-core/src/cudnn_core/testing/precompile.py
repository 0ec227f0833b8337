"""Kernels that tests need: which to compile, and compiling them side by side in processes of their own.

May import the standard library, plan, and what is passed by name; the cache and the compiler inside functions.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from itertools import combinations
from random import Random
from typing import Any

from ..plan import Plan


def plan_of(module: str, descs: list, attributes: dict) -> Plan:
    """The plan that the op of a module (its `OP`) chooses on sm_90a for inputs described by `descs`."""
    op = import_module(module).OP
    engine = next(e for e in op.engines if e.name == "hopper")
    return engine.plan(op.contract.bind(descs, attributes))


def compile_plan(owner: str | Callable[[Plan], Any], plan: Plan) -> str | None:
    """Put the kernel of one plan into the disk cache; the error's text where it cannot be built, otherwise None.

    owner: the name of a module with an `OP`, or a function of an installed module, plan -> what the cache builds from.
    """
    from .. import cache

    try:
        cache.compile_ahead(_source(owner, plan))
    # The test that needs this kernel will meet the same error and report it; the others must go on.
    except Exception as error:
        return f"{plan}: {error!r}"
    return None


def _source(owner: str | Callable[[Plan], Any], plan: Plan) -> Any:
    if callable(owner):
        return owner(plan)
    return next(e for e in import_module(owner).OP.engines if e.name == plan.engine).source(plan)


def compile_plans(
    owner: str | Callable[[Plan], Any], plans: Iterable[Plan], workers: int | None = None
) -> list[str]:
    """`compile_plan` of each, as many at once as there are processors to spare. The errors' texts."""
    spare = workers or max(1, (os.cpu_count() or 1) - 1)
    results = in_parallel(compile_plan, ((owner, plan) for plan in dict.fromkeys(plans)), spare)
    return [error for error in results if error is not None]


def in_parallel(work: Callable, wanted: Iterable[tuple], workers: int) -> Iterator[Any]:
    """work(*arguments) of each, in order. Spawned and not forked: the caller may hold a CUDA context."""
    if wanted := list(wanted):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(len(wanted), workers), mp_context=context) as pool:
            yield from pool.map(work, *zip(*wanted, strict=True))


def machine_code(module: str, plan: Plan) -> dict[str, int]:
    """How often each opcode occurs in the kernel of a plan; the disk cache is left alone."""
    from . import machine_code as code

    binary = code.object_code(_source(module, plan).build, plan.arch)
    return dict(code.instructions(code.disassemble(binary)))


def machine_codes(
    module: str, plans: Iterable[Plan], workers: int | None = None
) -> Iterator[dict[str, int]]:
    """`machine_code` of each plan, in order; side by side where there are several processors."""
    wanted = ((module, plan) for plan in plans)
    return in_parallel(machine_code, wanted, workers or os.cpu_count() or 1)


def pairwise(
    factors: dict[str, tuple], legal: Callable[[dict], bool], tries: int = 150
) -> list[dict]:
    """Combinations in which every pair of values of two factors occurs that occurs in any legal one.

    Greedy over pseudo-random candidates of a fixed seed, so the cover is always the same one. A pair that `tries` * 20
    random combinations around it never make legal counts as impossible.
    """
    random = Random(0).random
    names = list(factors)

    def draw(fixed: dict) -> dict | None:
        for _ in range(20):
            made = {n: fixed.get(n, v[int(random() * len(v))]) for n, v in factors.items()}
            if legal(made):
                return made
        return None

    def pairs(made: dict) -> set:
        return {((a, made[a]), (b, made[b])) for a, b in combinations(names, 2)}

    missing = [
        ((a, x), (b, y)) for a, b in combinations(names, 2) for x in factors[a] for y in factors[b]
    ]
    missing, cover = dict.fromkeys(missing), []
    while missing:
        seed = next(iter(missing))
        drawn = [made for made in (draw(dict(seed)) for _ in range(tries)) if made]
        if not drawn:
            del missing[seed]
            continue
        best = max(drawn, key=lambda made: sum(pair in missing for pair in pairs(made)))
        cover.append(best)
        for pair in pairs(best):
            missing.pop(pair, None)
    return cover
