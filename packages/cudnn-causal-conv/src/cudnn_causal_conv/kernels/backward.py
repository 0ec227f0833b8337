"""The backward of the causal convolution: one host function of one or two launches, more with states or packing.

It takes the arrays of `config.names`, the number of thread blocks that may run at once (unused), the stream. The
first kernel leaves sums of weight and bias gradients, one set a split, in the workspace; the second adds them in order.
A single split needs no second one, nor do a few splits of channel-last arrays, which the first kernel adds itself.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from .backward_channels import ChannelColumns
from .backward_states import InitialStates, Names
from .backward_tokens import TokenRows
from .backward_wide import WideInitialStates, WideRows
from .config import CHUNK, VECTOR_BYTES, WIDEST_UNROLLED
from .launch import RANKS, address_of, fake, multiple, steps_of
from .reduce import Sums, is_folded

MAIN = (
    "x",
    "weight",
    "bias",
    "ids",
    "cu_seqlens",
    "initial_states",
    "dout",
    "dfinal_states",
    "dx",
    "dweight",
    "dbias",
    "partials",
)
STATES = (
    "x",
    "weight",
    "bias",
    "cu_seqlens",
    "initial_states",
    "dout",
    "dfinal_states",
    "dinitial_states",
)


class Backward:
    """The host function of a BackwardConv; see `build`."""

    def __init__(self, config, **tuning):
        self.config = config
        self.by_channels = config.layout == "d"
        # Strides that no wide access could use have one kernel only, and so have wide filters.
        self.vector = None
        if config.width > WIDEST_UNROLLED:
            self.scalar, self.states = WideRows(config), WideInitialStates(config)
        else:
            kind = ChannelColumns if self.by_channels else TokenRows
            self.scalar, self.states = kind(config, False), InitialStates(config)
            if config.layout != "any":
                self.vector = kind(config, True, **tuning)
        self.sums = Sums(config)

    @cute.jit
    def causal_conv1d_bwd(self, *arguments):
        named = dict(zip(self.config.names, arguments, strict=False))
        self._launch(named, arguments[-1])

    @cute.jit
    def _launch(self, named: cutlass.Constexpr, stream: cuda.CUstream):
        x, dweight, partials = named["x"], named["dweight"], named["partials"]
        batches, channels, tokens = x.shape
        named["ids"] = named.get("seq_idx")
        if cutlass.const_expr(self.config.has_cu_seqlens):
            words = cute.recast_ptr(named["sequences"].iterator, dtype=Int32)
            layout = cute.make_layout((1, tokens), stride=(Int64(tokens), Int64(1)))
            named["ids"] = cute.make_tensor(words, layout)
        if channels > 0:
            splits = Int32(0)
            if batches > 0 and tokens > 0:
                each = self.config.split_bytes(Int64(channels))
                # A single split has no workspace.
                splits = cutlass.max(Int32(Int64(partials.shape[0]) // each), Int32(1))
                self._main(named, splits, stream)
            if not self._is_done(splits):
                self.sums.launch(partials, dweight, named.get("dbias"), splits, stream)
            if cutlass.const_expr(self.config.has_dinitial):
                if named["dinitial_states"].shape[0] > 0:
                    self.states.launch(*[named.get(name) for name in STATES], stream)

    def _is_done(self, splits) -> Boolean:
        """Whether the first launch leaves nothing to add."""
        alone = splits == 1
        return alone | is_folded(splits) if self.config.has_flags else alone

    @cute.jit
    def _main(self, named: cutlass.Constexpr, splits: Int32, stream: cuda.CUstream):
        if cutlass.const_expr(self.config.has_cu_seqlens):
            tokens = named["x"].shape[2]
            Names().launch(named["cu_seqlens"], named["ids"], tokens, stream)
        arrays, numbers = [named.get(name) for name in MAIN], [splits]
        if cutlass.const_expr(isinstance(self.scalar, TokenRows)):
            rows = [address_of(named["x"]), *steps_of(named["x"], 0, 1)]
            spare = Int32(0) if multiple(rows, VECTOR_BYTES) else Int32(CHUNK - 1)
            numbers.append(spare)
        if cutlass.const_expr(self.vector is None):
            self.scalar.launch(arrays, *numbers, stream)
        else:
            if self._wide(named):
                self.vector.launch(arrays, *numbers, stream)
            else:
                self.scalar.launch(arrays, *numbers, stream)

    def _wide(self, named) -> Boolean:
        """Whether the vector kernel's accesses are each to one aligned piece of memory."""
        x, others = named["x"], [named["dout"], named["dx"]]
        inner = 1 if self.by_channels else 2
        legal = Boolean(True)
        for tensor in (x, *others):
            legal = legal & ((tensor.stride[inner] == 1) | (tensor.shape[inner] == 1))
        places = [[address_of(t), *steps_of(t, 0, 3 - inner)] for t in (x, *others)]
        if not self.by_channels:
            # Rows may begin anywhere, but all three alike.
            own = places[0]
            unlike = [place[i] - own[i] for place in places[1:] for i in range(3)]
            return legal & multiple(unlike, VECTOR_BYTES)
        for tensor in (x, *others):
            # The walk over tokens multiplies 32-bit strides.
            legal = legal & (Int64(tensor.stride[2]) < 2**28)
        whole = x.shape[1] % self.vector.each == 0
        return (
            multiple([value for place in places for value in place], self.vector.size)
            & legal
            & whole
        )


def fakes(config) -> list:
    """Symbolic arguments in the order of `config.names`, the block count and the stream."""
    own = {"weight": config.weight, "bias": config.bias}
    own |= dict.fromkeys(("seq_idx", "cu_seqlens"), "int32")
    # Gradients that are shaped like an operand of another rank than x.
    like = {"dweight": "weight", "dbias": "bias"}
    arrays = []
    for name in config.names:
        source = like.get(name, name)
        is_scratch = name in ("partials", "sequences")
        arrays.append(
            scratch()
            if is_scratch
            else fake(source, own.get(source, config.x), RANKS.get(source, 3))
        )
    return [*arrays, Int32(1), cute.runtime.make_fake_stream()]


def scratch():
    """A symbolic workspace."""
    extent = cute.sym_int64()
    return cute.runtime.make_fake_tensor(cutlass.Uint8, (extent,), stride=(1,), assumed_align=16)


def build(config, **tuning):
    """(jit function, symbolic arguments) for cute.compile."""
    return Backward(config, **tuning).causal_conv1d_bwd, fakes(config)
