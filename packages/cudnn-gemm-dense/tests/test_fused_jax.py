"""swiglu, srelu and dsrelu on JAX CPU arrays: eager, jit, vmap, quantized outputs; what JAX cannot ask for."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp

import cudnn_gemm_dense as dense
from cudnn_core.testing.gemm import bits, host
from cudnn_core.tuple_dict import TupleDict
from cudnn_gemm_dense import testing
from cudnn_gemm_dense.testing import (
    Side,
    dsrelu,
    make_call,
    scale_memory,
    srelu,
    swiglu,
    values,
)

OPS = ("swiglu", "srelu", "dsrelu")
every_op = pytest.mark.parametrize("op", OPS)
transforms = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
ULP = 2.0**-23


@pytest.fixture(autouse=True)
def on_the_host():
    """These tests are about the host engine, on machines with a GPU too."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def operands(op, call):
    """In the contract's order, scales in the physical view; None where a side has none."""
    return testing.operands(op, call, "jax", "physical")


def entry(op, given, **options):
    """A function of the present operands alone."""
    function = getattr(dense, f"gemm_{op}_jax")

    def run(*present):
        left = iter(present)
        every = [None if x is None else next(left) for x in given]
        if op == "swiglu":
            a, b, sfa, sfb = every
            return function(a, b, sfa_tensor=sfa, sfb_tensor=sfb, **options)
        return function(*every, **options)

    return run


def present(given):
    return [x for x in given if x is not None]


def wide(op):
    return {"c_dtype" if op == "swiglu" else "d_dtype": "float32"}


def assert_matches(op, result, call):
    first, second, *none = result
    assert none == []
    if op == "dsrelu":
        d, dprob = dsrelu(call)
        np.testing.assert_allclose(values(first), d, rtol=4 * ULP)
        np.testing.assert_allclose(values(second), dprob, rtol=4 * ULP, atol=1e-2)
        return
    x = call.preactivation()
    np.testing.assert_allclose(values(first), x, rtol=2.0**-8 if op == "srelu" else 0)
    want = swiglu(x) if op == "swiglu" else srelu(call)
    np.testing.assert_allclose(values(second), want, rtol=4 * ULP, atol=1e-44)


@every_op
@transforms
@pytest.mark.parametrize(
    "a, b", [("bfloat16", "bfloat16"), ("mxfp8", "mxfp8"), ("bfloat16", "nvfp4")]
)
def test_eager_and_jit(op, transform, a, b):
    call = make_call(33, 128, 352, 1, a, b)
    call.alpha = 0.5
    given = operands(op, call)
    run = entry(op, given, alpha=0.5, sf_vec_size=call.vec(), **wide(op))
    result = transform(run)(*present(given))
    assert type(result) is tuple and all(isinstance(x, jax.Array) for x in result)
    assert_matches(op, result, call)


