"""Epilogue: runs a function over the subtiles of a tile.

May import: the CuTe DSL, bits.py, tile.py, frame.py.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cutlass_dsl import select_

from ..bits import opaque
from ..tile import ROOMY_SUMS
from .frame import Fragments, Gate, Handle, Live, meet


@dataclass(frozen=True)
class Epilogue:
    """Named resources and the function that uses them.

    function(values, frame, **handles): values are the FP32 sums of a subtile in the order of
    frame.piece, handles the resources by name. It is traced once for each subtile of a tile.

    Sums of elements that do not exist are 0, and so is what is loaded for them. What the function
    gives to reductions there must be 0 too; `frame.existing` sees to it where it would not be.
    """

    fragments: Fragments
    resources: tuple[tuple[str, Any], ...]
    function: Any

    @property
    def staged(self) -> bool:
        return any(r.staged for _, r in self.resources)

    def why_not(self) -> str | None:
        """The reason why no kernel can be built, or None."""
        reasons = (getattr(r, "why_not", lambda: None)() for _, r in self.resources)
        return self.fragments.why_not() or next(filter(None, reasons), None)

    def smem_bytes(self) -> int:
        return sum(r.smem_bytes() for _, r in self.resources)

    def allocate(self, smem) -> tuple:
        return tuple(r.allocate(smem) for _, r in self.resources)

    def initialize(self, buffers: tuple) -> None:
        """One thread; a fence and a block barrier must follow."""
        for (_, r), own in zip(self.resources, buffers, strict=True):
            r.initialize(own)

    def begin(self, args: tuple, buffers: tuple) -> tuple:
        """Once a kernel, by the consumer threads."""
        return tuple(
            Live(args[i], buffers[i], r.begin(args[i], buffers[i]))
            for i, (_, r) in enumerate(self.resources)
        )

    def start_tile(self, lives, item, thread) -> None:
        """Before the main loop of a tile, by the consumer threads that will `run` it."""
        for (_, r), live in zip(self.resources, lives, strict=True):
            r.start_tile(live, item, thread)

    @cute.jit
    def run(self, lives: cutlass.Constexpr, item: cutlass.Constexpr, accumulators, thread):
        """One tile, by the consumer threads, when its sums are complete."""
        count = cutlass.const_expr(self.fragments.width // 2)
        warp = cute.arch.make_warp_uniform(thread // 32)
        self.clear(item, accumulators, warp, thread)
        crowded = cutlass.const_expr(self.fragments.tile.sums > ROOMY_SUMS)
        for index in cutlass.range_constexpr(self.fragments.count):
            block, part = divmod(index, self.fragments.per_block)
            values = [accumulators[block][part * count + i] for i in range(count)]
            # Places are worked out anew, where they could not be kept for the next subtile.
            own = opaque(thread) if crowded else thread
            self.subtile(lives, self.fragments.frame(item, warp, own, index), values)
        for i in cutlass.range_constexpr(len(self.resources)):
            self.resources[i][1].end_tile(lives[i], item, thread)

    @cute.jit
    def clear(self, item: cutlass.Constexpr, accumulators, warp, thread):
        """Zeros for elements that do not exist.

        A loop of no rounds in a full tile: a condition, which ptxas would turn into predicates of
        every instruction, would cost full tiles as much as the others.
        """
        tile = self.fragments.tile
        rounds = (2 * tile.bm - 1 - item.m_valid) // tile.bm
        rounds += (2 * tile.bn - 1 - item.n_valid) // tile.bn
        for _ in cutlass.range(rounds, unroll=1):
            self.clear_missing(item, accumulators, warp, thread)

    def clear_missing(self, item, accumulators, warp, thread):
        count = self.fragments.width // 2
        for index in range(self.fragments.count):
            block, part = divmod(index, self.fragments.per_block)
            frame = self.fragments.frame(item, warp, thread, index)
            for i in range(count):
                at = part * count + i
                value = accumulators[block][at]
                accumulators[block][at] = Float32(select_(frame.exists(i), value, Float32(0.0)))

    @cute.jit
    def subtile(
        self, lives: cutlass.Constexpr, frame: cutlass.Constexpr, values: cutlass.Constexpr
    ):
        """The function fills buffers that are free; the copy engine takes them over."""
        handles = {
            name: Handle(resource, live)
            for (name, resource), live in zip(self.resources, lives, strict=True)
        }
        frame = frame._replace(gate=Gate(list(handles.values()), frame.group))
        self.function(values, frame, **handles)
        if cutlass.const_expr(self.staged):
            cute.arch.fence_proxy("async.shared", space="cta")
            meet(frame.group)
            if frame.warp == 0:
                self.hand_over(handles, frame)

    def hand_over(self, handles, frame) -> None:
        """One group of stores for the whole subtile."""
        for handle in handles.values():
            handle.end(frame)
        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def conclude(self, args, stream):
        """On the host, behind the kernel's launch: what resources launch of their own."""
        for i in cutlass.range_constexpr(len(self.resources)):
            self.resources[i][1].conclude(args[i], stream)

    @cute.jit
    def finish(self, lives: cutlass.Constexpr, thread):
        """Once a kernel, after the last tile."""
        for i in cutlass.range_constexpr(len(self.resources)):
            self.resources[i][1].finish(lives[i], thread)
