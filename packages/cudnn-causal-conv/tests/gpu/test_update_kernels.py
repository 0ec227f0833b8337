"""The decode-step kernels on the device: against float64, the forward kernels bit for bit, and hostile slots."""

from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")

from cudnn_causal_conv.kernels.config import ForwardConv, UpdateConv
from cudnn_causal_conv.kernels.host import source_forward, source_update, state_form
from cudnn_core.plan import Plan
from cudnn_core.tensor_desc import TensorDesc
from cudnn_core.testing.precompile import compile_plans
from cudnn_core.testing.tiers import why_no_hopper

pytestmark = pytest.mark.gpu

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Step:
    """A call: x (N, D, S), state (P, D, L). form: how a slot lies in memory."""

    rows: int = 5
    channels: int = 64
    tokens: int = 1
    length: int = 3
    slots: int = 9
    width: int = 4
    x: str = "bfloat16"
    weight: str = "bfloat16"
    bias: str | None = "bfloat16"
    activation: str = "silu"
    form: str = "compact"
    circular: bool = False
    indices: bool = True

    def config(self):
        state = empty_state(self, "meta")
        desc = TensorDesc.of(self.x, tuple(state.shape), state.stride(), "cuda:0", "conv_state")
        form, length = state_form(desc, self.width)
        return UpdateConv(
            self.x,
            self.weight,
            self.bias,
            self.width,
            self.activation,
            form,
            length,
            has_cache_seqlens=self.circular,
            has_indices=self.indices,
        )


def empty_state(step, device):
    p, d, l = step.slots, step.channels, step.length
    dtype = DTYPES[step.x]
    if step.form == "compact":
        return torch.empty((p, d, l), dtype=dtype, device=device)
    if step.form == "d":
        return torch.empty((p, l, d), dtype=dtype, device=device).transpose(1, 2)
    if step.form == "compact padded":
        return torch.empty((p, d + 8, l), dtype=dtype, device=device)[:, :d]
    return torch.empty((p, 2 * d, 3 * l), dtype=dtype, device=device)[:, ::2, ::3]


STEPS = [
    Step(),
    Step(rows=6, slots=6, indices=False),
    Step(length=4),
    Step(form="d"),
    Step(form="d", length=4),
    Step(form="compact padded"),
    Step(form="any", length=7),
    Step(length=12),
    Step(channels=264),
    Step(channels=264, length=4),
    Step(channels=264, form="d"),
    Step(channels=1000, x="float32", width=3, length=3, rows=7),
    Step(channels=264, width=2, length=2),
    Step(channels=264, width=5, length=5),
    Step(channels=264, width=6, length=6, form="compact padded"),
    Step(channels=264, width=8, length=8),
    Step(channels=61),
    Step(channels=61, form="d"),
    Step(channels=1),
    Step(rows=257, channels=8, slots=300),
    Step(tokens=2),
    Step(tokens=5, length=6, form="any"),
    Step(tokens=4, form="d"),
    Step(circular=True),
    Step(circular=True, length=9, tokens=4),
    Step(circular=True, length=3, tokens=8, form="any"),
    Step(x="float32", weight="float32", bias="float32"),
    Step(x="float32", weight="float32", bias=None, form="d"),
    Step(x="float16", weight="float32", bias="float32", activation="identity"),
    Step(width=2, length=1),
    Step(width=2, length=2, form="d"),
    Step(width=3, length=2, weight="float32", bias=None),
    Step(width=5, length=4, x="float16", weight="float16", bias="float16"),
    Step(width=8, length=7),
    Step(width=8, length=8, form="d"),
    Step(width=1, length=0),
    Step(width=1, length=1),
    Step(width=31, length=30),
    Step(width=31, length=40, tokens=6),
    Step(width=256, length=255, circular=True, tokens=3, rows=2, channels=8),
]


