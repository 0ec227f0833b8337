"""causal_conv1d_update on NumPy arrays: values, states bit for bit, slots, refusals."""

import inspect
from dataclasses import dataclass

import numpy as np
import pytest

from cudnn_causal_conv import causal_conv1d, causal_conv1d_update
from cudnn_causal_conv.testing import DTYPES, Case, act, assert_near, make, same_bits
from cudnn_causal_conv.update import OP


@dataclass
class Step:
    x: np.ndarray
    state: np.ndarray
    weight: np.ndarray
    bias: np.ndarray

    def call(self, activation="silu", **options):
        return causal_conv1d_update(
            self.x, self.state, self.weight, self.bias, activation, **options
        )


def step(n=3, d=5, length=3, width=4, slots=None, dtype="float32"):
    random = np.random.default_rng(0)

    def normal(*shape):
        return random.standard_normal(shape).astype(DTYPES[dtype])

    return Step(
        normal(n, d), normal(n if slots is None else slots, d, length), normal(d, width), normal(d)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "length, width", [(3, 4), (4, 4), (9, 4), (1, 1), (1, 2), (2, 3), (7, 8), (20, 20)]
)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_values_and_state(dtype, length, width, activation):
    s = step(length=length, width=width, dtype=dtype)
    before = s.state.copy()
    history = np.concatenate([before, s.x[:, :, None]], axis=2)
    y = s.call(activation)
    taps = history[:, :, length + 1 - width :].astype(np.float64) * s.weight.astype(np.float64)
    assert_near(y, act(taps.sum(axis=2) + s.bias.astype(np.float64), activation), dtype, sums=32)
    same_bits(s.state, history[:, :, 1:])
    assert y.dtype == s.x.dtype and y.flags.c_contiguous and y.base is not s.x


