"""Where the sums of the weight and bias gradients go: partial sums of several splits to the workspace, from where the
block of the last split, or a second launch, adds them in order; the sums of a single split at once to their places.
Imports the DSL.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from cudnn_core.hopper.stream import RAISED

from . import arithmetic, memory, parts
from .config import MOST_FOLDED, flags_of

GROUPS = 8


class Totals(NamedTuple):
    """The gradients of weight and bias, dbias None without a bias, and the workspace of `splits` partial sums each."""

    dweight: cute.Tensor
    dbias: cute.Tensor | None
    partials: cute.Tensor
    splits: Int32


@cute.jit
def settle(totals, value, split, row, channel, rows: cutlass.Constexpr):
    """Takes what a split found: the sum of tap `row`, or of the bias in the last row."""
    if totals.splits == 1:
        finish(totals, value, row, channel, rows)
    else:
        parts.put_partial(
            totals.partials, value, split, row, channel, rows, totals.dweight.shape[0]
        )


@cute.jit
def finish(totals, value, row, channel, rows: cutlass.Constexpr):
    """Rounds a sum and stores it."""
    if cutlass.const_expr(totals.dbias is None):
        _put(totals.dweight, value, channel, row)
    else:
        if row < rows - 1:
            _put(totals.dweight, value, channel, row)
        else:
            _put(totals.dbias, value, channel)


def is_folded(splits) -> Boolean:
    """Whether the block of the last split adds: more partial sums are added faster by more blocks."""
    return (splits > 1) & (splits <= MOST_FOLDED)


def _flag(totals, split, tile, rows) -> cute.Pointer:
    """Behind the partial sums: raised when those of a split and a tile are there.

    Flags start as anything: one that is raised by chance, once in 2^64, would do harm.
    """
    channels = totals.dweight.shape[0]
    sums = Int64(totals.splits) * Int64(channels) * (4 * rows)
    number = Int64(split) * Int64(flags_of(channels)) + Int64(tile)
    place = totals.partials.iterator.toint() + (sums + 7) // 8 * 8 + number * 8
    return cute.make_ptr(Int64, place, cute.AddressSpace.gmem, assumed_align=8)


@cute.jit
def _await(flag):
    """Waits for a flag and takes it down."""
    raised = Int64(0)
    while raised != RAISED:
        raised = cute.arch.load(flag, Int64, sem="acquire", scope="gpu")
    cute.arch.store(flag, Int64(0), sem="relaxed", scope="gpu")


@cute.jit
def fold(
    totals,
    split,
    tile,
    thread,
    width: cutlass.Constexpr,
    size: cutlass.Constexpr,
    rows: cutlass.Constexpr,
):
    """The block of the last split adds what all have left, in the order of `Sums`; the others tell it when that is.

    It waits for blocks of lower numbers only, which start no later, so waiting ends on a GPU that other kernels fill
    too. tile: of `width` channels; size: threads of a block.
    """
    first, channels = tile * width, totals.dweight.shape[0]
    cute.arch.sync_threads()
    if split < totals.splits - 1:
        if thread == 0:
            flag = _flag(totals, split, tile, rows)
            cute.arch.store(flag, Int64(RAISED), sem="release", scope="gpu")
    else:
        for other in cutlass.range(thread, totals.splits - 1, size, unroll=1):
            _await(_flag(totals, other, tile, rows))
        cute.arch.sync_threads()
        turns = cutlass.const_expr((rows * width + size - 1) // size)
        found = cute.make_rmem_tensor((GROUPS, turns), Float32)
        found.fill(0.0)
        for start in cutlass.range(0, totals.splits, GROUPS, unroll=1):
            loaded = cute.make_rmem_tensor((GROUPS, turns), Float32)
            for turn in cutlass.range_constexpr(turns):
                at = cutlass.min(turn * size + thread, rows * width - 1)
                channel = cutlass.min(first + at % width, channels - 1)
                for g in cutlass.range_constexpr(GROUPS):
                    loaded[g, turn] = parts.get_partial(
                        totals.partials,
                        start + g,
                        at // width,
                        channel,
                        rows,
                        channels,
                        start + g < totals.splits,
                    )
            for turn in cutlass.range_constexpr(turns):
                for g in cutlass.range_constexpr(GROUPS):
                    found[g, turn] = arithmetic.add(found[g, turn], loaded[g, turn])
        for turn in cutlass.range_constexpr(turns):
            at = turn * size + thread
            channel = first + at % width
            if at < rows * width and channel < channels:
                total = found[0, turn]
                for g in cutlass.range_constexpr(1, GROUPS):
                    total = arithmetic.add(total, found[g, turn])
                finish(totals, total, at // width, channel, rows)


def _put(tensor, value, *index):
    parts.put(tensor.element_type, memory.address(tensor, *index), value)


class Sums:
    """dweight and dbias: partial sums of all splits, added in a fixed order, rounded once."""

    def __init__(self, config):
        self.rows = config.width + (config.bias is not None)

    @cute.jit
    def launch(self, partials, dweight, dbias, splits, stream):
        tiles = (dweight.shape[0] + 31) // 32
        self._kernel(partials, dweight, dbias, splits).launch(
            grid=[tiles, self.rows, 1], block=[32 * GROUPS, 1, 1], stream=stream, use_pdl=True
        )

    @cute.kernel
    def _kernel(self, partials: cute.Tensor, dweight: cute.Tensor, dbias, splits: Int32):
        """Group g of a block adds splits g, g + 8, ...; the first adds the groups' sums."""
        thread, _, _ = cute.arch.thread_idx()
        tile, row, _ = cute.arch.block_idx()
        channels = dweight.shape[0]
        lane, group = thread % 32, thread // 32
        channel = tile * 32 + lane
        safe = cutlass.min(channel, channels - 1)
        cute.arch.griddepcontrol_wait()
        total = Float32(0.0)
        for split in cutlass.range(group, splits, GROUPS, unroll=4):
            found = parts.get_partial(partials, split, row, safe, self.rows, channels)
            total = arithmetic.add(total, found)
        shared = cute.make_tensor(
            cute.arch.alloc_smem(Float32, 32 * GROUPS, alignment=16),
            cute.make_layout(32 * GROUPS),
        )
        shared[thread] = total
        cute.arch.sync_threads()
        if group == 0 and channel < channels:
            for g in cutlass.range_constexpr(1, GROUPS):
                total = arithmetic.add(total, shared[g * 32 + lane])
            finish(Totals(dweight, dbias, partials, splits), total, row, channel, self.rows)
