"""The gpu tier compiles what its cases need before the first test, many kernels at once."""

import os
import time

import pytest

from cudnn_causal_conv.testing import Case, descs, step_descs
from cudnn_core.testing.precompile import compile_plans, plan_of
from cudnn_core.testing.tiers import why_no_hopper

FORWARD, BACKWARD, UPDATE = (
    f"cudnn_causal_conv.{stem}" for stem in ("conv1d", "backward", "update")
)

# torch and JAX share one device here; read when JAX first touches it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def plans_of(case):
    """(module, plan) of the kernels that tests of a case call."""
    attributes = {"activation": case.activation}
    if not isinstance(case, Case):
        return {(UPDATE, plan_of(UPDATE, step_descs(case), attributes))}
    if 0 in case.shape:
        return set()
    forward = attributes | {"return_final_states": case.final}
    return {
        (FORWARD, plan_of(FORWARD, descs(case, False), forward)),
        (BACKWARD, plan_of(BACKWARD, descs(case, True), attributes)),
    }


@pytest.fixture(scope="session", autouse=True)
def kernels(request):
    """Every `case` parameter of the collected tests of public functions, compiled into the disk cache."""
    if why_no_hopper():
        return
    plans = set()
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.get_closest_marker("gpu") and item.path.stem.startswith("test_conv1d"):
            for case in (parameters[name] for name in ("case", "step") if name in parameters):
                plans |= plans_of(case)
    start, errors = time.perf_counter(), []
    for module in (FORWARD, BACKWARD, UPDATE):
        mine = sorted((plan for owner, plan in plans if owner == module), key=repr)
        errors += compile_plans(module, mine)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        seconds = time.perf_counter() - start
        print(f"\n{len(plans) - len(errors)} of {len(plans)} kernels ready after {seconds:.1f} s")
        print(*errors, sep="\n")
