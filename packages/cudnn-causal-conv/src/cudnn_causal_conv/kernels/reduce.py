"""Where the sums of the weight and bias gradients go: partial sums of several splits to the workspace, from where a
second launch adds them in order; the sums of a single split at once to their places. Imports the DSL.
"""

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from . import arithmetic, memory, parts

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
