"""Forward for contiguous channels: each thread walks along the tokens of a few channels. Imports the DSL.

A thread loads a vector of channels a token and keeps the last W - 1 tokens in registers. Threads are numbered along
channels first, then along spans of tokens, then batches, so that no thread is idle, whatever the extents.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32
from cutlass.cutlass_dsl import select_

from cudnn_core.hopper.convert import keep

from . import arithmetic, memory
from .config import ELEMENT_BYTES
from .sequences import (
    Operands,
    advance,
    before,
    channel_constants,
    copy_final_states,
    find,
    identity,
    is_sequence,
)


class ColumnsKernel:
    """See the module. `config` is a ForwardConv of layout "d"."""

    def __init__(self, config):
        self.config = config
        self.size = ELEMENT_BYTES[config.x]
        self.words = config.tile.vector // 4
        self.lanes = config.tile.vector // self.size
        self.walk = config.tile.walk

    @cute.kernel
    def kernel(
        self,
        arrays: tuple,
        blocks: Int32,
        units: Int32,
        span: Int32,
        vectors: cute.FastDivmodDivisorV2,
        spans: cute.FastDivmodDivisorV2,
    ):
        """units: threads that work; span: tokens of each; vectors, spans: how many a token and a row have."""
        ops = Operands(self.config, arrays)
        block, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(ops.final is None):
            self.compute(ops, block, units, span, vectors, spans)
        elif block < blocks:
            self.compute(ops, block, units, span, vectors, spans)
        else:
            copy_final_states(ops, block - blocks)

    @cute.jit
    def compute(self, ops: cutlass.Constexpr, block, units, span, vectors, spans):
        """The results of this thread's channels and tokens."""
        config = self.config
        steps, history = self.walk, config.history
        thread, _, _ = cute.arch.thread_idx()
        unit = block * config.tile.threads + thread
        if unit < units:
            rest, vector = divmod(unit, vectors)
            b, number = divmod(rest, spans)
            d, first = vector * self.lanes, number * span
            last = first + cutlass.min(span, ops.tokens - first)
            source = memory.address(ops.x, b, d, 0)
            target = memory.address(ops.out, b, d, 0)
            pitch = Int64(ops.x.stride[2]) * self.size
            out_pitch = Int64(ops.out.stride[2]) * self.size
            raw = cute.make_rmem_tensor(steps * self.words, Uint32)
            window = cute.make_rmem_tensor(history * self.lanes, Float32)
            ids = cute.make_rmem_tensor(history, Int32)
            r, start, end = b, Int32(0), ops.tokens
            if cutlass.const_expr(config.has_cu_seqlens):
                r, start, end = find(ops, first)
            self._open(ops, window, ids, b, d, first, source, pitch, r, start)
            weights, bias = channel_constants(ops, d, self.lanes, Boolean(True))
            if cutlass.const_expr(config.tile.ahead):
                self._load(raw, source, pitch, first, last)
            for token in cutlass.range(first, last, steps, unroll=1):
                if cutlass.const_expr(not config.tile.ahead):
                    self._load(raw, source, pitch, token, last)
                words = [raw[i] for i in range(steps * self.words)]
                own_ids = self._ids(ops, b, token)
                if cutlass.const_expr(config.tile.ahead):
                    self._load(raw, source, pitch, token + steps, last)
                for i in cutlass.range_constexpr(steps):
                    own = words[i * self.words : (i + 1) * self.words]
                    if cutlass.const_expr(config.has_cu_seqlens):
                        r, start, end = self._enter(ops, window, d, token + i, r, start, end)
                    results = self._results(window, ids, own, own_ids[i], weights, bias)
                    if cutlass.const_expr(config.has_cu_seqlens):
                        results = [keep(z, is_sequence(ops, r)) for z in results]
                    stored = memory.words_of(results, config.x)
                    at = target + Int64(token + i) * out_pitch
                    memory.store_words(at, stored, i < last - token)

    def _ids(self, ops, b, token):
        """seq_idx of the next tokens; None where there is none."""
        if not self.config.has_seq_idx:
            return [None] * self.walk
        return [identity(ops, b, token + i, Boolean(True)) for i in range(self.walk)]

    def _load(self, raw, source, pitch, token, last):
        at = source + Int64(token) * pitch
        for i in range(self.walk):
            words = memory.load_words(at, self.words, i < last - token)
            for j, word in enumerate(words):
                raw[i * self.words + j] = word
            at = at + pitch

    def _open(self, ops, window, ids, b, d, first, source, pitch, r, start):
        """Fills the window with what comes before the span."""
        history = self.config.history
        for k in range(history):
            token = first - history + k
            words = memory.load_words(source + Int64(token) * pitch, self.words, token >= start)
            for e, value in enumerate(memory.floats_of(words, self.config.x)):
                window[k * self.lanes + e] = value
            if self.config.has_seq_idx:
                ids[k] = identity(ops, b, token, Boolean(True))
        if self.config.has_initial:
            self._take_states(ops, window, d, first - start, r)

    @cute.jit
    def _take_states(self, ops: cutlass.Constexpr, window, d, age, r):
        """Puts the state of sequence r where the window reaches back before it; age: tokens since it began."""
        history = self.config.history
        if age < history:
            for e in cutlass.range_constexpr(self.lanes):
                entries = before(ops, r, d + e, age - history, Boolean(True), history)
                for k in cutlass.range_constexpr(history):
                    value, at = memory.float_of(entries[k], self.config.x), k * self.lanes + e
                    older = age - history + k < 0
                    window[at] = Float32(select_(older, value, window[at]))

    @cute.jit
    def _enter(self, ops: cutlass.Constexpr, window, d, token, r, start, end):
        """At the first token of a sequence: its state, or zeros, replaces the window."""
        if (token >= end) & (r < ops.cu_seqlens.shape[0] - 1):
            r, start, end = advance(ops, token, r, start, end)
            for i in cutlass.range_constexpr(self.config.history * self.lanes):
                window[i] = Float32(0.0)
            if cutlass.const_expr(self.config.has_initial):
                self._take_states(ops, window, d, token - start, r)
        return r, start, end

    def _results(self, window, ids, words, own_id, weights, bias):
        """Results of one token in FP32; the window moves on by it."""
        config, lanes, history = self.config, self.lanes, self.config.history
        own, results = memory.floats_of(words, config.x), []
        for e in range(lanes):
            taps = [window[k * lanes + e] for k in range(history)]
            if config.has_seq_idx:
                taps = [keep(tap, ids[k] == own_id) for k, tap in enumerate(taps)]
            z = arithmetic.tap_sum([*taps, own[e]], weights[e], bias[e])
            z = arithmetic.activate(z, config.activation)
            results.append(keep(z, own_id >= 0) if config.has_seq_idx else z)
        for k in range(history):
            for e in range(lanes):
                window[k * lanes + e] = window[(k + 1) * lanes + e] if k + 1 < history else own[e]
            if config.has_seq_idx:
                ids[k] = ids[k + 1] if k + 1 < history else own_id
        return results
