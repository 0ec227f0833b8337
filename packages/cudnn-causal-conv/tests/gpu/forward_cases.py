"""What the GPU tests of the forward kernels share: cases, tensors in hostile layouts, the float64 law, launching.

The kernels are launched as the engine does it, without contract and door.
"""

from dataclasses import dataclass, replace

import torch

from cudnn_causal_conv.kernels.config import ForwardConv, layout_of
from cudnn_causal_conv.kernels.host import source_forward
from cudnn_core.plan import Plan

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Unit roundoff of the result's type, and the least distance of its numbers.
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LEAST = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
LAYOUTS = ("t", "t padded", "t odd", "t shifted", "d", "d padded", "d odd", "any", "batch inner")
SHAPES = [
    (1, 8, 1),
    (2, 8, 3),
    (3, 16, 64),
    (2, 24, 128),
    (2, 5, 257),
    (2, 40, 1000),
    (3, 7, 1023),
    (1, 136, 2049),
    (2, 64, 4096),
    (70, 8, 16),
]
LENGTHS = {
    "boundaries": (63, 64, 65, 127, 128, 129, 256, 257, 4099),
    "tiny": (1, 2, 0, 3, 1, 1, 5, 0, 0, 4, 8, 7, 1, 0),
    "one": (300,),
    "empty": (0,),
}


@dataclass(frozen=True)
class Case:
    """A call. sequences: None, "ids" (seq_idx) or the lengths of packed sequences."""

    shape: tuple[int, int, int]
    width: int = 4
    x: str = "bfloat16"
    weight: str = "bfloat16"
    bias: str | None = "bfloat16"
    activation: str = "silu"
    layout: str = "t"
    sequences: object = None
    initial: bool = False
    final: bool = False

    @property
    def packed(self):
        return isinstance(self.sequences, tuple)

    def config(self, **options) -> ForwardConv:
        letter = self.layout[0] if self.layout[0] in "td" else "any"
        return ForwardConv(
            self.x,
            self.weight,
            self.bias,
            self.width,
            self.activation,
            letter,
            has_seq_idx=self.sequences == "ids",
            has_cu_seqlens=self.packed,
            has_initial=self.initial,
            has_final=self.final,
            **options,
        )


def laid_out(values, layout):
    """(a view that holds `values`, the buffer around it, which is NaN elsewhere); None makes room only."""
    b, d, t = values.shape
    # extents of the buffer, where the view begins in it, which of its axes are B, D, T, and how it steps
    extents, begin, order, step = {
        "t": ((b, d, t), (0, 0, 0), (0, 1, 2), 1),
        "t padded": ((b, d, t + 24), (0, 0, 8), (0, 1, 2), 1),
        "t odd": ((b, d, t + 3), (0, 0, 1), (0, 1, 2), 1),
        "t shifted": ((b, d, t + 5), (0, 0, 2), (0, 1, 2), 1),
        "d": ((b, t, d), (0, 0, 0), (0, 2, 1), 1),
        "d padded": ((b, t, d + 16), (0, 0, 8), (0, 2, 1), 1),
        "d odd": ((b, t, d + 3), (0, 0, 1), (0, 2, 1), 1),
        "any": ((b, 2 * d, 2 * t), (0, 0, 0), (0, 1, 2), 2),
        "batch inner": ((d, t, b), (0, 0, 0), (2, 0, 1), 1),
    }[layout]
    buffer = torch.full(extents, float("nan"), dtype=values.dtype, device=values.device)
    sizes = [(b, d, t)[order.index(axis)] for axis in range(3)]
    slices = [
        slice(first, first + size * (step if axis else 1), step if axis else 1)
        for axis, (first, size) in enumerate(zip(begin, sizes, strict=True))
    ]
    view = buffer[tuple(slices)].permute(order)
    assert view.shape == values.shape
    return view, buffer


def random(shape, dtype, generator, scale=1.0):
    return (torch.randn(shape, generator=generator, device="cuda") * scale).to(DTYPES[dtype])


