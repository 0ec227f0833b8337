"""The operands of the forward on the device: where elements lie, what came before a sequence, where one begins.

Imports the DSL and this folder's memory access.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32
from cutlass.cutlass_dsl import select_

from . import memory
from .config import ELEMENT_BYTES


class Operands:
    """The tensors of one call, None where absent, and its extents. `arrays` are those of `config.names`, in order."""

    def __init__(self, config, arrays):
        named = dict(zip(config.names, arrays, strict=True))
        self.config = config
        self.x, self.weight, self.out = named["x"], named["weight"], named["out"]
        self.bias, self.seq_idx = named.get("bias"), named.get("seq_idx")
        self.cu_seqlens, self.initial = named.get("cu_seqlens"), named.get("initial_states")
        self.final = named.get("final_states")
        self.batches, self.channels, self.tokens = self.x.shape


def element(ops: Operands, b, d, t, valid) -> Uint32:
    """The bits of x[b, d, t]; 0 unless `valid`, which must imply that it exists."""
    return memory.load_bits(memory.address(ops.x, b, d, t), ops.config.x, valid)


def before(ops: Operands, r, d, offset, valid, count: int = 1) -> list:
    """The bits of `count` entries of what precedes sequence r, from `offset` on; its last one is at -1.

    0 for offsets that are not within -(W-1)...-1, and where there is no state.
    """
    if ops.initial is None:
        return [Uint32(0)] * count
    history, dtype = ops.config.history, ops.config.x
    exists = valid & (r >= 0) & (r < ops.initial.shape[0])
    first = memory.address(ops.initial, r, d, offset + history)
    step = Int64(ops.initial.stride[2]) * ELEMENT_BYTES[dtype]
    found = []
    for k in range(count):
        there = exists & (offset + k < 0) & (offset + k >= -history)
        found.append(memory.load_bits(first + step * k, dtype, there))
    return found


def identity(ops: Operands, b, t, valid) -> Int32:
    """seq_idx[b, t]; -1 where there is no such token."""
    at = memory.address(ops.seq_idx, b, t)
    there = valid & (t >= 0) & (t < ops.tokens)
    return Int32(select_(there, memory.load_int(at, there), Int32(-1)))


def boundary(ops: Operands, entry) -> Int32:
    """cu_seqlens[entry] within 0...T; T past the last entry."""
    there = (entry >= 0) & (entry < ops.cu_seqlens.shape[0])
    value = memory.load_int(memory.address(ops.cu_seqlens, entry), there)
    value = cutlass.max(Int32(0), cutlass.min(value, ops.tokens))
    return Int32(select_(there, value, Int32(select_(entry < 0, Int32(0), ops.tokens))))


@cute.jit
def find(ops: cutlass.Constexpr, t: Int32):
    """(sequence, its first token, the one after its last) that token t belongs to.

    -1 before the first boundary, N after the last: see `is_sequence`.
    """
    low, high = Int32(0), Int32(ops.cu_seqlens.shape[0])
    while low < high:
        middle = (low + high) >> 1
        if boundary(ops, middle) <= t:
            low = middle + 1
        else:
            high = middle
    return low - 1, boundary(ops, low - 1), boundary(ops, low)


@cute.jit
def advance(ops: cutlass.Constexpr, t: Int32, r: Int32, start: Int32, end: Int32):
    """`find` from what it gave for an earlier token; steps over empty sequences."""
    while (t >= end) & (r < ops.cu_seqlens.shape[0] - 1):
        r = r + 1
        start = end
        end = boundary(ops, r + 1)
    return r, start, end


def is_sequence(ops: Operands, r) -> Boolean:
    """Whether r is one: results of tokens before the first boundary or after the last are zeros."""
    return (r >= 0) & (r < ops.cu_seqlens.shape[0] - 1)


@cute.jit
def copy_final_states(ops: cutlass.Constexpr, block: Int32):
    """final_states[r, d, :] for one r, d of each thread; `block` counts the blocks that do this."""
    config, (states, channels, _) = ops.config, ops.final.shape
    thread, _, _ = cute.arch.thread_idx()
    unit = Int64(block) * config.tile.threads + Int64(thread)
    if unit < Int64(states) * Int64(channels):
        r, d = Int32(unit // Int64(channels)), Int32(unit % Int64(channels))
        b, start, end = r, Int32(0), ops.tokens
        if cutlass.const_expr(config.has_cu_seqlens):
            b, start = Int32(0), boundary(ops, r)
            end = cutlass.max(start, boundary(ops, r + 1))
        for k in cutlass.range(config.history):
            offset = end - start - config.history + k
            bits = element(ops, b, d, start + offset, offset >= 0)
            (earlier,) = before(ops, r, d, offset, offset < 0)
            at = memory.address(ops.final, r, d, k)
            memory.store_bits(at, bits | earlier, config.x, Boolean(True))


def weight_bits(ops: Operands, d, valid: Boolean) -> list:
    """The packed taps of channel d of a contiguous weight."""
    width, dtype = ops.config.width, ops.config.weight
    at = ops.weight.iterator.toint() + Int64(d) * (width * ELEMENT_BYTES[dtype])
    return memory.constant_words(at, width, dtype, valid)


def weights_of(words: list, config) -> list:
    """The taps of `weight_bits` in FP32."""
    return memory.floats_of(words, config.weight)[: config.width]


def bias_bits(ops: Operands, d, valid: Boolean):
    """The bits of channel d's bias, None where there is none."""
    if ops.bias is None:
        return None
    return memory.load_bits(memory.address(ops.bias, d), ops.config.bias, valid)


def bias_of(bits, config):
    """The bias in FP32, or None."""
    return None if bits is None else memory.float_of(bits, config.bias)


def channel_constants(ops, d, lanes: int, valid: Boolean) -> tuple[list, list]:
    """Of `lanes` channels from d on: the taps of each, and the biases, in FP32; weight and bias are contiguous."""
    config = ops.config
    at = ops.weight.iterator.toint() + Int64(d) * (config.width * ELEMENT_BYTES[config.weight])
    flat = memory.constant_floats(at, lanes * config.width, config.weight, valid)
    weights = [flat[e * config.width : (e + 1) * config.width] for e in range(lanes)]
    if ops.bias is None:
        return weights, [None] * lanes
    at = ops.bias.iterator.toint() + Int64(d) * ELEMENT_BYTES[config.bias]
    return weights, memory.constant_floats(at, lanes, config.bias, valid)
