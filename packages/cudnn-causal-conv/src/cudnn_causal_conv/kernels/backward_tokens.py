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
from cutlass import Float32, Int32, Int64, Uint8, Uint32

from . import arithmetic, memory, parts
from .config import CHUNK as TOKENS
from .config import ELEMENT_BYTES, VECTOR_BYTES
from .reduce import Totals, settle


class Walk:
    """Where this thread is: its channel, its place among the lanes of a row, its warp's chunks."""

    def __init__(self, warps, x, splits, fold, spare, margin):
        self.batches, self.channels, self.tokens = x.shape
        # What costs nothing to compute again need not wait in registers: no division.
        self.lanes, self.spare = Int32(1) << fold, spare
        thread, _, _ = cute.arch.thread_idx()
        tile, self.split, _ = cute.arch.block_idx()
        lane = thread % 32
        self.lane = lane & (self.lanes - 1)
        self.peer = (lane - self.lane) + ((self.lane + 1) & (self.lanes - 1))
        row = (tile * warps + thread // 32) * (Int32(32) >> fold) + (lane >> fold)
        self.exists = row < self.channels
        # Lanes without a channel keep the warp whole; they store nothing.
        self.channel = cutlass.min(row, self.channels - 1)
        self.step, self.own = self.lanes * TOKENS, self.lane * TOKENS
        self.per_row = (self.tokens + spare + self.step - 1) // self.step
        # The chunks of a row whose tokens all exist, `margin` of them after the chunk too.
        self.plain_first = cutlass.min(spare, 1)
        self.plain_end = cutlass.max(self.tokens - margin, 0) // self.step
        total = self.batches * self.per_row
        share = (total + splits - 1) // splits
        # Whole rows where there are several: no chunk is computed twice.
        share = parts.choose(
            share > self.per_row,
            (share + self.per_row - 1) // self.per_row * self.per_row,
            share,
        )
        self.first = cutlass.min(self.split * share, total)
        self.end = cutlass.min(self.first + share, total)


def skew_of(walk, address, dtype):
    """Tokens of a row that its first 16 bytes leave out."""
    low = Int32(address & Int64(VECTOR_BYTES - 1))
    return cutlass.min(low // ELEMENT_BYTES[dtype], walk.spare)


class TokenRows:
    """vector: 16-byte copies, `depth` - 1 chunks ahead; otherwise element by element, at any strides."""

    def __init__(
        self,
        config,
        vector: bool,
        warps: int = 2,
        depth: int = 3,
        group: int = 4,
        blocks_per_sm: int = 0,
    ):
        self.config, self.vector = config, vector
        self.warps, self.depth = warps, depth if vector else 1
        # Of a ring's slot: 16 bytes of each thread, of which a short halo leaves some empty.
        self.piece = VECTOR_BYTES * 32 * warps
        self.blocks_per_sm = blocks_per_sm
        # Tokens whose gradients are computed side by side.
        self.group = group
        self.carveout = 50 if vector else 0
        self.history = config.width - 1
        # Inputs before a lane's own that one access brings.
        self.halo = 4 if self.history <= 4 else 8
        self.segmented = config.has_seq_idx or config.has_cu_seqlens
        size = ELEMENT_BYTES[config.x]
        # A thread's bytes of a chunk: own inputs, inputs before them, gradients of outputs.
        self.sizes = (TOKENS * size, self.halo * size, TOKENS * size)
        self.slot = sum(-(-size // VECTOR_BYTES) for size in self.sizes) * self.piece

    @cute.jit
    def launch(self, arrays: cutlass.Constexpr, splits, fold, spare, stream):
        """arrays: as `_kernel` takes them, and the other numbers too."""
        rows = Int32(32 * self.warps) >> fold
        self._kernel(*arrays, splits, fold, spare).launch(
            grid=[(arrays[0].shape[1] + rows - 1) // rows, splits, 1],
            block=[32 * self.warps, 1, 1],
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
        dweight: cute.Tensor,
        dbias,
        partials: cute.Tensor,
        splits: Int32,
        fold: Int32,
        spare: Int32,
    ):
        """fold: log2 of the lanes that share a row. spare: the largest skew of a row of x."""
        config = self.config
        margin = self.history if dfinal is not None else 0
        walk = Walk(self.warps, x, splits, fold, spare, margin)
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
        operands = parts.Operands(x, ids, bounds, initial, dout, dfinal, dx)
        self._walk(walk, taps, operands, walk.end + warm - 1, chunks, warm, sums, carry)
        # The launch that adds the splits may begin to wait for the last blocks.
        cute.arch.griddepcontrol_launch_dependents()
        self._finish(walk, Totals(dweight, dbias, partials, splits), sums)

    @cute.jit
    def _walk(self, walk, taps, operands, start, chunks, warm, sums, carry):
        """Chunks from number `start` of all rows backwards; the copies run ahead of the sums."""
        dtype, ahead = self.config.x, self.depth - 1
        tensors = (operands.x, operands.dout, operands.dx)
        b, c = start // walk.per_row, start % walk.per_row
        copied = c
        # Where the rows begin: two of the copies, one of the stores; and the lane's first token in them, less c * step.
        x, dout, target = (memory.address(tensor, b, walk.channel) for tensor in tensors)
        back = [Int64(tensor.stride[0]) * ELEMENT_BYTES[dtype] for tensor in tensors]
        copied_own = walk.own - skew_of(walk, x, dtype)
        own, low = copied_own, Int32(x & Int64(VECTOR_BYTES - 1))
        fill, take, limit = Int32(0), Int32(0), Int32(0)
        if cutlass.const_expr(self.vector):
            ring = cute.arch.alloc_smem(Uint8, self.depth * self.slot, alignment=16)
            thread, _, _ = cute.arch.thread_idx()
            fill = take = Int32(ring.toint()) + thread * VECTOR_BYTES
            limit = fill + self.depth * self.slot
        for i in cutlass.range(-ahead, chunks, unroll=1):
            if cutlass.const_expr(self.vector):
                if i + ahead < chunks:
                    self._fetch(walk, fill, x, dout, copied * walk.step + copied_own)
                    copied = copied - 1
                    if copied < 0:
                        cute.arch.sync_warp()
                        copied = walk.per_row - 1
                        x, dout = x - back[0], dout - back[1]
                        copied_own = walk.own - skew_of(walk, x, dtype)
                parts.close_ahead()
                fill = self._next(fill, limit)
            if i >= 0:
                where = (b, c, c * walk.step + own, i >= warm, target)
                self._chunk(walk, taps, take, where, operands, sums, carry)
                take = self._next(take, limit)
                c = c - 1
                if c < 0:
                    cute.arch.sync_warp()
                    c = walk.per_row - 1
                    b = b - 1
                    target = target - back[2]
                    low = low - Int32(back[0] & Int64(VECTOR_BYTES - 1))
                    own = walk.own - skew_of(walk, Int64(low), dtype)

    def _next(self, place, limit):
        """The slot after this one."""
        place = place + self.slot
        return parts.choose(place == limit, place - self.depth * self.slot, place)

    @cute.jit
    def _fetch(self, walk, slot, x, dout, t):
        """Starts the copies of a chunk. Lanes that reach over an end of the row load later: see `_ragged`."""
        size = ELEMENT_BYTES[self.config.x]
        if t >= 0 and t <= walk.tokens - TOKENS:
            own = parts.step_from(x, t, Int32(size))
            self._copy(slot, own, 0)
            self._copy(slot, parts.step_from(dout, t, Int32(size)), 2)
            # Nothing stands before a row. With a skew, the second lane's reach begins before the row, in the same
            # 16 bytes.
            if t > 0:
                self._copy(slot, own - self.halo * size, 1)

    def _pieces(self, which):
        """(offset in a slot, offset in memory, bytes) of the copies of inputs, halo or gradients."""
        each = min(VECTOR_BYTES, self.sizes[which])
        count = self.sizes[which] // each
        first = sum(-(-size // VECTOR_BYTES) for size in self.sizes[:which])
        return [((first + i) * self.piece, i * each, each) for i in range(count)]

    def _copy(self, slot, place, which):
        for at, offset, each in self._pieces(which):
            parts.copy_ahead(slot + at, place + offset, each)

    def _words(self, slot):
        """The words of a chunk, after its copies have come."""
        parts.wait_ahead(self.depth - 1)
        return [
            word
            for which in range(3)
            for at, _, each in self._pieces(which)
            for word in parts.load_shared(slot + at, each // 4)
        ]

    def _gather_all(self, walk, operands, b, t):
        """What `_fetch` copies, one by one."""
        return [
            *self._gather(operands.x, walk, b, t, TOKENS),
            *self._gather(operands.x, walk, b, t - self.halo, self.halo),
            *self._gather(operands.dout, walk, b, t, TOKENS),
        ]

    def _gather(self, tensor, walk, b, t, count):
        """`count` elements from t on, one by one; places outside the row give its nearest."""
        dtype, last = self.config.x, walk.tokens - 1
        start = memory.address(tensor, b, walk.channel)
        step = Int64(tensor.stride[2]) * ELEMENT_BYTES[dtype]
        places = [cutlass.min(cutlass.max(t + i, 0), last) for i in range(count)]
        return memory.pack_bits(
            [parts.load_lone(start + Int64(place) * step, dtype) for place in places], dtype
        )

    @cute.jit
    def _chunk(self, walk, taps, slot, where, operands, sums, carry):
        b, c, t, own, _target = where
        history = self.history
        if c == walk.per_row - 1:
            for k in cutlass.range_constexpr(history):
                carry[k] = Float32(0.0)
        plain = own and c >= walk.plain_first and c < walk.plain_end
        if cutlass.const_expr(self.segmented):
            plain = plain and self._one_sequence(walk, operands.ids, b, c * walk.step)
        if cutlass.const_expr(self.vector):
            words = self._words(slot)
        else:
            words = self._gather_all(walk, operands, b, t)
        if plain:
            span, douts = self._floats(words)
            for k in cutlass.range_constexpr(history):
                span[k] = parts.keep(span[k], t != 0)
            if cutlass.const_expr(operands.initial is not None):
                if c == 0:
                    self._begin(span, walk, operands, b, t)
            self._tokens(walk, taps, span, douts, where, operands, sums, carry, True)
        else:
            span, douts = self._floats(self._ragged(walk, words, operands, b, t))
            self._begin(span, walk, operands, b, t)
            self._tokens(walk, taps, span, douts, where, operands, sums, carry, False)

    def _floats(self, words):
        """The inputs that a lane reads, `history` before its own first, and the gradients of its outputs."""
        dtype, count = self.config.x, self.history + TOKENS
        ends = [sum(self.sizes[: i + 1]) // 4 for i in range(2)]
        span = cute.make_rmem_tensor(count, Float32)
        found = memory.floats_of(words[ends[0] : ends[1]] + words[: ends[0]], dtype)
        for k in range(count):
            span[k] = found[self.halo - self.history + k]
        return span, memory.floats_of(words[ends[1] :], dtype)

    @cute.jit
    def _ragged(self, walk, words, operands, b, t):
        """The words of a chunk at an end of a row: lanes that reach over it load now, element by element."""
        held = cute.make_rmem_tensor(len(words), Uint32)
        for w in cutlass.range_constexpr(len(words)):
            held[w] = words[w]
        if cutlass.const_expr(self.vector):
            if t < 0 or t > walk.tokens - TOKENS:
                found = self._gather_all(walk, operands, b, t)
                for w in cutlass.range_constexpr(len(words)):
                    held[w] = found[w]
        return [held[w] for w in range(len(words))]

    @cute.jit
    def _begin(self, span, walk, operands, b, t):
        """What stands before a row: its initial state, or zeros."""
        ids, initial, history = operands.ids, operands.initial, self.history
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
        b, _c, t, own, _target = where
        width, history = self.config.width, self.history
        span = [span[k] for k in range(history + TOKENS)]
        masks = None
        if cutlass.const_expr(not plain):
            masks = Masks(self, walk, ids, bounds, b, t)
        seen = [[span[history + i - k] for k in range(width)] for i in range(TOKENS)]
        dz, group = [], self.group if plain else 1
        for i in cutlass.range_constexpr(0, TOKENS, group):
            inside = seen[i : i + group]
            if cutlass.const_expr(not plain):
                inside = [self._masked(walk, masks, initial, inside[0], t + i, i)]
            found = parts.gradients([taps] * group, inside, douts[i : i + group])
            if cutlass.const_expr(plain):
                self._accumulate(sums, found, inside)
            else:
                found = [parts.keep(found[0], masks.counts(i))]
                if own:
                    self._accumulate(sums, found, inside)
            dz += found
        # Lane 0 hands the later chunk's first gradients to the last lane, and keeps its own.
        later = []
        for k in cutlass.range_constexpr(history):
            sent = parts.choose(walk.lane == 0, carry[k], dz[k])
            later.append(cute.arch.shuffle_sync(sent, walk.peer))
            carry[k] = dz[k]
        self._store(walk, taps, dz + later, where, masks, operands, plain)

    def _accumulate(self, sums, dz, seen):
        width = self.config.width
        for g, inside in zip(dz, seen, strict=True):
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

    def _spread(self, taps, dz, masks):
        """The gradients of a lane's inputs, from its own tokens and the `history` after them."""
        made = [None] * TOKENS
        for k in range(self.config.width):
            given = dz[k : k + TOKENS]
            if masks is not None:
                given = [parts.keep(g, masks.sees(i + k, k)) for i, g in enumerate(given)]
            made = [taps.spread(g, k, total) for g, total in zip(given, made, strict=True)]
        return made

    @cute.jit
    def _store(self, walk, taps, dz, where, masks, operands, plain: cutlass.Constexpr):
        dfinal, dx = operands.dfinal, operands.dx
        _b, _c, t, own, target = where
        made = self._spread(taps, dz, None if plain else masks)
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
    def _finish(self, walk, totals, sums):
        """Sums over the lanes of a row, in a fixed tree; the first lane writes them."""
        rows = self.config.width + (self.config.bias is not None)
        for j in cutlass.range_constexpr(rows):
            total = sums[j]
            for distance in (16, 8, 4, 2, 1):
                other = cute.arch.shuffle_sync_bfly(total, distance)
                total = parts.choose(distance < walk.lanes, arithmetic.add(total, other), total)
            if walk.lane == 0 and walk.exists:
                settle(totals, total, walk.split, j, walk.channel, rows)


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


@cute.jit
def fold_of(tokens):
    """log2 of the lanes that share a row: fewer where rows are short, so that none idles."""
    fold = Int32(5)
    if tokens <= 16 * TOKENS:
        fold = Int32(4)
    if tokens <= 8 * TOKENS:
        fold = Int32(3)
    if tokens <= 4 * TOKENS:
        fold = Int32(2)
    return fold
