"""The causal convolution on JAX arrays, on CPU: eager, jit, vmap, gradients, donated states, refusals."""

from dataclasses import replace

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax.test_util import check_grads

from cudnn_causal_conv import causal_conv1d, causal_conv1d_backward, causal_conv1d_update, compat
from cudnn_causal_conv.testing import DTYPES, Case, make, same_bits

KINDS = {
    "plain": Case(),
    "identity, no bias": Case(activation=None, bias=False),
    "states": Case(initial=True, final=True),
    "packed states": Case(lengths=(3, 1, 0, 9, 2), initial=True, final=True),
    "ids": Case(ids=True),
}
kinds = pytest.mark.parametrize("kind", KINDS)
NAMES = ("x", "weight", "bias", "seq_idx", "cu_seqlens", "initial_states", "dout", "dfinal_states")


def arrays(data):
    """The data as JAX arrays."""
    given = {name: getattr(data, name) for name in NAMES}
    return replace(data, **{n: None if x is None else jnp.asarray(x) for n, x in given.items()})


def outputs(data, **changes):
    """(y, final states or nothing), with some operands changed."""
    data = replace(data, **changes)
    final = data.dfinal_states is not None
    made = causal_conv1d(*data.positional(), **data.keywords(), return_final_states=final)
    return made if final else (made,)


def loss(data):
    """A function of the differentiable operands, and those."""
    named = data.differentiable()

    def total(*values):
        made = outputs(data, **dict(zip(named, map(jnp.asarray, values), strict=True)))
        parts = zip(made, (data.dout, data.dfinal_states), strict=False)
        return sum((y * weight).sum() for y, weight in parts)

    return total, tuple(named.values())


# --- eager and jit ---------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_same_as_numpy(kind, dtype):
    data = make(replace(KINDS[kind], x=dtype))
    eager = outputs(arrays(data))
    traced = jax.jit(lambda x: outputs(arrays(data), x=x))(jnp.asarray(data.x))
    for expected, one, other in zip(outputs(data), eager, traced, strict=True):
        assert isinstance(one, jax.Array)
        same_bits(one, expected)
        same_bits(other, expected)


def test_float64_where_it_is_on():
    with jax.enable_x64(True):
        data = make(replace(KINDS["states"], x="float64"))
        for got, expected in zip(outputs(arrays(data)), outputs(data), strict=True):
            same_bits(got, expected)


@pytest.mark.parametrize("b, d, t", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_empty(b, d, t):
    data = arrays(make(Case(b=b, d=d, t=t, initial=True, final=True)))
    y, final = outputs(data)
    assert y.shape == (b, d, t)
    if not t:
        same_bits(final, data.initial_states)


def test_jit_twice_traces_once():
    data, traces = arrays(make(KINDS["plain"])), []

    @jax.jit
    def function(x):
        traces.append(x)
        return outputs(data, x=x)[0]

    same_bits(function(data.x), function(data.x))
    assert len(traces) == 1


# --- gradients -------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients_are_those_of_the_backward(kind, transform):
    data = make(KINDS[kind])
    total, operands = loss(arrays(data))
    got = transform(jax.grad(total, tuple(range(len(operands)))))(*operands)
    made = causal_conv1d_backward(
        data.dout, *data.positional(), **data.keywords(), dfinal_states=data.dfinal_states
    )
    for one, other in zip(got, [g for g in made if g is not None], strict=True):
        same_bits(one, other)


@kinds
def test_gradients_against_finite_differences(kind):
    with jax.enable_x64(True):
        data = arrays(make(replace(KINDS[kind], x="float64")))
        total, operands = loss(data)
        check_grads(total, operands, order=1, modes=["rev"], rtol=1e-6, atol=1e-6)


def test_public_backward():
    data = make(KINDS["states"])
    made = causal_conv1d_backward(data.dout, *data.positional(), **data.keywords())
    wrapped = arrays(data)
    got = causal_conv1d_backward(wrapped.dout, *wrapped.positional(), **wrapped.keywords())
    assert list(got.keys()) == list(made.keys())
    for one, other in zip(got, made, strict=True):
        same_bits(one, other)


def test_only_once_differentiable():
    data = arrays(make(KINDS["plain"]))
    total, operands = loss(data)
    with pytest.raises(NotImplementedError, match="'causal_conv1d_backward' not implemented"):
        jax.grad(lambda x: jax.grad(total)(x, *operands[1:]).sum())(data.x)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: outputs(data, x=x)[0], (data.x,), (data.x,))


