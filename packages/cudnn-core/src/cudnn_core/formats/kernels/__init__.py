"""The Hopper kernels of this package as compile-cache entries. Imports formats.*; the DSL late."""

from collections.abc import Iterator
from functools import cache

from ...cache import KernelSource, get
from ..spec import FORMATS
from .config import ELEMENT_BYTES, AmaxConfig, QuantizeConfig

# The device code of this folder is in every key; the constants that it inlines come from these.
DEVICE_CODE = ("cudnn_core.formats.spec", "cudnn_core.float_env")


def source(config: QuantizeConfig | AmaxConfig) -> KernelSource:
    """What the compile cache needs to find or make the kernel of a configuration."""

    def build():
        from . import quantizer

        make = quantizer.build_amax if isinstance(config, AmaxConfig) else quantizer.build_quantize
        return *make(config), ""

    name = "tensor_amax" if isinstance(config, AmaxConfig) else f"quantize_{config.format}"
    return KernelSource(name, key=config, build=build, sources=DEVICE_CODE)


@cache
def executable(config: QuantizeConfig | AmaxConfig):
    """The compiled kernel as a raw TVM-FFI function; compiled once per machine."""
    try:
        return get(source(config)).call
    except ImportError as error:
        raise ImportError(
            f"{error}; or pass engine='torch' to quantize with PyTorch operations"
        ) from error


def configs(everything: bool = False) -> Iterator[QuantizeConfig | AmaxConfig]:
    """Configurations to compile ahead: those of aligned BF16 operands, or all."""
    dtypes = ELEMENT_BYTES if everything else ("bfloat16",)
    paths = ("vector", "strided") if everything else ("vector",)
    layouts = ("atom", "plain") if everything else ("atom",)
    for dtype in dtypes:
        for path in paths:
            yield AmaxConfig(dtype, path)
            for fmt in FORMATS.values():
                modes = ("none",) if fmt.scale_is_e8m0 else ("none", "given", "computed")
                for block in fmt.blocks:
                    for layout in layouts:
                        for mode in modes:
                            yield QuantizeConfig(dtype, fmt.name, block, path, layout, mode)
