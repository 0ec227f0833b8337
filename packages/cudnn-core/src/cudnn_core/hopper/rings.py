"""A ring of shared-memory stages guarded by mbarriers.

May import: the CuTe DSL. Nothing of the project.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, pipeline


@dataclass(frozen=True)
class Ring:
    """Producers fill stages in order, consumers drain them in order.

    `full` and `empty` hold one mbarrier a stage. A producer waits on `empty`, fills, and arrives on
    `full` (`producers` arrivals, plus the bytes of asynchronous copies); a consumer waits on
    `full`, reads, and arrives on `empty` (`consumers` arrivals). All arrivals are one per warp.
    blocks: those of a cluster that fill each other's stages; a stage is empty when the consumers
    of all of them have read theirs.
    """

    full: cute.Pointer
    empty: cute.Pointer
    stages: int
    producers: int
    consumers: int
    blocks: int = 1

    @staticmethod
    def allocate(smem, stages: int, producers: int, consumers: int, blocks: int = 1) -> "Ring":
        barriers = smem.allocate_array(cutlass.Int64, 2 * stages, byte_alignment=8)
        return Ring(barriers, barriers + stages, stages, producers, consumers, blocks)

    @cute.jit
    def initialize(self):
        """One warp of the block; fences and, for all other warps, a block barrier must follow."""
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(self.stages):
                cute.arch.mbarrier_init(self.full + stage, self.producers)
                cute.arch.mbarrier_init(self.empty + stage, self.consumers * self.blocks)

    def producer_state(self) -> pipeline.PipelineState:
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)

    def consumer_state(self) -> pipeline.PipelineState:
        return pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)

    def wait_empty(self, state: pipeline.PipelineState) -> None:
        cute.arch.mbarrier_wait(self.empty + state.index, state.phase)

    def wait_full(self, state: pipeline.PipelineState) -> None:
        cute.arch.mbarrier_wait(self.full + state.index, state.phase)

    def expect(self, state: pipeline.PipelineState, count: Int32) -> None:
        """One thread: arrive on `full` and announce `count` bytes of asynchronous copies."""
        cute.arch.mbarrier_arrive_and_expect_tx(self.full + state.index, count)

    @cute.jit
    def arrive_full(self, state: pipeline.PipelineState):
        """A whole warp whose ordinary stores the tensor core will read."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.full + state.index)

    @cute.jit
    def release(self, state: pipeline.PipelineState):
        """A whole warp that has read the stage."""
        cute.arch.sync_warp()
        if cutlass.const_expr(self.blocks == 1):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(self.empty + state.index)
        else:
            lane = cute.arch.lane_idx()
            if lane < self.blocks:
                cute.arch.mbarrier_arrive(self.empty + state.index, lane)
