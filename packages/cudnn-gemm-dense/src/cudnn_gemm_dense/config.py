"""Configurations of the dense Hopper kernels: everything that is fixed at compile time.

May import the standard library and cudnn_core.hopper.tile: planning a call needs neither the DSL nor a GPU.
"""

from dataclasses import dataclass, field

from cudnn_core.hopper.tile import TileConfig

__all__ = ["RECIPES", "FusedConfig", "GemmAmaxConfig", "Product", "Side", "Stored", "TileConfig"]

# (element, scale, sf_vec_size) of every legal pair of operand and scales.
RECIPES = {
    "mxfp8": ("float8_e4m3fn", "float8_e8m0fnu", 32),
    "mxfp8_e5m2": ("float8_e5m2", "float8_e8m0fnu", 32),
    "mxfp4": ("float4_e2m1fn", "float8_e8m0fnu", 32),
    "mxfp4_16": ("float4_e2m1fn", "float8_e8m0fnu", 16),
    "nvfp4": ("float4_e2m1fn", "float8_e4m3fn", 16),
}
FP8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Side:
    """One operand. Dtypes are names; scale is None without block scales.

    contiguous: "k" or "mn". container: "native" or "uint8" (packed FP4). sf_container: "native", "uint8" or "int8".
    sf_form: "logical" (32,4,R,4,Q,L) or "physical" (L,R,Q,32,4,4).
    """

    dtype: str
    scale: str | None = None
    sf_vec: int = 32
    contiguous: str = "k"
    container: str = "native"
    sf_container: str = "native"
    sf_form: str = "logical"

    @property
    def bits(self) -> int:
        """Of an element, as its name says."""
        return int(self.dtype.partition("_")[0].removeprefix("b").removeprefix("float"))


@dataclass(frozen=True)
class Product:
    """A B^T of any two sides.

    batched: whether L can differ from 1. batch: "last" for (M,K,L) or "outer" for (L,M,K). split: None, or stream-K in
    which every thread block gets at least so many units of 128 K elements. glu: None, or where the two columns of a GLU
    pair lie in B's rows, "interleaved" in turns of 32 or "concatenated" (core's Fragments). decode: whether B, if
    it has scales, may become BF16 in the main loop; else it is rewritten. feed: whether sides are rewritten beside the
    main loop if its tile allows it; else they are ahead of it.
    """

    a: Side
    b: Side
    batched: bool = False
    batch: str = "last"
    split: int | None = None
    glu: str | None = None
    tile: TileConfig = field(default_factory=TileConfig)
    decode: bool = True
    feed: bool = False

    @property
    def decodes(self) -> bool:
        """Whether B becomes BF16 in registers, in the main loop."""
        return self.decode and self.b.scale is not None and self.meeting == "bfloat16"

    @property
    def sorts(self) -> bool:
        """Whether A, which meets decoded weights, gets their order of K on its way through shared memory.

        It saves a launch. From 64 rows on it takes more time of shared memory and registers than that (BF16 x MXFP4 on
        an H200, 2026-12-02: 41.3 us beside 40.0 at (64, 28672, 4096), 21.7 beside 23.2 at (16, 4096, 14336)).
        """
        tile = self.tile
        as_it_is = self.a.dtype == "bfloat16" and self.a.contiguous == "k"
        fits = tile.bm <= 32 and (tile.warpgroups, tile.units, tile.cluster) == (4, 0, (1, 1))
        return self.decodes and as_it_is and fits

    @property
    def meeting(self) -> str | None:
        """The type in which the sides are multiplied: the narrowest that holds both; None: each its own FP8."""
        wide = set()
        for side in (self.a, self.b):
            if side.scale is not None:
                wide.add("bfloat16")
            elif side.dtype not in FP8:
                wide.add(side.dtype)
        return "float32" if len(wide) > 1 else next(iter(wide), None)

    @property
    def treatments(self) -> tuple[str | None, str | None]:
        """Into what type A and B are rewritten, K-major, beside the main loop or ahead of it; None: they are not."""
        made = []
        for name, side in (("a", self.a), ("b", self.b)):
            target, fits = self.meeting or side.dtype, side.contiguous == "k"
            if name == "b" and self.decodes:
                # Rows that are contiguous are only turned; the scales stay what they are.
                made.append(None if fits else side.dtype)
                continue
            # Only 16-bit operands reach the tensor core with contiguous rows.
            fits = fits or side.dtype in ("float16", "bfloat16")
            # What meets decoded weights takes on their order, here or on its way.
            as_it_is = side.scale is None and side.dtype == target and fits
            as_it_is = as_it_is and (self.sorts or not self.decodes)
            made.append(None if as_it_is else target)
        return tuple(made)

    @property
    def feeds(self) -> bool:
        """Whether sides are rewritten beside the main loop, by warps of its own kernel."""
        sides = zip((self.a, self.b), self.treatments, strict=True)
        # Sides of two formats, which warps would write in turns, were never measured.
        written = {side for side, target in sides if target is not None}
        tile = self.tile
        fits = tile.pingpong and (tile.bm, tile.bn, tile.cluster) == (128, 128, (1, 1))
        whole = self.split is None and tile.promote_k is None and not self.decodes
        alike = len(written) == 1 and all(side.contiguous == "k" for side in written)
        return self.feed and fits and whole and alike

    def why_not(self) -> str | None:
        """The reason why no main loop multiplies these sides, or None."""
        for side in (self.a, self.b):
            if side.scale is not None:
                if (side.dtype, side.scale, side.sf_vec) not in RECIPES.values():
                    return f"{side.dtype} does not go with {side.scale} scales of {side.sf_vec} elements"
                if side.dtype == "float4_e2m1fn" and side.contiguous != "k":
                    return "FP4 operands must be K-major"
            elif side.dtype == "float4_e2m1fn":
                return "FP4 operands need scales"
        return None