@every_op
@transforms
@pytest.mark.parametrize("format", ["mxfp8", "mxfp4", "nvfp4"])
def test_quantized_outputs_come_last_with_physical_scales(op, transform, format):
    call = make_call(33, 192, 72)
    given = operands(op, call)
    result = transform(entry(op, given, out_format=format))(*present(given))
    assert len(result) == 3
    numpy = [None if x is None else np.asarray(x) for x in given]
    options = {"out_format": format}
    if op == "swiglu":
        options |= {"sfa_tensor": numpy.pop(2), "sfb_tensor": numpy.pop(2)}
    want = getattr(dense, f"gemm_{op}_wrapper")(*numpy, **options)
    key, scales = ("c_tensor", "sfc_tensor") if op == "swiglu" else ("d_tensor", "sfd_tensor")
    got = result[0] if op == "dsrelu" else result[1]
    np.testing.assert_array_equal(bits(got), bits(want[key]))
    columns = 96 if op == "swiglu" else 192
    q = -(-columns // (4 * (16 if format == "nvfp4" else 32)))
    assert result[2].shape == (1, 1, q, 32, 4, 4) and result[2].dtype == want[scales].dtype
    np.testing.assert_array_equal(scale_memory(result[2]), scale_memory(want[scales]))


@every_op
@transforms
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_norm_const(op, transform, shape):
    call = make_call(17, 128, 72)
    given = operands(op, call)
    half = jnp.full(shape, 0.5, jnp.float32)

    def run(norm_const, *rest):
        return entry(op, given, out_format="nvfp4", norm_const_tensor=norm_const)(*rest)

    first = transform(run)(half, *present(given))
    second = transform(run)(jnp.ones(shape), *present(given))
    np.testing.assert_array_equal(host(first[0]).shape, host(second[0]).shape)
    assert (scale_memory(first[2]) != scale_memory(second[2])).any()


def test_ab12_that_is_not_stored():
    call = make_call(9, 64, 64)
    a, b = call.a.tensor("jax"), call.b.tensor("jax")
    ab12, c = dense.gemm_swiglu_jax(a, b, ab12_dtype=None, c_dtype="float32")
    assert ab12 is None
    np.testing.assert_allclose(values(c), swiglu(call.preactivation()), rtol=ULP, atol=1e-44)


@every_op
def test_no_amax_from_the_entries(op):
    """FP4 with a bfloat16 result: the wrapper has an amax, the entry two outputs as upstream's."""
    call = make_call(9, 64, 64, 1, "nvfp4", "nvfp4")
    given = operands(op, call)
    bf16 = {"c_dtype" if op == "swiglu" else "d_dtype": "bfloat16"}
    assert len(entry(op, given, **bf16)(*present(given))) == 2
    text = str(jax.make_jaxpr(entry(op, given, **bf16))(*present(given)))
    assert text.count(f"gemm_{op}[") == 1
    wrapper = getattr(dense, f"gemm_{op}_wrapper")
    options = bf16 | (
        {"sfa_tensor": given.pop(2), "sfb_tensor": given.pop(2)} if op == "swiglu" else {}
    )
    result = wrapper(*given, **options)
    assert isinstance(result, TupleDict)
    assert result["amax_tensor"].shape == ((1, 1, 1) if op == "swiglu" else (1,))


@every_op
@pytest.mark.parametrize("m, n, k", [(0, 64, 64), (17, 0, 64), (17, 64, 0)])
def test_size_zero(op, m, n, k):
    call = make_call(m, n, k)
    given = operands(op, call)
    for transform in (lambda f: f, jax.jit):
        assert_matches(op, transform(entry(op, given, **wide(op)))(*present(given)), call)


def stacked(op, count, *extents, **formats):
    calls = [make_call(*extents, seed=s, **formats) for s in range(count)]
    columns = zip(*(present(operands(op, c)) for c in calls), strict=True)
    return calls, [jnp.stack(xs) for xs in columns]


@every_op
@transforms
@pytest.mark.parametrize("formats", [{}, {"a": "mxfp8", "b": "nvfp4"}])
def test_vmap(op, transform, formats):
    calls, batch = stacked(op, 3, 33, 64, 96, **formats)
    given = operands(op, calls[0])
    run = entry(op, given, sf_vec_size=calls[0].vec(), **wide(op))
    first, second = transform(jax.vmap(run))(*batch)
    assert first.shape[0] == 3
    for i, call in enumerate(calls):
        assert_matches(op, (first[i], second[i]), call)


@every_op
def test_vmap_with_shared_weights(op):
    calls, batch = stacked(op, 3, 33, 64, 96)
    given = operands(op, calls[0])
    axes = [0] * len(batch)
    axes[1] = None
    batch[1] = batch[1][0]
    first, second = jax.jit(jax.vmap(entry(op, given, **wide(op)), in_axes=axes))(*batch)
    for i, call in enumerate(calls):
        call.b = calls[0].b
        assert_matches(op, (first[i], second[i]), call)


@every_op
@pytest.mark.parametrize("format", ["mxfp8", "nvfp4"])
def test_vmap_of_quantized_outputs(op, format):
    calls, batch = stacked(op, 3, 33, 128, 96)
    given = operands(op, calls[0])
    nc = jnp.full((1,), 0.5, jnp.float32)
    run = entry(op, given, out_format=format, norm_const_tensor=nc)
    made = jax.vmap(run)(*batch)
    for i in range(3):
        alone = run(*[x[i] for x in batch])
        for x, y in zip(made, alone, strict=True):
            np.testing.assert_array_equal(bits(x[i]), bits(y))


@every_op
def test_nested_vmap(op):
    calls, batch = stacked(op, 6, 9, 64, 32)
    given = operands(op, calls[0])
    nested = [x.reshape(2, 3, *x.shape[1:]) for x in batch]
    first, second = jax.vmap(jax.vmap(entry(op, given, **wide(op))))(*nested)
    for i, call in enumerate(calls):
        assert_matches(op, (first[i // 3, i % 3], second[i // 3, i % 3]), call)


@every_op
def test_mapped_norm_const_says_what_it_wants(op):
    calls, batch = stacked(op, 3, 9, 64, 32)
    given = operands(op, calls[0])

    def run(nc, *rest):
        return entry(op, given, out_format="mxfp8", norm_const_tensor=nc)(*rest)

    with pytest.raises(ValueError, match=r"norm_const_tensor: expected float32 of shape \(1,\)"):
        jax.vmap(run)(jnp.ones((3, 1)), *batch)


@every_op
def test_alpha_is_static(op):
    call = make_call(9, 64, 32)
    given = operands(op, call)

    def run(alpha):
        return entry(op, given, alpha=alpha)(*present(given))

    with pytest.raises(
        TypeError, match="alpha: expected a number known on the host, before any tracing"
    ):
        jax.jit(run)(2.0)
    run(jnp.float32(2.0))


@every_op
def test_direct_calls_take_one_batch(op):
    call = make_call(9, 64, 32, 2)
    given = operands(op, call)
    with pytest.raises(ValueError, match=r"a_tensor: expected batch extent L = 1"):
        entry(op, given)(*present(given))


@every_op
def test_arrays_are_row_major(op):
    call = make_call(9, 64, 32)
    given = operands(op, call)
    name = "d_major" if op == "dsrelu" else "c_major"
    if op == "swiglu":
        given = given[:2]
    with pytest.raises(ValueError, match=f"{name}: expected 'n'"):
        getattr(dense, f"gemm_{op}_wrapper")(*given, **{name: "m"})


@every_op
def test_no_derivative(op):
    call = make_call(9, 64, 32)
    given = operands(op, call)
    a, *rest = present(given)

    def loss(a):
        return entry(op, given)(a, *rest)[0].astype(jnp.float32).sum()

    with pytest.raises(NotImplementedError, match=f"Differentiation rule for 'gemm_{op}' not"):
        jax.grad(loss)(a)


@every_op
def test_x64_changes_nothing(op):
    call = make_call(9, 64, 32)
    given = operands(op, call)
    with jax.enable_x64(True):
        assert_matches(op, jax.jit(entry(op, given, **wide(op)))(*present(given)), call)


def test_nan_stays_in_its_batch():
    calls, batch = stacked("swiglu", 3, 9, 64, 32)
    calls[1].a = Side(
        "bfloat16",
        np.where(calls[1].a.data == 0, np.nan, calls[1].a.data).astype(calls[1].a.data.dtype),
    )
    batch[0] = jnp.stack([c.a.tensor("jax") for c in calls])
    _, c = jax.vmap(lambda a, b: dense.gemm_swiglu_jax(a, b))(*batch)
    assert [bool(jnp.isnan(x).any()) for x in c] == [False, True, False]
