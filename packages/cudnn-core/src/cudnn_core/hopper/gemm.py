"""The Hopper GEMM skeleton: persistent, warp-specialised, TMA in, WGMMA, TMA out.

May import: the CuTe DSL, tile.py. Bodies, schedules and epilogues are given to it.

A block holds `tile.warpgroups` consumer warpgroups and one producer warpgroup, of which as many warps
work as the body's `roles` have; the others do what its `assist` says, if it has one (`assisted`). Those walk the
same work items:

    producers   copy operand stages of each item into the body's rings, and prepare them there
    consumers   sum an item into registers, then run the epilogue while the producer goes on

A schedule may split the K range of tiles; then its `join` sums the parts before the epilogue.

Cooperating consumers share each item. In ping-pong, consumer warpgroup w takes every second item
from the w-th on, and order barriers let one sum while the other finishes its tile.

Named barriers: 0 is the block's, 1 to 7 are the epilogue's, 8 to 15 belong to this file.
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32
from cutlass.cute.nvgpu import cpasync

from .tile import TileConfig

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # before DSL 4.8
    from cutlass.utils import SmemAllocator

# Barriers ORDER + w: consumer warpgroup w may sum.
ORDER = 8


class HopperGemm:
    """One kernel: a tile, a main-loop body, a schedule and an epilogue. Knows no operation.

    follows: whether it starts before the kernel ahead of it in the stream has ended; the body waits for that kernel
    before it reads what that has written.
    """

    def __init__(
        self, tile: TileConfig, body: Any, schedule: Any, epilogue: Any, follows: bool = False
    ):
        self.tile = tile
        self.body = body
        self.schedule = schedule
        self.epilogue = epilogue
        self.follows = follows
        # Warps of each producer role; the first `fillers` of them, of one warp each, copy into rings of their own.
        self.roles = getattr(body, "roles", (1,))
        self.fillers = getattr(body, "fillers", 1)
        self.registers = getattr(body, "role_registers", tile.registers)
        reason = tile.registers_why_not(*self.registers)
        if reason is not None:
            raise ValueError(reason)
        # Whether a producer warp without a role announces partial tiles, so that consumers go on at once. Beside direct
        # stores that makes ptxas spill.
        spare = sum(self.roles) < 4
        wanted = getattr(body, "announces", False) and epilogue.staged
        self.announces = schedule.splits and spare and wanted
        # Whether producer warps without a role work for the body.
        self.assisted = getattr(body, "assisted", False)
        # What the body's sums are to be multiplied by.
        self.gain = getattr(body, "gain", 1.0)
        # Whether the body's first product of an item ignores what the accumulators hold.
        self.overwrites = getattr(body, "overwrites", False)

    @cute.jit
    def launch(self, a, b, schedule, epilogue, limit: Int32, stream: cuda.CUstream):
        """On the host: a, b, schedule, epilogue are what their `prepare` returned.

        limit: thread blocks to launch at most; one fits on each multiprocessor.

        The problem must have at least one tile: empty outputs are the caller's to settle.
        """
        clusters = self.schedule.walkers(schedule, limit // self.tile.blocks)
        self.kernel(a, b, schedule, epilogue).launch(
            grid=[clusters * self.tile.blocks, 1, 1],
            block=[self.tile.threads, 1, 1],
            cluster=[self.tile.blocks, 1, 1] if self.tile.blocks > 1 else None,
            min_blocks_per_mp=1,
            use_pdl=self.follows,
            stream=stream,
        )
        self.epilogue.conclude(epilogue, stream)

    @cute.kernel
    def kernel(self, a, b, schedule, epilogue):
        """Lays shared memory out and gives each warp its role; roles set up what they need, and meet."""
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        buffers = self.body.allocate(smem)
        staging = self.epilogue.allocate(smem)
        consumers, producers = self.registers
        if warp < 4 * self.tile.warpgroups:
            if thread == 0:
                self.epilogue.initialize(staging)
                cute.arch.mbarrier_init_fence()
            self.sync()
            if cutlass.const_expr(consumers):
                cute.arch.setmaxregister_increase(consumers)
            self.consume(buffers, staging, a, schedule, epilogue, thread)
        else:
            if cutlass.const_expr(producers):
                cute.arch.setmaxregister_decrease(producers)
            for part in cutlass.range_constexpr(len(self.roles) + 1):
                first, end = self.warps_of(part)
                if (warp >= first) & (warp < end):
                    self.set_up(buffers, (a, b), part)
                    if cutlass.const_expr(part < len(self.roles)):
                        self.produce(buffers, a, b, schedule, self.numbered(part))
                    elif cutlass.const_expr(self.announces):
                        if warp == first:
                            self.schedule.announce(schedule)
                    elif cutlass.const_expr(self.assisted):
                        self.body.assist(a)
        if cutlass.const_expr(self.tile.blocks > 1):
            # Nobody leaves while others of the cluster may still reach into its shared memory.
            self.sync()

    @cute.jit
    def sync(self):
        """All threads of the cluster meet."""
        if cutlass.const_expr(self.tile.blocks > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.barrier(barrier_id=0, number_of_threads=self.tile.threads)

    def warps_of(self, part: int) -> tuple[int, int]:
        """The warps of a producer role, from the first to the one after the last; after the roles', the idle ones."""
        first = 4 * self.tile.warpgroups + sum(self.roles[:part])
        last = part == len(self.roles)
        return first, 4 * (self.tile.warpgroups + 1) if last else first + self.roles[part]

    def numbered(self, part: int) -> tuple[int, ...]:
        """A producer's role, if there are several."""
        return (part,) if len(self.roles) > 1 else ()

    @cute.jit
    def set_up(self, buffers: cutlass.Constexpr, sides: cutlass.Constexpr, part: cutlass.Constexpr):
        """A warp of the producer warpgroup: prepare what it works with, and meet the others.

        Who fills a ring that nobody else has set up does not wait for them: the first stages are on their way earlier
        (BF16 x MXFP4 at (16, 4096, 14336) took 19.5 us for 20.8; an H200, 2026-12-02). In a cluster others fill it
        too, and signal that they have read theirs.
        """
        fills = cutlass.const_expr(part < self.fillers)
        if cutlass.const_expr(fills):
            for side in sides[part :: self.fillers]:
                cpasync.prefetch_descriptor(side.tma_atom)
            self.body.initialize(buffers, *self.numbered(part))
            cute.arch.mbarrier_init_fence()
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_warp()
        if cutlass.const_expr(fills and self.tile.blocks == 1):
            cute.arch.barrier_arrive(barrier_id=0, number_of_threads=self.tile.threads)
        else:
            self.sync()

    @cute.jit
    def produce(self, buffers: cutlass.Constexpr, a, b, schedule, part: cutlass.Constexpr):
        """A producer warp's walk over its block's items; part: as `numbered` says."""
        state = self.body.producer_state(buffers, *part)
        first, end, step = self.schedule.walk(schedule)
        for index in cutlass.range(first, end, step, unroll=1):
            item = self.schedule.item(schedule, index)
            state = self.body.produce(buffers, a, b, item, state, *part)

    @cute.jit
    def consume(
        self, buffers: cutlass.Constexpr, staging: cutlass.Constexpr, a, schedule, epilogue, thread
    ):
        """The consumer warpgroups' walk: sum an item, and finish its tile with the epilogue."""
        states = self.body.consumer_states(buffers)
        lives = self.epilogue.begin(epilogue, staging)
        accumulators = self.body.accumulators()
        self.clear(accumulators)
        first, end, step = self.schedule.walk(schedule)
        if cutlass.const_expr(self.tile.pingpong):
            group = cute.arch.make_warp_uniform(thread // 128)
            if group == 1:
                self.yield_turn(group)
            passed = self.schedule.item(schedule, first)
            states = self.body.skip(states, group * self.body.k_tiles(passed.k_count))
            first += group * step
            step *= 2
        for index in cutlass.range(first, end, step, unroll=1):
            item = self.schedule.item(schedule, index)
            if cutlass.const_expr(not self.overwrites):
                self.clear(accumulators)
            has_tile = Boolean(item.is_last) & (item.m_valid > 0) & (item.n_valid > 0)
            if has_tile:
                self.epilogue.start_tile(lives, item, thread)
            if cutlass.const_expr(self.tile.pingpong):
                self.await_turn(group)
            states = self.body.consume(buffers, a, item, accumulators, states, thread)
            if cutlass.const_expr(self.tile.pingpong):
                self.yield_turn(group)
            states = self.body.drain(buffers, item, accumulators, states)
            if cutlass.const_expr(self.overwrites):
                if item.k_count <= 0:
                    self.clear(accumulators)
            if cutlass.const_expr(self.tile.pingpong):
                passed = self.schedule.item(schedule, index + step // 2)
                states = self.body.skip(states, self.body.k_tiles(passed.k_count))
            if cutlass.const_expr(self.schedule.splits):
                self.schedule.join(schedule, item, accumulators, thread, self.announces)
            if has_tile:
                self.epilogue.run(lives, item, accumulators, thread, self.gain)
        self.epilogue.finish(lives, thread)

    def clear(self, accumulators) -> None:
        for accumulator in accumulators:
            accumulator.fill(0.0)

    def await_turn(self, group):
        """Wait until the other warpgroup has issued its last product."""
        cute.arch.barrier(barrier_id=ORDER + group, number_of_threads=256)

    def yield_turn(self, group):
        """The other warpgroup may sum."""
        cute.arch.barrier_arrive(barrier_id=ORDER + 1 - group, number_of_threads=256)
