"""The JAX door on a toy operation: one primitive, every way of mapping it, and what it refuses."""

import itertools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp

from cudnn_core.doors import jax_ffi, jax_primitive
from cudnn_core.op import REGISTRY, Op
from cudnn_core.testing.toy import OP, OPTIONAL_OP, CountingEngine, toy


@pytest.fixture(autouse=True)
def on_the_host():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def call(x, w, *attributes):
    return OP.call_jax((x, w), attributes)


def arrays(*leading, m=5, n=4, k=3, seed=0):
    rng = np.random.default_rng(seed)
    return [
        jnp.asarray(rng.integers(-4, 5, (*leading, rows, k, 1)).astype(np.float32))
        for rows in (m, n)
    ]


def check(y, top, x, w):
    """y (..., M, N, 1) and top (..., 1, 1, 1) against NumPy, operands broadcast over leading axes."""
    want = np.einsum("...mkl,...nkl->...mnl", np.asarray(x), np.asarray(w))
    np.testing.assert_array_equal(np.asarray(y), want)
    largest = np.abs(want).max(axis=(-3, -2, -1), initial=0)
    np.testing.assert_array_equal(np.asarray(top)[..., 0, 0, 0], largest)


def test_there_is_one_primitive():
    assert jax_primitive.primitive(OP) is jax_primitive.primitive(OP)
    assert jax_primitive.primitive(OP).name == "toy"


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_direct_calls(wrap):
    x, w = arrays()
    check(*wrap(call)(x, w), x, w)


def test_eager_calls_are_compiled_once():
    x, w = arrays(m=6)
    call(x, w)
    text = jax.make_jaxpr(call)(x, w)
    assert [e.primitive.name for e in text.eqns] == ["toy"]


def test_static_options_reach_the_engine():
    x, w = arrays()
    y, _ = call(x, w, "n", "float16", "minus")
    assert y.dtype == jnp.float16
    np.testing.assert_array_equal(np.asarray(y, np.float32), -np.asarray(call(x, w)[0]))


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_vmap(wrap, mapped):
    x, w = (a if axis == 0 else a[0] for a, axis in zip(arrays(3), mapped, strict=True))
    check(*wrap(jax.vmap(call, in_axes=mapped))(x, w), x, w)


MAPS = [(0, 0), (0, None), (None, 0)]


@pytest.mark.parametrize("levels", list(itertools.product(MAPS, repeat=3)), ids=str)
def test_three_levels_of_vmap(levels):
    """Every way in which three levels can map one operand, the other or both."""
    sizes = (2, 3, 2)
    operands = []
    for index, a in enumerate(arrays(*sizes)):
        # A level that does not map the operand takes index 0 and keeps no axis.
        place = tuple(slice(None) if level[index] == 0 else 0 for level in levels)
        operands.append(a[place])
    function = call
    for level in reversed(levels):
        function = jax.vmap(function, in_axes=level)
    y, top = jax.jit(function)(*operands)
    full = []
    for index, a in enumerate(arrays(*sizes)):
        place = tuple(slice(None) if level[index] == 0 else slice(0, 1) for level in levels)
        full.append(np.broadcast_to(np.asarray(a[place]), (*sizes, *a.shape[3:])))
    check(y, top, *full)


def test_vmap_of_jit_of_vmap():
    x, w = arrays(2, 3)
    check(*jax.vmap(jax.jit(jax.vmap(call)))(x, w), x, w)


def test_other_axes():
    x, w = arrays(3)
    y, top = jax.vmap(call, in_axes=(2, 1), out_axes=(1, 0))(
        jnp.moveaxis(x, 0, 2), jnp.moveaxis(w, 0, 1)
    )
    check(jnp.moveaxis(y, 1, 0), top, x, w)


@pytest.mark.parametrize("change", [{"m": 0}, {"n": 0}, {"k": 0}])
def test_empty(change):
    x, w = arrays(**change)
    check(*jax.jit(call)(x, w), x, w)
    x, w = arrays(3, **change)
    check(*jax.vmap(call)(x, w), x, w)


