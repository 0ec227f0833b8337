"""What stands beside the backward's main kernel where there are states or packed sequences: before it, the sequence of
every token; after it, the gradients of the initial states. Imports the DSL.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from . import arithmetic, memory, parts


class Names:
    """The packed sequence that each token belongs to; -1, as of padding, outside of all."""

    THREADS = 256

    @cute.jit
    def launch(self, bounds, names, tokens, stream):
        self._kernel(bounds, names, tokens).launch(
            grid=[(tokens + self.THREADS - 1) // self.THREADS, 1, 1],
            block=[self.THREADS, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def _kernel(self, bounds: cute.Tensor, names: cute.Tensor, tokens: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        t = block * self.THREADS + thread
        count = bounds.shape[0]
        low, high = Int32(0), count
        while low < high:
            middle = (low + high) // 2
            value = parts.load_int(memory.address(bounds, middle))
            value = cutlass.min(cutlass.max(value, 0), tokens)
            if value <= t:
                low = middle + 1
            else:
                high = middle
        if t < tokens:
            names[0, t] = parts.choose(low == count, Int32(-1), low - 1)


class InitialStates:
    """The gradients of the initial states: what the first width - 1 tokens of each sequence give, and dfinal's part."""

    THREADS = 128

    def __init__(self, config):
        self.config, self.history = config, config.width - 1

    @cute.jit
    def launch(self, x, weight, bias, bounds, initial, dout, dfinal, dinitial, stream):
        each = Int64(dinitial.shape[0]) * Int64(dinitial.shape[1])
        self._kernel(x, weight, bias, bounds, initial, dout, dfinal, dinitial).launch(
            grid=[Int32((each + self.THREADS - 1) // self.THREADS), 1, 1],
            block=[self.THREADS, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def _kernel(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        bias,
        bounds,
        initial: cute.Tensor,
        dout: cute.Tensor,
        dfinal,
        dinitial: cute.Tensor,
    ):
        """A thread for each channel of each sequence."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        at = Int64(block) * self.THREADS + Int64(thread)
        sequences, channels = dinitial.shape[0], dinitial.shape[1]
        r, channel = Int32(at // channels), Int32(at % channels)
        if r < sequences:
            start, end, b = Int32(0), x.shape[2], r
            if cutlass.const_expr(bounds is not None):
                start, end = parts.limits(bounds, r, x.shape[2])
                b = Int32(0)
            place = (r, b, channel, start, end)
            self._sequence(x, weight, bias, initial, dout, dfinal, dinitial, place)

    @cute.jit
    def _sequence(self, x, weight, bias, initial, dout, dfinal, dinitial, place):
        r, b, channel, start, end = place
        history, dtype = self.history, self.config.x
        taps = parts.Taps(self.config, weight, bias, channel)
        span = [parts.element(initial, r, channel, k) for k in range(history)]
        dz = []
        for t in cutlass.range_constexpr(history):
            there = start + t < end
            found = [
                memory.load_bits(memory.address(tensor, b, channel, start + t), dtype, there)
                for tensor in (x, dout)
            ]
            span.append(memory.float_of(found[0], dtype))
            inside = [span[history + t - k] for k in range(history + 1)]
            g = taps.dz(inside, memory.float_of(found[1], dtype))
            dz.append(parts.keep(g, there))
        for k in cutlass.range_constexpr(history):
            # Input k lies history - k tokens before the first one.
            total = Float32(0.0)
            for t in cutlass.range_constexpr(k + 1):
                total = taps.spread(dz[t], history - k + t, total)
            more = Float32(0.0)
            if cutlass.const_expr(dfinal is not None):
                at = k - (end - start)
                if at >= 0:
                    more = parts.element(dfinal, r, channel, cutlass.min(at, history - 1))
                total = arithmetic.add(total, more)
            parts.put(dinitial.element_type, memory.address(dinitial, r, channel, k), total)
