"""GEMM + amax from JAX on a Hopper GPU: eager, jit, vmap, jit of vmap, against the float64 model."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")
jnp = pytest.importorskip("jax.numpy")

from cudnn_core import cache
from cudnn_core.testing.gemm import Case, assert_matches, exact, host
from cudnn_gemm_dense import gemm_amax_jax, gemm_amax_wrapper

pytestmark = pytest.mark.gpu

CASES = [
    Case(300, 264, 608, scale_view="physical"),
    Case(129, 35, 608, 1, "mxfp8_e5m2", c_dtype="bfloat16", scale_view="physical"),
    Case(300, 264, 608, 1, "nvfp4", container="uint8", scale_view="physical"),
    Case(129, 128, 608, 1, "mxfp4", c_dtype="uint8", container="uint8", scale_view="physical"),
]
every = pytest.mark.parametrize("case", CASES, ids=str)
one = pytest.mark.parametrize("case", CASES[:1], ids=str)


def entry(case):
    return lambda *args: gemm_amax_jax(*args, c_dtype=case.c_dtype, sf_vec_size=case.format.vec)


def stacked(case, count):
    """`count` problems, their operands stacked on a new first axis."""
    datas = [exact(case, seed=s) for s in range(count)]
    return datas, [jnp.stack(xs) for xs in zip(*(d.inputs("jax") for d in datas), strict=True)]


@every
def test_eager_and_jit(case):
    data = exact(case)
    inputs = data.inputs("jax")
    assert inputs[0].devices().pop().platform == "gpu"
    result = entry(case)(*inputs)
    assert type(result) is tuple and result[0].devices().pop().platform == "gpu"
    assert_matches(result, data)
    jitted = jax.jit(entry(case))
    for seed in range(3):
        again = exact(case, seed)
        assert_matches(jitted(*again.inputs("jax")), again)
    assert jitted._cache_size() == 1


@every
def test_vmap_and_jit_of_vmap(case):
    datas, batch = stacked(case, 3)
    for transform in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        c, amax = transform(entry(case))(*batch)
        assert c.shape[0] == 3 and amax.shape == (3, 1, 1, 1)
        for i, data in enumerate(datas):
            assert_matches((c[i], amax[i]), data)


@one
def test_vmap_with_unmapped_operands(case):
    datas, batch = stacked(case, 3)
    _, b, _, sfb = datas[0].inputs("jax")
    c, amax = jax.jit(jax.vmap(entry(case), in_axes=(0, None, 0, None)))(batch[0], b, batch[2], sfb)
    for i, data in enumerate(datas):
        data.b, data.sfb = datas[0].b, datas[0].sfb
        assert_matches((c[i], amax[i]), data)


@one
def test_amax_starts_anew_in_every_call(case):
    data = exact(case)
    jitted = jax.jit(entry(case))
    inputs = data.inputs("jax")
    results = [jitted(*inputs)[1].item() for _ in range(3)]
    assert results == [data.amax()] * 3
    small = exact(case)
    small.a[...] = 0
    assert jitted(*small.inputs("jax"))[1].item() == 0.0


@one
def test_between_other_operations(case):
    """The call takes part in a larger program, in order."""
    data = exact(case)
    a, *rest = data.inputs("jax")

    @jax.jit
    def program(a, *rest):
        c, amax = entry(case)(-a, *rest)
        again, _ = entry(case)(a, *rest)
        return c + again, amax

    total, amax = program(a, *rest)
    assert not host(total).any() and amax.item() == data.amax()


@pytest.mark.parametrize("m, n, k", [(0, 264, 608), (300, 0, 608), (300, 264, 0)])
def test_empty(m, n, k):
    data = exact(Case(m, n, k, scale_view="physical"))
    assert_matches(gemm_amax_jax(*data.inputs("jax")), data)
    assert_matches(jax.jit(gemm_amax_jax)(*data.inputs("jax")), data)


@one
def test_wrapper_takes_jax_arrays(case):
    data = exact(case)
    result = gemm_amax_wrapper(*data.inputs("jax"), **case.options())
    assert list(result.keys()) == ["c_tensor", "amax_tensor"]
    assert_matches(result, data)
    with pytest.raises(ValueError, match="stream"):
        gemm_amax_wrapper(*data.inputs("jax"), stream=0)


@one
def test_sizes_cost_no_compile(case):
    entry(case)(*exact(case).inputs("jax"))
    before = cache.compile_count()
    for m in range(200, 220):
        data = exact(Case(m, case.n, case.k, scale_view="physical"))
        assert_matches(entry(case)(*data.inputs("jax")), data)
    assert cache.compile_count() == before


@one
def test_host_arrays_beside_device_arrays(case):
    data = exact(case)
    a, b, sfa, sfb = data.inputs("jax")
    cpu = jax.devices("cpu")[0]
    with pytest.raises(
        ValueError, match="sfb_tensor: expected it on cuda:0, as a_tensor is, got cpu"
    ):
        gemm_amax_jax(a, b, sfa, jax.device_put(sfb, cpu))


@one
def test_repeats_are_bit_equal(case):
    jitted = jax.jit(entry(case))
    inputs = exact(case).inputs("jax")
    first = np.asarray(jitted(*inputs)[0])
    for _ in range(20):
        np.testing.assert_array_equal(np.asarray(jitted(*inputs)[0]), first)
