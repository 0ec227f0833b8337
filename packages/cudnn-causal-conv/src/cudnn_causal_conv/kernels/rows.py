"""Forward for contiguous tokens: each lane computes 8 tokens of a channel, from 16-byte loads. Imports the DSL.

Rows (b, d) are cut into chunks of 8 tokens that start at multiples of 16 bytes in memory, so a row whose first
address is no such multiple has a partial chunk at either end. Lanes take consecutive chunks and get the tokens before
their own from the lane to the left. Two ways of counting: `flat` numbers the chunks of all rows, so that short rows
share a warp; otherwise a warp's chunks are of one row, whose taps it loads once.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32
from cutlass.cutlass_dsl import select_

from cudnn_core.hopper.convert import keep

from . import arithmetic, memory
from .config import CHUNK, ELEMENT_BYTES, VECTOR_BYTES
from .sequences import (
    Operands,
    advance,
    before,
    bias_bits,
    bias_of,
    copy_final_states,
    find,
    identity,
    is_sequence,
    weight_bits,
    weights_of,
)


class Place(NamedTuple):
    """A lane's chunk: its row, number within the row, first token and the addresses of that token."""

    there: Boolean
    b: Int32
    d: Int32
    chunk: Int32
    token: Int32
    x: Int64
    out: Int64


