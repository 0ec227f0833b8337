"""GEMM + amax on JAX CPU arrays: eager, jit, vmap, jit of vmap, nested vmap; what JAX cannot ask for."""

import logging

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp

from cudnn_core.testing.gemm import RECIPES, Case, assert_matches, exact, host
from cudnn_core.tuple_dict import TupleDict
from cudnn_gemm_dense import GemmAmax, gemm_amax_jax, gemm_amax_jax_sm100, gemm_amax_wrapper


@pytest.fixture(autouse=True)
def on_the_host():
    """These tests are about the host engine, on machines with a GPU too."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def physical(m=17, n=24, k=64, recipe="mxfp8", c_dtype="float32"):
    container = "uint8" if RECIPES[recipe].fp4 else "native"
    return Case(m, n, k, 1, recipe, c_dtype=c_dtype, container=container, scale_view="physical")


def entry(case):
    return lambda *args: gemm_amax_jax(*args, c_dtype=case.c_dtype, sf_vec_size=case.format.vec)


def stacked(case, *shape):
    """Problems of shape `shape`, their operands stacked on leading axes."""
    datas = [exact(case, seed=s) for s in range(int(np.prod(shape)))]
    columns = zip(*(d.inputs("jax") for d in datas), strict=True)
    return datas, [jnp.stack(xs).reshape(*shape, *xs[0].shape) for xs in columns]


# --- eager and jit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m, n, k", [(17, 24, 64), (130, 136, 352), (1, 1, 96)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_eager_and_jit(recipe, m, n, k):
    case = physical(m, n, k, recipe)
    data = exact(case)
    result = entry(case)(*data.inputs("jax"))
    assert type(result) is tuple and all(isinstance(x, jax.Array) for x in result)
    c, amax = result
    assert (c.shape, c.dtype, amax.shape, amax.dtype) == (
        (m, n, 1),
        "float32",
        (1, 1, 1),
        "float32",
    )
    assert_matches(result, data)
    assert_matches(jax.jit(entry(case))(*data.inputs("jax")), data)


@pytest.mark.parametrize("spelling", ["name", "numpy", "jax"])
@pytest.mark.parametrize(
    "c_dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_output_dtypes(c_dtype, spelling):
    spelled = {"name": c_dtype, "numpy": jnp.dtype(c_dtype), "jax": getattr(jnp, c_dtype)}[spelling]
    data = exact(physical(recipe="nvfp4", c_dtype=c_dtype))
    c, amax = gemm_amax_jax(*data.inputs("jax"), c_dtype=spelled, sf_vec_size=16)
    assert c.dtype == jnp.dtype(c_dtype)
    assert_matches((c, amax), data)


@pytest.mark.parametrize("c_dtype", ["float4_e2m1fn", "uint8"])
def test_fp4_results_are_packed_bytes(c_dtype):
    data = exact(physical(n=32, recipe="nvfp4", c_dtype=c_dtype))
    for call in (entry(data.case), jax.jit(entry(data.case))):
        c, amax = call(*data.inputs("jax"))
        assert (c.shape, c.dtype) == ((17, 16, 1), "uint8")
        assert_matches((c, amax), data)


def test_jit_traces_once_for_equal_shapes():
    traces = []

    @jax.jit
    def call(*args):
        traces.append(None)
        return gemm_amax_jax(*args)

    for seed in range(4):
        data = exact(physical(), seed)
        assert_matches(call(*data.inputs("jax")), data)
    assert len(traces) == 1 and call._cache_size() == 1
    data = exact(physical(m=18))
    assert_matches(call(*data.inputs("jax")), data)
    assert len(traces) == 2


def test_between_other_operations():
    data = exact(physical())
    a, *rest = data.inputs("jax")

    @jax.jit
    def program(a, *rest):
        c, _ = gemm_amax_jax(-a, *rest)
        again, amax = gemm_amax_jax(a, *rest)
        return c + again, amax * 2

    total, amax = program(a, *rest)
    assert not host(total).any() and amax.item() == 2 * data.amax()


def test_amax_starts_anew_in_every_call():
    large, small = exact(physical()), exact(physical())
    small.a[...] = 0
    call = jax.jit(gemm_amax_jax)
    assert call(*large.inputs("jax"))[1].item() == large.amax()
    assert call(*small.inputs("jax"))[1].item() == 0.0


@pytest.mark.parametrize("m, n, k", [(0, 24, 64), (17, 0, 64), (17, 24, 0), (0, 0, 0)])
def test_size_zero(m, n, k):
    data = exact(physical(m, n, k))
    for call in (gemm_amax_jax, jax.jit(gemm_amax_jax)):
        assert_matches(call(*data.inputs("jax")), data)


def test_x64_changes_nothing():
    data = exact(physical())
    with jax.enable_x64(True):
        result = jax.jit(gemm_amax_jax)(*data.inputs("jax"))
        assert result[0].dtype == result[1].dtype == jnp.float32
        assert_matches(result, data)


def test_weak_types_are_gone():
    """Scales made of a Python number are weakly typed; the results are not."""
    data = exact(physical())
    a, b, _, _ = data.inputs("jax")
    weak = jnp.broadcast_to(jnp.asarray(1.0), (1, 1, 1, 32, 4, 4)).astype(jnp.float8_e8m0fnu)
    c, amax = jax.jit(gemm_amax_jax)(a, b, weak, weak)
    data.sfa[...] = data.sfb[...] = 127
    assert not c.weak_type and not amax.weak_type
    assert_matches((c, amax), data)


@pytest.mark.parametrize("code", [0, 1, 5, 126, 254, 255])
def test_scale_bytes(code):
    """2^-127 is subnormal, which XLA's threads flush and the engine must not; nor may later calls inherit that."""
    data = exact(physical())
    data.sfa[0, 3] = code
    data.sfb[0, 2] = 254 - code if code < 255 else 127
    for call in (gemm_amax_jax, jax.jit(gemm_amax_jax)):
        assert_matches(call(*data.inputs("jax")), data)
    assert_matches(gemm_amax_wrapper(*data.inputs()), data)


