"""Backward over channel-last arrays: (B, T, D) in memory, passed as (B, D, T).

A thread owns a few neighbouring channels and walks a span of tokens forwards. It keeps the last inputs, the unfinished
gradients of the last inputs, the weights and their gradients in registers; loads run `depth` tokens ahead. The
gradient of an input is finished width - 1 tokens later, so a walk goes that far past its span.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32

from . import arithmetic, memory, parts
from .config import ELEMENT_BYTES
from .reduce import Totals, fold, is_folded, settle

WARPS = 4
# Spans are multiples of it, and `depth` divides it.
GRANULE = 16
# Threads, each of which has its own place in every slot of the ring.
SLOT = 32 * WARPS


class Place:
    """Where this thread is: its first channel, and which spans its warp walks."""

    def __init__(self, kernel, x, splits):
        self.batches, self.channels, self.tokens = x.shape
        thread, _, _ = cute.arch.thread_idx()
        tile, self.split, _ = cute.arch.block_idx()
        self.thread, self.lane, self.warp = thread, thread % 32, thread // 32
        self.tile = tile * kernel.tile
        first = self.tile + self.lane * kernel.each
        self.exists = first < self.channels
        last = self.channels - 1
        self.channel = cutlass.min(first, cutlass.max(self.channels - kernel.each, 0))
        # Channels past the end read the last one and store nothing.
        self.places = [cutlass.min(first + i, last) for i in range(kernel.each)]
        self.present = [first + i <= last for i in range(kernel.each)]
        self.per_row, self.span, self.rows = spans(self.batches, self.tokens, splits)
        self.task = self.split * WARPS + self.warp
        self.ring = None
        if kernel.vector:
            ring = cute.arch.alloc_smem(Uint8, 2 * kernel.depth * SLOT * kernel.size, alignment=16)
            self.ring = Int32(ring.toint()) + thread * kernel.size


def spans(batches, tokens, splits):
    """(spans of a row, tokens of a span, rows that a warp walks)."""
    tasks = splits * WARPS
    per_row = cutlass.max(tasks // batches, 1)
    span = (tokens + per_row - 1) // per_row
    span = (span + GRANULE - 1) // GRANULE * GRANULE
    rows = (batches * per_row + tasks - 1) // tasks
    return per_row, span, rows


class Held(NamedTuple):
    """What a thread keeps from token to token. ring: registers, or None where it is shared memory."""

    past: cute.Tensor
    unfinished: cute.Tensor
    ring: cute.Tensor | None
    sums: cute.Tensor


class ChannelColumns:
    """vector: one access for the channels of a thread; otherwise element by element, at any strides."""

    def __init__(
        self,
        config,
        vector: bool,
        each: int = 0,
        depth: int = 8,
        blocks_per_sm: int = 0,
        together: int = 2,
    ):
        self.config, self.vector = config, vector
        # Tokens whose gradients are computed side by side.
        self.together = together if config.width <= 5 else 1
        # More channels than these do not fit into the registers with their taps and sums.
        each = each or (4 if config.width <= 5 else 2)
        self.each, self.depth = each if vector else 1, depth
        self.blocks_per_sm = blocks_per_sm
        self.carveout = 100
        self.tile = 32 * self.each
        self.size = self.each * ELEMENT_BYTES[config.x]
        self.history = config.width - 1
        self.segmented = config.has_seq_idx or config.has_cu_seqlens
        self.rows = config.width + (config.bias is not None)
        self.count = parts.words_in(config.x, self.each) if vector else 1

    @cute.jit
    def launch(self, arrays: cutlass.Constexpr, splits, stream):
        """arrays: as `_kernel` takes them."""
        self._kernel(*arrays, splits).launch(
            grid=[(arrays[0].shape[1] + self.tile - 1) // self.tile, splits, 1],
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
        dweight: cute.Tensor,
        dbias,
        partials: cute.Tensor,
        splits: Int32,
    ):
        each, width = self.each, self.config.width
        place = Place(self, x, splits)
        taps = [parts.Taps(self.config, weight, bias, place.places[i]) for i in range(each)]
        sums = cute.make_rmem_tensor(each * (width + 1), Float32)
        for i in cutlass.range_constexpr(each * (width + 1)):
            sums[i] = Float32(0.0)
        operands = parts.Operands(x, ids, bounds, initial, dout, dfinal, dx)
        for row in cutlass.range(place.rows, unroll=1):
            q = place.task * place.rows + row
            b, c = q // place.per_row, q % place.per_row
            t0 = c * place.span
            if b < place.batches and t0 < place.tokens:
                self._walk(place, taps, x, dout, b, t0, operands, sums)
        # The launch that adds the splits may begin to wait for the last blocks.
        cute.arch.griddepcontrol_launch_dependents()
        self._finish(place, Totals(dweight, dbias, partials, splits), sums)

    @cute.jit
    def _walk(self, place, taps, x, dout, b, t0, operands, sums):
        each, depth, history, count = self.each, self.depth, self.history, self.count
        ids, initial, dx = operands.ids, operands.initial, operands.dx
        t1 = t0 + cutlass.min(place.span, place.tokens - t0)
        past = cute.make_rmem_tensor(history * each, Float32)
        unfinished = cute.make_rmem_tensor(history * each, Float32)
        ring = None
        if cutlass.const_expr(not self.vector):
            ring = cute.make_rmem_tensor(2 * depth * count, Uint32)
        sources = (self._row(x, place, b), self._row(dout, place, b))
        target = self._row(dx, place, b)
        for p in cutlass.range_constexpr(0, depth - self.together, self.together):
            self._fetch(ring, p, place, sources, t0 + p)
        self._begin(place, past, unfinished, sources[0], ids, initial, b, t0)
        held = Held(past, unfinished, ring, sums)
        whole = (t1 - t0) // depth * depth
        for i in cutlass.range(0, whole, depth, unroll=1):
            u = t0 + i
            if cutlass.const_expr(self.segmented):
                if self._one_sequence(place, ids, b, u):
                    self._block(place, taps, sources, target, (b, t0, t1, u), operands, held, True)
                else:
                    self._block(place, taps, sources, target, (b, t0, t1, u), operands, held, False)
            else:
                self._block(place, taps, sources, target, (b, t0, t1, u), operands, held, True)
        for i in cutlass.range(whole, t1 - t0 + history, depth, unroll=1):
            where = (b, t0, t1, t0 + i)
            self._block(place, taps, sources, target, where, operands, held, False)

    def _row(self, tensor, place, b):
        """Address of each channel's first token, and the bytes from token to token."""
        size = tensor.element_type.width // 8
        if self.vector:
            # The host lets only strides of less than 2^31 bytes come here: one multiplication then.
            step = Int32(tensor.stride[2]) * size
            return [memory.address(tensor, b, place.channel, 0)], step
        step = Int64(tensor.stride[2]) * size
        return [memory.address(tensor, b, channel, 0) for channel in place.places], step

    @cute.jit
    def _fetch(self, ring, p: cutlass.Constexpr, place, sources, u):
        """Issues the loads of tokens from u on into slots from p on; those past the end read the last token."""
        for ahead in cutlass.range_constexpr(self.together):
            safe = cutlass.min(u + ahead, place.tokens - 1)
            for which in cutlass.range_constexpr(2):
                base, step = sources[which]
                if cutlass.const_expr(self.vector):
                    slot = place.ring + (2 * (p + ahead) + which) * SLOT * self.size
                    parts.copy_ahead(slot, parts.step_from(base[0], safe, step), self.size)
                else:
                    words = self._load(base, Int64(safe) * step)
                    for w in cutlass.range_constexpr(self.count):
                        ring[((p + ahead) * 2 + which) * self.count + w] = words[w]
        if cutlass.const_expr(self.vector):
            parts.close_ahead()

    def _take(self, ring, p, place):
        """The inputs and the gradients of the outputs of the tokens in slots from p on."""
        if self.vector:
            parts.wait_ahead(self.depth // self.together - 1)
        found = []
        for slot in range(2 * p, 2 * (p + self.together)):
            if self.vector:
                words = parts.load_shared(place.ring + slot * SLOT * self.size, self.count)
            else:
                words = [ring[slot * self.count + w] for w in range(self.count)]
            found.append(self._widen(words))
        return found[::2], found[1::2]

    def _load(self, base, offset):
        dtype = self.config.x
        if self.vector:
            return parts.load_packed(base[0] + offset, dtype, self.each)
        return [parts.load_lone(place + offset, dtype) for place in base]

    def _widen(self, words):
        dtype = self.config.x
        if self.vector or dtype == "float32":
            return memory.floats_of(words, dtype)
        # A lone element lies in the low half.
        return [memory.floats_of([w], dtype)[0] for w in words]

    @cute.jit
    def _begin(self, place, past, unfinished, source, ids, initial, b, t0):
        """The inputs before the first token: past[k] is k + 1 tokens before it."""
        each, history = self.each, self.history
        base, step = source
        for k in cutlass.range_constexpr(history):
            at = t0 - 1 - k
            values = self._widen(self._load(base, Int64(cutlass.max(at, 0)) * Int64(step)))
            for i in cutlass.range_constexpr(each):
                past[k * each + i] = parts.keep(values[i], at >= 0)
                unfinished[k * each + i] = Float32(0.0)
        if cutlass.const_expr(initial is not None):
            n = b
            if cutlass.const_expr(self.segmented):
                n = parts.sequence_at(ids, b, 0)
            for k in cutlass.range_constexpr(history):
                at = t0 - 1 - k
                if at < 0 and n >= 0:
                    for i in cutlass.range_constexpr(each):
                        past[k * each + i] = parts.element(
                            initial, n, place.places[i], at + history
                        )

    @cute.jit
    def _one_sequence(self, place, ids, b, u):
        """Whether the tokens of a block and `history` before them belong to one sequence."""
        last = place.tokens - 1
        at = u - self.history + cutlass.min(place.lane, self.depth + self.history - 1)
        name = parts.sequence_at(ids, b, cutlass.min(cutlass.max(at, 0), last))
        first = cute.arch.shuffle_sync(name, 0)
        return cute.arch.vote_all_sync((name == first) & (name >= 0))

    @cute.jit
    def _block(self, place, taps, sources, target, where, operands, held, plain: cutlass.Constexpr):
        """`depth` tokens. plain: all are the walk's own, and none lies near the end of a sequence."""
        depth, together = self.depth, self.together
        _b, _t0, t1, first = where
        if cutlass.const_expr(self.vector):
            base, step = target
            target = ([parts.step_from(base[0], first, step)], step)
        for p in cutlass.range_constexpr(0, depth, together):
            # The slots of the tokens before these are free again.
            free, u = (p - together) % depth, first + p
            if cutlass.const_expr(plain):
                self._fetch(held.ring, free, place, sources, u + depth - together)
                self._group(place, taps, target, where, operands, held, p, True)
            else:
                if u < t1 + self.history:
                    self._fetch(held.ring, free, place, sources, u + depth - together)
                    self._group(place, taps, target, where, operands, held, p, False)

    @cute.jit
    def _group(
        self,
        place,
        taps,
        target,
        where,
        operands,
        held,
        p: cutlass.Constexpr,
        plain: cutlass.Constexpr,
    ):
        """The tokens in slots from p on, side by side."""
        each, together, history = self.each, self.together, self.history
        b, _t0, t1, first = where
        inputs, douts = self._take(held.ring, p, place)
        before = [[held.past[k * each + i] for k in range(history)] for i in range(each)]
        seen, sights = [], [None] * together
        for n in cutlass.range_constexpr(together):
            inside = [[inputs[n][i], *before[i]] for i in range(each)]
            before = [line[:history] for line in inside]
            if cutlass.const_expr(not plain):
                u = first + p + n
                sights[n] = Sight(self, place, operands.ids, operands.bounds, b, u)
                inside = [
                    self._masked(sights[n], operands.initial, inside[i], place.places[i], u)
                    for i in range(each)
                ]
            seen += inside
        for i in cutlass.range_constexpr(each):
            for k in cutlass.range_constexpr(history):
                held.past[k * each + i] = before[i][k]
        dz = parts.gradients(taps * together, seen, [g for line in douts for g in line])
        for n in cutlass.range_constexpr(together):
            some = slice(n * each, (n + 1) * each)
            found, inside = dz[some], seen[some]
            if cutlass.const_expr(plain):
                self._accumulate(held.sums, found, inside)
            else:
                found = [parts.keep(g, sights[n].counts) for g in found]
                if first + p + n < t1:
                    self._accumulate(held.sums, found, inside)
            finished = self._spread(taps, held.unfinished, found, sights[n])
            self._emit(place, target, sights[n], where, p + n, operands, finished, plain)

    def _spread(self, taps, unfinished, dz, sight):
        """Adds what a token gives to the inputs before it; the gradients that are finished by that."""
        each, history = self.each, self.history
        finished = None
        for k in range(history, -1, -1):
            given = dz if sight is None else [parts.keep(g, sight.sees[k]) for g in dz]
            so_far = [unfinished[(k - 1) * each + i] if k else None for i in range(each)]
            total = [taps[i].spread(given[i], k, so_far[i]) for i in range(each)]
            if k == history:
                finished = total
            else:
                for i in range(each):
                    unfinished[k * each + i] = total[i]
        return finished

    def _accumulate(self, sums, dz, seen):
        width, each = self.config.width, self.each
        for j in range(width):
            for i in range(each):
                at = j * each + i
                sums[at] = arithmetic.fma(dz[i], seen[i][width - 1 - j], sums[at])
        for i in range(each):
            at = width * each + i
            sums[at] = arithmetic.add(sums[at], dz[i])

    @cute.jit
    def _masked(self, sight, initial, inside, channel, u):
        """The history that token u sees: nothing of other sequences, the initial state before its own."""
        held = cute.make_rmem_tensor(len(inside), Float32)
        for k in cutlass.range_constexpr(len(inside)):
            held[k] = parts.keep(inside[k], sight.sees[k])
        if cutlass.const_expr(initial is not None and self.segmented):
            if sight.strays():
                start, _ = parts.limits(sight.bounds, sight.name, sight.tokens)
                for k in cutlass.range_constexpr(1, len(inside)):
                    at = u - k - start + self.history
                    if at < self.history and at >= 0:
                        held[k] = parts.element(initial, sight.name, channel, at)
        return [held[k] for k in range(len(inside))]

    @cute.jit
    def _emit(
        self,
        place,
        target,
        sight,
        where,
        p: cutlass.Constexpr,
        operands,
        finished,
        plain: cutlass.Constexpr,
    ):
        """Stores the gradient of the input `history` tokens before token p, if it is the walk's own."""
        _b, t0, t1, first = where
        dfinal, dx = operands.dfinal, operands.dx
        ahead = p - self.history
        t = first + ahead
        if cutlass.const_expr(plain):
            if cutlass.const_expr(p >= self.history):
                self._store(place, target, dx, first, ahead, finished)
            else:
                if t >= t0:
                    self._store(place, target, dx, first, ahead, finished)
        else:
            if t >= t0 and t < t1:
                values = cute.make_rmem_tensor(self.each, Float32)
                for i in cutlass.range_constexpr(self.each):
                    values[i] = finished[i]
                if cutlass.const_expr(dfinal is not None):
                    name = name_of(sight, t)
                    if name >= 0:
                        _, end = parts.limits(sight.bounds, name, sight.tokens)
                        at = t - end + self.history
                        if at >= 0 and at < self.history:
                            for i in cutlass.range_constexpr(self.each):
                                more = parts.element(dfinal, name, place.places[i], at)
                                values[i] = arithmetic.add(values[i], more)
                self._store(place, target, dx, first, ahead, [values[i] for i in range(self.each)])

    @cute.jit
    def _store(self, place, target, dx, first, ahead: cutlass.Constexpr, values):
        """Stores at token first + ahead; the vector kernel's target is at `first`."""
        base, step = target
        if cutlass.const_expr(self.vector):
            if place.exists:
                at = parts.step_from(base[0], Int32(ahead), step)
                parts.store_packed(at, values, self.config.x)
        else:
            for i in cutlass.range_constexpr(self.each):
                if place.present[i]:
                    at = base[i] + Int64(first + ahead) * step
                    parts.put(dx.element_type, at, values[i])

    @cute.jit
    def _finish(self, place, totals, sums):
        """Sums over the warps of a block, in order."""
        each, tile = self.each, self.tile
        size = self.rows * tile
        shared = cute.make_tensor(
            cute.arch.alloc_smem(Float32, WARPS * size, alignment=16),
            cute.make_layout(WARPS * size),
        )
        for j in cutlass.range_constexpr(self.rows):
            for i in cutlass.range_constexpr(each):
                at = place.warp * size + j * tile + place.lane * each + i
                shared[at] = sums[j * each + i]
        cute.arch.sync_threads()
        for turn in cutlass.range_constexpr((size + 32 * WARPS - 1) // (32 * WARPS)):
            at = turn * 32 * WARPS + place.thread
            channel = place.tile + at % tile
            if at < size and channel < place.channels:
                total = shared[at]
                for w in cutlass.range_constexpr(1, WARPS):
                    total = arithmetic.add(total, shared[w * size + at])
                where = (place.split, at // tile, channel)
                settle(totals, total, *where, self.rows)
        if is_folded(totals.splits):
            number = place.tile // tile
            fold(totals, place.split, number, place.thread, tile, 32 * WARPS, self.rows)


class Sight:
    """What token u may see of others, where not every token may see all of its history."""

    def __init__(self, kernel, place, ids, bounds, b, u):
        self.ids, self.bounds, self.b, self.tokens = ids, bounds, b, place.tokens
        self.segmented = kernel.segmented
        exists = u < place.tokens
        self.name = name_of(self, u)
        self.counts = exists
        self.sees = [exists] * (kernel.history + 1)
        if self.segmented:
            self.counts = exists & (self.name >= 0)
            self.sees = [
                self.counts & (name_of(self, u - k) == self.name) for k in range(kernel.history + 1)
            ]

    def strays(self):
        """Whether token u looks back past the start of its sequence."""
        return self.counts & ~self.sees[-1]


def name_of(sight, t):
    """Which sequence a token belongs to: the batch, or an entry of cu_seqlens."""
    if not sight.segmented:
        return sight.b
    t = cutlass.min(cutlass.max(t, 0), sight.tokens - 1)
    return parts.sequence_at(sight.ids, sight.b, t)
