"""The forward's executable: picks a kernel by the addresses and strides of a call, and launches it. Imports the DSL."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .columns import ColumnsKernel
from .config import CHUNK, ELEMENT_BYTES, VECTOR_BYTES, WIDEST_UNROLLED
from .launch import (
    MOST_UNITS,
    address_of,
    are_contiguous,
    ceil_div,
    divisor,
    fakes,
    multiple,
    steps_of,
)
from .rows import RowsKernel
from .strided import StridedKernel


class Forward:
    """The host function of a ForwardConv; see `build`."""

    def __init__(self, config):
        self.config = config

    @cute.jit
    def causal_conv1d(self, *arguments):
        """The arrays of `config.names`, the number of multiprocessors to fill, the stream."""
        *arrays, limit, stream = arguments
        arrays = tuple(arrays)
        if cutlass.const_expr(self.config.width > WIDEST_UNROLLED):
            self.strided(arrays, stream)
        elif cutlass.const_expr(self.config.layout == "t"):
            self.rows(arrays, stream)
        elif cutlass.const_expr(self.config.layout == "d"):
            self.columns(arrays, limit, stream)
        else:
            self.strided(arrays, stream)

    def _named(self, arrays):
        """(x, weight, bias or None, out)."""
        named = dict(zip(self.config.names, arrays, strict=True))
        return tuple(named.get(name) for name in ("x", "weight", "bias", "out"))

    @cute.jit
    def launch(self, kernel: cutlass.Constexpr, arrays: cutlass.Constexpr, blocks, extra, stream):
        """Launches `blocks` of them, and those that copy final states; nothing where there are none."""
        copiers = Int64(0)
        if cutlass.const_expr(self.config.has_final):
            final = arrays[-1]
            states = Int64(final.shape[0]) * Int64(final.shape[1])
            copiers = ceil_div(states, self.config.tile.threads)
        total = Int32(blocks + copiers)
        if total > 0:
            kernel(arrays, Int32(blocks), *extra).launch(
                grid=[total, 1, 1], block=[self.config.tile.threads, 1, 1], stream=stream
            )

    @cute.jit
    def rows(self, arrays: cutlass.Constexpr, stream):
        """Token-contiguous: 16-byte chunks where x and out agree on where they begin."""
        x, weight, _, out = self._named(arrays)
        size = ELEMENT_BYTES[self.config.x]
        batches, channels, tokens = x.shape
        ours = [address_of(x), *steps_of(x, 0, 1)]
        theirs = [address_of(out), *steps_of(out, 0, 1)]
        differences = [a - b for a, b in zip(ours, theirs, strict=True)]
        spare = Int64(0) if multiple(ours, VECTOR_BYTES) else Int64(VECTOR_BYTES // size - 1)
        chunks = ceil_div(Int64(tokens) + spare, CHUNK)
        count = Int64(batches) * Int64(channels)
        short, long = RowsKernel(self.config, True), RowsKernel(self.config, False)
        reach, warps = short.reach, self.config.tile.threads // 32
        spans = ceil_div(chunks, long.reach)
        legal = multiple(differences, VECTOR_BYTES) & are_contiguous(weight, None)
        legal = legal & (count * spans <= MOST_UNITS)
        by_channels = divisor(channels)
        if legal and chunks < long.reach and count * chunks <= MOST_UNITS - warps * reach:
            units = count * chunks
            by_chunks = divisor(chunks)
            self.launch(
                short.kernel,
                arrays,
                ceil_div(units, warps * reach),
                (Int32(units), by_chunks, by_channels),
                stream,
            )
        elif legal:
            units = count * spans
            by_spans = divisor(spans)
            self.launch(
                long.kernel,
                arrays,
                ceil_div(units, warps),
                (Int32(units), by_spans, by_channels),
                stream,
            )
        else:
            self.strided(arrays, stream)

    @cute.jit
    def columns(self, arrays: cutlass.Constexpr, limit, stream):
        """Channel-contiguous: vectors of channels where every token starts at a multiple of them."""
        x, weight, bias, out = self._named(arrays)
        tile, kernel = self.config.tile, ColumnsKernel(self.config)
        batches, channels, tokens = x.shape
        addresses = [address_of(x), address_of(out), *steps_of(x, 0, 2), *steps_of(out, 0, 2)]
        legal = multiple(addresses, tile.vector) & (Int32(channels) % kernel.lanes == 0)
        legal = legal & are_contiguous(weight, bias)
        vectors = Int64(channels) // kernel.lanes
        span = Int32(tile.span)
        spans = ceil_div(tokens, span)
        units = Int64(batches) * vectors * spans
        if legal and units <= MOST_UNITS - tile.threads:
            by_vectors = divisor(vectors)
            by_spans = divisor(spans)
            self.launch(
                kernel.kernel,
                arrays,
                ceil_div(units, tile.threads),
                (Int32(units), span, by_vectors, by_spans),
                stream,
            )
        else:
            self.strided(arrays, stream)

    @cute.jit
    def strided(self, arrays: cutlass.Constexpr, stream):
        """Everything else."""
        x = arrays[0]
        batches, channels, tokens = x.shape
        units = Int64(batches) * Int64(channels) * ceil_div(tokens, CHUNK)
        token_step, channel_step = steps_of(x, 2, 1)
        along_channels = (channels > 1) & (
            (tokens == 1) | (channel_step * channel_step < token_step * token_step)
        )
        self.launch(
            StridedKernel(self.config).kernel,
            arrays,
            ceil_div(units, self.config.tile.threads),
            (along_channels,),
            stream,
        )


def build(config):
    """(jit function, symbolic arguments) for cute.compile."""
    return Forward(config).causal_conv1d, fakes(config)
