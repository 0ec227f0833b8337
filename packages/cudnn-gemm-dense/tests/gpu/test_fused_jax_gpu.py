"""swiglu, srelu and dsrelu from JAX on a Hopper GPU: eager, jit, vmap; no host callback."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp
from fused_cases import JaxCase

import cudnn_gemm_dense as dense
from cudnn_gemm_dense.testing import (
    column_tensor,
    dsrelu,
    make_call,
    matrix_tensor,
    srelu,
    swiglu,
    values,
)

pytestmark = pytest.mark.gpu
OPS = ("swiglu", "srelu", "dsrelu")


def operands(op, call):
    a, b = call.a.tensor("jax"), call.b.tensor("jax")
    if op == "swiglu":
        return [a, b]
    prob = column_tensor(call.column, "jax")
    if op == "srelu":
        return [a, b, prob]
    return [a, b, matrix_tensor(call.gradient, "float32", "n", "jax"), prob]


def entry(op, **options):
    if op == "swiglu":
        return lambda a, b: dense.gemm_swiglu_jax(a, b, c_dtype="float32", **options)
    if op == "srelu":
        return lambda a, b, p: dense.gemm_srelu_jax(
            a, b, None, None, p, c_dtype="float32", d_dtype="float32", **options
        )
    return lambda a, b, c, p: dense.gemm_dsrelu_jax(
        a, b, c, None, None, p, d_dtype="float32", **options
    )


def check(op, call, made):
    if op == "dsrelu":
        d, dprob = dsrelu(call)
        np.testing.assert_allclose(values(made[0]), d, rtol=1e-6)
        np.testing.assert_allclose(values(made[1]), dprob, rtol=1e-5, atol=0.05)
        return
    np.testing.assert_array_equal(values(made[0]), call.preactivation())
    want = swiglu(call.preactivation()) if op == "swiglu" else srelu(call)
    np.testing.assert_allclose(values(made[1]), want, rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("case", [JaxCase(op) for op in OPS], ids=str)
def test_eager_and_jit(case):
    op, call = case.op, make_call(*case.extents)
    call.alpha = 0.5
    given = operands(op, call)
    run = entry(op, alpha=0.5)
    check(op, call, run(*given))
    text = jax.jit(run).lower(*given).compile().as_text()
    assert "callback" not in text
    check(op, call, jax.jit(run)(*given))


@pytest.mark.parametrize("case", [JaxCase(op, mapped=True) for op in OPS], ids=str)
def test_vmap_with_shared_operands(case):
    """The first operand is mapped; the others are one for all batches."""
    op, calls = case.op, [make_call(*case.extents, seed=s) for s in range(3)]
    given = [operands(op, c) for c in calls]
    batch = [jnp.stack([g[0] for g in given]), *given[0][1:]]
    axes = (0, *(None for _ in given[0][1:]))
    made = jax.jit(jax.vmap(entry(op), in_axes=axes))(*batch)
    for i, call in enumerate(calls):
        call.b, call.column, call.gradient = calls[0].b, calls[0].column, calls[0].gradient
        check(op, call, [x[i] for x in made])


@pytest.mark.parametrize("case", [JaxCase("srelu", out_format="mxfp8")], ids=str)
def test_quantized_results(case):
    call = make_call(*case.extents)
    given = operands("srelu", call)
    c, d, sfd = jax.jit(entry("srelu", out_format="mxfp8"))(*given)
    from cudnn_core.formats import quantize

    _, wide = entry("srelu")(*given)
    q = quantize(wide[..., 0], "mxfp8")
    np.testing.assert_array_equal(
        np.asarray(d[..., 0]).view(np.uint8), np.asarray(q["data"]).view(np.uint8)
    )
    np.testing.assert_array_equal(
        np.asarray(sfd).view(np.uint8), np.asarray(q["scale"]).view(np.uint8)
    )
    assert c.shape == (200, 320, 1)