class RowsKernel:
    """See the module. `config` is a ForwardConv of layout "t"."""

    def __init__(self, config, flat: bool):
        self.config = config
        self.flat = flat
        few = flat or config.has_seq_idx or config.has_cu_seqlens
        self.steps = config.tile.short_steps if few else config.tile.steps
        self.size = ELEMENT_BYTES[config.x]
        self.words = CHUNK * self.size // 4

    @property
    def reach(self) -> int:
        """Chunks that a warp walks over."""
        return 32 * self.steps

    @cute.kernel
    def kernel(
        self,
        arrays: tuple,
        blocks: Int32,
        units: Int32,
        per_row: cute.FastDivmodDivisorV2,
        channels: cute.FastDivmodDivisorV2,
    ):
        """units: chunks (flat) or warps' spans of chunks in all; per_row: how many of them a row has."""
        ops = Operands(self.config, arrays)
        block, _, _ = cute.arch.block_idx()
        if cutlass.const_expr(ops.final is None):
            self.compute(ops, block, units, per_row, channels)
        elif block < blocks:
            self.compute(ops, block, units, per_row, channels)
        else:
            copy_final_states(ops, block - blocks)

    @cute.jit
    def compute(self, ops: cutlass.Constexpr, block, units, per_row, channels):
        """The results of this thread's chunks."""
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        warp = block * (config.tile.threads // 32) + thread // 32
        lane = thread % 32
        places = self._places(ops, warp, lane, units, per_row, channels)
        steps = self.steps
        raw = cute.make_rmem_tensor((steps + 1) * self.words, Uint32)
        # Place -1 is what lane 0 needs from the left of the warp's first chunk.
        first = places[0]
        spans = [(first, first.token - CHUNK, first.there & (lane == 0) & (first.chunk > 0))]
        spans += [(place, place.token, place.there) for place in places]
        for i in cutlass.range_constexpr(steps + 1):
            self._load(ops, raw, i, *spans[i])
        zero = lane & (units >> 31)
        taps = [self._taps(ops, place, zero) for place in (places if self.flat else places[:1])]
        self._load_ragged(ops, raw, spans)
        sequence = None
        for i in cutlass.range_constexpr(steps):
            if cutlass.const_expr(self.config.has_cu_seqlens):
                sequence = self._sequence(ops, places[i], sequence)
            history = self._history(ops, raw, i, places[i], lane)
            bits, bias_word = taps[i if self.flat else 0]
            values = self._values(ops, places[i], history, raw, i, bits, bias_word, sequence)
            self._store(ops, places[i], values)

    def _places(self, ops, warp, lane, units, per_row, channels):
        """Where this lane's chunks are."""
        steps, places = self.steps, []
        if self.flat:
            for i in range(steps):
                unit = warp * self.reach + i * 32 + lane
                row, chunk = divmod(unit, per_row)
                places.append(self._place(ops, unit < units, row, chunk, channels))
            return places
        row, span = divmod(warp, per_row)
        start = span * self.reach + lane
        first = self._place(ops, warp < units, row, start, channels)
        for i in range(steps):
            ahead = i * 32 * CHUNK
            places.append(
                first._replace(
                    chunk=first.chunk + i * 32,
                    token=first.token + ahead,
                    x=first.x + ahead * self.size,
                    out=first.out + ahead * self.size,
                )
            )
        return places

    def _place(self, ops, there, row, chunk, channels):
        b, d = divmod(row, channels)
        x_row, out_row = memory.address(ops.x, b, d), memory.address(ops.out, b, d)
        # Chunks start at multiples of 16 bytes: the first one that many tokens before the row.
        lead = Int32(x_row & Int64(VECTOR_BYTES - 1)) // self.size
        token = chunk * CHUNK - lead
        ahead = Int64(token) * self.size
        return Place(there, b, d, chunk, token, x_row + ahead, out_row + ahead)

    def _taps(self, ops, place, zero):
        """Bits of the taps and the bias. zero: 0, of which the compiler does not know that all lanes have it.

        Without it, a warp would wait for taps that fit its uniform registers before it asks for its tokens.
        """
        d = place.d if self.flat else place.d + zero
        return weight_bits(ops, d, place.there), bias_bits(ops, d, place.there)

    def _is_full(self, ops, token):
        return (token >= 0) & (token <= ops.tokens - CHUNK)

    def _load(self, ops, raw, i, place, token, there):
        """The words of a chunk that lies inside its row."""
        valid = there & self._is_full(ops, token)
        at = place.x + Int64(token - place.token) * self.size
        words = []
        for part in range(self.words // 4):
            words += memory.load_words(at + VECTOR_BYTES * part, 4, valid)
        for j, word in enumerate(words):
            raw[i * self.words + j] = word

    def _is_ragged(self, ops, token, there):
        inside = (token > -CHUNK) & (token < ops.tokens)
        return there & inside & (self._is_full(ops, token) == Boolean(False))

    @cute.jit
    def _load_ragged(self, ops: cutlass.Constexpr, raw, spans: cutlass.Constexpr):
        """Chunks that stick out of their rows, element by element."""
        ragged = [self._is_ragged(ops, token, there) for _, token, there in spans]
        some = ragged[0]
        for other in ragged[1:]:
            some = some | other
        if some:
            for i in cutlass.range_constexpr(len(spans)):
                place, token, _ = spans[i]
                if ragged[i]:
                    bits = [self._token(ops, place, token + k) for k in range(CHUNK)]
                    words = memory.pack_bits(bits, self.config.x)
                    for j in cutlass.range_constexpr(self.words):
                        raw[i * self.words + j] = words[j]

    def _token(self, ops, place, token):
        """The bits of a token of the row, of what precedes the row, or 0 past its end."""
        at = place.x + Int64(token - place.token) * self.size
        exists = (token >= 0) & (token < ops.tokens)
        bits = memory.load_bits(at, self.config.x, exists)
        if self.config.has_initial and not self.config.has_cu_seqlens:
            return bits | before(ops, place.b, place.d, token, Boolean(True))[0]
        return bits

    def _history(self, ops, raw, i, place, lane):
        """The words of the tokens before the chunk, as far as taps reach back."""
        first = (CHUNK - self.config.history) * self.words // CHUNK
        left = [None] * self.words
        for j in range(first, self.words):
            here = raw[(i + 1) * self.words + j]
            # The left neighbour of lane 0 is lane 31 of the step before.
            sent = here if i == 0 else _choose(lane == 31, raw[i * self.words + j], here)
            got = cute.arch.shuffle_sync(sent, (lane + 31) % 32)
            left[j] = got if i else _choose(lane == 0, raw[j], got)
        return self._begin(ops, place, left, first)

    @cute.jit
    def _begin(self, ops: cutlass.Constexpr, place, left: cutlass.Constexpr, first):
        """Replaces what stands before a row's first chunk by the initial state, or by zeros."""
        words = [_choose(place.chunk == 0, Uint32(0), w) for w in left[first:]]
        if cutlass.const_expr(ops.initial is not None and ops.cu_seqlens is None):
            held = cute.make_rmem_tensor(len(words), Uint32)
            for j in cutlass.range_constexpr(len(words)):
                held[j] = words[j]
            if place.there & (place.chunk == 0):
                token = place.token - CHUNK
                bits = before(ops, place.b, place.d, token, Boolean(True), CHUNK)
                packed = memory.pack_bits(bits, self.config.x)
                for j in cutlass.range_constexpr(len(words)):
                    held[j] = packed[first + j]
            words = [held[j] for j in range(len(words))]
        return words

    def _values(self, ops, place, history, raw, i, bits, bias_word, sequence):
        """The chunk's 8 results in FP32."""
        config = self.config
        weights, bias = weights_of(bits, config), bias_of(bias_word, config)
        earlier = memory.floats_of(history, config.x)[-config.history :]
        own = [raw[(i + 1) * self.words + j] for j in range(self.words)]
        window = earlier + memory.floats_of(own, config.x)
        if config.has_seq_idx:
            return self._of_ids(ops, place, window, weights, bias)
        if config.has_cu_seqlens:
            return self._of_packed(ops, place, window, weights, bias, *sequence)
        return [self._result(window[k:], weights, bias) for k in range(CHUNK)]

    def _result(self, taps, weights, bias):
        z = arithmetic.tap_sum(taps[: self.config.width], weights, bias)
        return arithmetic.activate(z, self.config.activation)

    def _of_ids(self, ops, place, window, weights, bias):
        """Taps of tokens with another seq_idx count as zeros; results of padding are zeros."""
        history = self.config.history
        ids = self._ids(ops, place)
        results = []
        for k in range(CHUNK):
            own = ids[k + history]
            taps = [keep(window[k + j], ids[k + j] == own) for j in range(history + 1)]
            results.append(keep(self._result(taps, weights, bias), own >= 0))
        return results

    def _sequence(self, ops, place, earlier):
        """`find` for the chunk's first token that exists; along a row from what an earlier chunk is in."""
        token = cutlass.min(cutlass.max(place.token, Int32(0)), ops.tokens - 1)
        if earlier is None or self.flat:
            return find(ops, token)
        return advance(ops, token, *earlier)

    @cute.jit
    def _ids(self, ops: cutlass.Constexpr, place):
        """seq_idx of the window's tokens; 16 bytes at a time where all exist and addresses allow it."""
        history = self.config.history
        ids = cute.make_rmem_tensor(history + CHUNK, Int32)
        # Whole vectors of 4 that hold the history.
        lead = (history + 3) // 4 * 4
        at = memory.address(ops.seq_idx, place.b, place.token - lead)
        wide = place.there & (place.token >= lead) & self._is_full(ops, place.token)
        wide = wide & (ops.seq_idx.stride[1] == 1) & ((at & Int64(VECTOR_BYTES - 1)) == 0)
        if wide:
            words = []
            for i in cutlass.range_constexpr((lead + CHUNK) // 4):
                words += memory.load_words(at + VECTOR_BYTES * i, 4, Boolean(True))
            for k in cutlass.range_constexpr(history + CHUNK):
                ids[k] = words[lead - history + k].bitcast(Int32)
        else:
            for k in cutlass.range_constexpr(history + CHUNK):
                ids[k] = identity(ops, place.b, place.token - history + k, place.there)
        return [ids[k] for k in range(history + CHUNK)]

    @cute.jit
    def _of_packed(
        self,
        ops: cutlass.Constexpr,
        place,
        window: cutlass.Constexpr,
        weights,
        bias,
        r,
        start,
        end,
    ):
        """Chunks in which a sequence begins, or just before which one did, are computed for each of theirs."""
        history = self.config.history
        results = cute.make_rmem_tensor(CHUNK, Float32)
        first = place.token
        last = first + cutlass.min(CHUNK, ops.tokens - first)
        if (start <= first - history) & (end >= last) & is_sequence(ops, r):
            for k in cutlass.range_constexpr(CHUNK):
                results[k] = self._result(window[k:], weights, bias)
        else:
            for k in cutlass.range_constexpr(CHUNK):
                results[k] = Float32(0.0)
            more = Boolean(True)
            while more:
                seen = self._seen(ops, place, window, r, start)
                for k in cutlass.range_constexpr(CHUNK):
                    result = self._result(seen[k:], weights, bias)
                    own = (first + k >= start) & (first + k < end) & is_sequence(ops, r)
                    results[k] = _choose(own, result, results[k])
                more = end < last
                r, start, end = advance(ops, cutlass.min(end, last), r, start, end)
        return [results[k] for k in range(CHUNK)]

    def _seen(self, ops, place, window, r, start):
        """The window as sequence r has it: what stands before its first token is its state, or zeros."""
        history = self.config.history
        offset = place.token - history - start
        earlier = before(ops, r, place.d, offset, place.there, history + CHUNK - 1)
        earlier = [memory.float_of(bits, self.config.x) for bits in earlier]
        return [
            value if j == len(earlier) else _choose(offset + j >= 0, value, earlier[j])
            for j, value in enumerate(window)
        ]

    @cute.jit
    def _store(self, ops: cutlass.Constexpr, place, values: cutlass.Constexpr):
        words = memory.words_of(values, self.config.x)
        valid = place.there & self._is_full(ops, place.token)
        for part in cutlass.range_constexpr(self.words // 4):
            at = place.out + VECTOR_BYTES * part
            memory.store_words(at, words[4 * part : 4 * part + 4], valid)
        if self._is_ragged(ops, place.token, place.there):
            bits = memory.unpack_bits(words, self.config.x)
            for k in cutlass.range_constexpr(CHUNK):
                exists = (place.token + k >= 0) & (place.token + k < ops.tokens)
                memory.store_bits(place.out + k * self.size, bits[k], self.config.x, exists)


def _choose(condition, x, y):
    """x where the condition holds, otherwise y; y is a DSL value."""
    return type(y)(select_(condition, x, y))
