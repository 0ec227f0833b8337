"""The public convolution on a Hopper GPU: streams, graphs, lifetimes, devices, shapes."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from cudnn_causal_conv import causal_conv1d, causal_conv1d_update
from cudnn_causal_conv.testing import Case
from cudnn_core import cache

pytestmark = pytest.mark.gpu

CASE = Case(b=2, d=64, t=500, x="bfloat16")
cases = pytest.mark.parametrize("case", [CASE, replace(CASE, layout="d")], ids=["t", "d"])
SLEEP = 50_000_000  # cycles: tens of milliseconds


def operands(case, seed=0):
    """x, weight, bias and the gradient of the output."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, device="cuda", generator=generator).bfloat16()

    b, d, t = case.shape
    x, dout = (
        normal(b, d, t) if case.layout == "t" else normal(b, t, d).transpose(1, 2) for _ in "xd"
    )
    return x.requires_grad_(), normal(d, 4).requires_grad_(), normal(d).requires_grad_(), dout


def both(x, weight, bias, dout):
    """The output and the gradients."""
    y = causal_conv1d(x, weight, bias, "silu")
    return y.detach(), *torch.autograd.grad(y, (x, weight, bias), dout)


def assert_equal(first, second):
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@cases
def test_the_current_stream_is_used(case):
    """Operands are written late on a side stream; another stream would read too early."""
    late = operands(case, 1)
    expected = both(*late)
    mine = operands(case)
    both(*mine)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        with torch.no_grad():
            for x, y in zip(mine, late, strict=True):
                x.copy_(y)
        got = both(*mine)
        side.synchronize()
    assert_equal(got, expected)


@cases
def test_operands_dropped_right_after_a_call_on_a_side_stream(case):
    """They belong to the default stream, whose next allocations poison the memory."""
    expected = both(*operands(case))
    side, mine = torch.cuda.Stream(), operands(case)
    sizes = [x.untyped_storage().nbytes() for x in mine]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        got = both(*mine)
    del mine
    poison = [torch.full((size,), 0x7F, dtype=torch.uint8, device="cuda") for size in sizes * 3]
    torch.cuda.synchronize()
    assert_equal(got, expected)
    assert len(poison) == 12


@cases
def test_no_call_waits_for_the_device(case):
    mine = operands(case)
    expected = both(*mine)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(SLEEP)
        got = both(*mine)
        busy = not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert busy, "the calls took as long as the device"
    assert_equal(got, expected)


@cases
def test_graph_replays_follow_the_data(case):
    mine = operands(case)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both(*mine)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = both(*mine)
    for seed in (1, 2):
        other = operands(case, seed)
        expected = both(*other)
        with torch.no_grad():
            for x, y in zip(mine, other, strict=True):
                x.copy_(y)
        graph.replay()
        torch.cuda.synchronize()
        assert_equal(got, expected)


def test_update_in_a_graph_follows_slots_and_state():
    x, state = torch.randn(4, 64, device="cuda"), torch.randn(9, 64, 3, device="cuda")
    weight, slots = (
        torch.randn(64, 4, device="cuda"),
        torch.arange(4, device="cuda", dtype=torch.int32),
    )

    def step(state, slots):
        return causal_conv1d_update(x, state, weight, None, "silu", conv_state_indices=slots)

    mine, other = state.clone(), state.clone()
    step(mine.clone(), slots)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step(mine, slots)
    for named in ([3, 1, 8, 0], [5, -1, 9, 2]):
        slots.copy_(torch.tensor(named))
        x.normal_()
        graph.replay()
        assert torch.equal(y, step(other, slots)) and torch.equal(mine, other)


def test_sequence_boundaries_in_a_graph():
    x = torch.randn(1, 64, 40, device="cuda", dtype=torch.bfloat16)
    weight, cu = (
        x[0, :, :4].contiguous(),
        torch.tensor([0, 11, 40], device="cuda", dtype=torch.int32),
    )
    causal_conv1d(x, weight, cu_seqlens=cu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = causal_conv1d(x, weight, cu_seqlens=cu)
    cu.copy_(torch.tensor([0, 30, 40]))
    graph.replay()
    assert torch.equal(y, causal_conv1d(x, weight, cu_seqlens=cu))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU here")
def test_another_device_than_the_current_one():
    mine = operands(CASE)
    expected = both(*mine)
    moved = [x.detach().to("cuda:1").requires_grad_() for x in mine]
    assert_equal([x.to("cuda:0") for x in both(*moved)], expected)
    assert torch.cuda.current_device() == 0


def test_shapes_share_kernels():
    """200 calls that differ only in extents compile nothing new."""
    both(*operands(CASE))
    compiled = cache.stats().compiles
    for t in range(1, 200):
        both(*operands(replace(CASE, b=1 + t % 3, t=t)))
    assert cache.stats().compiles == compiled
