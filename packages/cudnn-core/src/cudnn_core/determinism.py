"""The determinism policy: one rule for every operation. Imports no framework."""

import threading
import warnings

from .adapters.base import Adapter

__all__ = ["resolve"]

_warned: set[str] = set()
_lock = threading.Lock()


def resolve(deterministic: bool | None, adapter: Adapter, has_path: bool, op_name: str) -> bool:
    """Whether a call takes the deterministic path; asked anew at every call.

    None follows the framework's switch. Where an operation has no such path (`has_path` False), a
    request raises
    `RuntimeError`; under the framework's warn-only mode it warns, once for each operation.
    `TypeError` unless `deterministic` is a bool or None.
    """
    if deterministic is None:
        wanted, warn_only = adapter.deterministic()
    elif isinstance(deterministic, bool):
        wanted, warn_only = deterministic, False
    else:
        raise TypeError(f"deterministic: expected a bool or None, got {deterministic!r}")
    if not wanted or has_path:
        return wanted
    message = f"{op_name} has no deterministic implementation for these arguments"
    if not warn_only:
        raise RuntimeError(
            f"{message}; pass deterministic=False or switch deterministic algorithms off"
        )
    with _lock:
        first = op_name not in _warned
        _warned.add(op_name)
    if first:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    return False
