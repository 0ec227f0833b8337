"""Frameworks behind one interface, found by an argument's type. Looks only at loaded frameworks."""

import sys
from collections.abc import Mapping
from typing import Any

from ..tensor_desc import Device, TensorDesc
from .base import Adapter

__all__ = ["Adapter", "adapter_of", "common"]

_by_type: dict[type, Adapter] = {}


def adapter_of(x: Any) -> Adapter | None:
    """The adapter of an array, by its type; None for what is no array."""
    found = _by_type.get(type(x))
    if found is None:
        name = _framework(x)
        if name is None:
            return None
        found = _adapter(name)
        # A foreign type may be anything: each object of it is looked at. A subclass of torch's tensor may come
        # out of a trace, whose guards on this table must still hold when the trace is done.
        if name in ("numpy", "jax") or (name == "torch" and type(x) is sys.modules["torch"].Tensor):
            _by_type[type(x)] = found
    return found


def common(
    named: Mapping[str, Any], what: str = "", *, allow_metadata: bool = False
) -> tuple[Adapter, Device]:
    """The one adapter and device of a call's arrays; None entries are absent operands.

    what: the operation, to begin messages with. allow_metadata: TensorDesc and foreign array types
    may stand for arrays; the adapter of real arrays wins over theirs.
    `TypeError` for what is no array; `ValueError` for mixed frameworks or devices, and for
    unsupported ones. The device "unknown" (a JAX tracer's) agrees with every other.
    """
    prefix = f"{what}: " if what else ""
    adapter = first = device = placed = None
    for name, x in named.items():
        if x is None:
            continue
        found = adapter_of(x)
        if found is None:
            raise TypeError(f"{prefix}{name}: expected a tensor, got {_came(x)}")
        if found.name != "metadata":
            if adapter is None:
                adapter, first = found, name
            elif found is not adapter:
                raise ValueError(
                    f"{prefix}{name}: expected a {adapter.name} array, as {first} is, "
                    f"got a {found.name} array"
                )
        elif not allow_metadata:
            raise ValueError(
                f"{prefix}{name}: expected a torch, JAX or NumPy array, got {_came(x)}, "
                f"which holds no data that this operation can use"
            )
        try:
            where = found.device(x)
        except ValueError as error:
            raise ValueError(f"{prefix}{name}: {error}") from None
        if device is None or device.type == "unknown":
            device, placed = where, name
        elif where != device and where.type != "unknown":
            raise ValueError(
                f"{prefix}{name}: expected it on {device}, as {placed} is, got {where}"
            )
    if device is None:
        raise TypeError(f"{prefix}expected a tensor in one of {', '.join(named)}, got none")
    return adapter or _adapter("metadata"), device


def _came(x: Any) -> str:
    kind = type(x)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return f"{x!r} ({name})" if isinstance(x, (int, float, str)) else f"an object of type {name}"


def _adapter(name: str) -> Adapter:
    # Import statements, one by one, because torch.compile traces through here at a first call.
    if name == "torch":
        from .torch import ADAPTER
    elif name == "jax":
        from .jax import ADAPTER
    elif name == "numpy":
        from .numpy import ADAPTER
    else:
        from .metadata import ADAPTER
    return ADAPTER


def _framework(x: Any) -> str | None:
    torch = sys.modules.get("torch")
    # A partly imported torch (another thread is importing it) has no Tensor yet.
    if torch is not None and isinstance(x, getattr(torch, "Tensor", ())):
        return "torch"
    looks_like_array = isinstance(getattr(x, "shape", None), (tuple, list)) and hasattr(x, "dtype")
    if looks_like_array and type(x).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return "jax"
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(x, numpy.ndarray):
            return "numpy"
        if isinstance(x, numpy.generic):
            return None  # a scalar, although it has a shape
    if isinstance(x, TensorDesc) or looks_like_array:
        return "metadata"
    return None
