"""Gradients, folded vmap and operands in place of JAX ops, on CPU; the CUDA lowering without a GPU."""

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
import numpy as np

from cudnn_core.doors import jax_ffi, jax_primitive
from cudnn_core.op import REGISTRY, Op
from cudnn_core.testing.channels import OP, STORE, STORE_CONTRACT, channels, store_reference
from cudnn_core.testing.toy import CountingEngine


def operands(seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(k, s) for k, s in zip(keys, ((2, 3, 6), (3,), (3,)), strict=True)]


def plain(x, weight, offset):
    return x * weight[:, None] + offset[:, None], x.sum(axis=2)


def ours(x, weight, offset):
    return tuple(channels(x, weight, offset, None, "plus", True))


def loss(function):
    return lambda *args: sum(jnp.sin(y).sum() for y in function(*args))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients(transform):
    got = transform(jax.grad(loss(ours), (0, 1, 2)))(*operands())
    for one, other in zip(got, jax.grad(loss(plain), (0, 1, 2))(*operands()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_absent_operands_and_outputs():
    x, weight, _ = operands()
    y, totals = channels(x, weight)
    assert totals is None
    got = jax.grad(lambda w: channels(x, w)[0].sum())(weight)
    np.testing.assert_allclose(got, x.sum(axis=(0, 2)), rtol=1e-5)
    assert y.shape == x.shape
    with pytest.raises(ValueError, match="weight: expected a tensor, got None"):
        channels(x, None)


def test_integers_have_no_gradient():
    x, weight, _ = operands()
    bounds = jnp.asarray([0, 2, 6], jnp.int32)

    def function(x):
        return channels(x[:1], weight, None, bounds, "plus", True)[1].sum()

    np.testing.assert_array_equal(jax.grad(function)(x)[0], np.ones((3, 6)))


def test_second_derivatives_are_refused():
    x, weight, offset = operands()
    with pytest.raises(NotImplementedError, match="'channels_backward' not implemented"):
        jax.grad(lambda x: jax.grad(loss(ours))(x, weight, offset).sum())(x)


# --- vmap ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "axes", [(0, None, None), (2, None, None), (None, 0, None), (0, 1, 0), (1, None, 0)]
)
def test_vmap_folds(axes):
    several = [operands(seed) for seed in range(4)]
    columns = zip(*several, strict=True)
    args = [
        column[0] if axis is None else jnp.stack(column, axis=axis)
        for column, axis in zip(columns, axes, strict=True)
    ]

    def both(function):
        return lambda *a: (function(*a), jax.grad(loss(function), (0, 1, 2))(*a))

    got, expected = jax.vmap(both(ours), axes)(*args), jax.vmap(both(plain), axes)(*args)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    folded = str(jax.make_jaxpr(jax.vmap(ours, axes))(*args))
    assert "scan" not in folded and "while" not in folded


def test_vmap_over_what_does_not_fold_goes_one_by_one():
    x, weight, _ = operands()
    bounds = jnp.asarray([[0, 2, 6], [0, 5, 6], [0, 0, 6]], jnp.int32)

    def totals(b):
        return channels(x[:1], weight, None, b, "plus", True)[1]

    got = jax.vmap(totals)(bounds)
    assert "scan" in str(jax.make_jaxpr(jax.vmap(totals))(bounds))
    for one, other in zip(got, bounds, strict=True):
        np.testing.assert_array_equal(one, totals(other))


def test_vmap_with_packed_rows_folds_into_channels():
    x, weight, _ = operands()
    many, bounds = jnp.stack([x[:1], 2 * x[:1]]), jnp.asarray([0, 2, 6], jnp.int32)
    mapped = jax.vmap(lambda x: channels(x, weight, None, bounds, "plus", True)[1])
    assert "scan" not in str(jax.make_jaxpr(mapped)(many))
    for one, x in zip(mapped(many), many, strict=True):
        np.testing.assert_array_equal(one, channels(x, weight, None, bounds, "plus", True)[1])


# --- in place --------------------------------------------------------------------------------------------------------


def store(x, s):
    return STORE.run((x, s), ())


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_new_contents_follow_the_outputs(transform):
    old = jnp.arange(6.0).reshape(2, 3)
    y, new = transform(store)(jnp.ones((2, 3)), old)
    assert (y == old).all() and (new == old + 1).all() and old[0, 0] == 0


def test_vmap_of_an_operand_in_place():
    old = jnp.arange(12.0).reshape(2, 2, 3)
    y, new = jax.vmap(store, (None, 0))(jnp.ones((2, 3)), old)
    assert (y == old).all() and (new == old + 1).all()


def test_frameworks_do_not_mix():
    with pytest.raises(ValueError, match="store: expected a jax array, as x is, got a numpy array"):
        store(jnp.ones((2, 3)), np.zeros((2, 3)))


class AnyDevice(CountingEngine):
    platform = "cuda"

    def why_not_device(self, device):
        return None


def test_the_cuda_lowering_shares_the_buffer_of_a_mutated_operand(monkeypatch):
    calls = []

    def ffi_call(executable, operands, results, initial, scalars, shared):
        calls.append((len(operands), len(results), initial, shared))
        return [jnp.zeros(r.shape, r.dtype) for r in results]

    monkeypatch.setattr(jax_ffi, "cuda_call", ffi_call)
    monkeypatch.setitem(REGISTRY, "cudnn_core_toy::stored", None)
    op = Op(STORE_CONTRACT, (AnyDevice(store_reference),), "cudnn_core_toy", "stored")
    static = {
        "attributes": (("sign", "plus"),),
        "batched": False,
        "present": (True, True, True),
        "numbers": (),
    }
    made = jax_primitive._on_cuda(op)(jnp.ones((2, 3)), jnp.ones((2, 3)), **static)
    assert calls == [(2, 2, {}, {1: 1})] and len(made) == 2
    empty = jax_primitive._on_cuda(op)(jnp.ones((0, 3)), jnp.ones((0, 3)), **static)
    assert [x.shape for x in empty] == [(0, 3), (0, 3)] and len(calls) == 1
    assert OP.backward is not None