def tensors(case: Case, seed: int = 0) -> dict:
    """The call's inputs by name; x lies inside NaNs."""
    g = torch.Generator("cuda").manual_seed(seed)
    b, d, t = case.shape
    values = random(case.shape, case.x, g)
    named = {"x": laid_out(values, case.layout)[0]}
    named["x"].copy_(values)
    named["weight"] = random((d, case.width), case.weight, g, case.width**-0.5)
    if case.bias is not None:
        named["bias"] = random((d,), case.bias, g)
    rows = b
    if case.packed:
        ends = torch.tensor([0, *case.sequences]).cumsum(0)
        assert b == 1 and ends[-1] == t
        named["cu_seqlens"], rows = ends.to(torch.int32).cuda(), len(case.sequences)
    if case.sequences == "ids":
        ids = torch.randint(0, 5, (b, max(t, 1)), generator=g, device="cuda").sort(1).values[:, :t]
        ids[torch.rand((b, t), generator=g, device="cuda") < 0.05] = 0
        ids[:, t - t // 8 :] = -1
        named["seq_idx"] = ids.to(torch.int32)
    if case.initial:
        named["initial_states"] = random((rows, case.width - 1, d), case.x, g).transpose(1, 2)
    return named


def run(case: Case, named: dict, out_layout: str | None = None, **options) -> dict:
    """{"out", "final_states"?} of the kernel, after checking that nothing around them was written."""
    out, around = laid_out(named["x"], out_layout or case.layout)
    arrays = {**named, "out": out}
    if case.final:
        rows = len(case.sequences) if case.packed else case.shape[0]
        states = torch.full(
            (rows, case.width - 1, case.shape[1]), float("nan"), dtype=out.dtype, device="cuda"
        )
        arrays["final_states"] = states.transpose(1, 2)
    config = case.config(**options)
    ends = [(tuple(y.shape), y.stride()) for y in (named["x"], out)]
    if config.layout != "any":
        assert config.layout == layout_of(*ends) or 1 in case.shape
    launch(config, arrays)
    outside = around.clone()
    out_again = outside.as_strided(out.shape, out.stride(), out.storage_offset())
    out_again.fill_(float("nan"))
    assert outside.isnan().all(), "written outside the output"
    return {name: arrays[name] for name in ("out", "final_states") if name in arrays}


def plan_of(config):
    return Plan("causal-conv/forward", "hopper", "sm_90a", config)


def launch(config, arrays: dict) -> None:
    from cudnn_core import cache

    call = cache.get(source_forward(plan_of(config))).call
    call(*[arrays[name] for name in config.names], 132, torch.cuda.current_stream().cuda_stream)


def law(case: Case, named: dict) -> dict:
    """Float64: {"out", "size" (sum of |products|, for the tolerance), "final_states"}."""
    x, weight = named["x"].double(), named["weight"].double()
    b, d, t = case.shape
    history = case.width - 1
    bias = named["bias"].double() if case.bias else torch.zeros(d, device="cuda").double()
    lengths = list(case.sequences) if case.packed else [t] * b
    out, size, finals = torch.zeros_like(x), torch.zeros_like(x), []
    first = 0
    for r, length in enumerate(lengths):
        row, start = (0, first) if case.packed else (r, 0)
        before = torch.zeros(d, history, device="cuda").double()
        if case.initial:
            before = named["initial_states"][r].double()
        whole = torch.cat([before, x[row, :, start : start + length]], 1)
        finals.append(whole[:, length:])
        for j in range(case.width):
            part = whole[:, j : j + length]
            if case.sequences == "ids":
                ids = named["seq_idx"][row]
                other = torch.cat([ids.new_full((history,), -7), ids])[j : j + length]
                part = torch.where(other == ids, part, 0.0)
            product = weight[:, j, None] * part
            out[row, :, start : start + length] += product
            size[row, :, start : start + length] += product.abs()
        first += length
    out, size = out + bias[:, None], size + bias.abs()[:, None]
    if case.activation == "silu":
        out = out * torch.sigmoid(out)
    if case.sequences == "ids":
        out = torch.where((named["seq_idx"] < 0)[:, None], 0.0, out)
    finals = torch.stack(finals) if finals else torch.zeros(0, d, history, device="cuda")
    return {"out": out, "size": size, "final_states": finals}


def check(case: Case, got: dict, expected: dict) -> None:
    """Within the error that FP32 sums and one rounding allow; states bit for bit."""
    out, want = got["out"].double(), expected["out"]
    assert not out.isnan().any(), "NaN: not written, or read from outside"
    sums = (case.width + 2) * 2.0**-24 * expected["size"] * 1.1
    silu = 2.0**-19 * want.abs() if case.activation == "silu" else 0.0
    bound = (sums + silu) * (1 + ROUNDOFF[case.x]) + ROUNDOFF[case.x] * want.abs()
    worst = ((out - want).abs() - bound - LEAST[case.x]).max() if out.numel() else 0.0
    assert worst <= 0.0, f"error beyond the bound by {worst}"
    if case.sequences == "ids":
        padding = (got["out"] * 1).transpose(1, 2)[expect_padding(case, got, expected)]
        assert (padding == 0).all()
    if case.final:
        assert torch.equal(got["final_states"].double(), expected["final_states"])


def expect_padding(case, got, expected):
    """(B, T) of the positions whose every result the law says is exactly 0."""
    return (expected["out"] == 0).all(1)


def bits(x):
    """Of a tensor, in logical order."""
    return x.contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])


def variants(case: Case, *layouts: str) -> list:
    return [replace(case, layout=layout) for layout in layouts]


def run_states(case: Case, named: dict):
    return run(case, named)["final_states"]
