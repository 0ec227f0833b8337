"""Block-scaled number formats: MXFP8, MXFP4, NVFP4. Imports nothing until a name is used."""

from importlib import import_module

_NAMES = {
    "quantize": ".api",
    "dequantize": ".api",
    "pack_scales": ".api",
    "unpack_scales": ".api",
    "Format": ".spec",
    "FORMATS": ".spec",
    "resolve": ".spec",
}
__all__ = sorted(_NAMES)


def __getattr__(name):
    if name in _NAMES:
        return getattr(import_module(_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__
