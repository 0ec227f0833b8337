"""Inputs, calls, peers and checks of the benchmark's cases. Imports torch.

The check is a convolution in float64 written as shifted products, and its gradients by PyTorch's autograd: it shares
nothing with the operations' reference. Every element is compared, some channels at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import cudnn_causal_conv
from cudnn_core.bench.parts import COPY, ROUNDING, copy_of, judge, nbytes, replay
from cudnn_core.bench.protocol import Absent, Call, Limit, Maker, Trial, WrongResult

from ._bench import (
    BACKWARD_LIMIT,
    EMPTY,
    FORWARD_LIMIT,
    STATE,
    UPDATE_LIMIT,
    WIDTH,
    at_most,
    over_empty,
)

TINY, TINY_UPDATES = (1, 64, 64), (2, 64)
# Channels that are checked at once, to bound the float64 temporaries.
PIECE = 512
# Sums in FP32, exponentials of the device, products of gradients: relative to the size of the whole result.
NOISE = 1e-3
TORCH, DAO = "F.conv1d", "Dao-AILab causal_conv1d"

Function = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Inputs:
    """x (B, D, L), weight (D, W), bias (D,) and, for gradients, dy; BF16."""

    x: Any
    weight: Any
    bias: Any
    dy: Any


def make_inputs(shape: tuple[int, int, int], device: str, layout: str, *, grad: bool) -> Inputs:
    """N(0, 1), the weights half as large; leaves that require gradients when `grad`."""
    generator = torch.Generator(device).manual_seed(0)
    batch, channels, length = shape

    def normal(*extents: int) -> Any:
        made = torch.randn(extents, device=device, generator=generator)
        return made.to(torch.bfloat16)

    def sequence() -> Any:
        if layout == "channel-last":
            return normal(batch, length, channels).transpose(1, 2)
        return normal(batch, channels, length)

    x, dy = sequence(), sequence()
    weight, bias = normal(channels, WIDTH) / 2, normal(channels)
    for leaf in (x, weight, bias):
        leaf.requires_grad_(grad)
    return Inputs(x, weight, bias, dy)


def ours(x: Any, weight: Any, bias: Any) -> Any:
    return cudnn_causal_conv.causal_conv1d(x, weight, bias, "silu")


def by_torch(x: Any, weight: Any, bias: Any) -> Any:
    """PyTorch's own: pads on both sides and cuts the right one off."""
    channels, length = x.shape[1:]
    padded = F.conv1d(x, weight[:, None], bias, padding=WIDTH - 1, groups=channels)
    return F.silu(padded[..., :length])


def by_dao() -> Function:
    """The Dao-AILab package's; ImportError without it."""
    from causal_conv1d import causal_conv1d_fn

    return lambda x, weight, bias: causal_conv1d_fn(x, weight, bias, activation="silu")


def empty_function(inputs: Inputs) -> Function:
    """An autograd function of three inputs that does nothing: what PyTorch itself costs."""
    leaves = inputs.x, inputs.weight, inputs.bias
    # Tensors that exist already: not even an allocation counts for it.
    y, *gradients = (torch.empty_like(leaf) for leaf in (inputs.x, *leaves))
    gradients = tuple(gradients)

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            return y

        @staticmethod
        def backward(ctx, dy):
            return gradients

    return Empty.apply


def gradients_call(function: Function, inputs: Inputs, *, own_thread: bool) -> Call:
    """The backward alone, on a graph that is kept, in PyTorch's thread for the device or in the caller's."""
    leaves = inputs.x, inputs.weight, inputs.bias
    y = function(*leaves)

    def call() -> Any:
        with torch.autograd.set_multithreading_enabled(own_thread):
            return torch.autograd.grad(y, leaves, inputs.dy, retain_graph=True)

    return call


def exact(x: Any, weight: Any, bias: Any) -> Any:
    """silu(sum_j weight[d, j] x[d, t - (W - 1) + j] + bias[d]) in float64."""
    length = x.shape[-1]
    history = F.pad(x, (WIDTH - 1, 0))
    taps = (weight[:, j, None] * history[..., j : j + length] for j in range(WIDTH))
    return F.silu(sum(taps) + bias[:, None])


