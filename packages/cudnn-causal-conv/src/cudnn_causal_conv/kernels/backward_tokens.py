"""Backward over token-contiguous rows: (B, D, T) with T innermost, or any strides, slower.

`lanes` lanes of a warp share a chunk of 8 * lanes tokens of a row, eight consecutive ones each, and the warp walks its
chunks from the last to the first. Then what a chunk's last inputs get from later tokens was computed one step before:
the gradients dz of the first tokens of the later chunk wait in registers of lane 0. Inputs before a lane's own are
loaded, not exchanged: they lie in the cache. Weight gradients stay in registers for the whole walk.

Chunks start at multiples of 16 bytes in memory, so a row of x whose first address is no such multiple begins `skew`
tokens into its first lane; what lies in a lane before the row or after it counts as tokens that do not exist.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from . import arithmetic, memory, parts
from .config import CHUNK as TOKENS
from .config import ELEMENT_BYTES, VECTOR_BYTES

WARPS = 4


class Walk:
    """Where this thread is: its channel, its place among the lanes of a row, its warp's chunks."""

    def __init__(self, x, splits, lanes, spare):
        self.batches, self.channels, self.tokens = x.shape
        self.lanes, self.spare = lanes, spare
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lane = thread % 32
        self.lane = lane % lanes
        self.peer = (lane - self.lane) + (self.lane + 1) % lanes
        rows = 32 // lanes
        tiles = (self.channels + WARPS * rows - 1) // (WARPS * rows)
        self.split = block // tiles
        row = (block % tiles * WARPS + thread // 32) * rows + lane // lanes
        self.exists = row < self.channels
        # Lanes without a channel keep the warp whole; they store nothing.
        self.channel = cutlass.min(row, self.channels - 1)
        self.step = lanes * TOKENS
        self.per_row = (self.tokens + spare + self.step - 1) // self.step
        total = self.batches * self.per_row
        share = (total + splits - 1) // splits
        self.first = cutlass.min(self.split * share, total)
        self.end = cutlass.min(self.first + share, total)


class TokenRows:
    """vector: 16-byte accesses; otherwise element by element, at any strides."""

    def __init__(self, config, vector: bool, depth: int = 2, blocks_per_sm: int = 0):
        self.config, self.vector = config, vector
        self.depth = depth if vector else 1
        self.blocks_per_sm = blocks_per_sm
        self.carveout = 0
        self.history = config.width - 1
        # Inputs before a lane's own that one access brings.
        self.halo = 4 if self.history <= 4 else 8
        self.segmented = config.has_seq_idx or config.has_cu_seqlens
        count = parts.words_in
        self.counts = [count(config.x, n) for n in (TOKENS, self.halo, TOKENS)]

    @cute.jit
    def launch(
        self,
        x,
        weight,
        bias,
        ids,
        bounds,
        initial,
        dout,
        dfinal,
        dx,
        partials,
        splits,
        lanes,
        spare,
        stream,
    ):
        rows = WARPS * (32 // lanes)
        tiles = (x.shape[1] + rows - 1) // rows
        self._kernel(
            x, weight, bias, ids, bounds, initial, dout, dfinal, dx, partials, splits, lanes, spare
        ).launch(
            grid=[tiles * splits, 1, 1],
            block=[32 * WARPS, 1, 1],
            min_blocks_per_mp=self.blocks_per_sm,
            preferred_smem_carveout=self.carveout,
            stream=stream,
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
        partials: cute.Tensor,
        splits: Int32,
        lanes: Int32,
        spare: Int32,
    ):
        """spare: the largest skew of a row of x."""
        config, depth = self.config, self.depth
        walk = Walk(x, splits, lanes, spare)
        taps = parts.Taps(config, weight, bias, walk.channel)
        sums = cute.make_rmem_tensor(config.width + 1, Float32)
        carry = cute.make_rmem_tensor(self.history, Float32)
        for j in cutlass.range_constexpr(config.width + 1):
            sums[j] = Float32(0.0)
        for k in cutlass.range_constexpr(self.history):
            carry[k] = Float32(0.0)
        # A walk that ends inside a row first computes the gradients of the chunk after it.
        warm = Int32(0)
        if walk.end % walk.per_row != 0:
            warm = Int32(1)
        chunks = walk.end - walk.first
        if chunks > 0:
            chunks = chunks + warm
        start = walk.end + warm - 1
        load_b, load_c = start // walk.per_row, start % walk.per_row
        b, c = load_b, load_c
        # Where the walk's rows begin; the loads run ahead of the stores by `depth` chunks.
        starts = cute.make_rmem_tensor(3, Int64)
        for i, tensor in enumerate((x, dout, dx)):
            starts[i] = memory.address(tensor, b, walk.channel)
        back = [Int64(t.stride[0]) * (t.element_type.width // 8) for t in (x, dout, dx)]
        # The address of the row of x whose chunk is computed, as far as it matters to the skew.
        low = Int32(starts[0] & Int64(VECTOR_BYTES - 1))
        per_stage = sum(self.counts)
        stages = cute.make_rmem_tensor(depth * per_stage, Uint32)
        operands = parts.Operands(x, ids, bounds, initial, dout, dfinal, dx)
        for i in cutlass.range(-depth, chunks, depth, unroll=1):
            for s in cutlass.range_constexpr(depth):
                words = [stages[s * per_stage + w] for w in range(per_stage)]
                if i + s + depth < chunks:
                    self._fetch(stages, s * per_stage, walk, starts, operands, load_c)
                    load_c = load_c - 1
                    if load_c < 0:
                        load_c = walk.per_row - 1
                        starts[0] = starts[0] - back[0]
                        starts[1] = starts[1] - back[1]
                if i + s >= 0 and i + s < chunks:
                    own = i + s >= warm
                    where = (b, c, own, skew_of(walk, low, config.x), starts[2])
                    self._chunk(walk, taps, words, where, operands, sums, carry)
                    c = c - 1
                    if c < 0:
                        c = walk.per_row - 1
                        b = b - 1
                        starts[2] = starts[2] - back[2]
                        low = low - Int32(back[0] & Int64(VECTOR_BYTES - 1))
        # The launch that adds the splits may begin to wait for the last blocks.
        cute.arch.griddepcontrol_launch_dependents()
        self._finish(walk, partials, sums)

    @cute.jit
    def _fetch(self, stages, base, walk, starts, operands, c):
        """Issues the loads of a chunk: own inputs, inputs before them, gradients of outputs."""
        dtype = self.config.x
        low = Int32(starts[0] & Int64(VECTOR_BYTES - 1))
        t = (c * walk.lanes + walk.lane) * TOKENS - skew_of(walk, low, dtype)
        if cutlass.const_expr(self.vector):
            if t >= 0 and t <= walk.tokens - TOKENS:
                size = ELEMENT_BYTES[dtype]
                at = Int64(t) * size
                # With a skew, the second lane's reach begins in the first one's 16 bytes, before the row.
                before = at - self.halo * size
                if t < self.halo and low == 0:
                    before = at
                self._keep_words(
                    stages,
                    base,
                    [
                        *parts.load_packed(starts[0] + at, dtype, TOKENS),
                        *parts.load_packed(starts[0] + before, dtype, self.halo),
                        *parts.load_packed(starts[1] + at, dtype, TOKENS),
                    ],
                )
            else:
                self._fetch_ragged(stages, base, walk, starts, operands, t)
        else:
            self._fetch_ragged(stages, base, walk, starts, operands, t)

    def _fetch_ragged(self, stages, base, walk, starts, operands, t):
        x, dout = operands.x, operands.dout
        words = [
            *self._gather(x, starts[0], walk, t, TOKENS),
            *self._gather(x, starts[0], walk, t - self.halo, self.halo),
            *self._gather(dout, starts[1], walk, t, TOKENS),
        ]
        self._keep_words(stages, base, words)

    def _keep_words(self, stages, base, words):
        for w, word in enumerate(words):
            stages[base + w] = word

    def _gather(self, tensor, start, walk, t, count):
        """`count` elements from t on, one by one; places outside the row give its nearest."""
        dtype, last = self.config.x, walk.tokens - 1
        step = Int64(tensor.stride[2]) * ELEMENT_BYTES[dtype]
        places = [cutlass.min(cutlass.max(t + i, 0), last) for i in range(count)]
        return memory.pack_bits(
            [parts.load_lone(start + Int64(place) * step, dtype) for place in places], dtype
        )

    @cute.jit
    def _chunk(self, walk, taps, words, where, operands, sums, carry):
        ids, initial, dfinal = operands.ids, operands.initial, operands.dfinal
        b, c, own, skew, target = where
        dtype, history = self.config.x, self.history
        n_x, n_halo, _ = self.counts
        span = cute.make_rmem_tensor(history + TOKENS, Float32)
        found = memory.floats_of(words[n_x : n_x + n_halo] + words[:n_x], dtype)
        for k in cutlass.range_constexpr(history + TOKENS):
            span[k] = found[self.halo - history + k]
        douts = memory.floats_of(words[n_x + n_halo :], dtype)
        t0 = c * walk.step
        t = t0 + walk.lane * TOKENS - skew
        if c == 0:
            self._begin(span, walk, ids, initial, b, t)
        if c == walk.per_row - 1:
            for k in cutlass.range_constexpr(history):
                carry[k] = Float32(0.0)
        margin = history if dfinal is not None else 0
        plain = own and t0 <= walk.tokens - walk.step - margin and (c > 0 or walk.spare == 0)
        if cutlass.const_expr(self.segmented):
            plain = plain and self._one_sequence(walk, ids, b, t0)
        place = (b, t, own, target)
        if plain:
            self._tokens(walk, taps, span, douts, place, operands, sums, carry, True)
        else:
            self._tokens(walk, taps, span, douts, place, operands, sums, carry, False)

    @cute.jit
    def _begin(self, span, walk, ids, initial, b, t):
        """What stands before a row: its initial state, or zeros."""
        history = self.history
        for k in cutlass.range_constexpr(history + TOKENS):
            span[k] = parts.keep(span[k], t + k >= history)
        if cutlass.const_expr(initial is not None):
            n = b
            if cutlass.const_expr(self.segmented):
                n = parts.sequence_at(ids, b, 0)
            if n >= 0 and t < history:
                for k in cutlass.range_constexpr(history + TOKENS):
                    # The state's last entry is token -1, which is place `history - 1 - t`.
                    at = t + k
                    if at >= 0 and at < history:
                        span[k] = parts.element(initial, n, walk.channel, at)

    @cute.jit
    def _one_sequence(self, walk, ids, b, t0):
        """Whether the chunk and `history` tokens around it belong to one sequence, in all lanes."""
        last = walk.tokens - 1
        name = parts.sequence_at(ids, b, t0)
        same = name >= 0
        lane, _, _ = cute.arch.thread_idx()
        for i in cutlass.range_constexpr(TOKENS):
            place = cutlass.min(t0 + i * walk.lanes + walk.lane, last)
            same = same & (parts.sequence_at(ids, b, place) == name)
        # Lanes 0..15 look before the chunk, the others after it; no reach is longer than 14.
        reach = cutlass.min(lane % 16 + 1, walk.spare + self.history)
        place = t0 - reach
        if lane % 32 >= 16:
            place = t0 + walk.step - 1 + reach
        place = cutlass.min(cutlass.max(place, 0), last)
        same = same & (parts.sequence_at(ids, b, place) == name)
        return cute.arch.vote_all_sync(same)

    @cute.jit
    def _tokens(
        self, walk, taps, span, douts, where, operands, sums, carry, plain: cutlass.Constexpr
    ):
        """Eight tokens of a lane. plain: all exist, are the walk's own and see a full history."""
        ids, bounds, initial = operands.ids, operands.bounds, operands.initial
        b, t, own, _target = where
        width, history = self.config.width, self.history
        span = [span[k] for k in range(history + TOKENS)]
        masks = None
        if cutlass.const_expr(not plain):
            masks = Masks(self, walk, ids, bounds, b, t)
        dz = []
        for i in cutlass.range_constexpr(TOKENS):
            inside = [span[history + i - k] for k in range(width)]
            if cutlass.const_expr(not plain):
                inside = self._masked(walk, masks, initial, inside, t + i, i)
            g = taps.dz(inside, douts[i])
            if cutlass.const_expr(plain):
                self._accumulate(sums, g, inside)
            else:
                g = parts.keep(g, masks.counts(i))
                if own:
                    self._accumulate(sums, g, inside)
            dz.append(g)
        # Lane 0 hands the later chunk's first gradients to the last lane, and keeps its own.
        later = []
        for k in cutlass.range_constexpr(history):
            sent = parts.choose(walk.lane == 0, carry[k], dz[k])
            later.append(cute.arch.shuffle_sync(sent, walk.peer))
            carry[k] = dz[k]
        self._store(walk, taps, dz + later, where, masks, operands, plain)

    def _accumulate(self, sums, g, inside):
        width = self.config.width
        for j in range(width):
            sums[j] = arithmetic.fma(g, inside[width - 1 - j], sums[j])
        sums[width] = arithmetic.add(sums[width], g)

    @cute.jit
    def _masked(self, walk, masks, initial, inside, place, i: cutlass.Constexpr):
        """The history that token i sees: nothing of other sequences, the initial state before its own."""
        seen = [parts.keep(inside[k], masks.sees(i, k)) for k in range(len(inside))]
        if cutlass.const_expr(initial is not None and self.segmented):
            held = cute.make_rmem_tensor(len(seen), Float32)
            for k in cutlass.range_constexpr(len(seen)):
                held[k] = seen[k]
            name = masks.name(i)
            if masks.strays(i):
                start, _ = limits_of(masks, i)
                for k in cutlass.range_constexpr(1, len(seen)):
                    at = place - k - start + self.history
                    if at < self.history and at >= 0:
                        held[k] = parts.element(initial, name, walk.channel, at)
            seen = [held[k] for k in range(len(seen))]
        return seen

    @cute.jit
    def _store(self, walk, taps, dz, where, masks, operands, plain: cutlass.Constexpr):
        dfinal, dx = operands.dfinal, operands.dx
        _b, t, own, target = where
        made = []
        for i in cutlass.range_constexpr(TOKENS):
            total = taps.spread(dz[i], 0, None)
            for k in cutlass.range_constexpr(1, self.config.width):
                g = dz[i + k]
                if cutlass.const_expr(not plain):
                    g = parts.keep(g, masks.sees(i + k, k))
                total = taps.spread(g, k, total)
            made.append(total)
        if cutlass.const_expr(plain):
            if walk.exists:
                self._write(dx, target, t, made)
        else:
            if cutlass.const_expr(dfinal is not None):
                made = self._add_final(walk, masks, dfinal, made, t)
            if own and walk.exists:
                if cutlass.const_expr(self.vector):
                    if t >= 0 and t <= walk.tokens - TOKENS:
                        self._write(dx, target, t, made)
                    else:
                        self._write_ragged(walk, dx, target, t, made)
                else:
                    self._write_ragged(walk, dx, target, t, made)

    @cute.jit
    def _add_final(self, walk, masks, dfinal, made, t):
        """Adds the gradient of the final states to the inputs that they copied."""
        held = cute.make_rmem_tensor(TOKENS, Float32)
        for i in cutlass.range_constexpr(TOKENS):
            held[i] = made[i]
            name = masks.name(i)
            if masks.counts(i):
                _, end = limits_of(masks, i)
                at = t + i - end + self.history
                if at >= 0 and at < self.history:
                    more = parts.element(dfinal, name, walk.channel, at)
                    held[i] = arithmetic.add(held[i], more)
        return [held[i] for i in range(TOKENS)]

    def _write(self, dx, target, t, made):
        if self.vector:
            size = ELEMENT_BYTES[self.config.x]
            parts.store_packed(target + Int64(t) * size, made, self.config.x)
        else:
            for i, value in enumerate(made):
                self._write_lone(dx, target, t + i, value)

    @cute.jit
    def _write_ragged(self, walk, dx, target, t, made):
        for i in cutlass.range_constexpr(TOKENS):
            if t + i >= 0 and t + i < walk.tokens:
                self._write_lone(dx, target, t + i, made[i])

    def _write_lone(self, dx, target, t, value):
        step = Int64(dx.stride[2]) * ELEMENT_BYTES[self.config.x]
        parts.put(dx.element_type, target + Int64(t) * step, value)

    @cute.jit
    def _finish(self, walk, partials, sums):
        """Sums over the lanes of a row, in a fixed tree; the first lane writes them."""
        rows = self.config.width + (self.config.bias is not None)
        for j in cutlass.range_constexpr(rows):
            total = sums[j]
            for distance in (16, 8, 4, 2, 1):
                other = cute.arch.shuffle_sync_bfly(total, distance)
                total = parts.choose(distance < walk.lanes, arithmetic.add(total, other), total)
            if walk.lane == 0 and walk.exists:
                parts.put_partial(partials, total, walk.split, j, walk.channel, rows, walk.channels)


class Masks:
    """What the eight tokens of a lane may see of others, where not all of them may see all."""

    def __init__(self, kernel, walk, ids, bounds, b, t):
        self.bounds, self.b, self.t, self.tokens = bounds, b, t, walk.tokens
        self.history, self.segmented = kernel.history, kernel.segmented
        if self.segmented:
            last = walk.tokens - 1
            places = range(-self.history, TOKENS + self.history)
            self.names = [
                parts.sequence_at(ids, b, cutlass.min(cutlass.max(t + i, 0), last)) for i in places
            ]

    def name(self, i):
        """Which sequence token i belongs to: the batch, or an entry of cu_seqlens."""
        return self.names[self.history + i] if self.segmented else self.b

    def counts(self, i):
        """Whether token i exists and is no padding."""
        exists = (self.t + i >= 0) & (self.t + i < self.tokens)
        return exists & (self.name(i) >= 0) if self.segmented else exists

    def sees(self, i, k):
        """Whether the input k tokens before token i reaches it."""
        if not self.segmented:
            return self.counts(i)
        return self.counts(i) & (self.names[self.history + i - k] == self.name(i))

    def strays(self, i):
        """Whether token i looks back past the start of its sequence."""
        return self.counts(i) & ~self.sees(i, self.history)


def limits_of(masks, i):
    """First token of the sequence of token i and the one after its last."""
    if masks.bounds is None:
        return Int32(0), masks.tokens
    return parts.limits(masks.bounds, masks.names[masks.history + i], masks.tokens)


def skew_of(walk, low, dtype):
    """Tokens of a row that its first 16 bytes leave out, from the low bits of its address."""
    return cutlass.min((low & (VECTOR_BYTES - 1)) // ELEMENT_BYTES[dtype], walk.spare)


@cute.jit
def lanes_of(tokens):
    """Lanes that share a row: fewer where rows are short, so that none idles."""
    lanes = Int32(32)
    if tokens <= 16 * TOKENS:
        lanes = Int32(16)
    if tokens <= 8 * TOKENS:
        lanes = Int32(8)
    if tokens <= 4 * TOKENS:
        lanes = Int32(4)
    return lanes
