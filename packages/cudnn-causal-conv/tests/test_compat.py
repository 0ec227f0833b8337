"""The Dao-AILab package's signatures: parameter order, several tokens, circular states, helper."""

import inspect

import numpy as np
import pytest

from cudnn_causal_conv import causal_conv1d, compat
from cudnn_causal_conv.testing import DTYPES, Case, make, same_bits

RANDOM = np.random.default_rng(0)


def normal(*shape, dtype="bfloat16"):
    return RANDOM.standard_normal(shape).astype(DTYPES[dtype])


def test_signatures():
    names = {
        name: ",".join(inspect.signature(getattr(compat, name)).parameters)
        for name in compat.__all__
    }
    assert names == {
        "causal_conv1d_fn": "x,weight,bias,seq_idx,initial_states,return_final_states,"
        "final_states_out,activation",
        "causal_conv1d_update": "x,conv_state,weight,bias,activation,cache_seqlens,conv_state_indices",
        "causal_conv1d_varlen_states": "x,cu_seqlens,state_len",
    }
    for name in compat.__all__:
        for parameter in inspect.signature(getattr(compat, name)).parameters.values():
            assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def test_full_sequence_is_the_same_operation():
    data = make(Case(x="bfloat16", initial=True))
    out = np.zeros((2, 5, 3), data.x.dtype)
    y, states = compat.causal_conv1d_fn(
        data.x, data.weight, data.bias, None, data.initial_states, True, out, "silu"
    )
    expected, final = causal_conv1d(
        *data.positional(), initial_states=data.initial_states, return_final_states=True
    )
    assert states is out
    same_bits(y, expected)
    same_bits(states, final)


def test_seq_idx_is_the_fourth():
    data = make(Case(ids=True))
    y = compat.causal_conv1d_fn(data.x, data.weight, data.bias, data.seq_idx, activation="swish")
    same_bits(y, causal_conv1d(*data.positional(), seq_idx=data.seq_idx))


def test_states_out_counts_only_when_they_are_asked_for():
    data = make(Case())
    out = np.full((2, 5, 3), 7, np.float32)
    y = compat.causal_conv1d_fn(data.x, data.weight, final_states_out=out)
    assert y.shape == data.x.shape and (out == 7).all()


@pytest.mark.parametrize("activation", ["identity", "relu", 1])
def test_activations_of_the_peer(activation):
    data = make(Case())
    with pytest.raises(NotImplementedError, match="activation: expected None, 'silu' or 'swish'"):
        compat.causal_conv1d_fn(data.x, data.weight, activation=activation)
    with pytest.raises(NotImplementedError, match="activation"):
        compat.causal_conv1d_update(
            data.x[:, :, 0], np.zeros((2, 5, 3)), data.weight, None, activation
        )


def linear(x, state, weight, bias):
    """(y, new state) by definition, in float64."""
    length, steps, width = state.shape[2], x.shape[2], weight.shape[1]
    history = np.concatenate([state, x], axis=2)
    wide = history.astype(np.float64)
    y = np.stack(
        [
            (wide[:, :, length + t + 1 - width : length + t + 1] * weight.astype(np.float64)).sum(2)
            for t in range(steps)
        ],
        axis=2,
    )
    return y + bias.astype(np.float64)[:, None], history[:, :, steps:]


def circular(x, state, weight, bias, lengths):
    """The same for a circular state."""
    (rows, _, steps), length, width = x.shape, state.shape[2], weight.shape[1]
    state, y = state.copy(), np.zeros(x.shape)
    for n in range(rows):
        c = lengths[n] % length
        before = [state[n, :, (c - (width - 1) + i) % length].copy() for i in range(width - 1)]
        line = np.stack([*before, *x[n].T], axis=1).astype(np.float64)
        for t in range(steps):
            y[n, :, t] = (line[:, t : t + width] * weight.astype(np.float64)).sum(1) + bias
            state[n, :, (c + t) % length] = x[n, :, t]
    return y, state


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("steps", [1, 4, 5, 9])
@pytest.mark.parametrize("length, width", [(3, 4), (7, 4), (2, 3), (1, 2)])
def test_several_tokens(dtype, steps, length, width):
    x, state = normal(3, 6, steps, dtype=dtype), normal(3, 6, length, dtype=dtype)
    weight, bias = normal(6, width, dtype=dtype), normal(6, dtype=dtype)
    expected, after = linear(x, state, weight, bias)
    y = compat.causal_conv1d_update(x, state, weight, bias)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2**-8, atol=1e-5)
    same_bits(state, after)
    assert y.shape == x.shape


@pytest.mark.parametrize("steps", [1, 4, 5, 9])
@pytest.mark.parametrize("length, width", [(3, 4), (7, 4), (2, 3), (13, 2)])
def test_circular_states(steps, length, width):
    x, state = normal(4, 6, steps), normal(4, 6, length)
    weight, bias = normal(6, width), normal(6)
    lengths = np.array([0, 1, length, 10**9 + 7], np.int32)
    expected, after = circular(x, state, weight, bias, lengths)
    y = compat.causal_conv1d_update(x, state, weight, bias, None, lengths)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2**-8, atol=1e-5)
    same_bits(state, after)


