"""Kernels that tests will need, compiled side by side in processes of their own before the first test.

May import the standard library, numpy-free parts of core, and what `module` names.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module

from ..plan import Plan


def plan_of(module: str, descs: list, attributes: dict) -> Plan:
    """The plan that the op of a module (its `OP`) chooses on sm_90a for inputs described by `descs`."""
    op = import_module(module).OP
    engine = next(e for e in op.engines if e.name == "hopper")
    return engine.plan(op.contract.bind(descs, attributes))


def compile_plan(module: str, plan: Plan) -> str:
    """Put the kernel of one plan into the disk cache; its digest."""
    from .. import cache

    op = import_module(module).OP
    engine = next(e for e in op.engines if e.name == plan.engine)
    return cache.compile_ahead(engine.source(plan)).digest


def compile_plans(module: str, plans: Iterable[Plan], workers: int | None = None) -> list[str]:
    """`compile_plan` of each, in parallel. Spawned and not forked: the caller may hold a CUDA context."""
    plans = list(dict.fromkeys(plans))
    if not plans:
        return []
    count = min(len(plans), workers or max(1, (os.cpu_count() or 1) - 1))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        return list(pool.map(compile_plan, [module] * len(plans), plans))
