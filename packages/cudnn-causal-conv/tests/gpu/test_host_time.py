"""What calls cost on the host, as `cudnn bench` measures it. A tier of its own: a busy machine makes it fail."""

import pytest

torch = pytest.importorskip("torch")

from cudnn_causal_conv import _bench_work as work
from cudnn_causal_conv._bench import (
    BACKWARD_LIMIT,
    FORWARD_LIMIT,
    HOST_BOUND,
    HOST_BOUND_UPDATES,
    UPDATE_LIMIT,
)
from cudnn_core.bench.device import Cuda
from cudnn_core.bench.timing import host_times

pytestmark = pytest.mark.host_time


def microseconds(calls):
    found = {name: 1e6 * seconds for name, seconds in host_times(Cuda(), calls).items()}
    print({name: round(us, 2) for name, us in found.items()})
    return found


@pytest.fixture(params=["rows", "channel-last"])
def inputs(request):
    return work.make_inputs(HOST_BOUND, "cuda", request.param, grad=True)


def test_forward(inputs):
    operands = inputs.x, inputs.weight, inputs.bias
    empty = work.empty_function(inputs)
    us = microseconds({"ours": lambda: work.ours(*operands), "empty": lambda: empty(*operands)})
    assert us["ours"] - us["empty"] <= FORWARD_LIMIT


def test_backward_in_the_calling_thread(inputs):
    functions = {"ours": work.ours, "empty": work.empty_function(inputs)}
    us = microseconds(
        {n: work.gradients_call(f, inputs, own_thread=False) for n, f in functions.items()}
    )
    assert us["ours"] - us["empty"] <= BACKWARD_LIMIT


def test_update():
    us = microseconds({"update": work.update_trial(HOST_BOUND_UPDATES, "cuda", graph=False).ours})
    assert us["update"] <= UPDATE_LIMIT
