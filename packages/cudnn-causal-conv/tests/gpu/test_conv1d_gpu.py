"""The public convolution on a Hopper GPU: numerics, equalities bit for bit, layouts, autograd, training."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F

from cudnn_causal_conv import causal_conv1d, causal_conv1d_backward
from cudnn_causal_conv.testing import Case, assert_near, make, spans

pytestmark = pytest.mark.gpu

LENGTHS = (63, 64, 65, 0, 1, 2, 3, 127, 128, 129, 0)
BF16 = Case(b=3, d=40, t=257, x="bfloat16")
CASES = {
    "t": BF16,
    "d": replace(BF16, layout="d"),
    "padded": replace(BF16, layout="padded", d=48),
    "shifted": replace(BF16, layout="shifted"),
    "any": replace(BF16, layout="any"),
    "identity": replace(BF16, activation=None),
    "float32": Case(b=3, d=40, t=257, activation=None, bias=False),
    "float16 d": Case(b=3, d=40, t=257, x="float16", layout="d"),
    "filter in float32": replace(BF16, weight="float32", bias=False),
    "states": replace(BF16, initial=True, final=True),
    "states d": replace(BF16, layout="d", initial=True, final=True),
    "packed": replace(BF16, lengths=LENGTHS, initial=True, final=True),
    "packed d": replace(BF16, layout="d", lengths=LENGTHS, initial=True, final=True),
    "ids": replace(BF16, ids=True),
    "ids d": replace(BF16, layout="d", ids=True),
    "nine taps": replace(BF16, width=9),
    "two taps, short": replace(BF16, width=2, t=1, layout="d"),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
some = pytest.mark.parametrize(
    "case", [CASES[name] for name in ("t", "d", "packed", "packed d")], ids=["t", "d", "p", "pd"]
)


def cuda(x):
    """A CUDA tensor with the values and strides of a NumPy array."""
    if x is None or isinstance(x, torch.Tensor):
        return x
    if x.dtype == "bfloat16":
        return cuda(x.view(np.int16)).view(torch.bfloat16)
    host = torch.from_numpy(x)
    span = (
        1 + sum((e - 1) * s for e, s in zip(host.shape, host.stride(), strict=True))
        if host.numel()
        else 0
    )
    room = torch.zeros(span + 8, dtype=host.dtype, device="cuda")
    # An address that is no multiple of 16 bytes stays none.
    first = host.data_ptr() % 16 // host.element_size()
    made = room[first:].as_strided(host.shape, host.stride())
    return made.copy_(host)


NAMES = ("x", "weight", "bias", "seq_idx", "cu_seqlens", "initial_states", "dout", "dfinal_states")


def on_gpu(data, grad=False):
    made = replace(data, **{name: cuda(getattr(data, name)) for name in NAMES})
    for x in made.differentiable().values():
        x.requires_grad_(grad)
    return made


def host(x):
    x = x.detach().cpu()
    return x.float().numpy() if x.dtype is torch.bfloat16 else x.numpy()


def call(data, function=causal_conv1d):
    final = data.dfinal_states is not None
    made = function(*data.positional(), **data.keywords(), return_final_states=final)
    return made if final else (made,)


def gradients(data, outputs):
    given = [data.dout, data.dfinal_states][: len(outputs)]
    return torch.autograd.grad(outputs, list(data.differentiable().values()), given)


def assert_equal(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.shape == b.shape and torch.equal(a, b)


def wide(data):
    """The data in float64, for the reference."""
    floats = {
        n: x for n in NAMES if (x := getattr(data, n)) is not None and x.dtype.kind not in "iu"
    }
    return replace(data, **{name: x.astype(np.float64) for name, x in floats.items()})


# --- numerics --------------------------------------------------------------------------------------------------------


@every
def test_values(case):
    data = make(case)
    mine = on_gpu(data)
    exact = call(wide(data))
    for got, expected in zip(call(mine), exact, strict=True):
        assert_near(host(got), expected, case.x)
    if case.activation is None:
        # FP32 sums in one order: the reference's, to the bit.
        assert np.array_equal(host(call(mine)[0]), call(data)[0].astype(np.float32))


@every
def test_gradients(case):
    data = make(case)
    mine = on_gpu(data, grad=True)
    exact = causal_conv1d_backward(
        *(getattr(wide(data), n) for n in ("dout", "x", "weight", "bias")),
        case.activation,
        **(wide(data).keywords() | {"dfinal_states": wide(data).dfinal_states}),
    )
    got = dict(zip(mine.differentiable(), gradients(mine, call(mine)), strict=True))
    for name, x in got.items():
        precision = case.x if name in ("x", "initial_states") else case.weight or case.x
        assert_near(host(x), exact[f"d{name}"], precision, sums=256)
        assert x.dtype is getattr(mine, name).dtype


@every
def test_repeats_are_bit_equal_and_keep_inputs(case):
    mine = on_gpu(make(case), grad=True)
    before = [x.detach().clone() for x in mine.differentiable().values()]
    outputs = call(mine)
    first = gradients(mine, outputs)
    for _ in range(5):
        again = call(mine)
        assert_equal(again, outputs)
        assert_equal(gradients(mine, again), first)
    assert_equal([x.detach() for x in mine.differentiable().values()], before)


@some
def test_memory_order(case):
    mine = on_gpu(make(case), grad=True)
    outputs = call(mine)
    dense = torch.empty_like(mine.x).stride()
    assert outputs[0].stride() == dense and gradients(mine, outputs)[0].stride() == dense


@pytest.mark.parametrize("layout", ["t", "d", "padded", "shifted"])
@pytest.mark.parametrize(
    "case",
    [CASES[n] for n in ("t", "d", "states", "packed", "ids", "any")],
    ids=["t", "d", "states", "packed", "ids", "any"],
)
def test_layouts_agree_bit_for_bit(case, layout):
    """Forward outputs; gradients of x, whose sums have one order as well."""
    data = make(case)
    other = make(replace(case, layout=layout))
    other = on_gpu(replace(other, dout=data.dout), grad=True)
    mine = on_gpu(data, grad=True)
    assert_equal(call(other), call(mine))
    a, b = gradients(other, call(other)), gradients(mine, call(mine))
    assert torch.equal(a[0], b[0])
    for one, two in zip(a[1:], b[1:], strict=True):
        torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2)


def test_strided_gradients():
    data = make(CASES["t"])
    mine = on_gpu(data, grad=True)
    expected = gradients(mine, call(mine))
    room = torch.zeros(3, 257, 100, device="cuda", dtype=torch.bfloat16)
    room[:, :, 33:73] = mine.dout.transpose(1, 2)
    for dout in (
        room[:, :, 33:73].transpose(1, 2),
        mine.dout.transpose(1, 2).contiguous().transpose(1, 2),
    ):
        got = gradients(replace(mine, dout=dout), call(mine))
        assert torch.equal(got[0], expected[0])
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    # The gradient of a sum is one number, seen everywhere.
    one = torch.ones((), device="cuda", dtype=torch.bfloat16).expand(3, 40, 257)
    assert_equal(
        [g[:1] for g in gradients(replace(mine, dout=one), call(mine))],
        [g[:1] for g in gradients(replace(mine, dout=one.contiguous()), call(mine))],
    )


# --- equalities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [CASES["packed"], CASES["packed d"]], ids=["t", "d"])
def test_packed_equals_separate(case):
    mine = on_gpu(make(case), grad=True)
    y, final = call(mine)
    dx, _, _, dinitial = gradients(mine, (y, final))
    for i, span in enumerate(spans(case.lengths)):
        part = replace(
            mine,
            case=replace(case, lengths=(), b=1),
            x=mine.x[:, :, span].detach().requires_grad_(),
            dout=mine.dout[:, :, span],
            cu_seqlens=None,
            initial_states=mine.initial_states[i : i + 1].detach().requires_grad_(),
            dfinal_states=mine.dfinal_states[i : i + 1],
        )
        alone = call(part)
        assert torch.equal(alone[0], y[:, :, span]) and torch.equal(alone[1][0], final[i])
        own = gradients(part, alone)
        assert torch.equal(own[0], dx[:, :, span]) and torch.equal(own[-1][0], dinitial[i])


@pytest.mark.parametrize(
    "case",
    # Autograd adds the chunks' gradients of filter and bias in their own dtype: FP32 here, to see ours alone.
    [replace(CASES[name], weight="float32") for name in ("states", "states d")],
    ids=["t", "d"],
)
@pytest.mark.parametrize("chunks", [(1, 2, 3, 251), (128, 129), (3,) * 85 + (2,)])
def test_chunks_equal_one_call(case, chunks):
    mine = on_gpu(make(case), grad=True)
    whole, final = call(mine)
    expected = gradients(mine, (whole, final))
    state, parts = mine.initial_states, []
    for span in spans(chunks):
        y, state = causal_conv1d(
            mine.x[:, :, span],
            *mine.positional()[1:],
            initial_states=state,
            return_final_states=True,
        )
        parts.append(y)
    y = torch.cat(parts, dim=2)
    assert torch.equal(y, whole) and torch.equal(state, final)
    dx, dweight, dbias, dinitial = gradients(mine, (y, state))
    for a, b in zip((dx, dinitial), (expected[0], expected[3]), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    for a, b in zip((dweight, dbias), expected[1:3], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [CASES["ids"], CASES["ids d"]], ids=["t", "d"])
def test_nan_in_padding_stays_there(case):
    data = make(case)
    data.seq_idx[:, 200:] = -1
    mine = on_gpu(data, grad=True)
    y = call(mine)
    expected = gradients(mine, y)
    padding = (mine.seq_idx < 0)[:, None].expand_as(mine.x)
    poisoned = replace(
        mine,
        x=mine.x.detach().masked_fill(padding, float("nan")).requires_grad_(),
        dout=mine.dout.masked_fill(padding, float("nan")),
    )
    assert_equal(call(poisoned), y)
    assert not y[0][padding].any()
    assert_equal(gradients(poisoned, call(poisoned)), expected)


@pytest.mark.parametrize("case", [CASES["packed"], CASES["packed d"]], ids=["t", "d"])
@pytest.mark.parametrize("cu", ["outside", "unsorted", "negative", "beyond"])
def test_boundaries_are_clamped(case, cu):
    data = make(case)
    total, count = data.x.shape[2], len(data.cu_seqlens)
    data.cu_seqlens = {
        "outside": np.clip(data.cu_seqlens, 100, total - 50),
        "unsorted": data.cu_seqlens[::-1].copy(),
        "negative": data.cu_seqlens - 10**6,
        "beyond": np.where(np.arange(count) == count - 1, 2**31 - 1, data.cu_seqlens),
    }[cu].astype(np.int32)
    mine = on_gpu(data, grad=True)
    outputs = call(mine)
    got = gradients(mine, outputs)
    torch.cuda.synchronize()
    if cu != "unsorted":
        for one, other in zip(outputs, call(wide(data)), strict=True):
            assert_near(host(one), other, case.x)
        exact = causal_conv1d_backward(
            *(getattr(wide(data), n) for n in ("dout", "x", "weight", "bias")),
            case.activation,
            **(wide(data).keywords() | {"dfinal_states": wide(data).dfinal_states}),
        )
        for one, other in zip(got, exact, strict=True):
            assert_near(host(one), other, case.x, sums=256)


@pytest.mark.parametrize("b, d, t", [(0, 40, 7), (2, 0, 7), (2, 40, 0)])
def test_empty(b, d, t):
    data = on_gpu(make(replace(CASES["states"], b=b, d=d, t=t)), grad=True)
    y, final = call(data)
    got = gradients(data, (y, final))
    assert y.shape == (b, d, t) and not got[1].any()
    if not t:
        assert torch.equal(final, data.initial_states) and torch.equal(got[3], data.dfinal_states)


def test_no_sequence():
    x = torch.randn(1, 40, 9, device="cuda", dtype=torch.bfloat16)
    cu = torch.zeros(1, dtype=torch.int32, device="cuda")
    assert not causal_conv1d(x, x[0, :, :4].contiguous(), cu_seqlens=cu).any()


# --- frameworks ------------------------------------------------------------------------------------------------------


@some
def test_compiled_equals_eager(case):
    torch._dynamo.reset()
    mine = on_gpu(make(case), grad=True)
    compiled = torch.compile(causal_conv1d, fullgraph=True)
    outputs, expected = call(mine, compiled), call(mine)
    assert_equal(outputs, expected)
    assert_equal(gradients(mine, outputs), gradients(mine, expected))


def test_float64_is_refused():
    x = torch.zeros(1, 4, 8, device="cuda", dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="it has no float64 kernels"):
        causal_conv1d(x, torch.zeros(4, 4, device="cuda", dtype=torch.float64))


@pytest.mark.parametrize("case", [CASES["t"]], ids=["t"])
def test_jax_runs_the_same_kernels(case):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    data = make(case)
    mine = on_gpu(data, grad=True)
    arrays = [jax.numpy.asarray(x) for x in (data.x, data.weight, data.bias, data.dout)]

    def total(x, weight, bias):
        y = causal_conv1d(x, weight, bias, case.activation)
        return (y * arrays[3]).sum(), y

    (_, y), got = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(*arrays[:3])
    outputs = call(mine)
    assert np.array_equal(np.asarray(y).astype(np.float32), host(outputs[0]))
    for one, other in zip(got, gradients(mine, outputs), strict=True):
        assert np.array_equal(np.asarray(one).astype(np.float32), host(other))


class Block(torch.nn.Module):
    """A small Mamba-style block: gate, convolution, gated output, on channel-last activations."""

    def __init__(self, convolve, width=64, taps=4):
        super().__init__()
        torch.manual_seed(0)
        self.convolve = convolve
        self.inner = torch.nn.Linear(width, 4 * width)
        self.outer = torch.nn.Linear(2 * width, width)
        self.weight = torch.nn.Parameter(torch.randn(2 * width, taps) / 2)
        self.bias = torch.nn.Parameter(torch.zeros(2 * width))

    def forward(self, x):
        u, gate = self.inner(x).chunk(2, dim=-1)
        y = self.convolve(u.transpose(1, 2), self.weight, self.bias)
        return self.outer(y.transpose(1, 2) * F.silu(gate))


def plain(x, weight, bias):
    padded = F.pad(x, (weight.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, weight[:, None], bias, groups=len(weight)))


def test_a_block_trains_as_with_torchs_convolution():
    histories = []
    for convolve in (plain, lambda x, w, b: causal_conv1d(x, w, b, "silu")):
        model = Block(convolve).to("cuda", torch.bfloat16)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        generator = torch.Generator("cuda").manual_seed(1)
        x = torch.randn(4, 200, 64, device="cuda", generator=generator).bfloat16()
        target = torch.roll(x, 2, dims=1)
        losses = []
        for _ in range(20):
            loss = (model(x) - target).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        histories.append(losses)
    reference, ours = map(np.array, histories)
    assert ours[-1] < 0.9 * ours[0]
    np.testing.assert_allclose(ours, reference, rtol=1e-2)