# --- vmap ------------------------------------------------------------------------------------------------------------


def stacked(values):
    return jnp.stack([jnp.asarray(value) for value in values])


# Which operands are mapped, and along which axis.
AXES = {
    "rows": {"x": 0},
    "rows, last axis": {"x": -1},
    "filters": {"weight": 0, "bias": 0},
    "all": {"x": 0, "weight": 1, "bias": 0},
    "states": {"initial_states": 0},
    "rows and states": {"x": 1, "initial_states": 2},
    "ids": {"seq_idx": 0},
    "boundaries": {"cu_seqlens": 0},
}


MAPPED = [
    pytest.param(kind, {n: a for n, a in axes.items() if n in present}, id=f"{kind}, {name}")
    for kind, case in KINDS.items()
    for present in [{n for n in NAMES if getattr(make(case), n) is not None}]
    for name, axes in AXES.items()
    if present & axes.keys()
]


@pytest.mark.parametrize("kind, axes", MAPPED)
def test_vmap_is_a_loop(kind, axes):
    """Of outputs and gradients, whichever axis is mapped."""
    several = [make(KINDS[kind], seed) for seed in range(3)]
    data = arrays(several[0])
    members = [[jnp.asarray(getattr(one, name)) for name in axes] for one in several]
    mapped = [
        jnp.stack(column, axis=axis)
        for column, axis in zip(zip(*members, strict=True), axes.values(), strict=True)
    ]

    def both(*values):
        changed = replace(data, **dict(zip(axes, values, strict=True)))
        total, operands = loss(changed)
        return outputs(changed), jax.grad(total, tuple(range(len(operands))))(*operands)

    got = jax.vmap(both, tuple(axes.values()))(*mapped)
    expected = jax.tree.map(lambda *xs: jnp.stack(xs), *[both(*values) for values in members])
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)
    for one, other in zip(got[0], expected[0], strict=True):
        same_bits(one, other)


def test_vmap_of_vmap_and_jit():
    data = arrays(make(KINDS["states"]))
    many = jnp.stack([jnp.stack([data.x, 2 * data.x]), jnp.stack([3 * data.x, -data.x])])
    got = jax.jit(jax.vmap(jax.vmap(lambda x: outputs(data, x=x)[0])))(many)
    for i, j in np.ndindex(2, 2):
        same_bits(got[i, j], outputs(data, x=many[i, j])[0])


# --- the update ------------------------------------------------------------------------------------------------------


def step(dtype="bfloat16", *more):
    random = np.random.default_rng(0)
    shapes = ((3, 5, *more), (8, 5, 3), (5, 4), (5,))
    return [jnp.asarray(random.standard_normal(s).astype(DTYPES[dtype])) for s in shapes]


SLOTS = jnp.asarray([5, -1, 0], jnp.int32)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_update_returns_the_new_state(transform):
    x, state, weight, bias = step()
    before = np.asarray(state)
    function = transform(
        lambda x, state: causal_conv1d_update(
            x, state, weight, bias, "silu", conv_state_indices=SLOTS
        )
    )
    y, after = function(x, state)
    numpy_state = before.copy()
    expected = causal_conv1d_update(
        np.asarray(x),
        numpy_state,
        np.asarray(weight),
        np.asarray(bias),
        "silu",
        conv_state_indices=np.asarray(SLOTS),
    )
    same_bits(y, expected)
    same_bits(after, numpy_state)
    same_bits(state, before)


def test_update_with_a_donated_state():
    x, state, weight, _ = step()
    y, after = causal_conv1d_update(x, state, weight, conv_state_indices=SLOTS)
    function = jax.jit(
        lambda x, state: causal_conv1d_update(x, state, weight, conv_state_indices=SLOTS),
        donate_argnums=1,
    )
    again, moved = function(x, state + 0)
    same_bits(again, y)
    same_bits(moved, after)


