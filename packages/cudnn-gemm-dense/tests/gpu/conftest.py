"""The gpu tier compiles what its cases need before the first test, many kernels at once."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cudnn_core.testing.gemm import Case, describe_inputs
from cudnn_core.testing.precompile import compile_plans, plan_of
from cudnn_core.testing.tiers import why_no_hopper

OP_MODULE = "cudnn_gemm_dense.amax"

# For `fused_cases`, which tests of this folder share.
sys.path.insert(0, str(Path(__file__).parent))

# torch and JAX share one device here; read when JAX first touches it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def plans_of(case, batched):
    """The kernel of a case, and the one that `jax.vmap` of it takes."""
    if 0 in (case.m, case.n, case.k, case.l):
        return set()
    plans = {plan_of(OP_MODULE, describe_inputs(case), case.options())}
    if batched:
        vmapped = case.options() | {"batch": "outer", "amax": "per_batch"}
        plans.add(plan_of(OP_MODULE, describe_inputs(replace(case, l=3)), vmapped))
    return plans


@pytest.fixture(scope="session", autouse=True)
def kernels(request):
    """Every `case` parameter of the collected gpu tests, compiled into the disk cache."""
    if why_no_hopper():
        return
    plans, fused = set(), set()
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if not item.get_closest_marker("gpu"):
            continue
        for case in parameters.values():
            if isinstance(case, Case):
                plans |= plans_of(case, batched="jax" in item.path.name)
            elif hasattr(case, "plans"):
                fused |= case.plans()
    start = time.perf_counter()
    errors = compile_plans(OP_MODULE, sorted(plans, key=repr))
    # Any op of the package makes the kernels of all: a plan holds which.
    errors += compile_plans("cudnn_gemm_dense.swiglu", sorted(fused, key=repr))
    plans |= fused
    seconds = time.perf_counter() - start
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(
            f"\n{len(plans) - len(errors)} of {len(plans)} kernels ready after {seconds:.1f} s",
            *errors,
            sep="\n",
        )