def sequence_trial(
    shape: tuple[int, int, int],
    device: str,
    layout: str,
    *,
    backward: bool,
    host_bound: bool,
    own_thread: bool = True,
) -> Trial:
    """The trial of the forward, or of the backward alone on a graph that is kept.

    own_thread: of the backward that the host bounds, whether it runs in PyTorch's thread, where it has no limit.
    """
    inputs = make_inputs(shape, device, layout, grad=backward or host_bound)

    def call_of(function: Function) -> Call:
        if backward:
            return gradients_call(function, inputs, own_thread=own_thread)
        return lambda: function(inputs.x, inputs.weight, inputs.bias)

    call = call_of(ours)
    bounds: dict[str, Maker | Limit]
    if host_bound:
        bounds = {EMPTY: lambda: call_of(empty_function(inputs))}
        if not (backward and own_thread):
            limit = BACKWARD_LIMIT if backward else FORWARD_LIMIT
            bounds[over_empty(limit)] = Limit(of=EMPTY, plus_us=limit)
        count = 0
    else:
        # x in and y out; the backward reads dy too.
        count = (3 if backward else 2) * nbytes(inputs.x)
        bounds = {COPY: copy_of(count, device)}

    def tiny() -> Call:
        small = sequence_trial(TINY, device, layout, backward=backward, host_bound=True)
        return small.ours

    return Trial(
        ours=call,
        check=lambda: (check_gradients if backward else check_output)(inputs, call()),
        peers={TORCH: lambda: call_of(by_torch), DAO: lambda: call_of(by_dao())},
        bounds=bounds,
        nbytes=count,
        host=None if host_bound else tiny,
    )


def _pieces(channels: int) -> list[slice]:
    return [slice(start, start + PIECE) for start in range(0, channels, PIECE)]


def check_output(inputs: Inputs, y: Any) -> None:
    """WrongResult unless y is silu of the convolution, each element within one rounding and the noise of FP32."""
    for some in _pieces(inputs.x.shape[1]):
        x, weight, bias = _wide(inputs, some)
        judge("y", y[:, some].detach(), exact(x, weight, bias), ROUNDING["bfloat16"], NOISE)


def check_gradients(inputs: Inputs, gradients: Any) -> None:
    """The same of dx, dweight and dbias."""
    dx, dweight, dbias = gradients
    for some in _pieces(inputs.x.shape[1]):
        leaves = [leaf.requires_grad_() for leaf in _wide(inputs, some)]
        wanted = torch.autograd.grad(exact(*leaves), leaves, inputs.dy[:, some].double())
        found = {"dx": dx[:, some], "dweight": dweight[some], "dbias": dbias[some]}
        for (name, got), want in zip(found.items(), wanted, strict=True):
            judge(name, got, want, ROUNDING["bfloat16"], NOISE)


def _wide(inputs: Inputs, some: slice) -> tuple[Any, Any, Any]:
    return tuple(
        part.detach().double()
        for part in (inputs.x[:, some], inputs.weight[some], inputs.bias[some])
    )


def update_trial(shape: tuple[int, int], device: str, *, graph: bool) -> Trial:
    """The trial of one decode step for N rows, each in its slot; as the replay of a graph, or as a call."""
    rows, channels = shape
    generator = torch.Generator(device).manual_seed(0)

    def normal(*extents: int) -> Any:
        return torch.randn(extents, device=device, generator=generator).to(torch.bfloat16)

    x, before = normal(rows, channels), normal(rows, channels, STATE)
    weight, bias = normal(channels, WIDTH) / 2, normal(channels)
    state = before.clone()

    def call_of(update: Callable[..., Any]) -> Call | Absent:
        # Ours is checked on its own state; a peer works on another.
        own = state if update is cudnn_causal_conv.causal_conv1d_update else before.clone()

        def call() -> Any:
            return update(x, own, weight, bias, "silu")

        return replay(call) if graph else call

    def dao() -> Call | Absent:
        from causal_conv1d import causal_conv1d_update

        return call_of(causal_conv1d_update)

    call = call_of(cudnn_causal_conv.causal_conv1d_update)
    if isinstance(call, Absent):
        raise NotImplementedError(call.reason)

    def check() -> None:
        state.copy_(before)
        check_update(x, before, state, weight, bias, call())

    # x and the state in, y and the state out.
    count = 2 * nbytes(x) + 2 * nbytes(state)
    if graph:
        bounds: dict[str, Maker | Limit] = {COPY: copy_of(count, device)}
    else:
        bounds = {at_most(UPDATE_LIMIT): Limit(plus_us=UPDATE_LIMIT)}
    return Trial(
        ours=call,
        check=check,
        peers={DAO: dao},
        bounds=bounds,
        nbytes=count if graph else 0,
        host=lambda: update_trial(TINY_UPDATES, device, graph=graph).ours,
    )


def check_update(x: Any, before: Any, after: Any, weight: Any, bias: Any, y: Any) -> None:
    """WrongResult unless y is the convolution at the new token and the state moved on by it, bit for bit."""
    history = torch.cat((before, x[:, :, None]), dim=-1)
    sums = (history[:, :, -WIDTH:].double() * weight.double()).sum(-1) + bias.double()
    judge("y", y, F.silu(sums), ROUNDING["bfloat16"], NOISE)
    if not torch.equal(after.view(torch.int16), history[:, :, 1:].view(torch.int16)):
        raise WrongResult("conv_state: not the state before, shifted by one token")