def test_state_moves_bits():
    codes = np.array([0x7FC1, 0xFFA5, 0x8000], np.uint16)
    state = codes.view(DTYPES["bfloat16"]).reshape(1, 1, 3).copy()
    x = np.array([[0xFF81]], np.uint16).view(state.dtype)
    causal_conv1d_update(x, state, np.ones((1, 4), state.dtype))
    assert state.view(np.uint16).tolist() == [[[0xFFA5, 0x8000, 0xFF81]]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("width, length", [(4, 3), (4, 6), (2, 1), (7, 6)])
def test_repeated_updates_equal_one_call(dtype, width, length):
    data = make(Case(x=dtype, width=width, initial=True))
    y, final = causal_conv1d(
        *data.positional(), initial_states=data.initial_states, return_final_states=True
    )
    state = np.zeros((2, 5, length), data.x.dtype)
    state[:, :, length - (width - 1) :] = data.initial_states
    for t in range(data.case.t):
        token = causal_conv1d_update(data.x[:, :, t], state, *data.positional()[1:])
        same_bits(token, y[:, :, t])
    same_bits(state[:, :, length - (width - 1) :], final)


def test_final_states_feed_the_update():
    data = make(Case(x="bfloat16", lengths=(2, 3, 3)))
    _, states = causal_conv1d(*data.positional(), **data.keywords(), return_final_states=True)
    new = data.x[0, :, :3].T
    kept, view = states.copy(), states
    y = causal_conv1d_update(
        new, states, *data.positional()[1:], conv_state_indices=np.array([2, -1, 0], np.int32)
    )
    assert states is view and not y[1].any()
    same_bits(states[1], kept[1])
    for row, slot in ((0, 2), (2, 0)):
        same_bits(states[slot], np.concatenate([kept[slot], new[row][:, None]], axis=1)[:, 1:])


@pytest.mark.parametrize("bad", [-1, -2, -(2**31), 8, 2**31 - 1])
def test_indices_outside_are_padding(bad):
    s = step(slots=8)
    before = s.state.copy()
    indices = np.array([5, bad, 0], np.int32)
    y = s.call(conv_state_indices=indices)
    assert not y[1].any() and y[0].any()
    untouched = [1, 2, 3, 4, 6, 7]
    same_bits(s.state[untouched], before[untouched])
    assert (s.state[[0, 5]] != before[[0, 5]]).any()


def test_slots_without_a_row_stay():
    s = step(n=2, slots=5)
    before = s.state.copy()
    s.call()
    same_bits(s.state[2:], before[2:])


def test_rows_do_not_see_each_other():
    s, alone = step(), step()
    s.x[1], s.state[2] = np.nan, np.nan
    y = s.call()
    same_bits(y[0], alone.call()[0])
    assert np.isnan(y[1]).all() and np.isnan(y[2]).all()


@pytest.mark.parametrize("strides", ["padded", "transposed", "reversed"])
def test_any_strides(strides):
    s, expected = step(n=4, slots=4), step(n=4, slots=4)
    y = expected.call()
    if strides == "padded":
        room = np.full((4, 9), np.nan, np.float32)
        room[:, 2:7] = s.x
        s.x = room[:, 2:7]
        states = np.full((4, 7, 8), np.nan, np.float32)
        states[:, 1:6, 3:6] = s.state
        s.state = states[:, 1:6, 3:6]
    elif strides == "transposed":
        s.x = np.asfortranarray(s.x)
        s.state = np.ascontiguousarray(s.state.transpose(0, 2, 1)).transpose(0, 2, 1)
        s.weight = np.asfortranarray(s.weight)
    else:
        s.state = s.state[::-1].copy()[::-1]
    same_bits(s.call(), y)
    same_bits(s.state, expected.state)


@pytest.mark.parametrize("n, d, slots", [(0, 5, 4), (0, 5, 0), (3, 0, 3)])
def test_empty(n, d, slots):
    s = step(n=n, d=d, slots=slots)
    before = s.state.copy()
    assert s.call().shape == (n, d)
    same_bits(s.state, before)


def test_no_slots_at_all():
    s = step(n=3, slots=0)
    assert not s.call(conv_state_indices=np.zeros(3, np.int32)).any()


def test_signature():
    parameters = inspect.signature(causal_conv1d_update).parameters
    assert list(parameters) == [
        *("x", "conv_state", "weight", "bias", "activation"),
        *("cache_seqlens", "conv_state_indices"),
    ]
    either, only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    assert [p.kind for p in parameters.values()] == [either] * 5 + [only] * 2


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


shared = zeros(200)
REFUSALS = {
    "x": ({"x": 1.0}, TypeError, "x: expected a tensor"),
    "state": ({"conv_state": None}, ValueError, "conv_state: expected a tensor, got None"),
    "activation": ({"activation": "relu"}, ValueError, "activation: expected None"),
    "several tokens": ({"x": zeros(3, 5, 2)}, ValueError, r"x: expected shape \[N, D\]"),
    "circular": (
        {"cache_seqlens": zeros(3, dtype=np.int32)},
        NotImplementedError,
        "cache_seqlens: expected None.*cudnn_causal_conv.compat",
    ),
    "state rank": (
        {"conv_state": zeros(3, 5)},
        ValueError,
        r"conv_state: expected rank 3 \(P, D, L\)",
    ),
    "short state": (
        {"conv_state": zeros(3, 5, 2)},
        ValueError,
        "state length L of at least W-1 = 3",
    ),
    "few slots": (
        {"conv_state": zeros(2, 5, 3)},
        ValueError,
        "at least N = 3 slots without conv_state_indices",
    ),
    "channels": (
        {"weight": zeros(4, 4)},
        ValueError,
        r"weight: expected shape \(D, W\) = \(5, any\)",
    ),
    "bias": ({"bias": zeros(5, 1)}, ValueError, "bias: expected rank 1"),
    "indices shape": (
        {"conv_state_indices": zeros(2, dtype=np.int32)},
        ValueError,
        r"conv_state_indices: expected shape \(N,\) = \(3,\)",
    ),
    "indices dtype": (
        {"conv_state_indices": zeros(3, dtype=np.int64)},
        TypeError,
        "conv_state_indices: expected dtype one of int32",
    ),
    "dtype": ({"x": zeros(3, 5, dtype=np.int8)}, TypeError, "x: expected dtype one of bfloat16"),
    "state dtype": (
        {"conv_state": zeros(3, 5, 3, dtype=np.float16)},
        TypeError,
        r"conv_state: expected dtype float32 \(x's\)",
    ),
    "repeating state": (
        {"conv_state": np.broadcast_to(zeros(5, 3), (3, 5, 3))},
        ValueError,
        "conv_state: expected strides that address each element once",
    ),
    "too wide": (
        {"weight": zeros(5, 257), "conv_state": zeros(3, 5, 256)},
        ValueError,
        "between 1 and 256",
    ),
    "overlap with x": (
        {"x": shared[:15].reshape(3, 5), "conv_state": shared[14:59].reshape(3, 5, 3)},
        ValueError,
        "conv_state: expected memory that it does not share with x",
    ),
    "overlap with bias": (
        {"bias": shared[58:63], "conv_state": shared[14:59].reshape(3, 5, 3)},
        ValueError,
        "does not share with bias",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    changes, error, message = REFUSALS[name]
    arguments = {"x": zeros(3, 5), "conv_state": zeros(3, 5, 3), "weight": zeros(5, 4)} | changes
    for _ in range(2):
        with pytest.raises(error, match=message):
            causal_conv1d_update(**arguments)


def test_neighbours_in_one_buffer_are_legal():
    buffer = zeros(80)
    y = causal_conv1d_update(buffer[:15].reshape(3, 5), buffer[15:60].reshape(3, 5, 3), zeros(5, 4))
    assert y.shape == (3, 5)


def test_a_read_only_state():
    s = step()
    s.state.flags.writeable = False
    with pytest.raises(
        ValueError, match="conv_state: expected an array to write into, got a read-only one"
    ):
        s.call()


def test_addresses_are_looked_at_every_time():
    """A remembered call does not stand for the next one's memory."""
    OP.forget()
    s = step()
    s.call()
    buffer = np.zeros(100, np.float32)
    s.x, s.state = buffer[:15].reshape(3, 5), buffer[10:55].reshape(3, 5, 3)
    with pytest.raises(ValueError, match="share with x"):
        s.call()
