"""Forward for any strides, addresses and widths: each thread computes 8 tokens of a channel. Imports the DSL.

Element loads, from a ring of 8 tokens that moves along the taps: 2 loads for 8 products. Neighbouring threads take
neighbouring chunks of tokens, or neighbouring channels where those lie closer together.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cutlass_dsl import select_

from cudnn_core.hopper.convert import keep

from . import arithmetic, memory
from .config import CHUNK, WIDEST_UNROLLED
from .sequences import (
    Operands,
    advance,
    before,
    bias_bits,
    bias_of,
    copy_final_states,
    element,
    find,
    identity,
    is_sequence,
)


class StridedKernel:
    """See the module. `config` is a ForwardConv of any layout."""

    def __init__(self, config):
        self.config = config

    @cute.kernel
    def kernel(
        self,
        arrays: tuple,
        blocks: Int32,
        along_channels: Boolean,
    ):
        ops = Operands(self.config, arrays)
        block, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(ops.final is None):
            self.compute(ops, block, along_channels)
        elif block < blocks:
            self.compute(ops, block, along_channels)
        else:
            copy_final_states(ops, block - blocks)

    @cute.jit
    def compute(self, ops: cutlass.Constexpr, block, along_channels):
        """The results of this thread's chunk."""
        thread, _, _ = cute.arch.thread_idx()
        unit = Int64(block) * self.config.tile.threads + Int64(thread)
        chunks = (Int64(ops.tokens) + CHUNK - 1) // CHUNK
        channels = Int64(ops.channels)
        per_batch = channels * chunks
        if unit < Int64(ops.batches) * per_batch:
            b, rest = Int32(unit // per_batch), unit % per_batch
            d, chunk = Int32(rest // chunks), Int32(rest % chunks)
            if along_channels:
                d, chunk = Int32(rest % channels), Int32(rest // channels)
            self._chunk(ops, b, d, chunk * CHUNK)

    @cute.jit
    def _chunk(self, ops: cutlass.Constexpr, b, d, first):
        config = self.config
        history, packed = config.history, config.has_cu_seqlens
        # What the ring holds at tap j: tokens first - history + j ... + 7, token q of them at q % 8.
        ring = cute.make_rmem_tensor(CHUNK, Float32)
        ids = cute.make_rmem_tensor(CHUNK, Int32)
        own = cute.make_rmem_tensor(CHUNK, Int32)
        starts = cute.make_rmem_tensor(CHUNK, Int32)
        sums = cute.make_rmem_tensor(CHUNK, Float32)
        r, start, end = b, Int32(0), ops.tokens
        if cutlass.const_expr(packed):
            r, start, end = find(ops, first)
        for k in cutlass.range_constexpr(CHUNK):
            sums[k] = Float32(0.0)
            if cutlass.const_expr(packed):
                r, start, end = advance(ops, first + k, r, start, end)
                starts[k], own[k] = start, r
            if cutlass.const_expr(config.has_seq_idx):
                own[k] = identity(ops, b, first + k, first + k < ops.tokens)
        for k in cutlass.range_constexpr(CHUNK - 1):
            self._fetch(ops, ring, ids, b, d, first - history, k)
        state = (ring, ids, own, starts, sums)
        whole = config.width // CHUNK * CHUNK
        if cutlass.const_expr(config.width > WIDEST_UNROLLED):
            for tap in cutlass.range(0, whole, CHUNK, unroll=1):
                for k in cutlass.range_constexpr(CHUNK):
                    self._tap(ops, state, b, d, first, tap, k)
            for k in cutlass.range_constexpr(config.width - whole):
                self._tap(ops, state, b, d, first, Int32(whole), k)
        else:
            for k in cutlass.range_constexpr(config.width):
                self._tap(ops, state, b, d, first, Int32(0), k)
        self._finish(ops, sums, own, b, d, first)

    def _fetch(self, ops, ring, ids, b, d, base, place):
        """Token base + place into the ring; base is a multiple of 8 behind the ring's first."""
        token, at = base + place, place % CHUNK
        bits = element(ops, b, d, token, (token >= 0) & (token < ops.tokens))
        if self.config.has_initial and not self.config.has_cu_seqlens:
            bits = bits | before(ops, b, d, token, token < 0)[0]
        ring[at] = memory.float_of(bits, self.config.x)
        if self.config.has_seq_idx:
            ids[at] = identity(ops, b, token, Boolean(True))

    def _tap(self, ops, state, b, d, first, base, k):
        """Adds tap base + k to all 8 sums."""
        config = self.config
        ring, ids, own, starts, sums = state
        self._fetch(ops, ring, ids, b, d, first - config.history + base, k + CHUNK - 1)
        at = memory.address(ops.weight, d, base + k)
        weight = memory.float_of(memory.load_bits(at, config.weight, Boolean(True)), config.weight)
        for i in range(CHUNK):
            value = ring[(i + k) % CHUNK]
            if config.has_seq_idx:
                value = keep(value, ids[(i + k) % CHUNK] == own[i])
            if config.has_cu_seqlens:
                offset = first + i - config.history + base + k - starts[i]
                (earlier,) = before(ops, own[i], d, offset, Boolean(True))
                earlier = memory.float_of(earlier, config.x)
                value = Float32(select_(offset >= 0, value, earlier))
            sums[i] = arithmetic.fma(weight, value, sums[i])

    def _finish(self, ops, sums, own, b, d, first):
        """Bias, activation, rounding, and the stores of tokens that exist."""
        config = self.config
        bias = bias_of(bias_bits(ops, d, Boolean(True)), config)
        for i in range(CHUNK):
            z = sums[i] if bias is None else arithmetic.add(sums[i], bias)
            z = arithmetic.activate(z, config.activation)
            if config.has_seq_idx:
                z = keep(z, own[i] >= 0)
            if config.has_cu_seqlens:
                z = keep(z, is_sequence(ops, own[i]))
            at = memory.address(ops.out, b, d, first + i)
            memory.store_bits(at, memory.bits_of(z, config.x), config.x, i < ops.tokens - first)
