"""Pieces that the backward kernels share: prefetching loads, gradients of one token, packed sequences by name.

Imports the DSL and this folder's arithmetic and memory access.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32
from cutlass.cutlass_dsl import T, dsl_user_op, select_

from cudnn_core.hopper.inline import asm, load, vector

from . import arithmetic, memory
from .arithmetic import fma, multiply
from .config import ELEMENT_BYTES
from .launch import TYPES
from .memory import address

NAMES = {kind: name for name, kind in TYPES.items()}


@dsl_user_op
def _load(place: Int64, count: int, *, loc=None, ip=None) -> list:
    """1, 2 or 4 words of an address that exists. The load stays where it stands: it runs ahead of its use."""
    operands = [Int64(place).ir_value(loc=loc, ip=ip)]
    size = f".v{count}" if count > 1 else ""
    text = f"ld.global.nc{size}.b32 {vector(0, count)}, [${count}];"
    return load(Uint32, count, operands, text, "l")


@dsl_user_op
def _load_half(place: Int64, *, loc=None, ip=None) -> Uint32:
    operands = [Int64(place).ir_value(loc=loc, ip=ip)]
    text = "{ .reg .b16 h; ld.global.nc.b16 h, [$1]; cvt.u32.u16 $0, h; }"
    return Uint32(asm(T.i32(), operands, text, "=r,l"))


@dsl_user_op
def _store(place: Int64, words: list, *, loc=None, ip=None) -> None:
    operands = [Int64(place).ir_value(loc=loc, ip=ip)]
    operands += [Uint32(w).ir_value(loc=loc, ip=ip) for w in words]
    count = len(words)
    size = f".v{count}" if count > 1 else ""
    text = f"st.global{size}.b32 [$0], {vector(1, count)};"
    asm(None, operands, text, "l" + ",r" * count)


@dsl_user_op
def copy_ahead(
    shared: Int32, place: Int64, size: int, there: Int32 | None = None, *, loc=None, ip=None
) -> None:
    """Starts copying 4, 8 or 16 bytes of global to shared memory; nothing waits for it but `wait_ahead`.

    there: how many of them exist, all if None; zeros stand for the others.
    """
    operands = [Int32(shared).ir_value(loc=loc, ip=ip), Int64(place).ir_value(loc=loc, ip=ip)]
    cache = "cg" if size == 16 else "ca"
    some = ""
    if there is not None:
        operands.append(Int32(there).ir_value(loc=loc, ip=ip))
        some = ", $2"
    text = f"cp.async.{cache}.shared.global [$0], [$1], {size}{some};"
    asm(None, operands, text, "r,l" + ",r" * bool(some))


@dsl_user_op
def close_ahead(*, loc=None, ip=None) -> None:
    """Makes one group of the copies that this thread started since the last one."""
    asm(None, [], "cp.async.commit_group;", "")


@dsl_user_op
def wait_ahead(younger: int, *, loc=None, ip=None) -> None:
    """Waits for all groups but the `younger` last ones."""
    asm(None, [], f"cp.async.wait_group {younger};", "")


@dsl_user_op
def load_shared(place: Int32, count: int, *, loc=None, ip=None) -> list:
    """1, 2 or 4 words of shared memory."""
    operands = [Int32(place).ir_value(loc=loc, ip=ip)]
    size = f".v{count}" if count > 1 else ""
    text = f"ld.shared{size}.b32 {vector(0, count)}, [${count}];"
    return load(Uint32, count, operands, text, "r")


@dsl_user_op
def step_from(base: Int64, count: Int32, step: Int32, *, loc=None, ip=None) -> Int64:
    """base + count * step in one instruction, which the compiler would take apart in loops."""
    operands = [
        Int32(count).ir_value(loc=loc, ip=ip),
        Int32(step).ir_value(loc=loc, ip=ip),
        Int64(base).ir_value(loc=loc, ip=ip),
    ]
    text = "mad.wide.s32 $0, $1, $2, $3;"
    return Int64(asm(T.i64(), operands, text, "=l,r,r,l", side_effects=False))


def words_in(dtype: str, elements: int) -> int:
    """32-bit words that hold `elements`."""
    return elements * ELEMENT_BYTES[dtype] // 4


def load_packed(place, dtype: str, elements: int) -> list:
    """Words of contiguous elements, 16 bytes at once or what there is."""
    count = words_in(dtype, elements)
    each = min(count, 4)
    return [w for i in range(0, count, each) for w in _load(place + Int64(4 * i), each)]


def store_packed(place, values: list, dtype: str) -> None:
    """Rounds and stores contiguous values, 16 bytes at once or what there is."""
    words = memory.words_of(values, dtype)
    for i in range(0, len(words), 4):
        _store(place + Int64(4 * i), words[i : i + 4])


def load_lone(place, dtype: str):
    """The bits of one element that exists, zero-extended."""
    return _load(place, 1)[0] if ELEMENT_BYTES[dtype] == 4 else _load_half(place)


def load_int(place):
    """An int32 that exists."""
    return Int32(_load(place, 1)[0])


def choose(condition, a, b):
    """a where the condition holds, otherwise b, without a branch."""
    return type(a)(select_(condition, a, b))


def keep(value, condition):
    """value where the condition holds, otherwise +0."""
    return choose(condition, value, Float32(0.0))


def element(tensor, *index):
    """One element in FP32."""
    dtype = NAMES[tensor.element_type]
    return memory.float_of(load_lone(address(tensor, *index), dtype), dtype)


def put(kind, place, value) -> None:
    """Rounds an FP32 number to the type `kind` and stores it."""
    pointer = cute.make_ptr(kind, place, cute.AddressSpace.gmem, assumed_align=kind.width // 8)
    cute.make_tensor(pointer, cute.make_layout(1))[0] = value.to(kind)


class Operands(NamedTuple):
    """Arrays of a call that its main kernel reads and writes, None where absent. ids: (B, T), seq_idx or alike."""

    x: cute.Tensor
    ids: cute.Tensor | None
    bounds: cute.Tensor | None
    initial: cute.Tensor | None
    dout: cute.Tensor
    dfinal: cute.Tensor | None
    dx: cute.Tensor


class Taps:
    """Weights and bias of one channel in registers, and the gradients that use them."""

    def __init__(self, config, weight, bias, channel):
        self.width, self.silu = config.width, config.activation == "silu"
        self.weight = [element(weight, channel, j) for j in range(config.width)]
        self.bias = None if bias is None else element(bias, channel)

    def dz(self, history, dout):
        """Gradient of the pre-activation of a token; history[k] is the input k tokens before it."""
        return gradients([self], [history], [dout])[0]

    def tap(self, k: int):
        """What an input is multiplied by in the output k tokens later."""
        return self.weight[self.width - 1 - k]

    def spread(self, dz, k: int, so_far):
        """Adds what a token gives to the gradient of the input k tokens before it."""
        return multiply(self.tap(k), dz) if so_far is None else fma(self.tap(k), dz, so_far)


def gradients(taps: list, histories: list, douts: list) -> list:
    """`Taps.dz` of several tokens or channels, side by side: the compiler keeps the order, and none waits."""
    if not taps[0].silu:
        return list(douts)
    reversed_ = [history[::-1] for history in histories]
    z = arithmetic.tap_sums(reversed_, [t.weight for t in taps], [t.bias for t in taps])
    return [multiply(g, slope) for g, slope in zip(douts, silu_slopes(z), strict=True)]


def silu_slope(z):
    """d/dz (z * sigma(z)) = sigma + z * (sigma - sigma^2)."""
    return silu_slopes([z])[0]


def silu_slopes(values: list) -> list:
    """`silu_slope` of several values, instruction by instruction."""
    sigmas = arithmetic.sigmoids(values)
    products = [fma(-s, s, s) for s in sigmas]
    return [fma(z, p, s) for z, p, s in zip(values, products, sigmas, strict=True)]


def sequence_at(ids, b, t):
    """The sequence that a token belongs to; negative: padding."""
    return load_int(address(ids, b, t))


def limits(bounds, n, tokens):
    """First token and end of packed sequence n, whatever cu_seqlens holds; of the row, if `bounds` is None."""
    if bounds is None:
        return Int32(0), tokens
    start, end = (load_int(address(bounds, n + i)) for i in (0, 1))
    start = cutlass.min(cutlass.max(start, 0), tokens)
    return start, cutlass.max(start, cutlass.min(end, tokens))


def put_partial(partials, value, split, j, channel, rows, channels) -> None:
    """Stores an FP32 sum; those of one split lie as (rows, channels)."""
    place = (Int64(split) * Int64(rows) + Int64(j)) * Int64(channels) + Int64(channel)
    _store(partials.iterator.toint() + place * Int64(4), [value.bitcast(Uint32)])


def get_partial(partials, split, j, channel, rows, channels, there=True):
    """What `put_partial` stored, in this launch or in the one before, which may not have ended when this one began;
    zero of a split that is not there.
    """
    place = (Int64(split) * Int64(rows) + Int64(j)) * Int64(channels) + Int64(channel)
    at = partials.iterator.toint() + place * Int64(4)
    return memory.load_words(at, 1, Boolean(there), constant=False)[0].bitcast(Float32)