def configs():
    """The kernels that the cases need, once each."""
    return list(dict.fromkeys(step.config() for step in STEPS))


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Compiles what the cases need, many at once."""
    if why_no_hopper():
        return
    compile_plans(source_update, map(plan_of, configs()))


def plan_of(config):
    return Plan("conv/update", "hopper", "sm_90a", config)


def launch(config, arrays):
    from cudnn_core import cache

    make = source_update if isinstance(config, UpdateConv) else source_forward
    call = cache.get(make(plan_of(config))).call
    call(*[arrays[name] for name in config.names], 132, torch.cuda.current_stream().cuda_stream)


def tensors(step, seed=0):
    g = torch.Generator("cuda").manual_seed(seed)

    def random(*shape, dtype, scale=1.0):
        made = torch.randn(shape, generator=g, device="cuda") * scale
        return made.to(DTYPES[dtype])

    n, d, s, l = step.rows, step.channels, step.tokens, step.length
    state = empty_state(step, "cuda")
    state.copy_(random(step.slots, d, l, dtype=step.x))
    named = {
        "x": random(n, s, d, dtype=step.x).transpose(1, 2),
        "conv_state": state,
        "weight": random(d, step.width, dtype=step.weight, scale=step.width**-0.5),
    }
    if step.bias:
        named["bias"] = random(d, dtype=step.bias)
    if step.circular:
        named["cache_seqlens"] = torch.randint(
            0, 3 * max(l, 1) + 1, (n,), generator=g, device="cuda", dtype=torch.int32
        )
    if step.indices:
        order = torch.randperm(step.slots, generator=g, device="cuda")[:n].to(torch.int32)
        order[1::4] = (
            torch.tensor([-1, -5, step.slots, 2**31 - 1, -(2**31)], device="cuda")
            .to(torch.int32)
            .repeat(100)[: len(order[1::4])]
        )
        named["conv_state_indices"] = order
    return named


def law(step, named):
    """(out, its tolerance's size, the new state), float64 and bitwise."""
    x, weight = named["x"], named["weight"].double()
    state = named["conv_state"].clone()
    out = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    size = torch.zeros_like(out)
    bias = named["bias"].double() if step.bias else torch.zeros(step.channels, device="cuda")
    for n in range(step.rows):
        s = int(named["conv_state_indices"][n]) if step.indices else n
        if not 0 <= s < step.slots:
            continue
        old = state[s].clone()
        if step.circular and step.length:
            c = int(named["cache_seqlens"][n]) % step.length
            old = old.roll(-c, 1)
        whole = torch.cat([old, x[n]], 1)
        ahead = step.length - (step.width - 1)
        for j in range(step.width):
            product = weight[:, j, None] * whole.double()[:, ahead + j : ahead + j + step.tokens]
            out[n] += product
            size[n] += product.abs()
        out[n] += bias[:, None]
        size[n] += bias.abs()[:, None]
        if step.activation == "silu":
            out[n] *= torch.sigmoid(out[n])
        new = whole[:, whole.shape[1] - step.length :]
        if step.circular and step.length:
            for i in range(step.tokens):
                state[s][:, (c + i) % step.length] = x[n, :, i]
        else:
            state[s] = new
    return out, size, state


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_is_the_law(step):
    named = tensors(step)
    want, size, state = law(step, named)
    base = named["conv_state"]._base if named["conv_state"]._base is not None else None
    before = base.clone() if base is not None else None
    out = torch.full(named["x"].shape, float("nan"), dtype=named["x"].dtype, device="cuda")
    launch(step.config(), {**named, "out": out})
    assert torch.equal(bits(named["conv_state"]), bits(state))
    if step.form in ("compact padded", "any"):
        inside = base.clone()
        inside.as_strided(
            state.shape, named["conv_state"].stride(), named["conv_state"].storage_offset()
        ).zero_()
        before.as_strided(
            state.shape, named["conv_state"].stride(), named["conv_state"].storage_offset()
        ).zero_()
        assert torch.equal(bits(inside), bits(before)), "written between the slots"
    got = out.double()
    assert not got.isnan().any()
    bound = ((step.width + 2) * 2.0**-24 * size * 1.1 + 2.0**-19 * want.abs()) * 2 + ROUNDOFF[
        step.x
    ] * want.abs()
    assert ((got - want).abs() <= bound + 2.0**-24).all()
    if step.indices:
        padding = ~((named["conv_state_indices"] >= 0) & (named["conv_state_indices"] < step.slots))
        assert (out[padding] == 0).all()


def bits(x):
    return x.contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])


@pytest.mark.parametrize(
    "step",
    [
        Step(rows=2, slots=2, indices=False),
        Step(rows=2, slots=2, indices=False, length=4, form="d"),
        Step(rows=2, slots=2, indices=False, channels=61),
        Step(rows=2, slots=2, indices=False, circular=True),
    ],
    ids=str,
)
def test_repeated_updates_equal_the_full_call(step):
    """Bit for bit, from a zero state; the state ends as the sequence's last tokens."""
    g = torch.Generator("cuda").manual_seed(1)
    named = tensors(step)
    x = torch.randn((2, step.channels, 40), generator=g, device="cuda").to(DTYPES[step.x])
    named["conv_state"].zero_()
    full = torch.full_like(x, float("nan"))
    config = ForwardConv(step.x, step.weight, step.bias, step.width, step.activation, "t")
    launch(config, {**named, "x": x, "out": full})
    for t in range(40):
        out = torch.full((2, step.channels, 1), float("nan"), dtype=x.dtype, device="cuda")
        token = x[:, :, t : t + 1].contiguous()
        if step.circular:
            named["cache_seqlens"] = torch.tensor([t, t], dtype=torch.int32, device="cuda")
        launch(step.config(), {**named, "x": token, "out": out})
        assert torch.equal(bits(out[:, :, 0]), bits(full[:, :, t]))
    if not step.circular:
        last = x[:, :, 40 - step.length :]
        assert torch.equal(bits(named["conv_state"]), bits(last))


def test_state_moves_bitwise():
    """-0 and the payloads of NaNs survive the shift."""
    for step in (Step(), Step(form="d"), Step(channels=61), Step(circular=True)):
        named = tensors(replace(step))
        payloads = torch.tensor([0x7F81, -32768, 0x7FC5, -61], dtype=torch.int16, device="cuda")
        for name in ("x", "conv_state"):
            view = named[name].view(torch.int16)
            view[0, :4, 0] = payloads
        state = law(step, named)[2]
        launch(step.config(), {**named, "out": torch.empty_like(named["x"])})
        assert torch.equal(bits(named["conv_state"]), bits(state))


def test_taps_and_biases_at_any_address():
    for step in (Step(channels=264), Step(channels=264, form="d")):
        named = tensors(step)
        start, outs = named["conv_state"].clone(), []
        for first in (0, 1, 2, 4):
            for name in ("weight", "bias"):
                values = named[name].clone()
                flat = torch.zeros(first + values.numel(), device="cuda").to(values.dtype)
                named[name] = flat[first:].view(values.shape)
                named[name].copy_(values)
            named["conv_state"].copy_(start)
            outs.append(torch.full_like(named["x"], float("nan")))
            launch(step.config(), {**named, "out": outs[-1]})
        for out in outs[1:]:
            assert torch.equal(bits(out), bits(outs[0]))


def test_no_rows():
    step = Step(rows=0)
    named = tensors(step)
    before = named["conv_state"].clone()
    launch(step.config(), {**named, "out": torch.empty_like(named["x"])})
    torch.cuda.synchronize()
    assert torch.equal(named["conv_state"], before)
