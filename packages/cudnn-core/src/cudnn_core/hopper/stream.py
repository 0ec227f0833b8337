"""Stream-K: walkers get equal shares of the products, whatever the number of tiles.

May import: the CuTe DSL, rules.py, schedule.py.

A walker is a block, or a cluster and its cluster tiles. As many rounds of tiles as there are walkers
for are walked as whole tiles. The K ranges of the tiles that are left over, cut into units, are one
line of work, of which walker b takes the b-th of equal stretches. A stretch may begin and end
inside tiles; where few walkers are left without one by it, each stretch is an equal part of one
tile instead. Whoever has the end of a tile's K range finishes the tile: it adds what lower-numbered
walkers have left in the workspace, in their order.

A walker goes through its stretch from the last tile to the first, and then through whole tiles. So
what it owes to others comes first, and what it needs of others is usually there; and as it waits
for lower numbers only, which start no later, waiting ends on a GPU that other kernels fill too.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from .rules import EVENED
from .schedule import DenseArgs, DenseSchedule, Divisor, WorkItem, at_least, at_most

# Named barriers PARTIAL + w: consumer warpgroup w has written, or may read, a partial tile.
PARTIAL = 10
# All of a block's consumers of a tile have written their part of it.
WRITTEN = 14
# A raised flag. Flags start as anything: one that is raised by chance, once in 2^64, would do harm.
RAISED = 0x6E1D94C3A7B2580F
# Sums of other walkers that a thread loads at once, or those of one walker where they are more: tiles of few sums have
# many parts, and registers for them. Beside 32 sums of its own some epilogues spill.
FEW_SUMS, AT_ONCE, MORE_AT_ONCE = 16, 32, 64


@dataclass(frozen=True)
class StreamArgs:
    """Run-time values of StreamSchedule.

    units: of a tile. rounds: whole tiles of each of the `walkers`. split: how many tiles have their
    units shared out. share: units of a stretch, of which `sharers` walkers have one; the first
    `longer` have one unit more.
    """

    dense: DenseArgs
    units: Divisor
    walkers: Int32
    rounds: Int32
    split: Int32
    sharers: Int32
    share: Int32
    longer: Int32
    partials: cute.Tensor
    flags: cute.Tensor


@dataclass(frozen=True)
class StreamSchedule(DenseSchedule):
    """Tiles of a batched (M, N) output, those beyond the last full round in equal stretches.

    unit: K elements of the smallest part, a multiple of what a stage of the body holds.
    least: units of a stretch at least; fewer make partial tiles dearer than idle blocks.
    """

    unit: int = 128
    least: int = 4
    splits = True

    @cute.jit
    def prepare(
        self, m: Int32, n: Int32, k: Int32, batches: Int32, partials, flags, limit: Int32
    ) -> StreamArgs:
        """On the host; partials and flags are the two workspaces, tensors of bytes for `limit` blocks."""
        dense = DenseSchedule.prepare(self, m, n, k, batches)
        units = at_least((k + self.unit - 1) // self.unit, Int32(1))
        tiles = self.count(dense)
        walkers = at_least(Int32(limit // self.tile.blocks), Int32(1))
        split = tiles % walkers
        total = split * units
        sharers = at_least(at_most(total // self.least, walkers), Int32(1))
        sharers = self.evened(sharers, split, units)
        share = total // sharers
        if tiles < walkers:
            walkers = sharers
        return StreamArgs(
            dense,
            Divisor.of(units),
            walkers,
            (tiles - split) // walkers,
            split,
            sharers,
            share,
            total - share * sharers,
            cute.make_tensor(cute.recast_ptr(partials.iterator, dtype=Float32), partials.layout),
            cute.make_tensor(cute.recast_ptr(flags.iterator, dtype=Int64), flags.layout),
        )

    @cute.jit
    def evened(self, sharers: Int32, split: Int32, units: Int32) -> Int32:
        """A few walkers less where each then has an equal part of one tile: fewer partial tiles, done at once."""
        parts = sharers // at_least(split, Int32(1))
        if (parts > 0) & (parts * split * EVENED[1] >= sharers * EVENED[0]):
            if units % parts == 0:
                sharers = parts * split
        return sharers

    def walkers(self, args: StreamArgs, limit: Int32) -> Int32:
        """On the host: how many clusters to launch, which `prepare` has decided."""
        return args.walkers

    def own(self) -> Int32:
        """The number of this walker."""
        block, _, _ = cute.arch.block_idx()
        return block // self.tile.blocks

    @cute.jit
    def start(self, args: StreamArgs, walker: Int32) -> Int32:
        """The first unit of a walker's stretch; there are fewer than 2^31."""
        walker = at_most(walker, args.sharers)
        return walker * args.share + at_most(walker, args.longer)

    @cute.jit
    def walker_of(self, args: StreamArgs, unit: Int32) -> Int32:
        """In whose stretch a unit lies."""
        walker = unit // (args.share + 1)
        if walker >= args.longer:
            walker = args.longer + (unit - args.longer * (args.share + 1)) // args.share
        return walker

    @cute.jit
    def parts(self, args: StreamArgs, walker: Int32) -> Int32:
        """How many tiles a walker's stretch touches."""
        first, end = self.start(args, walker), self.start(args, walker + 1)
        count = Int32(0)
        if end > first:
            count = args.units.divide(end - 1) - args.units.divide(first) + 1
        return count

    @cute.jit
    def walk(self, args: StreamArgs):
        """The numbers of this block's items, as (first, end, step)."""
        return Int32(0), self.items(args, self.own()), Int32(1)

    @cute.jit
    def items(self, args: StreamArgs, walker: Int32) -> Int32:
        """How many items a walker has: the parts of its stretch, then whole tiles."""
        return self.parts(args, walker) + args.rounds

    def item(self, args: StreamArgs, index: Int32) -> WorkItem:
        return self.item_of(args, self.own(), index)

    @cute.jit
    def item_of(self, args: StreamArgs, walker: Int32, index: Int32) -> WorkItem:
        """Item number `index` of a walker."""
        units = args.units.value
        first, end = self.start(args, walker), self.start(args, walker + 1)
        parts = self.parts(args, walker)
        tile, lower, upper = args.split + walker + (index - parts) * args.walkers, Int32(0), units
        if index < parts:
            tile = args.units.divide(end - 1) - index
            lower = at_least(first - tile * units, Int32(0))
            upper = at_most(end - tile * units, units)
        m0, n0, batch = self.place(args.dense, tile)
        k0 = lower * self.unit
        whole = self.whole(args.dense, m0, n0, batch)
        return whole._replace(
            k0=k0,
            k_count=at_most(upper * self.unit, args.dense.k) - k0,
            is_first=lower == 0,
            is_last=upper == units,
        )

    def slot(self, args: StreamArgs, walker: Int32, thread: Int32, values: int) -> cute.Tensor:
        """Where a thread keeps its `values` sums of a walker's partial tile, in fours."""
        threads = 128 * self.tile.sharers
        at = Int64(self.place_of(walker)) * (values * threads) + thread % threads * 4
        at = cute.assume(at, divby=4)
        return cute.make_tensor(
            args.partials.iterator + at, cute.make_layout((4, values // 4), stride=(1, 4 * threads))
        )

    def place_of(self, walker: Int32) -> Int32:
        """The number of the partial tile that the same block of another walker leaves."""
        if self.tile.blocks == 1:
            return walker
        return walker * self.tile.blocks + cute.arch.block_idx_in_cluster()

    def flag(self, args: StreamArgs, walker: Int32, group: Int32) -> cute.Pointer:
        """Raised by consumer warpgroup `group` of a walker, for the same one of another."""
        sharers = self.tile.sharers
        return args.flags.iterator + self.place_of(walker) * sharers + group % sharers

    @cute.jit
    def join(
        self,
        args: StreamArgs,
        item: cutlass.Constexpr,
        accumulators,
        thread,
        announced: cutlass.Constexpr,
    ):
        """A consumer warpgroup: leave the sums of an unfinished tile, or add what others have left.

        announced: whether a warp runs `announce`.
        """
        own = self.own()
        if not Boolean(item.is_last):
            self.leave(args, own, accumulators, thread, announced)
        elif not Boolean(item.is_first):
            # Only the tile with which the stretch begins can lack its start.
            tile = args.units.divide(self.start(args, own))
            first = self.walker_of(args, tile * args.units.value)
            self.await_parts(args, first, own, thread)
            self.add(args, first, own, accumulators, thread)

    @property
    def announcing(self) -> int:
        """Threads that meet at WRITTEN: the consumers of a tile, and the warp that announces."""
        return 128 * self.tile.sharers + 32

    @cute.jit
    def announce(self, args: StreamArgs):
        """A warp that has nothing else to do: raise the flags of the partial tile that this block leaves, if it does.

        Whoever raises a flag waits until the sums are written; from its last product on that took a consumer 2 us.
        """
        own = self.own()
        if self.items(args, own) > 0:
            # Only the first item can lack its end.
            if not Boolean(self.item_of(args, own, Int32(0)).is_last):
                cute.arch.barrier(barrier_id=WRITTEN, number_of_threads=self.announcing)
                lane = cute.arch.lane_idx()
                if lane < self.tile.sharers:
                    self.raise_flag(args, own, lane)

    def raise_flag(self, args: StreamArgs, walker, group) -> None:
        """One thread: what the block has written is visible to whoever sees the flag."""
        flag = self.flag(args, walker, group)
        cute.arch.store(flag, Int64(RAISED), sem="release", scope="gpu")

    @cute.jit
    def leave(self, args: StreamArgs, walker, accumulators, thread, announced: cutlass.Constexpr):
        """Write the partial tile, then have the flag raised."""
        per_block = cutlass.const_expr(self.tile.columns // 2)
        values = cutlass.const_expr(self.tile.m_blocks * per_block)
        target = self.slot(args, walker, thread, values)
        for m in cutlass.range_constexpr(self.tile.m_blocks):
            for i in cutlass.range_constexpr(per_block // 4):
                four = cute.make_rmem_tensor(4, Float32)
                for j in cutlass.range_constexpr(4):
                    four[j] = accumulators[m][4 * i + j]
                cute.autovec_copy(four, target[None, m * (per_block // 4) + i])
        if cutlass.const_expr(announced):
            cute.arch.barrier_arrive(barrier_id=WRITTEN, number_of_threads=self.announcing)
        else:
            group = thread // 128
            cute.arch.barrier(barrier_id=PARTIAL + group, number_of_threads=128)
            if thread % 128 == 0:
                self.raise_flag(args, walker, group)

    @cute.jit
    def await_parts(self, args: StreamArgs, first, end, thread):
        """Wait for the flags of walkers first .. end-1, and take them down."""
        group = thread // 128
        for walker in cutlass.range(first + thread % 128, end, 128, unroll=1):
            flag = self.flag(args, walker, group)
            raised = Int64(0)
            while raised != RAISED:
                raised = cute.arch.load(flag, Int64, sem="acquire", scope="gpu")
            cute.arch.store(flag, Int64(0), sem="relaxed", scope="gpu")
        cute.arch.barrier(barrier_id=PARTIAL + group, number_of_threads=128)

    @cute.jit
    def add(self, args: StreamArgs, first, end, accumulators, thread):
        """Add the partial tiles of walkers first .. end-1, in their order."""
        per_block = cutlass.const_expr(self.tile.columns // 2)
        values = cutlass.const_expr(self.tile.m_blocks * per_block)
        at_once = MORE_AT_ONCE if values <= FEW_SUMS else AT_ONCE
        batch = cutlass.const_expr(max(1, at_once // values))
        loaded = cute.make_rmem_tensor((4, values // 4, batch), Float32)
        for start in cutlass.range(first, end, batch, unroll=1):
            loaded.fill(0.0)
            for b in cutlass.range_constexpr(batch):
                if start + b < end:
                    source = self.slot(args, start + b, thread, values)
                    for i in cutlass.range_constexpr(values // 4):
                        cute.autovec_copy(source[None, i], loaded[None, i, b])
            for b in cutlass.range_constexpr(batch):
                for i in cutlass.range_constexpr(values):
                    m, at = i // per_block, i % per_block
                    accumulators[m][at] = accumulators[m][at] + loaded[i % 4, i // 4, b]
