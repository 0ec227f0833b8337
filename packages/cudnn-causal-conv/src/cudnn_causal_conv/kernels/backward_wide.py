"""Backward of filters too wide for registers: 9 to 256 taps, any strides. Right, not fast.

A block takes one channel and walks chunks of 256 tokens. Inputs, then the gradients dz of the pre-activations, lie in
shared memory as FP32; a thread computes one token's gradients, and one tap's sum over a part of the chunk.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from . import arithmetic, memory, parts
from .reduce import Totals, settle

TOKENS = 256


class Shared(NamedTuple):
    """The shared memory of a block."""

    weight: cute.Tensor
    inputs: cute.Tensor
    dz: cute.Tensor
    names: cute.Tensor
    sums: cute.Tensor


def _shared(history):
    return Shared(
        weight=_array(Float32, history + 1),
        inputs=_array(Float32, TOKENS + 2 * history),
        dz=_array(Float32, TOKENS + history),
        names=_array(Int32, TOKENS + 2 * history),
        sums=_array(Float32, TOKENS),
    )


def _array(kind, count):
    return cute.make_tensor(
        cute.arch.alloc_smem(kind, count, alignment=16), cute.make_layout(count)
    )


def slope(config, z):
    """Derivative of the activation at the pre-activation z."""
    return parts.silu_slope(z) if config.activation == "silu" else Float32(1.0)


class WideRows:
    """See the module. `groups` threads share a tap's sum over a chunk."""

    def __init__(self, config):
        self.config = config
        self.history = config.width - 1
        self.segmented = config.has_seq_idx or config.has_cu_seqlens
        self.rows = config.width + (config.bias is not None)
        self.stride = 1 << self.history.bit_length()
        self.groups = TOKENS // self.stride

    @cute.jit
    def launch(self, arrays: cutlass.Constexpr, splits, stream):
        """arrays: as `_kernel` takes them."""
        self._kernel(*arrays, splits).launch(
            grid=[arrays[0].shape[1] * splits, 1, 1], block=[TOKENS, 1, 1], stream=stream
        )

    @cute.kernel
    def _kernel(
        self,
        x: cute.Tensor,
        weight: cute.Tensor,
        bias,
        ids,
        bounds,
        initial,
        dout: cute.Tensor,
        dfinal,
        dx: cute.Tensor,
        dweight: cute.Tensor,
        dbias,
        partials: cute.Tensor,
        splits: Int32,
    ):
        batches, channels, tokens = x.shape
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        split, channel = block // channels, block % channels
        shared = _shared(self.history)
        if thread < self.config.width:
            shared.weight[thread] = parts.element(weight, channel, thread)
        shift = None if bias is None else parts.element(bias, channel)
        per_row = (tokens + TOKENS - 1) // TOKENS
        total = batches * per_row
        share = (total + splits - 1) // splits
        first = cutlass.min(split * share, total)
        sums = cute.make_rmem_tensor(2, Float32)
        sums[0] = Float32(0.0)
        sums[1] = Float32(0.0)
        operands = parts.Operands(x, ids, bounds, initial, dout, dfinal, dx)
        for q in cutlass.range(first, cutlass.min(first + share, total), unroll=1):
            where = (q // per_row, channel, q % per_row * TOKENS, tokens)
            self._chunk(operands, shared, shift, where, thread, sums)
        # The launch that adds the splits may begin to wait for the last blocks.
        cute.arch.griddepcontrol_launch_dependents()
        totals = Totals(dweight, dbias, partials, splits)
        self._finish(totals, shared, split, channel, thread, sums)

    @cute.jit
    def _chunk(self, operands, shared, shift, where, thread, sums):
        x, ids, initial = operands.x, operands.ids, operands.initial
        _b, _channel, t0, tokens = where
        history = self.history
        for turn in cutlass.range_constexpr(-(-(TOKENS + 2 * history) // TOKENS)):
            i = turn * TOKENS + thread
            if i < TOKENS + 2 * history:
                self._bring(x, ids, initial, shared, where, i)
        cute.arch.sync_threads()
        for turn in cutlass.range_constexpr(-(-(TOKENS + history) // TOKENS)):
            i = turn * TOKENS + thread
            if i < TOKENS + history:
                shared.dz[i] = self._dz(operands, shared, shift, where, i)
        cute.arch.sync_threads()
        if t0 + thread < tokens:
            self._inputs_gradient(operands, shared, where, thread)
        count = cutlass.min(tokens - t0, TOKENS)
        self._accumulate(operands, shared, where, thread, count, sums)
        cute.arch.sync_threads()

    @cute.jit
    def _bring(self, x, ids, initial, shared, where, i):
        """Token t0 - history + i and its sequence; zero, or the state, where there is no such token."""
        b, channel, t0, tokens = where
        t = t0 - self.history + i
        value = Float32(0.0)
        name = b
        safe = cutlass.min(cutlass.max(t, 0), tokens - 1)
        if cutlass.const_expr(self.segmented):
            name = parts.sequence_at(ids, b, safe)
        if t >= 0 and t < tokens:
            value = parts.element(x, b, channel, t)
        if cutlass.const_expr(initial is not None):
            if t < 0 and name >= 0:
                value = parts.element(initial, name, channel, t + self.history)
        shared.inputs[i] = value
        shared.names[i] = name

    @cute.jit
    def _seen(self, operands, shared, where, i, j):
        """What tap j of token t0 + i multiplies."""
        bounds, initial = operands.bounds, operands.initial
        _b, channel, t0, tokens = where
        value = shared.inputs[i + j]
        if cutlass.const_expr(self.segmented):
            name = shared.names[i + self.history]
            inside = (shared.names[i + j] == name) & (name >= 0)
            value = parts.keep(value, inside)
            if cutlass.const_expr(initial is not None):
                if not inside and name >= 0:
                    start, _ = parts.limits(bounds, name, tokens)
                    at = t0 + i + j - start
                    if at >= 0 and at < self.history:
                        value = parts.element(initial, name, channel, at)
        return value

    @cute.jit
    def _dz(self, operands, shared, shift, where, i):
        dout = operands.dout
        b, channel, t0, tokens = where
        t = t0 + i
        z = Float32(0.0)
        for j in cutlass.range(self.config.width, unroll=4):
            seen = self._seen(operands, shared, where, i, j)
            z = arithmetic.fma(shared.weight[j], seen, z)
        if cutlass.const_expr(shift is not None):
            z = arithmetic.add(z, shift)
        g = parts.element(dout, b, channel, cutlass.min(t, tokens - 1))
        if cutlass.const_expr(self.config.activation == "silu"):
            g = arithmetic.multiply(g, parts.silu_slope(z))
        return parts.keep(g, (t < tokens) & (shared.names[i + self.history] >= 0))

    @cute.jit
    def _inputs_gradient(self, operands, shared, where, i):
        bounds, dfinal, dx = operands.bounds, operands.dfinal, operands.dx
        b, channel, t0, tokens = where
        history = self.history
        name = shared.names[i + history]
        total = Float32(0.0)
        for k in cutlass.range(self.config.width, unroll=4):
            g = shared.dz[i + k]
            if cutlass.const_expr(self.segmented):
                g = parts.keep(g, shared.names[i + history + k] == name)
            total = arithmetic.fma(shared.weight[history - k], g, total)
        if cutlass.const_expr(dfinal is not None):
            end = tokens
            if name >= 0:
                if cutlass.const_expr(bounds is not None):
                    _, end = parts.limits(bounds, name, tokens)
                at = t0 + i - end + history
                if at >= 0 and at < history:
                    total = arithmetic.add(total, parts.element(dfinal, name, channel, at))
        parts.put(dx.element_type, memory.address(dx, b, channel, t0 + i), total)

    @cute.jit
    def _accumulate(self, operands, shared, where, thread, count, sums):
        """Thread j of a group adds tap j over the group's part of the chunk."""
        j, group = thread % self.stride, thread // self.stride
        part = TOKENS // self.groups
        if j < self.config.width:
            for i in cutlass.range(part, unroll=4):
                at = group * part + i
                if at < count:
                    g = shared.dz[at]
                    seen = self._seen(operands, shared, where, at, j)
                    sums[0] = arithmetic.fma(g, seen, sums[0])
                    sums[1] = arithmetic.add(sums[1], g)

    @cute.jit
    def _finish(self, totals, shared, split, channel, thread, sums):
        """Sums over the groups, in order."""
        for which in cutlass.range_constexpr(1 + self.rows - self.config.width):
            shared.sums[thread] = sums[which]
            cute.arch.sync_threads()
            limit = 1 if which else self.config.width
            if thread < limit:
                total = shared.sums[thread]
                for g in cutlass.range_constexpr(1, self.groups):
                    total = arithmetic.add(total, shared.sums[g * self.stride + thread])
                row = thread + which * self.config.width
                settle(totals, total, split, row, channel, self.rows)
            cute.arch.sync_threads()


class WideInitialStates:
    """The gradients of the initial states for wide filters: a block for each channel of each sequence."""

    def __init__(self, config):
        self.config, self.history = config, config.width - 1

    @cute.jit
    def launch(self, x, weight, bias, bounds, initial, dout, dfinal, dinitial, stream):
        self._kernel(x, weight, bias, bounds, initial, dout, dfinal, dinitial).launch(
            grid=[dinitial.shape[0] * dinitial.shape[1], 1, 1], block=[TOKENS, 1, 1], stream=stream
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
        i, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        r, channel = block // dinitial.shape[1], block % dinitial.shape[1]
        history, width = self.history, self.config.width
        start, end, b = Int32(0), x.shape[2], r
        if cutlass.const_expr(bounds is not None):
            start, end = parts.limits(bounds, r, x.shape[2])
            b = Int32(0)
        dz = _array(Float32, TOKENS)
        g = Float32(0.0)
        if i < history and start + i < end:
            z = Float32(0.0)
            for j in cutlass.range(width, unroll=1):
                value = Float32(0.0)
                if i + j < history:
                    value = parts.element(initial, r, channel, i + j)
                else:
                    value = parts.element(x, b, channel, start + i + j - history)
                z = arithmetic.fma(parts.element(weight, channel, j), value, z)
            if cutlass.const_expr(bias is not None):
                z = arithmetic.add(z, parts.element(bias, channel))
            g = parts.element(dout, b, channel, start + i)
            g = arithmetic.multiply(g, slope(self.config, z))
        dz[i] = g
        cute.arch.sync_threads()
        if i < history:
            total = Float32(0.0)
            for t in cutlass.range(i + 1, unroll=1):
                total = arithmetic.fma(parts.element(weight, channel, i - t), dz[t], total)
            if cutlass.const_expr(dfinal is not None):
                at = i - (end - start)
                if at >= 0:
                    total = arithmetic.add(total, parts.element(dfinal, r, channel, at))
            parts.put(dinitial.element_type, memory.address(dinitial, r, channel, i), total)
