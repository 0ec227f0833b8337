"""The decode step: outputs and the in-place state, in one pass. Imports the DSL.

Two kernels, picked by addresses, strides and token count: whole vectors of channels, whose state moves through
registers; and one thread a channel, for anything. A thread reads all of its state before it writes any.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint8, Uint32
from cutlass.cutlass_dsl import select_

from cudnn_core.hopper import bits

from . import arithmetic, launch, memory
from .config import ELEMENT_BYTES, VECTOR_BYTES, WIDEST_UNROLLED
from .sequences import bias_bits, bias_of, channel_constants

OPERANDS = (
    "x",
    "conv_state",
    "weight",
    "bias",
    "cache_seqlens",
    "conv_state_indices",
    "out",
)


class Step:
    """The tensors of one call, None where absent. `config` is an UpdateConv."""

    def __init__(self, config, x, state, weight, bias, cache_seqlens, indices, out):
        self.config = config
        self.x, self.state, self.weight, self.bias = x, state, weight, bias
        self.cache_seqlens, self.indices, self.out = cache_seqlens, indices, out
        self.rows, self.channels, self.tokens = x.shape
        self.slots, _, self.length = state.shape


def slot_of(step: Step, n, there):
    """(slot of row n, whether it has one): without indices, row n has slot n."""
    s = n
    if step.indices is not None:
        s = memory.load_int(memory.address(step.indices, n), there)
    return s, there & (s >= 0) & (s < step.slots)


def rows_of(config) -> int:
    """Rows that a thread of `VectorsKernel` takes at once."""
    return config.tile.compact_rows if config.state == "compact" else config.tile.rows


class VectorsKernel:
    """One new token, linear state: each lane takes 16 bytes of channels in a few rows, a warp 512 bytes of each.

    Of a compact state, a warp's part of a slot is contiguous; its loads and stores are too, and shared memory hands
    each lane the entries of its own channels.
    """

    def __init__(self, config):
        self.config = config
        self.lanes = VECTOR_BYTES // ELEMENT_BYTES[config.x]
        self.rows = rows_of(config)
        self.exchanges = config.state == "compact" and config.state_length > 1

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        state: cute.Tensor,
        weight: cute.Tensor,
        bias,
        cache_seqlens,
        indices,
        out: cute.Tensor,
        units: Int32,
        per_row: cute.FastDivmodDivisorV2,
    ):
        """units: warps that work; per_row: how many a row has."""
        config = self.config
        step = Step(config, x, state, weight, bias, cache_seqlens, indices, out)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warps = config.tile.threads // 32
        warp, lane = thread // 32, thread % 32
        unit = block * warps + warp
        share = 0
        if cutlass.const_expr(self.exchanges):
            size = 32 * config.state_length * VECTOR_BYTES
            staged = cute.arch.alloc_smem(Uint8, warps * size, alignment=VECTOR_BYTES)
            share = Int32(staged.toint()) + warp * size
        if unit < units:
            group, number = divmod(unit, per_row)
            first = number * 32
            d = (first + lane) * self.lanes
            here = d < step.channels
            held = []
            for i in cutlass.range_constexpr(self.rows):
                n = group * self.rows + i
                held.append(self._load(step, n, d, first, lane, here))
            weights, biases = channel_constants(step, d, self.lanes, here)
            for i in cutlass.range_constexpr(self.rows):
                self._advance(step, share, lane, *held[i], weights, biases)

    def _load(self, step, n, d, first, lane, here):
        """Of one row: where its result and its state go, the words of x and of the state, and which of them exist."""
        length, lanes = self.config.state_length, self.lanes
        there = n < step.rows
        s, active = slot_of(step, n, there)
        mine, size = active & here, ELEMENT_BYTES[self.config.x]
        new = memory.load_words(memory.address(step.x, n, d), 4, mine)
        if self.config.state == "compact":
            # Piece j of the warp's pieces of 16 bytes, lane after lane.
            pieces = [32 * i + lane for i in range(length)]
            start = memory.address(step.state, s) + Int64(first) * (lanes * length * size)
            places = [start + Int64(piece) * VECTOR_BYTES for piece in pieces]
            count = (step.channels // lanes - first) * length
            exist = [active & (piece < count) for piece in pieces]
        else:
            places = [memory.address(step.state, s, d, i) for i in range(length)]
            exist = [mine] * length
        old = [
            memory.load_words(at, 4, valid, False) for at, valid in zip(places, exist, strict=True)
        ]
        return memory.address(step.out, n, d), there & here, active, new, old, places, exist

    def _advance(
        self, step, share, lane, out_at, there, active, new, old, places, exist, weights, biases
    ):
        """Result and new state of one row: the oldest entry leaves, x enters."""
        config, lanes = self.config, self.lanes
        length, history = config.state_length, config.history
        own = memory.unpack_bits(new, config.x)
        if self.exchanges:
            old = self._exchange(share, lane, old, True)
        if config.state == "compact":
            flat = memory.unpack_bits([word for words in old for word in words], config.x)
            entries = [flat[e * length : (e + 1) * length] for e in range(lanes)]
        else:
            columns = [memory.unpack_bits(words, config.x) for words in old]
            entries = [[column[e] for column in columns] for e in range(lanes)]
        results = []
        for e in range(lanes):
            taps = [*entries[e][length - history :], own[e]]
            taps = [memory.float_of(tap, config.x) for tap in taps]
            z = arithmetic.tap_sum(taps, weights[e], biases[e])
            z = arithmetic.activate(z, config.activation)
            results.append(Float32(select_(active, z, Float32(0.0))))
        memory.store_words(out_at, memory.words_of(results, config.x), there)
        if config.state == "compact":
            flat = [bit for e in range(lanes) for bit in [*entries[e][1:], own[e]]]
            words = memory.pack_bits(flat, config.x)
            moved = [words[4 * i : 4 * i + 4] for i in range(length)]
        else:
            moved = [*old[1:], new]
        if self.exchanges:
            moved = self._exchange(share, lane, moved, False)
        for at, words, valid in zip(places, moved, exist, strict=True):
            memory.store_words(at, words, valid)

    def _exchange(self, share, lane, pieces: list, inwards: bool) -> list:
        """A warp's pieces, as memory has them, become each lane's own (inwards), or the other way."""
        length = self.config.state_length
        memory_order = [32 * i + lane for i in range(length)]
        lane_order = [lane * length + i for i in range(length)]
        put, take = (memory_order, lane_order) if inwards else (lane_order, memory_order)
        for piece, words in zip(put, pieces, strict=True):
            at = share + VECTOR_BYTES * self._swizzled(piece)
            bits.store_shared_v4(at, *[word.bitcast(Int32) for word in words])
        cute.arch.sync_warp()
        taken = [
            bits.load_shared_v4(share + VECTOR_BYTES * self._swizzled(piece)) for piece in take
        ]
        cute.arch.sync_warp()
        return [[word.bitcast(Uint32) for word in words] for words in taken]

    def _swizzled(self, piece):
        """Where a piece lies: strides of a power of two would meet in the same banks."""
        if self.config.state_length in (2, 4, 8):
            return piece ^ ((piece >> 3) & 7)
        return piece


class ChannelsKernel:
    """Any strides, widths, state lengths and token counts, linear or circular: one thread a row and channel."""

    def __init__(self, config):
        self.config = config

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        state: cute.Tensor,
        weight: cute.Tensor,
        bias,
        cache_seqlens,
        indices,
        out: cute.Tensor,
    ):
        config = self.config
        step = Step(config, x, state, weight, bias, cache_seqlens, indices, out)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        unit = Int64(block) * config.tile.threads + Int64(thread)
        if unit < Int64(step.rows) * Int64(step.channels):
            n = Int32(unit // Int64(step.channels))
            d = Int32(unit % Int64(step.channels))
            s, active = slot_of(step, n, Boolean(True))
            # Where token 0 goes; a linear state is one whose next place is its end.
            cursor = step.length
            if cutlass.const_expr(config.has_cache_seqlens):
                seen = memory.load_int(memory.address(step.cache_seqlens, n), Boolean(True))
                cursor = _modulo(seen, step.length)
            for token in cutlass.range(step.tokens, unroll=1):
                self._output(step, n, s, d, token, cursor, active)
            if active:
                if cutlass.const_expr(config.has_cache_seqlens):
                    self._write_around(step, n, s, d, cursor)
                else:
                    self._shift(step, n, s, d)

    @cute.jit
    def _output(self, step: cutlass.Constexpr, n, s, d, token, cursor, active):
        """The result of one token; 0 for a row without a slot."""
        config = self.config
        total = Float32(0.0)
        if cutlass.const_expr(config.width <= WIDEST_UNROLLED):
            for j in cutlass.range_constexpr(config.width):
                total = self._tap(step, n, s, d, token, cursor, active, Int32(j), total)
        else:
            for j in cutlass.range(config.width, unroll=4):
                total = self._tap(step, n, s, d, token, cursor, active, j, total)
        bias = bias_of(bias_bits(step, d, active), config)
        z = total if bias is None else arithmetic.add(total, bias)
        z = arithmetic.activate(z, config.activation)
        z = Float32(select_(active, z, Float32(0.0)))
        at = memory.address(step.out, n, d, token)
        memory.store_bits(at, memory.bits_of(z, config.x), config.x, Boolean(True))

    def _tap(self, step, n, s, d, token, cursor, active, j, total):
        config = self.config
        at = memory.address(step.weight, d, j)
        weight = memory.float_of(memory.load_bits(at, config.weight, active), config.weight)
        source = token - config.history + j
        new = memory.load_bits(
            memory.address(step.x, n, d, source), config.x, active & (source >= 0)
        )
        place = cursor + source
        if config.has_cache_seqlens:
            place = Int32(select_(place < 0, place + step.length, place))
        old = memory.load_bits(
            memory.address(step.state, s, d, place), config.x, active & (source < 0)
        )
        return arithmetic.fma(weight, memory.float_of(new | old, config.x), total)

    @cute.jit
    def _shift(self, step: cutlass.Constexpr, n, s, d):
        """The last L of state and tokens, oldest first: each place is read before it is written."""
        for place in cutlass.range(step.length, unroll=1):
            source = place - (step.length - step.tokens)
            entry = self._entry(step, n, s, d, place + step.tokens, source)
            at = memory.address(step.state, s, d, place)
            memory.store_bits(at, entry, self.config.x, Boolean(True))

    def _entry(self, step, n, s, d, place, source) -> Uint32:
        """Token `source`, or what is in the state at `place` where that comes before the tokens."""
        old = memory.load_bits(memory.address(step.state, s, d, place), self.config.x, source < 0)
        new = memory.load_bits(memory.address(step.x, n, d, source), self.config.x, source >= 0)
        return old | new

    @cute.jit
    def _write_around(self, step: cutlass.Constexpr, n, s, d, cursor):
        """The last L tokens at their places of the circle."""
        for token in cutlass.range(
            cutlass.max(Int32(0), step.tokens - step.length), step.tokens, unroll=1
        ):
            entry = memory.load_bits(memory.address(step.x, n, d, token), self.config.x, token >= 0)
            place = _modulo(Int64(cursor) + Int64(token), step.length)
            at = memory.address(step.state, s, d, place)
            memory.store_bits(at, entry, self.config.x, Boolean(True))


def _modulo(value, length) -> Int32:
    """value mod length, not negative; length 0 counts as 1."""
    size = Int64(cutlass.max(length, Int32(1)))
    rest = Int64(value) % size
    return Int32(select_(rest < 0, rest + size, rest))


def of_one_token(x):
    """(N, D) as (N, D, 1)."""
    layout = cute.make_layout((*x.shape, 1), stride=(*x.stride, 1))
    return cute.make_tensor(x.iterator, layout)


class Update:
    """The host function of an UpdateConv; see `build`."""

    def __init__(self, config):
        self.config = config

    @cute.jit
    def causal_conv1d_update(self, *arguments):
        """The arrays of `config.names`, the number of multiprocessors, which nothing here needs, the stream."""
        config = self.config
        named = dict(zip(config.names, arguments, strict=False))
        if cutlass.const_expr(config.flat):
            named["x"], named["out"] = of_one_token(named["x"]), of_one_token(named["out"])
        tensors = [named.get(name) for name in OPERANDS]
        stream = arguments[-1]
        unrolled = config.width <= WIDEST_UNROLLED and config.state_length > 0
        if cutlass.const_expr(unrolled and not config.has_cache_seqlens):
            self.vectors(tensors, stream)
        else:
            self.channels(tensors, stream)

    @cute.jit
    def vectors(self, tensors: cutlass.Constexpr, stream):
        """One token, everything in vectors of channels; else `channels`."""
        x, state, weight, bias, out = (tensors[i] for i in (0, 1, 2, 3, 6))
        config, lanes = self.config, VECTOR_BYTES // ELEMENT_BYTES[self.config.x]
        rows, channels, tokens = x.shape
        addresses = [launch.address_of(each) for each in (x, out, state)]
        steps = [*launch.steps_of(x, 0), *launch.steps_of(out, 0), *launch.steps_of(state, 0)]
        if cutlass.const_expr(config.state == "d"):
            steps += launch.steps_of(state, 2)
        legal = launch.multiple([*addresses, *steps], VECTOR_BYTES) & launch.are_contiguous(
            weight, bias
        )
        legal = legal & (tokens == 1) & (Int32(channels) % lanes == 0)
        legal = legal & (x.stride[1] == 1) & (out.stride[1] == 1)
        per_row = launch.ceil_div(channels, 32 * lanes)
        units, warps = per_row * launch.ceil_div(rows, rows_of(config)), config.tile.threads // 32
        if legal and units > 0 and units <= launch.MOST_UNITS - warps:
            VectorsKernel(config).kernel(*tensors, Int32(units), launch.divisor(per_row)).launch(
                grid=[Int32(launch.ceil_div(units, warps)), 1, 1],
                block=[config.tile.threads, 1, 1],
                stream=stream,
            )
        else:
            self.channels(tensors, stream)

    @cute.jit
    def channels(self, tensors: cutlass.Constexpr, stream):
        """Everything else; nothing where there is no row."""
        x = tensors[0]
        threads = self.config.tile.threads
        blocks = Int32(launch.ceil_div(Int64(x.shape[0]) * Int64(x.shape[1]), threads))
        if blocks > 0:
            ChannelsKernel(self.config).kernel(*tensors).launch(
                grid=[blocks, 1, 1], block=[threads, 1, 1], stream=stream
            )


def build(config):
    """(jit function, symbolic arguments) for cute.compile."""
    return Update(config).causal_conv1d_update, launch.fakes(config)
