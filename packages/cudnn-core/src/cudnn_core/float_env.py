"""IEEE arithmetic for the length of a computation on the host. Imports the standard library only.

Frameworks switch subnormal numbers off: XLA in the threads that run its programs, host callbacks included, torch where
`torch.set_flush_denormal(True)` was called. The reference engine must not follow: a scale of 2^-127 is subnormal.
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["ieee_arithmetic"]

# FE_DFL_ENV of the C library on x86-64 and arm64: not an address, but the name of the start-up environment.
_DEFAULT = ctypes.c_void_p(-1)
# fenv_t has 32 bytes on x86-64 and 8 on arm64.
_ENVIRONMENT_BYTES = 64


@functools.cache
def _libm() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:
        return None


@contextlib.contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """Subnormal numbers and rounding to nearest inside; the caller's settings afterwards. Linux; elsewhere nothing."""
    libm = _libm()
    if libm is None:
        yield
        return
    saved = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    libm.fegetenv(saved)
    libm.fesetenv(_DEFAULT)
    try:
        yield
    finally:
        libm.fesetenv(saved)
