"""The public decode step on a Hopper GPU: values, states bit for bit, padding, equality with the full sequence."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cudnn_causal_conv import causal_conv1d, causal_conv1d_update, compat
from cudnn_causal_conv.testing import Step, make_step

pytestmark = pytest.mark.gpu

STEPS = {
    "plain": Step(),
    "slots": Step(slots=31, rows=17),
    "channel-last": Step(slots=9, channel_last=True),
    "odd channels": Step(d=61, slots=9),
    "float16, float32 filter": Step(x="float16", weight="float32", activation=None, bias=False),
    "longer state": Step(length=7),
    "several tokens": Step(tokens=5, slots=9),
    "circular": Step(tokens=5, length=6, slots=9, circular=True),
}
steps = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)


def cuda(x):
    if x is None:
        return None
    if x.dtype == "bfloat16":
        return cuda(x.view(np.int16)).view(torch.bfloat16)
    host = torch.from_numpy(x)
    return torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device="cuda").copy_(
        host
    )


def host(x):
    x = x.cpu()
    return x.float().numpy() if x.dtype is torch.bfloat16 else x.numpy()


def run(operands, activation):
    return compat.causal_conv1d_update(
        *(operands[n] for n in ("x", "conv_state", "weight", "bias")),
        activation,
        operands["cache_seqlens"],
        operands["conv_state_indices"],
    )


@steps
@pytest.mark.parametrize("seed", range(4))
def test_values_and_states(step, seed):
    operands = make_step(step, seed)
    mine = {name: cuda(x) for name, x in operands.items()}
    y, expected = run(mine, step.activation), run(operands, step.activation)
    exact = {
        n: x.astype(np.float64) if x is not None and x.dtype.kind not in "iu" else x
        for n, x in make_step(step, seed).items()
    }
    roundoff = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[step.x]
    np.testing.assert_allclose(host(y), run(exact, step.activation), rtol=roundoff, atol=1e-5)
    if step.activation is None:
        assert np.array_equal(host(y), expected.astype(np.float32))
    assert np.array_equal(host(mine["conv_state"]), operands["conv_state"].astype(np.float32))
    if step.slots:
        assert not host(y)[::4].any()


@pytest.mark.parametrize("step", [STEPS["plain"], STEPS["channel-last"]], ids=["t", "d"])
def test_repeated_updates_equal_the_full_sequence(step):
    mine = {n: cuda(x) for n, x in make_step(replace(step, slots=0)).items()}
    x = torch.randn(5, 64, 40, device="cuda", dtype=torch.bfloat16)
    state = mine["conv_state"]
    weight, bias = mine["weight"], mine["bias"]
    expected, final = causal_conv1d(
        x, weight, bias, "silu", initial_states=state.clone(), return_final_states=True
    )
    for t in range(40):
        y = causal_conv1d_update(x[:, :, t], state, weight, bias, "silu")
        assert torch.equal(y, expected[:, :, t])
    assert torch.equal(state, final)


@pytest.mark.parametrize("step", [STEPS["plain"]], ids=["plain"])
def test_compiled(step):
    torch._dynamo.reset()
    mine = {n: cuda(x) for n, x in make_step(step).items()}
    other = mine["conv_state"].clone()

    @torch.compile(fullgraph=True)
    def decode(x, state):
        return causal_conv1d_update(x, state, mine["weight"], mine["bias"], "silu")

    y = decode(mine["x"], mine["conv_state"])
    assert torch.equal(
        y, causal_conv1d_update(mine["x"], other, mine["weight"], mine["bias"], "silu")
    )
    assert torch.equal(mine["conv_state"], other)


def test_no_rows():
    state = torch.randn(3, 8, 3, device="cuda")
    kept = state.clone()
    y = causal_conv1d_update(
        torch.empty(0, 8, device="cuda"), state, torch.randn(8, 4, device="cuda")
    )
    assert y.shape == (0, 8) and torch.equal(state, kept)


@pytest.mark.parametrize("step", [STEPS["slots"]], ids=["slots"])
def test_jax_donates_the_state(step):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    operands = make_step(step)
    arrays = {n: None if x is None else jax.numpy.asarray(x) for n, x in operands.items()}
    mine = {n: cuda(x) for n, x in operands.items()}
    y = run(mine, "silu")
    function = jax.jit(
        lambda x, state: causal_conv1d_update(
            x,
            state,
            arrays["weight"],
            arrays["bias"],
            "silu",
            conv_state_indices=arrays["conv_state_indices"],
        ),
        donate_argnums=1,
    )
    place = arrays["conv_state"].unsafe_buffer_pointer()
    got, state = function(arrays["x"], arrays["conv_state"])
    assert np.array_equal(np.asarray(got).astype(np.float32), host(y))
    assert np.array_equal(np.asarray(state).astype(np.float32), host(mine["conv_state"]))
    assert state.unsafe_buffer_pointer() == place and arrays["conv_state"].is_deleted()