def test_shapes_without_values():
    data = exact(physical(c_dtype="bfloat16"))
    c, amax = jax.eval_shape(entry(data.case), *data.inputs("jax"))
    assert (c.shape, c.dtype, amax.shape, amax.dtype) == (
        (17, 24, 1),
        "bfloat16",
        (1, 1, 1),
        "float32",
    )


def test_one_equation_in_the_program():
    data = exact(physical())
    text = str(jax.make_jaxpr(gemm_amax_jax)(*data.inputs("jax")))
    assert text.count("gemm_amax[") == 1


# --- vmap ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_vmap(wrap, recipe):
    datas, batch = stacked(physical(130, 24, 160, recipe), 3)
    c, amax = wrap(jax.vmap(entry(datas[0].case)))(*batch)
    assert c.shape == (3, 130, 24, 1) and amax.shape == (3, 1, 1, 1)
    for i, data in enumerate(datas):
        assert_matches((c[i], amax[i]), data)


def mixed(datas, mapped, index):
    """The problem whose operand j is that of problem `index` where mapped[j], of problem 0 elsewhere."""
    fields = ("a", "b", "sfa", "sfb")
    data = exact(datas[0].case)
    for name, is_mapped in zip(fields, mapped, strict=True):
        setattr(data, name, getattr(datas[index if is_mapped else 0], name))
    return data


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "mapped",
    [
        (True, False, True, False),
        (False, True, False, True),
        (True, False, False, False),
        (False, False, False, True),
    ],
)
def test_vmap_with_unmapped_operands(mapped, wrap):
    datas, batch = stacked(physical(), 3)
    arguments = [x if on else x[0] for x, on in zip(batch, mapped, strict=True)]
    axes = tuple(0 if on else None for on in mapped)
    c, amax = wrap(jax.vmap(gemm_amax_jax, in_axes=axes))(*arguments)
    for i in range(3):
        assert_matches((c[i], amax[i]), mixed(datas, mapped, i))


