"""The backward of the causal convolution: one host function, two launches, more where there are states or packing.

It takes the arrays of `config.arrays`, the number of thread blocks that may run at once (unused), the stream. The
first kernel leaves sums of weight and bias gradients, one set a split, in the workspace; the second adds them in order.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from . import parts, reduce
from .backward_channels import ChannelColumns
from .backward_tokens import TokenRows
from .backward_wide import WideInitialStates, WideRows
from .config import ELEMENT_BYTES, WIDEST_UNROLLED

RANKS = {"bias": 1, "weight": 2, "dweight": 2, "dbias": 1, "seq_idx": 2, "cu_seqlens": 1}
OPERANDS = ("x", "weight", "bias", "names", "cu_seqlens", "initial_states", "dout", "dfinal_states", "dx")


class Backward:
    """The host function of a BackwardConv; see `build`."""

    def __init__(self, config, **tuning):
        self.config = config
        self.by_channels = config.layout == "d"
        # Strides that no access could use have one kernel only, and so have wide filters.
        self.vector = None
        if config.width > WIDEST_UNROLLED:
            self.scalar, self.states = WideRows(config), WideInitialStates(config)
        else:
            kind = ChannelColumns if self.by_channels else TokenRows
            self.scalar, self.states = kind(config, False), reduce.InitialStates(config)
            if config.layout != "any":
                self.vector = kind(config, True, **tuning)
        self.rows = config.width + (config.bias is not None)

    @cute.jit
    def causal_conv1d_bwd(self, *arguments):
        named = dict(zip(self.config.arrays, arguments, strict=False))
        stream = arguments[-1]
        self._launch(named, stream)

    @cute.jit
    def _launch(self, named: cutlass.Constexpr, stream: cuda.CUstream):
        x, dweight, partials = named["x"], named["dweight"], named["partials"]
        tokens = x.shape[2]
        named["names"] = named.get("seq_idx")
        if cutlass.const_expr(self.config.has_cu_seqlens):
            words = cute.recast_ptr(named["sequences"].iterator, dtype=Int32)
            named["names"] = cute.make_tensor(
                words, cute.make_layout((1, tokens), stride=(Int64(tokens), Int64(1)))
            )
            reduce.Names().launch(named["cu_seqlens"], named["names"], tokens, stream)
        splits = Int32(Int64(partials.shape[0]) // (Int64(dweight.shape[0]) * (4 * self.rows)))
        operands = [named.get(name) for name in OPERANDS]
        operands += [partials, splits]
        if cutlass.const_expr(isinstance(self.scalar, TokenRows)):
            operands.append(lanes_of(tokens))
        if cutlass.const_expr(self.vector is None):
            self.scalar.launch(*operands, stream)
        else:
            if self._aligned(named):
                self.vector.launch(*operands, stream)
            else:
                self.scalar.launch(*operands, stream)
        reduce.Sums(self.config).launch(partials, dweight, named.get("dbias"), splits, stream)
        if cutlass.const_expr(self.config.has_dinitial):
            order = ("x", "weight", "bias", "cu_seqlens", "initial_states", "dout", "dfinal_states")
            states = [named.get(name) for name in (*order, "dinitial_states")]
            self.states.launch(*states, stream)

    def _aligned(self, named):
        """Whether every access of the vector kernel is to one aligned piece of memory."""
        config = self.config
        size = ELEMENT_BYTES[config.x]
        inner, outer = (1, 2) if self.by_channels else (2, 1)
        tensors = [named[name] for name in ("x", "dout", "dx")]
        bytes_at_once = self.vector.bytes_at_once
        joined = Int64(tensors[0].shape[inner]) * size
        units, steps = Int64(0), Int64(0)
        for tensor in tensors:
            joined = joined | tensor.iterator.toint()
            joined = joined | (Int64(tensor.stride[0]) | Int64(tensor.stride[outer])) * size
            units = units | (Int64(tensor.stride[inner]) ^ 1)
            steps = cutlass.max(steps, Int64(tensor.stride[outer]) * size)
        whole = tensors[0].shape[inner] % self.vector.inner_multiple == 0
        return (joined % bytes_at_once == 0) & (units == 0) & whole & (steps < 2**31)


@cute.jit
def lanes_of(tokens):
    """Lanes that share a row: fewer where rows are short, so that none idles."""
    lanes = Int32(32)
    if tokens <= 128:
        lanes = Int32(16)
    if tokens <= 64:
        lanes = Int32(8)
    if tokens <= 32:
        lanes = Int32(4)
    return lanes


def fake(name: str, config):
    """A symbolic array of any extents and strides, aligned to its elements."""
    if name in ("partials", "sequences"):
        return cute.runtime.make_fake_tensor(
            cutlass.Uint8, (cute.sym_int64(),), (1,), assumed_align=16
        )
    own = {"weight": config.weight, "bias": config.bias, "dweight": config.weight}
    own |= {"dbias": config.bias}
    kind = cutlass.Int32
    if name not in ("seq_idx", "cu_seqlens"):
        kind = parts.TYPES[own.get(name, config.x)]
    rank = RANKS.get(name, 3)
    shape = tuple(cute.sym_int() for _ in range(rank))
    stride = tuple(cute.sym_int64() for _ in range(rank))
    return cute.runtime.make_fake_tensor(kind, shape, stride, assumed_align=kind.width // 8)


def build(config, **tuning):
    """(jit function, symbolic arguments) for cute.compile."""
    arrays = [fake(name, config) for name in config.arrays]
    arguments = [*arrays, Int32(1), cute.runtime.make_fake_stream()]
    return Backward(config, **tuning).causal_conv1d_bwd, arguments