def scratch(product: Product) -> tuple[str, ...]:
    """The regions of a product's workspace, in their order.

    "expanded": A rewritten, then B. "counters": of what is rewritten beside the main loop. "partials", "flags": of
    stream-K.
    """
    names = ("expanded",) if any(product.treatments) else ()
    names = (*names, "counters") if product.feeds else names
    return names if product.split is None else (*names, "partials", "flags")


@dataclass(frozen=True)
class GemmAmaxConfig:
    """Every compile-time property of the kernel of GEMM + amax; the object is the compile key.

    c_container: "native" or "uint8" (packed FP4). c_major: "n" or "m". c_store: "tma" needs a 16-byte aligned C whose
    strides are multiples of 16 bytes; "direct" takes any. amax: "global" writes one number, "per_batch" L of them.
    """

    product: Product
    c_dtype: str = "float32"
    c_container: str = "native"
    c_major: str = "n"
    c_store: str = "tma"
    amax: str = "global"


@dataclass(frozen=True)
class Stored:
    """A tensor of C's shape that an epilogue reads or writes; the fields are those of GemmAmaxConfig's C."""

    dtype: str
    container: str = "native"
    major: str = "n"
    store: str = "tma"


@dataclass(frozen=True)
class FusedConfig:
    """Every compile-time property of the kernel of a product with an activation; the object is the compile key.

    op: "swiglu", "srelu" or "dsrelu". order: names of the kernel's tensors in the order of its arguments, workspaces
    left out. tiles: those that have C's shape, by name. amax: "global" or "per_batch". out_format: the name of a
    format of cudnn_core.formats in which the result is quantized, or None; scale_form: the view of its scales.
    """

    op: str
    product: Product
    order: tuple[str, ...]
    tiles: tuple[tuple[str, Stored], ...]
    amax: str = "global"
    out_format: str | None = None
    scale_form: str = "logical"

    def stored(self, name: str) -> Stored:
        """The tensor of C's shape called `name`."""
        return dict(self.tiles)[name]