def test_update_repeated_in_a_scan_equals_one_call():
    data = arrays(make(Case(x="bfloat16", initial=True)))
    y, final = causal_conv1d(
        *data.positional(), initial_states=data.initial_states, return_final_states=True
    )

    def body(state, token):
        out, state = causal_conv1d_update(token, state, *data.positional()[1:])
        return state, out

    state, tokens = jax.lax.scan(body, data.initial_states, jnp.moveaxis(data.x, 2, 0))
    same_bits(jnp.moveaxis(tokens, 0, 2), y)
    same_bits(state, final)


def test_vmap_of_the_update():
    x, state, weight, bias = step()
    xs, states = stacked([x, 2 * x]), stacked([state, -state])
    for slots, axis in ((SLOTS, None), (stacked([SLOTS, SLOTS[::-1]]), 0)):
        got = jax.vmap(
            lambda x, s, i: causal_conv1d_update(x, s, weight, bias, conv_state_indices=i),
            (0, 0, axis),
        )(xs, states, slots)
        for i in range(2):
            alone = causal_conv1d_update(
                xs[i],
                states[i],
                weight,
                bias,
                conv_state_indices=slots if axis is None else slots[i],
            )
            for one, other in zip(got, alone, strict=True):
                same_bits(one[i], other)


def test_vmap_of_nothing():
    data = arrays(make(KINDS["states"]))
    xs = jnp.zeros((0, *data.x.shape), data.x.dtype)

    def total(x):
        return sum(y.sum() for y in outputs(data, x=x))

    assert [y.shape[0] for y in jax.vmap(lambda x: outputs(data, x=x))(xs)] == [0, 0]
    assert jax.vmap(jax.grad(total))(xs).shape == xs.shape


def test_update_has_no_gradient():
    x, state, weight, _ = step("float32")
    with pytest.raises(NotImplementedError, match="'causal_conv1d_update' not implemented"):
        jax.grad(lambda x: causal_conv1d_update(x, state, weight)[0].sum())(x)


def test_peers_update_with_several_tokens():
    x, state, weight, _ = step("bfloat16", 4)
    lengths = jnp.asarray([0, 7, 2], jnp.int32)
    y, after = compat.causal_conv1d_update(x, state, weight, None, "silu", lengths, SLOTS)
    numpy_state = np.array(state)
    expected = compat.causal_conv1d_update(
        np.asarray(x),
        numpy_state,
        np.asarray(weight),
        None,
        "silu",
        np.asarray(lengths),
        np.asarray(SLOTS),
    )
    same_bits(y, expected)
    same_bits(after, numpy_state)


def test_varlen_states():
    x, ends = step()[1].reshape(-1, 5), np.array([0, 3, 3, 24], np.int32)
    states = jax.jit(lambda x, c: compat.causal_conv1d_varlen_states(x, c, 4))(x, jnp.asarray(ends))
    same_bits(states, compat.causal_conv1d_varlen_states(np.asarray(x), ends, 4))


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_buffer_for_states_is_refused():
    data = arrays(make(KINDS["plain"]))
    with pytest.raises(
        ValueError, match="final_states_out: expected None, as JAX arrays cannot be written"
    ):
        causal_conv1d(
            data.x, data.weight, return_final_states=True, final_states_out=jnp.zeros((2, 5, 3))
        )


def test_refusals_are_the_contracts():
    data = arrays(make(KINDS["plain"]))
    with pytest.raises(ValueError, match="kernel_size must be between 2 and 256"):
        causal_conv1d(data.x, data.weight[:, :1])
    with pytest.raises(NotImplementedError, match="activation"):
        jax.jit(lambda x: causal_conv1d(x, data.weight, None, "relu"))(data.x)
    with pytest.raises(TypeError, match="cu_seqlens: expected dtype one of int32"):
        causal_conv1d(data.x[:1], data.weight, cu_seqlens=jnp.zeros(3, jnp.uint8))
    with pytest.raises(ValueError, match="weight: expected a tensor, got None"):
        causal_conv1d(data.x, None)
    with pytest.raises(
        ValueError, match="weight: expected a jax array, as x is, got a numpy array"
    ):
        causal_conv1d(data.x, np.zeros((5, 4), np.float32))