def test_scan_and_cond():
    """Inside control flow, where a primitive meets other transformations."""
    x, w = arrays(4)

    def step(carry, xw):
        y, top = jax.lax.cond(carry >= 0, lambda: call(*xw), lambda: call(xw[0] * 0, xw[1]))
        return carry + 1, (y, top)

    _, (y, top) = jax.jit(lambda: jax.lax.scan(step, 0, (x, w)))()
    check(y, top, x, w)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_subnormal_numbers_survive(wrap):
    """XLA flushes them to zero in the threads from which it calls back."""
    x, w = np.full((5, 3, 1), 2.0**-127, np.float32), np.ones((4, 3, 1), np.float32)
    for function, operands in ((call, (x, w)), (jax.vmap(call), (x[None], w[None]))):
        y, top = wrap(function)(*map(jnp.asarray, operands))
        want = np.float32(3 * 2.0**-127).view(np.uint32)
        assert (np.asarray(y).view(np.uint32) == want).all()
        assert (np.asarray(top).view(np.uint32) == want).all()


def test_what_is_refused():
    x, w = arrays()
    with pytest.raises(ValueError, match="y_major: expected 'n' .*row-major"):
        call(x, w, "m")
    with pytest.raises(ValueError, match=r"x_tensor: expected batch extent L = 1 \(use jax.vmap"):
        call(jnp.concatenate([x, x], -1), w)
    with pytest.raises(ValueError, match=r"w_tensor: expected K = 3"):
        jax.jit(call)(x, w[:, :2])
    with pytest.raises(ValueError, match="w_tensor: expected a tensor, got None"):
        call(x, None)
    with pytest.raises(ValueError, match="x_tensor: expected a tensor, got None"):
        call(None, w)
    with pytest.raises(ValueError, match="w_tensor dtype: expected a dtype"):
        call(x, jax.random.split(jax.random.key(0), w.shape))
    with pytest.raises(
        ValueError, match="w_tensor: expected a jax array, as x_tensor is, got a numpy"
    ):
        call(x, np.asarray(w))
    for other in (np.asarray(w), 3, "w", [1.0], object(), np.float32(1)):
        with pytest.raises(
            (TypeError, ValueError), match="w_tensor: expected a (tensor|jax array)"
        ):
            toy(x, other)
    with pytest.raises(ValueError, match="stream: expected None, because JAX"):
        toy(x, w, stream=0)
    with pytest.raises(NotImplementedError, match="Differentiation rule for 'toy' not implemented"):
        jax.grad(lambda x: call(x, w)[0].sum())(x)


@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)], ids=["x", "w", "both"])
def test_vmap_of_nothing(mapped):
    x, w = (a if axis is None else a[None][:0] for a, axis in zip(arrays(), mapped, strict=True))
    y, top = jax.vmap(call, in_axes=mapped)(x, w)
    assert y.shape == (0, 5, 4, 1) and top.shape == (0, 1, 1, 1)


