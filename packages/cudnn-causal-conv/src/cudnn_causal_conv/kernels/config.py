"""What selects a compiled kernel of the causal convolution: frozen, hashable. Imports the standard library only.

Extents, strides, alignment and pointers are run-time values: one executable holds the 16-byte kernel and the one
for any address, and picks by the addresses and strides of each call.
"""

from dataclasses import dataclass

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
VECTOR_BYTES = 16
# Tokens of a channel that one thread of the token-contiguous and of the strided kernels computes at once.
CHUNK = 8
# Widths whose taps live in registers; wider filters loop over theirs.
WIDEST_UNROLLED = 8
WIDEST = 256
# Of the backward over token-contiguous rows: warps of a block, of which 1, 2 or 4 share channels; CHUNKs of a lane that
# a warp takes at once; and how many blocks there should be at least. Measured on an H200, December 2026.
ROW_WARPS = 4
ROW_RUNS = 2
ROW_BLOCKS = 264
# Of the backward over channel-last arrays: with so many partial sums or fewer, the block that has the last adds them.
MOST_FOLDED = 32


def layout_of(*arrays) -> str:
    """Which axis of (B, D, T) arrays, given as (shape, strides), is contiguous in all of them.

    "t", "d", or "any" where it is neither. Strides of extents of 1 say nothing.
    """
    for letter, axis in (("t", 2), ("d", 1)):
        if all(stride[axis] == 1 or shape[axis] == 1 for shape, stride in arrays):
            return letter
    return "any"


def flags_of(channels):
    """Flags of a split: one of each tile of 32 channels at least, and one more as room to align them."""
    return channels // 32 + 2


@dataclass(frozen=True)
class Tile:
    """How work is divided; measured on an H200, December 2026. threads: of a block.

    steps, short_steps: chunks of a lane of the token-contiguous kernels, for long rows and for short ones, and for all
    where sequences are told apart, which takes more code.
    vector, walk, span, ahead: of the channel-contiguous kernel: bytes of a load, tokens that a thread loads before it
    uses the first, tokens it walks over in all, and whether it loads the next ones before it uses those it has.
    rows, compact_rows: of the update, that a thread takes at once.
    """

    threads: int = 64
    steps: int = 4
    short_steps: int = 2
    vector: int = 8
    walk: int = 8
    span: int = 24
    ahead: bool = True
    rows: int = 4
    compact_rows: int = 2


class Conv:
    """What the three configurations have in common, from the fields of each."""

    @property
    def history(self) -> int:
        """Tokens before the current one that reach its output."""
        return self.width - 1

    @property
    def names(self) -> tuple[str, ...]:
        """The executable's arrays, in order: inputs, outputs, workspaces."""
        return tuple(name for name, there in self.arrays().items() if there)


@dataclass(frozen=True)
class ForwardConv(Conv):
    """Every compile-time property of the forward.

    x, weight, bias: dtype names (bias None: there is none). layout: `layout_of` x and out. activation: "identity" or
    "silu". The booleans say which optional operands the executable takes. States have x's dtype.
    """

    x: str
    weight: str
    bias: str | None
    width: int
    activation: str
    layout: str
    has_seq_idx: bool = False
    has_cu_seqlens: bool = False
    has_initial: bool = False
    has_final: bool = False
    tile: Tile = Tile()

    def arrays(self) -> dict[str, bool]:
        """Every array in the executable's order, and whether it takes it."""
        return {
            "x": True,
            "weight": True,
            "bias": self.bias is not None,
            "seq_idx": self.has_seq_idx,
            "cu_seqlens": self.has_cu_seqlens,
            "initial_states": self.has_initial,
            "out": True,
            "final_states": self.has_final,
        }


@dataclass(frozen=True)
class UpdateConv(Conv):
    """Every compile-time property of the decode step; fields as in ForwardConv.

    state: how a slot (D, L) of the state lies in memory: "compact" (contiguous), "d" (channel stride 1) or "any".
    state_length: L, or 0 (a run-time value) where the state is "any".
    """

    x: str
    weight: str
    bias: str | None
    width: int
    activation: str
    state: str = "any"
    state_length: int = 0
    has_cache_seqlens: bool = False
    has_indices: bool = False
    flat: bool = False
    tile: Tile = Tile()

    def arrays(self) -> dict[str, bool]:
        """Every array in the executable's order, and whether it takes it."""
        return {
            "x": True,
            "conv_state": True,
            "weight": True,
            "bias": self.bias is not None,
            "cache_seqlens": self.has_cache_seqlens,
            "conv_state_indices": self.has_indices,
            "out": True,
        }


@dataclass(frozen=True)
class BackwardConv(Conv):
    """Every compile-time property of the backward; fields as in ForwardConv.

    layout: `layout_of` x and dx; the gradient of the output may have any strides. has_dfinal: whether a gradient of the
    final states comes in; has_dinitial: whether one of the initial states goes out.
    """

    x: str
    weight: str
    bias: str | None
    width: int
    activation: str
    layout: str
    has_seq_idx: bool = False
    has_cu_seqlens: bool = False
    has_initial: bool = False
    has_dfinal: bool = False
    has_dinitial: bool = False

    @property
    def has_flags(self) -> bool:
        """Whether partial sums are added in the launch that makes them; flags follow them in the workspace then."""
        return self.layout == "d" and self.width <= WIDEST_UNROLLED

    def split_bytes(self, channels):
        """Of the workspace: FP32 sums of every tap, and of the bias, for each channel; flags."""
        sums = 4 * (self.width + (self.bias is not None)) * channels
        return sums + 8 * flags_of(channels) if self.has_flags else sums

    def arrays(self) -> dict[str, bool]:
        """Every array in the executable's order, and whether it takes it."""
        return {
            "x": True,
            "weight": True,
            "bias": self.bias is not None,
            "seq_idx": self.has_seq_idx,
            "cu_seqlens": self.has_cu_seqlens,
            "initial_states": self.has_initial,
            "dout": True,
            "dfinal_states": self.has_dfinal,
            "dx": True,
            "dweight": True,
            "dbias": self.bias is not None,
            "dinitial_states": self.has_dinitial,
            "partials": True,
            "sequences": self.has_cu_seqlens,
        }
