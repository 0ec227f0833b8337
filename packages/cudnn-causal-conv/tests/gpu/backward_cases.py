"""What the GPU tests of the backward kernels share: launching them, and the float64 law by automatic differentiation.

The kernels are launched as the engine does it, without contract and door. Cases and hostile layouts are the forward's.
"""

import itertools

import torch

from cudnn_causal_conv.kernels.config import BackwardConv, layout_of
from cudnn_causal_conv.kernels.host_backward import partials_bytes, source_backward, splits_of
from cudnn_core.hopper.stream import RAISED
from cudnn_core.plan import Plan

GRADIENTS = {
    "dx": "x",
    "dweight": "weight",
    "dbias": "bias",
    "dinitial_states": "initial_states",
}
MARGIN = 256


def config_of(named: dict, activation: str, dx) -> BackwardConv:
    ends = [(tuple(y.shape), y.stride()) for y in (named["x"], dx)]
    name = {y: str(named[y].dtype).removeprefix("torch.") for y in named}
    return BackwardConv(
        name["x"],
        name["weight"],
        name.get("bias"),
        named["weight"].shape[1],
        activation,
        layout_of(*ends),
        has_seq_idx="seq_idx" in named,
        has_cu_seqlens="cu_seqlens" in named,
        has_initial="initial_states" in named,
        has_dfinal="dfinal_states" in named,
        has_dinitial="initial_states" in named,
    )


def plan_of(config):
    return Plan("causal-conv/backward", "hopper", "sm_90a", config)


def source_of(config):
    return source_backward(plan_of(config))


def executable(config):
    from cudnn_core import cache

    return cache.get(source_of(config)).call


def scratch(nbytes):
    """(workspace of NaNs, the whole buffer, whose end must stay as it is)."""
    buffer = torch.full((nbytes + MARGIN,), 0xFF, dtype=torch.uint8, device="cuda")
    return buffer[:nbytes], buffer


def run(named: dict, dx, around, activation: str = "silu", splits: int | None = None) -> dict:
    """The gradients by name, after checking that nothing else was written. dx: a view into the buffer `around`."""
    config = config_of(named, activation, dx)
    b, d, t = named["x"].shape
    arrays = {**named, "dx": dx}
    for name, source in GRADIENTS.items():
        if name != "dx" and source in named:
            arrays[name] = torch.full_like(named[source], float("nan"))
    splits = splits or splits_of(config, b, d, t)
    arrays["partials"], partials = scratch(partials_bytes(config, splits, d))
    arrays["sequences"], sequences = scratch(4 * t)
    stream = torch.cuda.current_stream().cuda_stream
    executable(config)(*[arrays[name] for name in config.names], 132, stream)
    words = partials[: partials.numel() // 8 * 8].view(torch.int64)
    assert not (words == RAISED).any(), "a flag is left up"
    assert (partials[-MARGIN:] == 0xFF).all() and (sequences[-MARGIN:] == 0xFF).all()
    outside = around.clone()
    outside.as_strided(dx.shape, dx.stride(), dx.storage_offset()).fill_(float("nan"))
    assert outside.isnan().all(), "written outside dx"
    return {name: arrays[name] for name in GRADIENTS if name in arrays}


def _activated(z, activation):
    return z * torch.sigmoid(z) if activation == "silu" else z


def _sequences(named):
    """(row, first token, end) of each sequence, its state being the one of the same number."""
    b, _, t = named["x"].shape
    if "cu_seqlens" not in named:
        return [(row, 0, t) for row in range(b)]
    ends = named["cu_seqlens"].tolist()
    return [(0, first, end) for first, end in itertools.pairwise(ends)]


def _outputs(leaves, named, activation):
    """(pairs of output and its gradient) of every sequence."""
    x, weight, width = leaves["x"], leaves["weight"], named["weight"].shape[1]
    pairs = []
    for r, (row, first, end) in enumerate(_sequences(named)):
        before = x.new_zeros(x.shape[1], width - 1)
        if "initial_states" in leaves:
            before = leaves["initial_states"][r]
        whole = torch.cat([before, x[row, :, first:end]], 1)
        dout = named["dout"][row, :, first:end].double()
        z, ids = 0.0, named["seq_idx"][row] if "seq_idx" in named else None
        for j in range(width):
            part = whole[:, j : j + end - first]
            if ids is not None:
                other = torch.cat([ids.new_full((width - 1,), -7), ids])[j : j + end - first]
                part = torch.where((other == ids) & (ids >= 0), part, 0.0)
            z = z + weight[:, j, None] * part
        z = z if "bias" not in leaves else z + leaves["bias"][:, None]
        if ids is not None:
            dout = torch.where(ids >= 0, dout, 0.0)
            z = torch.where(ids >= 0, z, 0.0)
        pairs.append((_activated(z, activation), dout))
        if "dfinal_states" in named:
            pairs.append((whole[:, end - first :], named["dfinal_states"][r].double()))
    return pairs


def law(named: dict, activation: str = "silu") -> dict:
    """The gradients in float64."""
    leaves = {
        name: named[name].detach().double().requires_grad_(True)
        for name in GRADIENTS.values()
        if name in named
    }
    nothing = leaves["x"].sum() * 0.0
    loss = sum(((y * g).sum() for y, g in _outputs(leaves, named, activation)), start=nothing)
    names = list(leaves)
    found = dict(
        zip(names, torch.autograd.grad(loss, list(leaves.values()), allow_unused=True), strict=True)
    )
    return {
        gradient: found[name] if found[name] is not None else torch.zeros_like(leaves[name])
        for gradient, name in GRADIENTS.items()
        if name in leaves
    }


def check(got: dict, want: dict, roundoff: dict) -> None:
    """One rounding to the result's type, and FP32 sums whose error goes with the largest result."""
    assert set(got) == set(want)
    for name, y in got.items():
        assert not y.isnan().any(), f"{name}: NaN, not written or read from outside"
        if not y.numel():
            continue
        exact = want[name]
        unit = roundoff[str(y.dtype).removeprefix("torch.")]
        bound = 1.01 * unit * exact.abs() + 2.0**-19 * exact.abs().max() + 2.0**-24
        worst = ((y.double() - exact).abs() - bound).max()
        assert worst <= 0.0, f"{name}: error beyond the bound by {worst}"


def same(a: dict, b: dict, names=tuple(GRADIENTS)) -> bool:
    """Whether the gradients called `names` agree bit for bit."""
    return all(torch.equal(_bits(a[n]), _bits(b[n])) for n in names if n in a)


def _bits(y):
    return y.contiguous().view(torch.int32 if y.dtype == torch.float32 else torch.int16)
