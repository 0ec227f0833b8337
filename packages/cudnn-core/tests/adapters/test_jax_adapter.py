"""The JAX adapter: concrete arrays, tracers, shape structs."""

import subprocess
import sys
import types

import numpy as np
import pytest

from cudnn_core.adapters import adapter_of
from cudnn_core.tensor_desc import Device, TensorDesc

jax = pytest.importorskip("jax")
jnp = jax.numpy
ADAPTER = adapter_of(jnp.zeros(1))


@pytest.mark.parametrize("shape", [(), (3,), (3, 4, 1), (0, 5), (2, 0)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "uint8"])
def test_arrays_are_row_major(shape, dtype):
    x = jnp.zeros(shape, dtype)
    desc = ADAPTER.describe(x, "x")
    assert desc == TensorDesc.of(dtype, shape, device=Device("cpu", 0), name="x")
    assert ADAPTER.metadata(x) == ADAPTER.metadata(jnp.ones(shape, dtype))
    assert hash(ADAPTER.metadata(x)) is not None
    assert ADAPTER.metadata(x) != ADAPTER.metadata(jnp.zeros((9, 9), dtype))


def test_arrays_reach_the_engine_without_a_copy():
    x = jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)
    view = ADAPTER.to_numpy(x)
    assert view.dtype == np.dtype(jnp.bfloat16) and not view.flags.writeable
    assert view.__array_interface__["data"][0] == ADAPTER.data_pointer(x)


def test_tracers_are_described_without_a_device():
    seen = []

    def record(x):
        seen.append((ADAPTER.describe(x, "x"), ADAPTER.is_traced(x)))
        return x.sum()

    x = jnp.zeros((2, 3))
    for transform in (jax.jit, jax.grad, lambda f: jax.vmap(f)):
        transform(record)(x)
    assert [traced for _, traced in seen] == [True] * 3
    assert {str(desc.device) for desc, _ in seen} == {"unknown"}
    assert [desc.shape for desc, _ in seen] == [(2, 3), (2, 3), (3,)]
    assert not ADAPTER.is_traced(x)


def test_shape_structs_are_described():
    desc = ADAPTER.describe(jax.ShapeDtypeStruct((2, 3), jnp.float16))
    assert desc == TensorDesc.of("float16", (2, 3), device=Device("unknown"))


def test_unpacked_fp4_is_refused():
    with pytest.raises(ValueError, match=r"x: expected packed FP4.*cudnn\.quantize"):
        ADAPTER.describe(jnp.zeros(4, jnp.float4_e2m1fn), "x")


def test_allocation():
    desc = TensorDesc.of("float32", (2, 3, 1), (3, 1, 77), device=Device("cpu", 0))
    out = ADAPTER.full(desc, -np.inf)
    assert out.shape == (2, 3, 1) and (out == -jnp.inf).all()
    assert not ADAPTER.empty(desc).any()
    assert ADAPTER.device(out) == desc.device
    packed = ADAPTER.full(TensorDesc.of("float4_e2m1fn", (2, 8)), 1.5)
    assert packed.dtype == jnp.uint8 and packed.shape == (2, 4) and (packed == 0x33).all()
    assert ADAPTER.empty(TensorDesc.of("float32", (2,), device=Device("unknown"))).shape == (2,)


def test_other_orders_and_devices_cannot_be_allocated():
    with pytest.raises(ValueError, match=r"c: JAX arrays are row-major, expected stride \(3, 1\)"):
        ADAPTER.empty(TensorDesc.of("float32", (2, 3), (1, 2), name="c"))
    with pytest.raises(ValueError, match="device: expected one of"):
        ADAPTER.empty(TensorDesc.of("float32", (2, 3), device=Device("cpu", 99)))


def fake_array(*devices):
    """A concrete array elsewhere: only what placement needs."""
    return types.SimpleNamespace(shape=(2,), dtype=np.float32, devices=lambda: set(devices))


def gpu(number, ordinal):
    device = types.SimpleNamespace(platform="gpu", id=number, local_hardware_id=ordinal)
    return type("D", (), {"__hash__": lambda s: number} | vars(device))()


def test_gpus_are_named_as_cuda_names_them_in_this_process():
    # in the second process of two, JAX's device 9 may be this process's CUDA device 1
    assert ADAPTER.device(fake_array(gpu(9, 1))) == Device("cuda", 1)
    assert ADAPTER.device(fake_array(gpu(3, None))) == Device("cuda", 3)


def test_arrays_elsewhere_are_not_copied_to_the_host():
    with pytest.raises(ValueError, match="expected an array on the CPU, got one on cuda:1"):
        ADAPTER.to_numpy(fake_array(gpu(9, 1)))
    with pytest.raises(ValueError, match="on one device"):
        ADAPTER.device(fake_array(gpu(0, 0), gpu(1, 1)))


def test_an_array_over_several_devices_is_refused_by_name():
    code = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
from cudnn_core.adapters import common
mesh = jax.make_mesh((2,), ("x",))
placed = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
try:
    common({"b": jax.device_put(jax.numpy.zeros(4), placed)}, "op")
except ValueError as error:
    assert str(error).startswith("op: b: expected an array on one device"), error
else:
    raise AssertionError("accepted")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_streams_belong_to_xla():
    assert ADAPTER.stream_handle(None, Device("cuda", 0)) == 0
    for stream in (0, 64, object()):
        with pytest.raises(ValueError, match="current_stream: expected None, because JAX"):
            ADAPTER.stream_handle(stream, Device("cuda", 0), "current_stream")


def test_every_call_goes_through_the_primitive():
    assert ADAPTER.needs_op([jnp.zeros(1)])
