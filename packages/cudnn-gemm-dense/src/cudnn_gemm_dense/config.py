"""Configurations of the dense Hopper kernels: everything that is fixed at compile time.

May import the standard library and cudnn_core.hopper.tile: planning a call needs neither the DSL nor a GPU.
"""

from dataclasses import dataclass, field

from cudnn_core.hopper.tile import TileConfig

__all__ = ["RECIPES", "BlockScaledGemm", "TileConfig"]

# (element, scale, sf_vec_size) of every legal pair of operand and scales; both sides take the same one.
RECIPES = {
    "mxfp8": ("float8_e4m3fn", "float8_e8m0fnu", 32),
    "mxfp8_e5m2": ("float8_e5m2", "float8_e8m0fnu", 32),
    "mxfp4": ("float4_e2m1fn", "float8_e8m0fnu", 32),
    "mxfp4_16": ("float4_e2m1fn", "float8_e8m0fnu", 16),
    "nvfp4": ("float4_e2m1fn", "float8_e4m3fn", 16),
}


@dataclass(frozen=True)
class BlockScaledGemm:
    """Every compile-time property of the kernel; the object is the compile key.

    Dtypes are names. a_container, b_container, c_container: "native" or "uint8" (packed FP4).
    sfa_container, sfb_container: "native", "uint8" or "int8". sfa_form, sfb_form: "logical" (32,4,R,4,Q,L) or
    "physical" (L,R,Q,32,4,4). c_store: "tma" needs a 16-byte aligned C whose strides are multiples
    of 16 bytes; "direct" takes any. batched: whether L can differ from 1. batch: "last" for
    (M,K,L) or "outer" for (L,M,K). amax: "global" writes one number, "per_batch" L of them.
    """

    a_dtype: str
    b_dtype: str
    sf_dtype: str
    sf_vec: int
    c_dtype: str = "float32"
    a_container: str = "native"
    b_container: str = "native"
    c_container: str = "native"
    sfa_container: str = "native"
    sfb_container: str = "native"
    a_major: str = "k"
    b_major: str = "k"
    c_major: str = "n"
    sfa_form: str = "logical"
    sfb_form: str = "logical"
    c_store: str = "tma"
    batched: bool = False
    batch: str = "last"
    amax: str = "global"
    tile: TileConfig = field(default_factory=TileConfig)