def test_one_token_in_either_rank():
    x, state, weight = normal(3, 6), normal(3, 6, 3), normal(6, 4)
    other = state.copy()
    flat = compat.causal_conv1d_update(x, state, weight, None, "silu")
    same_bits(
        compat.causal_conv1d_update(x[:, :, None], other, weight, None, "silu")[:, :, 0], flat
    )
    same_bits(state, other)
    assert flat.shape == (3, 6)


def test_gathered_slots_with_padding():
    """64 rows out of 640 slots, half of them padding."""
    x, state, weight = normal(64, 8), normal(640, 8, 3), normal(8, 4)
    slots = RANDOM.permutation(640)[:64].astype(np.int32)
    slots[RANDOM.permutation(64)[:32]] = -1
    rows, named = slots >= 0, slots[slots >= 0]
    before = state.copy()
    y = compat.causal_conv1d_update(x, state, weight, None, "silu", None, slots)
    gathered = before[named]
    same_bits(y[rows], compat.causal_conv1d_update(x[rows], gathered, weight, None, "silu"))
    same_bits(state[named], gathered)
    others = np.setdiff1d(np.arange(640), named)
    same_bits(state[others], before[others])
    assert not y[~rows].any()


def test_channel_last_states():
    x, weight = normal(3, 6, 2), normal(6, 4)
    plain = normal(3, 6, 5)
    last = np.ascontiguousarray(plain.transpose(0, 2, 1)).transpose(0, 2, 1)
    same_bits(
        compat.causal_conv1d_update(x, last, weight), compat.causal_conv1d_update(x, plain, weight)
    )
    same_bits(last, plain)


@pytest.mark.parametrize("integers", [np.int32, np.int64, np.uint8, np.uint64])
@pytest.mark.parametrize("state_len", [1, 4, 20])
def test_varlen_states(integers, state_len):
    lengths = (3, 0, 31, 1, 4, 20)
    cu = np.cumsum((0, *lengths)).astype(integers)
    x = normal(int(cu[-1]), 6)
    x.view(np.uint16)[::7] = 0x7FC1
    states = compat.causal_conv1d_varlen_states(x, cu, state_len)
    assert states.shape == (6, 6, state_len) and states.dtype == x.dtype
    assert [s // 2 for s in states.strides] == [6 * state_len, 1, 6]
    for i, length in enumerate(lengths):
        m, end = min(length, state_len), int(cu[i + 1])
        same_bits(states[i, :, state_len - m :], x[end - m : end].T)
        assert not states[i, :, : state_len - m].any()


@pytest.mark.parametrize("total, cu, state_len", [(0, [0, 0], 3), (5, [0], 3), (5, [0, 5], 0)])
def test_varlen_states_of_nothing(total, cu, state_len):
    states = compat.causal_conv1d_varlen_states(normal(total, 6), np.array(cu, np.int32), state_len)
    assert states.shape == (len(cu) - 1, 6, state_len) and not states.any()


def test_varlen_states_refuse():
    with pytest.raises(ValueError, match=r"x: expected rank 2 \(total, D\)"):
        compat.causal_conv1d_varlen_states(normal(1, 5, 6), np.array([0, 5]), 3)
    with pytest.raises(ValueError, match=r"cu_seqlens: expected rank 1 \(N\+1,\)"):
        compat.causal_conv1d_varlen_states(normal(5, 6), np.array([[0, 5]]), 3)
    with pytest.raises(ValueError, match="state_len: expected at least 0, got -1"):
        compat.causal_conv1d_varlen_states(normal(5, 6), np.array([0, 5]), -1)
    with pytest.raises(TypeError, match="cu_seqlens: expected a tensor"):
        compat.causal_conv1d_varlen_states(normal(5, 6), [0, 5], 3)


def test_peers_operation_names_are_left_alone():
    from cudnn_core.op import REGISTRY

    assert not [name for name in REGISTRY if name.startswith("DaoAILab")]


@pytest.mark.parametrize(
    "cu, state_len, error, message",
    [
        ([0, 5], -1, ValueError, "state_len: expected at least 0, got -1"),
        ([0, 5], 2.0, TypeError, "state_len: expected an integer, got 2.0"),
        ([0, 5], True, TypeError, "state_len: expected an integer, got True"),
        ([0.0, 5.0], 2, TypeError, "cu_seqlens: expected integers, got dtype float64"),
        ([False, True], 0, TypeError, "cu_seqlens: expected integers, got dtype bool"),
    ],
)
def test_varlen_states_want_integers(cu, state_len, error, message):
    with pytest.raises(error, match=message):
        compat.causal_conv1d_varlen_states(normal(5, 6), np.array(cu), state_len)
