"""Block-scaled number formats: MXFP8, MXFP4, NVFP4. Imports nothing until a name is used."""

from cudnn_core.lazy import attach

_API = ("quantize", "dequantize", "pack_scales", "unpack_scales")

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(_API, f"{__name__}.api"),
        **dict.fromkeys(("FORMATS", "Format", "resolve"), f"{__name__}.spec"),
    },
)
