"""Reductions over the values of a subtile.

May import: the CuTe DSL, convert.py, bits.py, frame.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..bits import float_bits
from ..convert import max_magnitude
from .frame import Resource

# Maxima that a thread keeps apart, so that one does not wait for the other.
CHAINS = 4


@dataclass(frozen=True)
class AmaxReduce(Resource):
    """max |value| over all valid elements, joined into FP32 memory.

    NaN stays NaN. The results, which have no sign, are joined as signed integers, so any negative
    prior content loses. Maxima do not depend on order: the result is deterministic.
    per_batch: one result for each batch, else one in all.
    """

    per_batch: bool = False

    @cute.jit
    def prepare(self, tensor: cute.Tensor):
        return cute.make_tensor(cute.recast_ptr(tensor.iterator, dtype=Int32), cute.make_layout(1))

    def begin(self, args, buffers):
        state = cute.make_rmem_tensor(1, Float32)
        state[0] = Float32(0.0)
        return state

    def add(self, live, frame, values):
        """Take the subtile's elements in; those that do not exist are 0."""
        best = [live.state[0]] + [Float32(0.0)] * (min(CHAINS, len(values)) - 1)
        for i, value in enumerate(values):
            best[i % len(best)] = max_magnitude(best[i % len(best)], value)
        while len(best) > 1:
            best = [max_magnitude(best[-1], best[0]), *best[1:-1]]
        live.state[0] = best[0]

    @cute.jit
    def flush(self, live: cutlass.Constexpr, index: Int32):
        best = cute.arch.warp_redux_sync(float_bits(live.state[0]), "max")
        with cute.arch.elect_one():
            cute.arch.atomic_max(live.args.iterator + index, best, sem="relaxed", scope="gpu")
        live.state[0] = Float32(0.0)

    @cute.jit
    def end_tile(self, live: cutlass.Constexpr, item: cutlass.Constexpr, thread):
        if cutlass.const_expr(self.per_batch):
            self.flush(live, item.batch)

    @cute.jit
    def finish(self, live: cutlass.Constexpr, thread):
        if cutlass.const_expr(not self.per_batch):
            self.flush(live, Int32(0))
