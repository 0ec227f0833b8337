"""The JAX adapter: arrays, tracers, shape structs. Imports JAX; loaded at the first of them."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..dtypes import as_dtype
from ..tensor_desc import Device, TensorDesc, canonical_stride, contiguous_stride
from .base import Adapter, container, element, refuse_unpacked_fp4

__all__ = ["ADAPTER", "JaxAdapter"]

UNKNOWN = Device("unknown")


class JaxAdapter(Adapter):
    """jax.Array. Always row-major; FP4 is uint8, two codes in a byte; streams belong to XLA."""

    name = "jax"

    @property
    def namespace(self) -> Any:
        return jnp

    def describe(self, x: Any, name: str = "") -> TensorDesc:
        dtype = as_dtype(x.dtype, f"{name or 'array'} dtype")
        refuse_unpacked_fp4(dtype, name)
        stride = contiguous_stride(x.shape)
        return TensorDesc(dtype, x.shape, stride, None, self.device(x), name=name)

    def metadata(self, x: Any) -> tuple:
        return x.dtype, x.shape, self.device(x)

    def device(self, x: Any) -> Device:
        """The device of a concrete array on one device; "unknown" for what is placed later."""
        if isinstance(x, jax.core.Tracer) or not hasattr(x, "devices"):
            return UNKNOWN
        devices = x.devices()
        if len(devices) != 1:
            raise ValueError(f"expected an array on one device, got one spread over {devices}")
        return _device(next(iter(devices)))

    def allocator(
        self, desc: TensorDesc, initial: float | None = None, *, guarded: bool = False
    ) -> Callable[[], Any]:
        """As the base says; without `initial` they hold zeros, as JAX has no empty arrays."""
        dtype, shape, stride = container(desc, packed_dtype=False)
        dense = contiguous_stride(shape)
        if canonical_stride(shape, stride) != canonical_stride(shape, dense):
            raise ValueError(
                f"{desc.name or 'array'}: JAX arrays are row-major, expected stride {dense} "
                f"for shape {shape}, got {stride}"
            )
        value = element(desc.dtype, initial or 0)
        return functools.partial(jnp.full, shape, value, dtype.numpy(), device=_place(desc.device))

    def data_pointer(self, x: Any) -> int:
        return x.unsafe_buffer_pointer()

    def to_numpy(self, x: Any) -> Any:
        device = self.device(x)
        if device.type != "cpu":
            raise ValueError(f"expected an array on the CPU, got one on {device}")
        return np.asarray(x)

    def stream_handle(self, stream: Any, device: Device, argument: str = "stream") -> int:
        if stream is not None:
            raise ValueError(
                f"{argument}: expected None, because JAX arrays run on XLA's stream, got {stream!r}"
            )
        return 0

    def is_traced(self, x: Any) -> bool:
        return isinstance(x, jax.core.Tracer)

    def watches(self) -> bool:
        """Always: each operation is a JAX primitive, eager calls included."""
        return True

    def needs_op(self, arrays: Iterable[Any]) -> bool:
        return True


def _device(device: Any) -> Device:
    """Our name of a jax.Device. A GPU's index is the one that CUDA uses in this process."""
    if device.platform not in ("gpu", "cuda"):
        return Device(device.platform, device.id)
    ordinal = device.local_hardware_id
    return Device("cuda", device.id if ordinal is None else ordinal)


def _place(device: Device) -> Any:
    """The jax.Device of that name; None, JAX's default, when the name is "unknown"."""
    if device == UNKNOWN:
        return None
    candidates = jax.local_devices(backend=device.type)
    found = (d for d in candidates if device.index in (None, _device(d).index))
    place = next(found, None)
    if place is None:
        raise ValueError(f"device: expected one of {candidates}, got {device}")
    return place


ADAPTER = JaxAdapter()