@pytest.mark.parametrize("axis", [1, 2, 3, -1])
def test_vmap_over_other_axes(axis):
    datas, batch = stacked(physical(), 3)
    moved = [jnp.moveaxis(x, 0, axis) for x in batch]
    c, amax = jax.vmap(gemm_amax_jax, in_axes=axis, out_axes=(2, 0))(*moved)
    assert c.shape == (17, 24, 3, 1)
    for i, data in enumerate(datas):
        assert_matches((c[:, :, i], amax[i]), data)


OUTER = [(True,) * 4, (True, False, True, False), (False, True, False, True)]


@pytest.mark.parametrize("inner", OUTER, ids=["all", "a", "b"])
@pytest.mark.parametrize("outer", OUTER, ids=["all", "a", "b"])
def test_nested_vmap(outer, inner):
    """Each level maps other operands; every operand is taken at index 0 of the levels that do not map it."""
    datas, batch = stacked(physical(9, 8, 64), 2, 3)
    arguments = []
    for x, o, i in zip(batch, outer, inner, strict=True):
        x = x if i else x[:, 0]
        arguments.append(x if o else x[0])
    call = gemm_amax_jax
    call = jax.vmap(call, in_axes=tuple(0 if on else None for on in inner))
    call = jax.jit(jax.vmap(call, in_axes=tuple(0 if on else None for on in outer)))
    c, amax = call(*arguments)
    assert c.shape == (2, 3, 9, 8, 1) and amax.shape == (2, 3, 1, 1, 1)
    fields = ("a", "b", "sfa", "sfb")
    for o in range(2):
        for i in range(3):
            want = exact(datas[0].case)
            for name, on_outer, on_inner in zip(fields, outer, inner, strict=True):
                source = datas[(o if on_outer else 0) * 3 + (i if on_inner else 0)]
                setattr(want, name, getattr(source, name))
            assert_matches((c[o, i], amax[o, i]), want)


def test_vmap_of_empty_problems_and_of_no_problem():
    _, batch = stacked(physical(0, 8, 64), 3)
    c, amax = jax.vmap(gemm_amax_jax)(*batch)
    assert c.shape == (3, 0, 8, 1) and not host(amax).any()
    none = [x[:0] for x in stacked(physical(), 1)[1]]
    c, amax = jax.vmap(gemm_amax_jax)(*none)
    assert c.shape == (0, 17, 24, 1) and amax.shape == (0, 1, 1, 1)


def test_vmap_of_one():
    datas, batch = stacked(physical(), 1)
    c, amax = jax.jit(jax.vmap(gemm_amax_jax))(*batch)
    assert_matches((c[0], amax[0]), datas[0])


def test_nan_stays_in_its_batch():
    datas, batch = stacked(physical(), 3)
    datas[1].a[0, 3, 5] = 0x7F
    batch[0] = jnp.stack([d.inputs("jax")[0] for d in datas])
    c, amax = jax.vmap(gemm_amax_jax)(*batch)
    assert np.isnan(host(amax).ravel()).tolist() == [False, True, False]
    for i, data in enumerate(datas):
        assert_matches((c[i], amax[i]), data)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [gemm_amax_jax, jax.jit(gemm_amax_jax), gemm_amax_wrapper])
def test_direct_calls_take_one_batch(call):
    inputs = exact(Case(17, 24, 64, 2, scale_view="physical")).inputs("jax")
    with pytest.raises(
        ValueError, match=r"a_tensor: expected batch extent L = 1 \(use jax.vmap for batches\)"
    ):
        call(*inputs)
    one = exact(physical()).inputs("jax")
    with pytest.raises(ValueError, match="sfb_tensor: expected batch extent L = 1"):
        call(*one[:3], inputs[3])


def test_arrays_are_row_major():
    inputs = exact(physical()).inputs("jax")
    with pytest.raises(ValueError, match="c_major: expected 'n' .*row-major"):
        gemm_amax_wrapper(*inputs, c_major="m")


