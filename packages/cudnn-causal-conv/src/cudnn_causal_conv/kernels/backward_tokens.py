"""Backward over token-contiguous rows: (B, D, T) with T innermost, or any strides, slower.

A warp walks the chunks of its rows from the last to the first. A chunk is `runs` runs of 8 * lanes tokens, eight
consecutive ones a lane, taken from the last run to the first. Then what a run's last inputs get from later tokens was
computed one step before: the gradients dz of the first tokens of the later run wait in registers of lane 0. Inputs
before a lane's own are in shared memory, where the lane to the left asked for its own. Weight gradients stay in
registers for the whole walk. A team of a block's warps shares the channels and adds up in order.

Chunks start at multiples of 16 bytes in memory, so a row of x whose first address is no such multiple begins `skew`
tokens into its first lane; what lies in a lane before the row or after it counts as tokens that do not exist.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32

from . import arithmetic, memory, parts
from .config import CHUNK as TOKENS
from .config import ELEMENT_BYTES, ROW_RUNS, ROW_WARPS, VECTOR_BYTES
from .launch import divisor
from .reduce import Totals, settle
from .row_masks import Masks
from .row_walk import MOST_ROWS, Numbers, Walk, fold_of, skew_of, team_of


class Ahead(NamedTuple):
    """What to copy next, and where to: a slot, addresses of the rows of x and dout, chunk, first token of the lane in
    chunk 0.
    """

    slot: Int32
    x: Int64
    dout: Int64
    chunk: Int32
    own: Int32


class TokenRows:
    """vector: 16-byte copies, `depth` - 1 chunks ahead; otherwise element by element, at any strides."""

    def __init__(
        self,
        config,
        vector: bool,
        depth: int = 3,
        group: int = 4,
        blocks_per_sm: int | None = None,
    ):
        self.config, self.vector = config, vector
        self.runs, self.depth = ROW_RUNS, depth if vector else 1
        # Tokens whose gradients are computed side by side.
        self.group = group
        self.carveout = 100 if vector else 0
        self.history = config.width - 1
        # Inputs before a lane's own that it reads: of the lane to the left.
        self.halo = 4 if self.history <= 4 else 8
        self.segmented = config.has_seq_idx or config.has_cu_seqlens
        self.size = ELEMENT_BYTES[config.x]
        # Of a lane's run of one array. Each piece of a warp lies together: inputs with one more before each row's
        # own, for the halo of its first lane.
        self.pieces = TOKENS * self.size // VECTOR_BYTES
        self.x_bytes = VECTOR_BYTES * (32 * self.runs + MOST_ROWS)
        self.dout_bytes = VECTOR_BYTES * 32 * self.runs
        self.slot = self.pieces * (self.x_bytes + self.dout_bytes)
        # As many as the registers of a multiprocessor hold: fewer leave too few bytes on their way.
        fitting = 4 - self.segmented if config.width <= 4 and vector else 2
        self.blocks_per_sm = fitting if blocks_per_sm is None else blocks_per_sm

    @cute.jit
    def launch(self, arrays: cutlass.Constexpr, splits, spare, stream):
        """arrays: as `_kernel` takes them; splits: parts of the sums; spare: see Numbers."""
        batches, channels, tokens = arrays[0].shape
        fold = fold_of(tokens, self.runs)
        reach = Int32(TOKENS * self.runs) << fold
        per_row = (tokens + spare + reach - 1) // reach
        rows = Int32(32) >> fold
        team = team_of(batches, (channels + rows - 1) // rows)
        walks = splits << team
        share = (batches * per_row + walks - 1) // walks
        # Whole rows where there are several: no chunk is computed twice.
        if share > per_row:
            share = (share + per_row - 1) // per_row * per_row
        rows = (rows * ROW_WARPS) >> team
        numbers = (splits, fold, team, spare, per_row, share)
        self._kernel(*arrays, numbers, divisor(per_row)).launch(
            grid=[(channels + rows - 1) // rows, splits, 1],
            block=[32 * ROW_WARPS, 1, 1],
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
        numbers: tuple,
        by_row: cute.FastDivmodDivisorV2,
    ):
        """numbers: as Numbers; by_row: for divisions by its per_row."""
        config = self.config
        numbers = Numbers(*numbers)
        margin = self.history if dfinal is not None else 0
        walk = Walk(x, numbers, self.runs, margin)
        sums = cute.make_rmem_tensor(config.width + 1, Float32)
        for j in cutlass.range_constexpr(config.width + 1):
            sums[j] = Float32(0.0)
        # A walk that ends inside a row first computes the gradients of the chunk after it.
        _, rest = divmod(walk.end, by_row)
        warm = Int32(0)
        if rest != 0:
            warm = Int32(1)
        chunks = walk.end - walk.first
        if chunks > 0:
            chunks = chunks + warm
            operands = parts.Operands(x, ids, bounds, initial, dout, dfinal, dx)
            b, c = divmod(walk.end + warm - 1, by_row)
            self._walk(walk, (weight, bias), operands, b, c, chunks, warm, sums)
        # The launch that adds the splits may begin to wait for the last blocks.
        cute.arch.griddepcontrol_launch_dependents()
        self._finish(walk, Totals(dweight, dbias, partials, numbers.splits), sums)

    @cute.jit
    def _walk(self, walk, filters: cutlass.Constexpr, operands, b, c, chunks, warm, sums):
        """Chunks from number c of row b backwards; the copies run ahead of the sums."""
        dtype, ahead = self.config.x, self.depth - 1
        tensors = (operands.x, operands.dout, operands.dx)
        # Where the rows begin: two of the copies, one of the stores; and the lane's first token in them, less
        # c * reach.
        x, dout, target = (memory.address(tensor, b, walk.channel) for tensor in tensors)
        back = [Int64(tensor.stride[0]) * self.size for tensor in tensors]
        own, low = walk.own - skew_of(walk, x, dtype), Int32(x & Int64(VECTOR_BYTES - 1))
        coming = Ahead(Int32(0), x, dout, c, own)
        begin = end = take = Int32(0)
        carry = cute.make_rmem_tensor(self.history, Float32)
        for k in cutlass.range_constexpr(self.history):
            carry[k] = Float32(0.0)
        if cutlass.const_expr(self.vector):
            ring = cute.arch.alloc_smem(
                Uint8, ROW_WARPS * self.depth * self.slot, alignment=VECTOR_BYTES
            )
            begin = take = Int32(ring.toint()) + walk.warp * (self.depth * self.slot)
            end = begin + self.depth * self.slot
            coming = coming._replace(slot=begin)
            for i in cutlass.range(ahead, unroll=1):
                coming = self._request(walk, coming, back, i < chunks, begin, end)
        taps = parts.Taps(self.config, *filters, walk.channel)
        for i in cutlass.range(chunks, unroll=1):
            if cutlass.const_expr(self.vector):
                parts.wait_ahead(ahead - 1)
                # What other lanes copied is there now, and nobody reads the slot that comes next.
                cute.arch.sync_warp()
                coming = self._request(walk, coming, back, i + ahead < chunks, begin, end)
            where = (b, c, c * walk.reach + own, i >= warm, target)
            self._chunk(walk, taps, take, where, operands, sums, carry)
            take = self._after(take, begin, end)
            c = c - 1
            if c < 0:
                c = walk.per_row - 1
                b = b - 1
                target = target - back[2]
                low = low - Int32(back[0] & Int64(VECTOR_BYTES - 1))
                own = walk.own - skew_of(walk, Int64(low), dtype)
                for k in cutlass.range_constexpr(self.history):
                    carry[k] = Float32(0.0)

    def _after(self, slot, begin, end):
        """The slot after this one."""
        slot = slot + self.slot
        return parts.choose(slot == end, begin, slot)

    @cute.jit
    def _request(self, walk, coming, back: cutlass.Constexpr, wanted, begin, end):
        """Starts the copies of the next chunk, if there is one, and closes a group of copies."""
        slot, x, dout, chunk, own = coming
        if wanted:
            self._fetch(walk, slot, x, dout, chunk * walk.reach + own)
            chunk = chunk - 1
            if chunk < 0:
                chunk = walk.per_row - 1
                x, dout = x - back[0], dout - back[1]
                own = walk.own - skew_of(walk, x, self.config.x)
        parts.close_ahead()
        return Ahead(self._after(slot, begin, end), x, dout, chunk, own)

    @cute.jit
    def _fetch(self, walk, slot, x, dout, t):
        """Starts the copies of a chunk. Lanes that reach over an end of the row load later: see `_ragged`."""
        size = Int32(self.size)
        own, given = parts.step_from(x, t, size), parts.step_from(dout, t, size)
        at = slot + self._place(walk, 0)
        if walk.lane == 0 and t >= 0 and t <= walk.tokens:
            # Nothing stands before a row.
            there = parts.choose(t > 0, Int32(VECTOR_BYTES), Int32(0))
            for i in cutlass.range_constexpr(self.pieces - self.halo_pieces, self.pieces):
                parts.copy_ahead(
                    at + i * self.x_bytes - VECTOR_BYTES,
                    own - (self.pieces - i) * VECTOR_BYTES,
                    VECTOR_BYTES,
                    there,
                )
        for run in cutlass.range_constexpr(self.runs):
            first = t + run * walk.step
            if first >= 0 and first <= walk.tokens - TOKENS:
                for i in cutlass.range_constexpr(self.pieces):
                    ahead = Int64(run * walk.step * self.size + i * VECTOR_BYTES)
                    at = slot + self._place(walk, run) + i * self.x_bytes
                    parts.copy_ahead(at, own + ahead, VECTOR_BYTES)
                    at = slot + self._given(walk, run, i)
                    parts.copy_ahead(at, given + ahead, VECTOR_BYTES)

    @property
    def halo_pieces(self) -> int:
        """Pieces of the lane to the left that the halo lies in."""
        return -(-self.halo * self.size // VECTOR_BYTES)

    def _place(self, walk, run):
        """Where in a slot the first piece of the lane's inputs of a run lies; the left lane's is before it."""
        row = walk.group * (walk.lanes * self.runs + 1) + 1
        return (row + run * walk.lanes + walk.lane) * VECTOR_BYTES

    def _given(self, walk, run, piece):
        """The same of its gradients of outputs."""
        lane = walk.thread % 32
        start = self.pieces * self.x_bytes + piece * self.dout_bytes
        return start + (run * 32 + lane) * VECTOR_BYTES

    def _words(self, walk, slot, run):
        """The words of a run, after its copies have come: inputs, those before them, gradients of outputs."""
        at = slot + self._place(walk, run)
        own = [parts.load_shared(at + i * self.x_bytes, 4) for i in range(self.pieces)]
        count = parts.words_in(self.config.x, self.halo)
        each = min(count, 4)
        halo = [
            parts.load_shared(at + i * self.x_bytes - 4 * each, each)
            for i in range(self.pieces - self.halo_pieces, self.pieces)
        ]
        given = [parts.load_shared(slot + self._given(walk, run, i), 4) for i in range(self.pieces)]
        return [word for piece in (*own, *halo, *given) for word in piece]

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
        """The runs of a chunk, the last one first."""
        b, c, t, own, target = where
        if own:
            first = c * self.runs
            whole = first >= walk.plain_first and first + self.runs <= walk.plain_end
            if cutlass.const_expr(self.segmented):
                whole = False
            if whole:
                for i in cutlass.range_constexpr(self.runs):
                    run = self.runs - 1 - i
                    where = (b, c, t + run * walk.step, own, target)
                    self._plain_run(walk, taps, slot, run, where, operands, sums, carry)
            else:
                for i in cutlass.range(self.runs, unroll=1):
                    run = self.runs - 1 - i
                    where = (b, c, t + run * walk.step, own, target)
                    self._run(walk, taps, slot, run, where, operands, sums, carry)
        else:
            # Of the chunk after the walk's own, nothing but the first gradients counts.
            self._run(walk, taps, slot, 0, where, operands, sums, carry)

    @cute.jit
    def _run(self, walk, taps, slot, run, where, operands, sums, carry):
        """One run, if it is not wholly behind the row."""
        b, c, _t, own, _target = where
        number = c * self.runs + run
        plain = number >= walk.plain_first and number < walk.plain_end
        if cutlass.const_expr(self.segmented):
            plain = plain and self._one_sequence(walk, operands.ids, b, number * walk.step)
        if plain:
            if own:
                self._plain_run(walk, taps, slot, run, where, operands, sums, carry)
            else:
                self._first_gradients(walk, taps, slot, run, where, operands, carry)
        else:
            if number * walk.step < walk.tokens + walk.spare:
                self._any_run(walk, taps, slot, run, where, operands, sums, carry)

    def _first_gradients(self, walk, taps, slot, run, where, operands, carry):
        """What a run that is not the first of its row hands to the one before it."""
        b, _c, t, _own, _target = where
        history = self.history
        span, douts = self._floats(self._loaded(walk, slot, run, operands, b, t))
        seen = [[span[history + i - k] for k in range(history + 1)] for i in range(history)]
        found = parts.gradients([taps] * history, seen, douts[:history])
        for k in range(history):
            carry[k] = found[k]

    def _loaded(self, walk, slot, run, operands, b, t):
        """The words of a run that lies inside its row."""
        if self.vector:
            return self._words(walk, slot, run)
        return self._gather_all(walk, operands, b, t)

    @cute.jit
    def _plain_run(self, walk, taps, slot, run, where, operands, sums, carry):
        """A run whose tokens all exist, belong to one sequence and are the walk's own."""
        b, c, t, _own, _target = where
        span, douts = self._floats(self._loaded(walk, slot, run, operands, b, t))
        if cutlass.const_expr(not self.vector):
            for k in cutlass.range_constexpr(self.history):
                span[k] = parts.keep(span[k], t != 0)
        if cutlass.const_expr(operands.initial is not None):
            if c == 0:
                self._begin(span, walk, operands, b, t)
        self._tokens(walk, taps, span, douts, where, operands, sums, carry, True)

    @cute.jit
    def _any_run(self, walk, taps, slot, run, where, operands, sums, carry):
        """A run at an end of the row or of a sequence, or one that another walk owns."""
        b, _c, t, _own, _target = where
        if cutlass.const_expr(self.vector):
            words = self._ragged(walk, self._words(walk, slot, run), operands, b, t)
        else:
            words = self._gather_all(walk, operands, b, t)
        span, douts = self._floats(words)
        self._begin(span, walk, operands, b, t)
        self._tokens(walk, taps, span, douts, where, operands, sums, carry, False)

    def _floats(self, words):
        """The inputs that a lane reads, `history` before its own first, and the gradients of its outputs."""
        dtype, count = self.config.x, self.history + TOKENS
        own = parts.words_in(dtype, TOKENS)
        span = cute.make_rmem_tensor(count, Float32)
        found = memory.floats_of(words[own:-own] + words[:own], dtype)
        for k in range(count):
            span[k] = found[len(found) - count + k]
        return span, memory.floats_of(words[-own:], dtype)

    @cute.jit
    def _ragged(self, walk, words, operands, b, t):
        """The words of a run at an end of a row: lanes that reach over it, or whose left one does, load now.

        Of lanes that lie outside, nothing counts.
        """
        held = cute.make_rmem_tensor(len(words), Uint32)
        for w in cutlass.range_constexpr(len(words)):
            held[w] = words[w]
        before = t > -TOKENS and t < TOKENS and t != 0
        if before or (t > walk.tokens - TOKENS and t < walk.tokens):
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
        """Whether a run and `history` tokens around it belong to one sequence, in all lanes."""
        last = walk.tokens - 1
        name = parts.sequence_at(ids, b, t0)
        same = name >= 0
        lane, _, _ = cute.arch.thread_idx()
        for i in cutlass.range_constexpr(TOKENS):
            place = cutlass.min(t0 + i * walk.lanes + walk.lane, last)
            same = same & (parts.sequence_at(ids, b, place) == name)
        # Lanes 0..15 look before the run, the others after it; no reach is longer than 14.
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
                start, _ = parts.limits(masks.bounds, name, masks.tokens)
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
                _, end = parts.limits(masks.bounds, name, masks.tokens)
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
        """Sums over the lanes of a row in a fixed tree, then over the warps of a team in order."""
        count = self.config.width + (self.config.bias is not None)
        size = count * MOST_ROWS
        shared = cute.make_tensor(
            cute.arch.alloc_smem(Float32, ROW_WARPS * size, alignment=16),
            cute.make_layout(ROW_WARPS * size),
        )
        for j in cutlass.range_constexpr(count):
            total = sums[j]
            for distance in (16, 8, 4, 2, 1):
                other = cute.arch.shuffle_sync_bfly(total, distance)
                total = parts.choose(distance < walk.lanes, arithmetic.add(total, other), total)
            if walk.lane == 0:
                shared[walk.warp * size + j * MOST_ROWS + walk.group] = total
        cute.arch.sync_threads()
        for turn in cutlass.range_constexpr(-(-size // 32)):
            place = turn * 32 * ROW_WARPS + walk.thread
            number, at = place // size, place % size
            row, first = at % MOST_ROWS, number << walk.team
            channel = walk.tile + number * walk.rows + row
            if first < ROW_WARPS and row < walk.rows and channel < walk.channels:
                total = shared[first * size + at]
                for w in cutlass.range(1, Int32(1) << walk.team, unroll=1):
                    total = arithmetic.add(total, shared[(first + w) * size + at])
                settle(totals, total, walk.split, at // MOST_ROWS, channel, count)
