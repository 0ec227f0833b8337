"""The gpu tier compiles what its cases need before the first test, many kernels at once."""

import os
import time

import pytest

from cudnn_core.testing.gemm import Case, describe_inputs
from cudnn_core.testing.precompile import compile_plans, plan_of
from cudnn_core.testing.tiers import why_no_hopper

OP_MODULE = "cudnn_gemm_dense.amax"

# torch and JAX share one device here; read when JAX first touches it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.fixture(scope="session", autouse=True)
def kernels(request):
    """Every `case` parameter of the collected gpu tests, compiled into the disk cache."""
    if why_no_hopper():
        return
    cases = set()
    for item in request.session.items:
        parameters = getattr(item, "callspec", None)
        if item.get_closest_marker("gpu") and parameters:
            cases.update(v for v in parameters.params.values() if isinstance(v, Case))
    plans = {
        plan_of(OP_MODULE, describe_inputs(case), case.options())
        for case in cases
        if 0 not in (case.m, case.n, case.k, case.l)
    }
    start = time.perf_counter()
    compile_plans(OP_MODULE, sorted(plans, key=repr))
    seconds = time.perf_counter() - start
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{len(plans)} kernels of {len(cases)} cases ready after {seconds:.1f} s")
