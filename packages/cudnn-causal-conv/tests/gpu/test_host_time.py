"""What calls cost on the host, as `cudnn bench` measures it. To be run alone: a busy machine makes it fail."""

import pytest

torch = pytest.importorskip("torch")

from cudnn_causal_conv import _bench_work as work
from cudnn_causal_conv._bench import (
    BACKWARD_LIMIT,
    BARE_LIMIT,
    FORWARD_LIMIT,
    HOST_BOUND,
    HOST_BOUND_UPDATES,
    UPDATE_LIMIT,
)
from cudnn_core.bench.device import Cuda
from cudnn_core.bench.timing import host_seconds

pytestmark = pytest.mark.gpu


def host_times(calls):
    """Microseconds by name: the best of three medians, measured in turn, as what else runs comes and goes."""
    clock = Cuda()
    for call in calls.values():
        for _ in range(50):
            call()
    rounds = [{name: host_seconds(clock, call) for name, call in calls.items()} for _ in range(3)]
    found = {name: 1e6 * min(each[name] for each in rounds) for name in calls}
    print({name: round(us, 2) for name, us in found.items()})
    return found


def functions(inputs):
    return {
        "ours": work.ours,
        "empty": work.empty_function(inputs),
        "bare": work.bare_function(inputs),
    }


@pytest.fixture(params=["rows", "channel-last"])
def inputs(request):
    return work.make_inputs(HOST_BOUND, "cuda", request.param, grad=True)


def test_forward(inputs):
    operands = inputs.x, inputs.weight, inputs.bias
    made = functions(inputs)
    us = host_times({name: lambda f=made[name]: f(*operands) for name in ("ours", "empty")})
    assert us["ours"] - us["empty"] <= FORWARD_LIMIT


def backward_times(inputs, own_thread):
    made = functions(inputs).items()
    return host_times(
        {name: work.gradients_call(f, inputs, own_thread=own_thread) for name, f in made}
    )


def test_backward_in_the_calling_thread(inputs):
    us = backward_times(inputs, own_thread=False)
    assert us["ours"] - us["empty"] <= BACKWARD_LIMIT


def test_backward_in_the_thread_of_the_device(inputs):
    """Its caches are cold for every call, whatever the body: the bare one says how much of the time that is."""
    us = backward_times(inputs, own_thread=True)
    assert us["ours"] - us["bare"] <= BARE_LIMIT


def test_update():
    us = host_times({"update": work.update_trial(HOST_BOUND_UPDATES, "cuda", graph=False).ours})
    assert us["update"] <= UPDATE_LIMIT
