"""What calls cost on the host, beside an empty autograd.Function. To be run alone: a busy machine makes it fail."""

import statistics
import time

import pytest

torch = pytest.importorskip("torch")

from cudnn_causal_conv import causal_conv1d, causal_conv1d_update

pytestmark = pytest.mark.gpu


class Empty(torch.autograd.Function):
    """As many operands and results as the convolution, and no work."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        return EMPTY

    @staticmethod
    def backward(ctx, dout):
        return NOTHING


EMPTY, NOTHING = None, (None, None, None)


def median_us(call):
    """Median host time of 1,000 asynchronous calls, the queue drained every 100."""
    times = []
    for i in range(1000):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
        if i % 100 == 99:
            torch.cuda.synchronize()
    return statistics.median(times) / 1e3


def host_times():
    """Microseconds of a call: ours and an empty function's, forward and backward, and a decode step.

    The best of three, measured in turn: what the machine does beside changes from second to second.
    """
    global EMPTY, NOTHING
    x, dout = (torch.randn(1, 2048, 2048, device="cuda").bfloat16() for _ in "xd")
    weight, bias = (torch.randn(s, device="cuda").bfloat16() for s in ((2048, 4), (2048,)))
    for each in (x, weight, bias):
        each.requires_grad_()
    EMPTY = torch.empty_like(x)
    NOTHING = tuple(torch.empty_like(each) for each in (x, weight, bias))
    tokens, state = (torch.randn(s, device="cuda").bfloat16() for s in ((16, 4096), (16, 4096, 3)))
    taps, offsets = (torch.randn(s, device="cuda").bfloat16() for s in ((4096, 4), (4096,)))

    def ours():
        return causal_conv1d(x, weight, bias, "silu")

    def empty():
        return Empty.apply(x, weight, bias)

    def backward(forward):
        y = forward()
        return lambda: torch.autograd.grad(y, (x, weight, bias), dout, retain_graph=True)

    calls = {
        "forward": ours,
        "empty forward": empty,
        "backward": backward(ours),
        "empty backward": backward(empty),
        "update": lambda: causal_conv1d_update(tokens, state, taps, offsets, "silu"),
    }
    for call in calls.values():
        for _ in range(50):
            call()
    torch.cuda.synchronize()
    rounds = [{name: median_us(call) for name, call in calls.items()} for _ in range(3)]
    return {name: min(each[name] for each in rounds) for name in calls}


def test_host_time():
    us = host_times()
    print(us)
    assert us["forward"] - us["empty forward"] <= 12
    assert us["backward"] - us["empty backward"] <= 15
    assert us["update"] <= 14
