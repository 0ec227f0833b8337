"""The Hopper GEMM skeleton: persistent, warp-specialised, TMA in, WGMMA, TMA out.

May import: the CuTe DSL, tile.py. Bodies, schedules and epilogues are given to it.

A block holds `tile.warpgroups` consumer warpgroups, one converter warpgroup and one producer
warpgroup (of which one warp works). Every role walks the same work items:

    producer    copies raw operand stages of each item into the body's rings
    converter   turns one side into what the tensor core reads from shared memory
    consumers   sum an item into registers, then run the epilogue while the producer goes on
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from .tile import TileConfig

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # before DSL 4.8
    from cutlass.utils import SmemAllocator


class HopperGemm:
    """One kernel: a tile, a main-loop body, a schedule and an epilogue. Knows no operation."""

    def __init__(self, tile: TileConfig, body: Any, schedule: Any, epilogue: Any):
        self.tile = tile
        self.body = body
        self.schedule = schedule
        self.epilogue = epilogue

    @cute.jit
    def launch(self, a, b, schedule, epilogue, limit: Int32, stream: cuda.CUstream):
        """On the host: a, b, schedule, epilogue are what their `prepare` returned.

        limit: thread blocks to launch at most; one fits on each multiprocessor.

        The problem must have at least one tile: empty outputs are the caller's to settle.
        """
        blocks = self.schedule.count(schedule)
        if blocks > limit:
            blocks = limit
        self.kernel(a, b, schedule, epilogue).launch(
            grid=[blocks, 1, 1],
            block=[self.tile.threads, 1, 1],
            min_blocks_per_mp=1,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, a, b, schedule, epilogue):
        """Sets shared memory and barriers up, then gives each warpgroup its role."""
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        buffers = self.body.allocate(smem)
        staging = self.epilogue.allocate(smem)
        if thread == 0:
            self.body.initialize(buffers)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        consumers, converters, producers = self.tile.registers
        role = warp // 4
        if role < self.tile.warpgroups:
            cute.arch.setmaxregister_increase(consumers)
            self.consume(buffers, staging, a, schedule, epilogue, thread)
        elif role == self.tile.warpgroups:
            cute.arch.setmaxregister_decrease(converters)
            self.convert(buffers, b, schedule, thread - 128 * self.tile.warpgroups)
        else:
            cute.arch.setmaxregister_decrease(producers)
            if warp == 4 * (self.tile.warpgroups + 1):
                self.produce(buffers, a, b, schedule)

    @cute.jit
    def items(self, schedule):
        """The numbers of this block's work items, as (first, end, step)."""
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        return block, self.schedule.count(schedule), blocks

    @cute.jit
    def produce(self, buffers: cutlass.Constexpr, a, b, schedule):
        """The producer warp's walk over its block's items."""
        state = self.body.producer_state(buffers)
        first, end, step = self.items(schedule)
        for index in cutlass.range(first, end, step, unroll=1):
            item = self.schedule.item(schedule, index)
            state = self.body.produce(buffers, a, b, item, state)

    @cute.jit
    def convert(self, buffers: cutlass.Constexpr, b, schedule, thread):
        """The converter warpgroup's walk; its threads count from 0."""
        raw, converted = self.body.converter_states(buffers)
        first, end, step = self.items(schedule)
        for index in cutlass.range(first, end, step, unroll=1):
            item = self.schedule.item(schedule, index)
            raw, converted = self.body.convert(buffers, b, item, raw, converted, thread)

    @cute.jit
    def consume(
        self, buffers: cutlass.Constexpr, staging: cutlass.Constexpr, a, schedule, epilogue, thread
    ):
        """The consumer warpgroups' walk: sum an item, and finish its tile with the epilogue."""
        raw, converted = self.body.consumer_states(buffers)
        lives = self.epilogue.begin(epilogue, staging)
        accumulators = self.body.accumulators()
        first, end, step = self.items(schedule)
        for index in cutlass.range(first, end, step, unroll=1):
            item = self.schedule.item(schedule, index)
            if Boolean(item.is_first):
                for block in cutlass.range_constexpr(self.tile.m_blocks):
                    accumulators[block].fill(0.0)
            raw, converted = self.body.consume(
                buffers, a, item, accumulators, raw, converted, thread
            )
            if Boolean(item.is_last):
                self.epilogue.run(lives, item, accumulators, thread)
        self.epilogue.finish(lives, thread)
