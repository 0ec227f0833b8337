"""What follows the backward's main kernel: sums of the weight and bias gradients, gradients of the initial states; and
what precedes it where sequences are packed: the sequence of every token. Imports the DSL and this folder's parts.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from . import arithmetic, memory, parts

GROUPS = 8


class Sums:
    """dweight and dbias: partial sums of all splits, added in a fixed order, rounded once."""

    def __init__(self, config):
        self.width = config.width
        self.rows = config.width + (config.bias is not None)

    @cute.jit
    def launch(self, partials, dweight, dbias, splits, stream):
        tiles = (dweight.shape[0] + 31) // 32
        self._kernel(partials, dweight, dbias, splits).launch(
            grid=[tiles, self.rows, 1], block=[32 * GROUPS, 1, 1], stream=stream, use_pdl=True
        )

    @cute.kernel
    def _kernel(self, partials: cute.Tensor, dweight: cute.Tensor, dbias, splits: Int32):
        """Group g of a block adds splits g, g + 8, ...; the first adds the groups' sums."""
        thread, _, _ = cute.arch.thread_idx()
        tile, row, _ = cute.arch.block_idx()
        channels = dweight.shape[0]
        lane, group = thread % 32, thread // 32
        channel = tile * 32 + lane
        safe = cutlass.min(channel, channels - 1)
        cute.arch.griddepcontrol_wait()
        total = Float32(0.0)
        for split in cutlass.range(group, splits, GROUPS, unroll=4):
            found = parts.get_partial(partials, split, row, safe, self.rows, channels)
            total = arithmetic.add(total, found)
        shared = cute.make_tensor(
            cute.arch.alloc_smem(Float32, 32 * GROUPS, alignment=16),
            cute.make_layout(32 * GROUPS),
        )
        shared[thread] = total
        cute.arch.sync_threads()
        if group == 0 and channel < channels:
            for g in cutlass.range_constexpr(1, GROUPS):
                total = arithmetic.add(total, shared[g * 32 + lane])
            if cutlass.const_expr(dbias is None):
                self._put(dweight, total, channel, row)
            else:
                if row < self.width:
                    self._put(dweight, total, channel, row)
                else:
                    self._put(dbias, total, channel)

    def _put(self, tensor, value, *index):
        parts.put(tensor.element_type, memory.address(tensor, *index), value)


class Names:
    """Which entry of cu_seqlens each token lies after: 0...N-1, N + 1 before the first, N after the last."""

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
            # Such tokens, which legal boundaries do not leave, are sequences without states.
            names[0, t] = parts.choose(low == 0, count, low - 1)


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
        history, last = self.history, x.shape[2] - 1
        taps = parts.Taps(self.config, weight, bias, channel)
        span = [parts.element(initial, r, channel, k) for k in range(history)]
        dz = []
        for t in cutlass.range_constexpr(history):
            there = start + t < end
            safe = cutlass.min(start + t, last)
            span.append(parts.element(x, b, channel, safe))
            inside = [span[history + t - k] for k in range(history + 1)]
            g = taps.dz(inside, parts.element(dout, b, channel, safe))
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
