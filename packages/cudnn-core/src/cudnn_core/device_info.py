"""Facts about CUDA devices, asked of the driver through ctypes: no framework, no CUDA package.

The driver is loaded by the first question. Questions create no context.
"""

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["DeviceInfo", "device_count", "device_info", "ensure_context", "word_filler"]

INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE: the driver does not know the attribute
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
# values of CUdevice_attribute
SM_COUNT = 16
L2_CACHE_BYTES = 38
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76
SHARED_MEMORY_PER_BLOCK_OPTIN = 97
OVERSIZED_SHARED_MEMORY_PER_BLOCK = 150


@functools.cache
def _driver() -> ctypes.CDLL | None:
    """The initialized driver library; None when there is no driver or no device."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    code = library.cuInit(0)
    if code == NO_DEVICE:
        return None
    _check(code, library, "cuInit")
    return library


def _check(code: int, library: Any, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else "unknown error"
        raise RuntimeError(f"CUDA driver: {what} failed with error {code}: {reason}")


def device_count() -> int:
    """How many CUDA devices this process sees; 0 without a driver."""
    library = _driver()
    if library is None:
        return 0
    count = ctypes.c_int()
    _check(library.cuDeviceGetCount(ctypes.byref(count)), library, "cuDeviceGetCount")
    return count.value


class DeviceInfo:
    """Properties of the CUDA device `ordinal`, each asked of the driver when first read.

    `NotImplementedError` without any device, `ValueError` for an ordinal out of range,
    `RuntimeError` when the driver fails. Prefer `device_info(ordinal)`, which keeps one instance
    for each ordinal.
    """

    def __init__(self, ordinal: int):
        count = device_count()
        if count == 0:
            raise NotImplementedError("no CUDA device is visible to this process")
        if isinstance(ordinal, bool) or not isinstance(ordinal, int):
            raise TypeError(f"ordinal: expected an int, got {ordinal!r}")
        if not 0 <= ordinal < count:
            raise ValueError(f"ordinal: expected 0 to {count - 1}, got {ordinal}")
        self.ordinal = ordinal

    def __repr__(self) -> str:
        return f"DeviceInfo(cuda:{self.ordinal})"

    @functools.cached_property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return self._attribute(CAPABILITY_MAJOR), self._attribute(CAPABILITY_MINOR)

    @property
    def sm_version(self) -> int:
        """major * 10 + minor."""
        major, minor = self.compute_capability
        return major * 10 + minor

    @functools.cached_property
    def sm_count(self) -> int:
        """Streaming multiprocessors."""
        return self._attribute(SM_COUNT)

    @functools.cached_property
    def shared_memory_per_block_optin(self) -> int:
        """Bytes of shared memory that a block may ask for."""
        return self._attribute(SHARED_MEMORY_PER_BLOCK_OPTIN)

    @functools.cached_property
    def oversized_shared_memory_per_block(self) -> int:
        """Bytes in the driver's oversized mode; 0 when the driver has none."""
        return self._attribute(OVERSIZED_SHARED_MEMORY_PER_BLOCK, missing=0)

    @functools.cached_property
    def l2_cache_bytes(self) -> int:
        """Size of the L2 cache."""
        return self._attribute(L2_CACHE_BYTES)

    @functools.cached_property
    def device_name(self) -> str:
        """The driver's name of the device."""
        library, text = _driver(), ctypes.create_string_buffer(256)
        code = library.cuDeviceGetName(text, len(text), self._handle)
        _check(code, library, "cuDeviceGetName")
        return text.value.decode()

    @functools.cached_property
    def _handle(self) -> ctypes.c_int:
        library, handle = _driver(), ctypes.c_int()
        code = library.cuDeviceGet(ctypes.byref(handle), self.ordinal)
        _check(code, library, "cuDeviceGet")
        return handle

    def _attribute(self, attribute: int, missing: int | None = None) -> int:
        library, value = _driver(), ctypes.c_int()
        code = library.cuDeviceGetAttribute(ctypes.byref(value), attribute, self._handle)
        if code == INVALID_VALUE and missing is not None:
            return missing
        _check(code, library, f"cuDeviceGetAttribute({attribute})")
        return value.value


_instances: dict[int, DeviceInfo] = {}
_contexts: dict[int, ctypes.c_void_p] = {}
_lock = threading.Lock()


def device_info(ordinal: int) -> DeviceInfo:
    """The one `DeviceInfo` of a device."""
    found = _instances.get(ordinal)
    if found is None:
        found = _instances.setdefault(ordinal, DeviceInfo(ordinal))
    return found


def ensure_context(ordinal: int) -> None:
    """Makes the primary context of a device current in this thread, when none is.

    Kernel launches need one; a thread that never called the CUDA runtime has none. The context is
    the one that the CUDA runtime, and so torch, uses.
    """
    info = device_info(ordinal)
    library, current = _driver(), ctypes.c_void_p()
    _check(library.cuCtxGetCurrent(ctypes.byref(current)), library, "cuCtxGetCurrent")
    if current.value is not None:
        return
    with _lock:
        context = _contexts.get(ordinal)
        if context is None:  # retained once and kept for the life of the process
            context = ctypes.c_void_p()
            code = library.cuDevicePrimaryCtxRetain(ctypes.byref(context), info._handle)
            _check(code, library, "cuDevicePrimaryCtxRetain")
            _contexts[ordinal] = context
    _check(library.cuCtxSetCurrent(context), library, "cuCtxSetCurrent")


def word_filler() -> Callable[[int, int, int, int], None]:
    """fill(address, word, count, stream): `count` 32-bit words of device memory, asynchronously.

    Graphs capture it as a node of its own.
    """
    library = _driver()
    if library is None:
        raise RuntimeError("no CUDA driver is present")
    memset = library.cuMemsetD32Async
    memset.argtypes = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p)

    def fill(address: int, word: int, count: int, stream: int) -> None:
        code = memset(address, word, count, stream)
        if code:
            _check(code, library, "cuMemsetD32Async")

    return fill