@pytest.mark.parametrize("stream", [0, 1, object()])
def test_streams_belong_to_xla(stream):
    inputs = exact(physical()).inputs("jax")
    with pytest.raises(ValueError, match="stream: expected None, because JAX"):
        gemm_amax_wrapper(*inputs, stream=stream)


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"]
)
def test_refusals_come_at_trace_time(transform):
    a, b, sfa, sfb = exact(physical(k=256)).inputs("jax")
    axis = (lambda x: x[None]) if transform is jax.vmap else (lambda x: x)
    call = transform(gemm_amax_jax)
    with pytest.raises(ValueError, match="sfb_tensor: expected shape"):
        call(*map(axis, (a, b, sfa, jnp.concatenate([sfb, sfb], 2))))
    with pytest.raises(ValueError, match="b_tensor: expected K = 256"):
        call(*map(axis, (a, b[:, :128], sfa, sfb)))
    with pytest.raises(ValueError, match="sfa_tensor: expected None, as a_tensor is float32"):
        call(*map(axis, (a.astype(jnp.float32), b, sfa, sfb)))
    with pytest.raises(ValueError, match="sf_vec_size: expected one of 16, 32, got 8"):
        transform(lambda *args: gemm_amax_jax(*args, sf_vec_size=8))(*map(axis, (a, b, sfa, sfb)))


def test_unpacked_fp4():
    data = exact(physical(recipe="nvfp4"))
    _, b, sfa, sfb = data.inputs("jax")
    unpacked = jnp.zeros((17, 64, 1), jnp.float4_e2m1fn)
    for call in (gemm_amax_jax, gemm_amax_wrapper):
        with pytest.raises(ValueError, match="a_tensor: expected packed FP4.*cudnn.quantize"):
            call(unpacked, b, sfa, sfb, sf_vec_size=16)


def test_k_of_24():
    with pytest.raises(ValueError, match="a_tensor: expected K a multiple of 16 bytes"):
        gemm_amax_jax(*exact(physical(k=24)).inputs("jax"))


@pytest.mark.parametrize("thing", [3, "x"])
def test_what_is_no_array(thing):
    a, b, sfa, sfb = exact(physical()).inputs("jax")
    with pytest.raises(TypeError, match="sfb_tensor: expected a tensor, got"):
        gemm_amax_jax(a, b, sfa, thing)
    with pytest.raises(ValueError, match="b_tensor: expected a tensor, got None"):
        gemm_amax_jax(a, None, sfa, sfb)
    with pytest.raises(ValueError, match="array"):
        gemm_amax_jax(*exact(physical()).inputs())


def test_no_derivative():
    """Not silently zero: the message says so."""
    a, b, sfa, sfb = exact(physical()).inputs("jax")

    def loss(scale):
        c, _ = gemm_amax_jax(a, b, (sfa.astype(jnp.float32) * scale).astype(sfa.dtype), sfb)
        return c.sum()

    with pytest.raises(
        NotImplementedError, match="Differentiation rule for 'gemm_amax' not implemented"
    ):
        jax.grad(loss)(1.0)


def test_class_execute_says_where_to_go():
    """JAX arrays cannot be written."""
    data = exact(physical())
    inputs = data.inputs("jax")
    c, amax = jnp.zeros((17, 24, 1)), jnp.zeros((1, 1, 1))
    op = GemmAmax(*inputs, c, amax)
    assert op.check_support() is True
    op.compile()
    with pytest.raises(NotImplementedError, match="gemm_amax_jax"):
        op.execute(*inputs, c, amax)


# --- results and names -----------------------------------------------------------------------------------------------


def test_wrapper_gives_a_tuple_dict_even_under_jit():
    data = exact(physical())
    result = gemm_amax_wrapper(*data.inputs("jax"))
    assert isinstance(result, TupleDict) and list(result.keys()) == ["c_tensor", "amax_tensor"]
    assert_matches(result, data)
    c, amax = jax.jit(lambda *args: tuple(gemm_amax_wrapper(*args)))(*data.inputs("jax"))
    assert_matches((c, amax), data)


def test_upstream_name_is_the_same_object():
    assert gemm_amax_jax_sm100 is gemm_amax_jax


def test_retracing_is_no_noise(caplog):
    """The notice about containers comes from the contract, not once a call."""
    data = exact(physical(recipe="nvfp4"))
    call = jax.jit(entry(data.case))
    call(*data.inputs("jax"))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        call(*data.inputs("jax"))
    assert [r.getMessage() for r in caplog.records if "fp4" in r.getMessage()] == []