@pytest.mark.parametrize("sizes", [(0, 2), (2, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("inner", [(0, 0), (0, None)], ids=["both", "x"])
def test_nested_vmap_of_nothing(sizes, inner):
    x, w = arrays()
    x = jnp.zeros((*sizes, *x.shape))
    w = jnp.zeros(
        (*(s for s, axis in zip(sizes, (0, inner[1]), strict=True) if axis == 0), *w.shape)
    )
    y, top = jax.vmap(jax.vmap(call, in_axes=inner))(x, w)
    assert y.shape == (*sizes, 5, 4, 1) and top.shape == (*sizes, 1, 1, 1)


# --- optional operands -----------------------------------------------------------------------------------------------

# (whether there is a bias, attributes, which of y, sum and top exist)
PRESENCE = [
    (True, (), (True, True, True)),
    (False, (), (True, False, True)),
    (True, ("n", "float16"), (True, True, False)),
    (False, ("n", "float32", "minus"), (True, False, False)),
]


def optional_call(*attributes):
    return lambda x, bias, w: OPTIONAL_OP.call_jax((x, bias, w), attributes)


def check_optional(outputs, x, bias, w, attributes, exist):
    assert tuple(y is not None for y in outputs) == exist
    y, sums, top = outputs
    sign = -1 if "minus" in attributes else 1
    want = sign * np.einsum("...mkl,...nkl->...mnl", np.asarray(x), np.asarray(w))
    full = want if bias is None else want + np.asarray(bias)
    np.testing.assert_array_equal(np.asarray(y, np.float32), full)
    if sums is not None:
        np.testing.assert_array_equal(*np.broadcast_arrays(np.asarray(sums, np.float32), want))
    if top is not None:
        largest = np.abs(want).max(axis=(-3, -2, -1))
        np.testing.assert_array_equal(np.asarray(top)[..., 0, 0, 0], largest)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("bias, attributes, exist", PRESENCE)
def test_optional_operands(wrap, bias, attributes, exist):
    x, w = arrays()
    b = jnp.ones((5, 4, 1)) if bias else None
    function = optional_call(*attributes)
    check_optional(wrap(function)(x, b, w), x, b, w, attributes, exist)
    (equation,) = jax.make_jaxpr(function)(x, b, w).eqns
    assert len(equation.invars) == 2 + bias and len(equation.outvars) == sum(exist)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("bias, attributes, exist", PRESENCE)
def test_optional_operands_under_vmap(bias, attributes, exist, axis):
    """Mapped once and twice, with the optional operand mapped or not."""
    x, w = arrays(2, 3)
    b = None
    if bias:
        b = jnp.arange(6.0).reshape(2, 3, 1, 1, 1) * jnp.ones((5, 4, 1))
        b = b if axis == 0 else b[1, 2]
    function = optional_call(*attributes)
    mapped = jax.vmap(function, in_axes=(0, axis, 0))
    inner = b[0] if bias and axis == 0 else b
    check_optional(mapped(x[0], inner, w[0]), x[0], inner, w[0], attributes, exist)
    twice = jax.jit(jax.vmap(mapped, in_axes=(0, axis, 0)))
    check_optional(twice(x, b, w), x, b, w, attributes, exist)


def test_the_wrapper_door_keeps_the_keys():
    x, w = arrays()
    result = OPTIONAL_OP((x, None, w), ("n", "float16"))
    assert list(result.keys()) == ["y_tensor", "sum_tensor", "top_tensor"]
    assert result["sum_tensor"] is None and result[2] is None and result[0].dtype == jnp.float16


def test_what_is_refused_of_optional_operands():
    x, w = arrays()
    with pytest.raises(ValueError, match="w_tensor: expected a tensor, got None"):
        OPTIONAL_OP.call_jax((x, None, None), ())
    with pytest.raises(ValueError, match="bias_tensor: expected M = 5"):
        jax.jit(optional_call())(x, jnp.ones((4, 4, 1)), w)


@pytest.mark.parametrize("bias, attributes, exist", PRESENCE)
def test_the_cuda_lowering_passes_what_is_present(monkeypatch, bias, attributes, exist):
    """Without a GPU: what the FFI call would be given, and which of its results start from zero."""
    calls = []

    def ffi_call(executable, operands, results, initial, scalars, shared):
        assert not shared
        calls.append((len(operands), len(results), sorted(initial)))
        return [jnp.zeros(r.shape, r.dtype) for r in results]

    class AnyDevice(CountingEngine):
        def why_not_device(self, device):
            return None

    monkeypatch.setattr(jax_ffi, "cuda_call", ffi_call)
    monkeypatch.setitem(REGISTRY, "cudnn_core_toy::any_device", None)
    op = Op(OPTIONAL_OP.contract, (AnyDevice(),), "cudnn_core_toy", "any_device")
    x, w = arrays()
    static = tuple(op.contract.parse_attributes(op.named(attributes)).items())
    given = (x, jnp.ones((5, 4, 1)), w) if bias else (x, w)
    present = (True, bias, True, *exist)
    made = jax_primitive._on_cuda(op)(
        *given, attributes=static, batched=False, present=present, numbers=()
    )
    assert len(made) == sum(exist)
    top = [sum(exist) - 1] if exist[2] else []
    assert calls == [(len(given), sum(exist), top)]
