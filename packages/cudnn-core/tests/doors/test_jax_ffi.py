"""Executables as XLA FFI targets. The calling convention is exercised on CPU, where a Python function stands for the
kernel; the CUDA lowering is checked as text; the gpu tier runs a kernel.
"""

import re
import sys
import types
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
np = pytest.importorskip("numpy")
jax_tvm_ffi = pytest.importorskip("jax_tvm_ffi")
tvm_ffi = pytest.importorskip("tvm_ffi")
jax_ffi = pytest.importorskip("cudnn_core.doors.jax_ffi")

sys.path.insert(0, str(Path(__file__).parents[1] / "cache"))

Shape = jax.ShapeDtypeStruct
_made = 0


def executable(function):
    """A stand-in with a digest of its own, as targets cannot be unregistered."""
    global _made
    _made += 1
    call = tvm_ffi.convert(function)
    return types.SimpleNamespace(name="fake", digest=f"{_made:08x}" * 8, call=call)


@pytest.fixture
def on_cpu(monkeypatch):
    """Register targets for the CPU platform and compute there."""
    real = jax_tvm_ffi.register_ffi_target

    def register(name, function, arguments, *, platform, **options):
        assert platform == "gpu"
        real(name, function, arguments, platform="cpu", pass_owned_tensor=True, **options)

    monkeypatch.setattr(jax_tvm_ffi, "register_ffi_target", register)
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def test_arguments_come_in_contract_order_with_dense_strides(on_cpu):
    seen = []

    def kernel(a, b, c, d, blocks, alpha, stream):
        seen.append(
            ([x.shape for x in (a, b, c, d)], a.strides, str(b.dtype), blocks, alpha, stream)
        )
        np.from_dlpack(c)[...] = np.from_dlpack(a).sum() * alpha
        np.from_dlpack(d)[...] = blocks

    fake = executable(kernel)

    @jax.jit
    def run(a, b):
        results = [Shape((2, 3, 1), jnp.float32), Shape((1,), jnp.int32)]
        return jax_ffi.cuda_call(fake, (a, b), results, scalars=(132, 0.5))

    c, d = run(jnp.ones((4, 1, 5)), jnp.ones((2, 2), jnp.float8_e4m3fn))
    assert seen == [([(4, 1, 5), (2, 2), (2, 3, 1), (1,)], (5, 5, 1), "float8_e4m3fn", 132, 0.5, 0)]
    assert (c == 10.0).all() and c.shape == (2, 3, 1) and d.tolist() == [132]


@pytest.mark.parametrize(
    "dtype",
    "float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu uint8 int8 int32".split(),
)
def test_every_dtype_of_the_contracts_passes(on_cpu, dtype):
    seen = []
    fake = executable(lambda x, y, stream: seen.append((str(x.dtype), str(y.dtype))))
    x = jnp.zeros((2, 4), dtype)
    jax.block_until_ready(jax_ffi.cuda_call(fake, (x,), [Shape((3,), dtype)]))
    assert seen == [(dtype, dtype)]


def test_many_scalars_keep_their_order(on_cpu):
    seen = []
    fake = executable(lambda x, y, *rest: seen.append(rest))
    scalars = (*range(11), 2**40, 0.25, -1)
    jax.block_until_ready(
        jax_ffi.cuda_call(fake, (jnp.zeros(1),), [Shape((1,), "float32")], scalars=scalars)
    )
    assert seen == [(*scalars, 0)]


def accumulate(x, y, total, stream):
    np.from_dlpack(y)[...] = np.from_dlpack(x) * 2
    np.from_dlpack(total)[...] += np.from_dlpack(x).sum()


def test_accumulating_outputs_start_from_their_initial_value(on_cpu):
    fake = executable(accumulate)

    @jax.jit
    def run(x, start):
        results = [Shape(x.shape, x.dtype), Shape((1,), x.dtype)]
        y, total = jax_ffi.cuda_call(fake, (x,), results, {1: start})
        again = jax_ffi.cuda_call(fake, (y,), results, {1: start})
        return y, total, start, *again

    x = jnp.arange(4.0)
    for _ in range(2):
        y, total, start, twice, second = run(x, jnp.full((1,), 100.0))
        assert y.tolist() == [0, 2, 4, 6] and twice.tolist() == [0, 4, 8, 12]
        assert (total.tolist(), second.tolist()) == ([106.0], [112.0])
        assert start.tolist() == [100.0], "the caller's array must not change"


def test_an_operand_in_place_is_one_argument_and_a_result(on_cpu):
    """It comes once, as an input; XLA copies it where the caller's array is needed again."""

    def kernel(x, state, y, stream):
        state, y = np.from_dlpack(state), np.from_dlpack(y)
        y[...] = state
        state += np.from_dlpack(x)

    fake = executable(kernel)

    @jax.jit
    def run(x, state):
        results = [Shape(x.shape, x.dtype)] * 2
        return jax_ffi.cuda_call(fake, (x, state), results, shared={1: 1})

    x, state = jnp.ones(3), jnp.arange(3.0)
    for _ in range(2):
        y, after = run(x, state)
        assert (y.tolist(), after.tolist()) == ([0, 1, 2], [1, 2, 3])
        assert state.tolist() == [0, 1, 2], "the caller's array must not change"


def test_accumulating_output_may_come_first_or_alone(on_cpu):
    def add(x, total, stream):
        np.from_dlpack(total)[...] += np.from_dlpack(x).sum()

    def both(x, total, y, stream):
        accumulate(x, y, total, stream)

    x, zero = jnp.arange(4.0), jnp.zeros((1,))
    (total,) = jax_ffi.cuda_call(executable(add), (x,), [Shape((1,), "float32")], {0: zero})
    results = [Shape((1,), "float32"), Shape((4,), "float32")]
    first, y = jax_ffi.cuda_call(executable(both), (x,), results, {0: zero})
    assert total.tolist() == first.tolist() == [6.0] and y.tolist() == [0, 2, 4, 6]


def test_errors_of_a_kernel_reach_the_user(on_cpu):
    def refuse(x, y, stream):
        raise ValueError("a_tensor: expected float32")

    with pytest.raises(jax.errors.JaxRuntimeError, match="a_tensor: expected float32"):
        jax.block_until_ready(
            jax_ffi.cuda_call(executable(refuse), (jnp.zeros(1),), [Shape((1,), "float32")])
        )


def test_initial_values_are_checked():
    fake, x, results = executable(print), jnp.zeros(1), [Shape((1,), "float32")]
    with pytest.raises(ValueError, match=r"initial: .*got 1"):
        jax_ffi.cuda_call(fake, (x,), results, {1: x})
    with pytest.raises(ValueError, match=r"initial\[0\]"):
        jax_ffi.cuda_call(fake, (x,), results, {0: jnp.zeros(2)})
    with pytest.raises(ValueError, match=r"initial\[0\]"):
        jax_ffi.cuda_call(fake, (x,), results, {0: jnp.zeros(1, "int32")})


def test_each_form_of_call_is_registered_once(on_cpu):
    fake = executable(print)
    before = jax_tvm_ffi.registered_count()
    names = {
        jax_ffi.ffi_target(fake, scalars=scalars, in_place=in_place)
        for scalars in (0, 1)
        for in_place in (False, True)
        for _ in range(3)
    }
    assert len(names) == 4 == jax_tvm_ffi.registered_count() - before


def test_no_target_left(monkeypatch):
    def full(*args, **kwargs):
        raise RuntimeError("cannot register more than 1024 handlers")

    monkeypatch.setattr(jax_tvm_ffi, "register_ffi_target", full)
    with pytest.raises(RuntimeError, match="cudnn_fake_.*1024"):
        jax_ffi.ffi_target(executable(print))


def lowered(function, *avals):
    return jax.jit(function).trace(*avals).lower(lowering_platforms=("cuda",)).as_text()


def test_cuda_lowering_calls_the_target():
    fake = executable(print)
    results = [Shape((2, 3, 1), jnp.bfloat16)]
    text = lowered(
        lambda a: jax_ffi.cuda_call(fake, (a,), results, scalars=(7,)), Shape((4, 5), jnp.uint8)
    )
    assert f"@{jax_ffi.ffi_target(fake, scalars=1)}(" in text
    assert "mhlo.backend_config = {s00 = 7 : i64}" in text
    # Row-major, whatever layout XLA would prefer.
    assert "operand_layouts = [dense<[1, 0]>" in text and "dense<[2, 1, 0]>" in text


def test_cuda_lowering_fills_nothing_but_what_accumulates():
    fake = executable(print)
    results = [Shape((512, 512, 1), jnp.float32), Shape((1, 1, 1), jnp.float32)]
    text = lowered(
        lambda a: jax_ffi.cuda_call(fake, (a,), results, {1: jnp.zeros((1, 1, 1))}),
        Shape((4, 5), jnp.uint8),
    )
    assert text.count("AllocateBuffer") == 1
    assert re.findall(r"broadcast_in_dim.*-> (tensor<.*>)", text) == ["tensor<1x1x1xf32>"]
    assert text.count("output_operand_alias<") == 2


@pytest.mark.gpu
class TestOnGpu:
    @pytest.fixture(autouse=True)
    def needs_cuda_jax(self):
        try:
            jax.devices("cuda")
        except RuntimeError as error:
            pytest.skip(str(error))

    def test_a_cached_kernel_computes(self, tmp_path, monkeypatch):
        from tiny_source import tiny

        from cudnn_core import cache

        monkeypatch.setenv("CUDNN_CACHE_DIR", str(tmp_path))
        kernel = cache.get(tiny())

        @jax.jit
        def run(x):
            (y,) = jax_ffi.cuda_call(kernel, (x,), [Shape(x.shape, x.dtype)])
            (z,) = jax_ffi.cuda_call(kernel, (y + 1,), [Shape(x.shape, x.dtype)])
            (w,) = jax_ffi.cuda_call(
                kernel, (x,), [Shape(x.shape, x.dtype)], {0: jnp.full_like(x, jnp.nan)}
            )
            return y, z, w

        x = jax.device_put(jnp.arange(1000.0), jax.devices("cuda")[0])
        for _ in range(3):
            y, z, w = run(x)
            assert (y == 2 * x).all() and (z == 2 * (2 * x + 1)).all() and (w == y).all()
