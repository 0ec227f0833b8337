"""Operands that a product's own spare warps write out, in the order in which its tiles come to need them.

May import: the CuTe DSL, expand.py, matrix.py, plain.py, schedule.py, tile.py, workspace.py.

An expansion ahead of a product keeps memory busy while the tensor core waits, and the product then
does the opposite. Here three warps of every block expand, and only the first columns of K of the
first tiles are waited for:

    warps without a role    claim pieces in their order, write them, and count them
    the producer            waits until the pieces of a stage are counted, and copies it

A piece is 32 rows x 256 K elements, a warp's work of some microseconds. A group is the rows of a tile
of one side, a slab 256 elements of K. Groups come in the order in which DenseSchedule's walk first
meets them: the first band of A, all of B, the other bands. As many groups as blocks that start together
need are a segment, whose first slabs come first, as those blocks walk along K side by side. Warps claim
pieces from a counter and wait for nothing, so what a producer waits for is worked on, or will be by its
own block: no block needs another one to have started.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .expand import BATCH, CODES_ROW, Expand
from .matrix import GLU_ROWS, MatrixArgs
from .plain import PlainBody, PlainBuffers
from .schedule import at_least, at_most
from .tile import TileConfig
from .workspace import GROUP, SLAB, counters_of

# Rows of a piece: a turn of GLU halves, whose scale codes lie CODES_ROW apart.
PIECE_ROWS = 32
PIECES = GROUP // PIECE_ROWS
# Slabs whose counts a warp looks at together.
LANES = 32
# Registers of threads that sum and of those that write operands out.
ROLE_REGISTERS = (216, 72)
RESET_THREADS = 256


@dataclass(frozen=True)
class FeedArgs:
    """Run-time values.

    sides: what `prepare` of each rewritten side returned. groups: of A and B, 0 where a side is not rewritten. slabs:
    of K. lead: groups of A's first band. segment: groups of a segment. pieces: of all batches. counters: the next
    piece, then for each batch, group and slab the pieces that are written.
    """

    sides: tuple
    groups: tuple
    slabs: Int32
    lead: Int32
    segment: Int32
    pieces: Int32
    counters: cute.Tensor


@dataclass(frozen=True)
class FedArgs(MatrixArgs):
    """The first side of the product as the main loop takes it, and what writes the sides out."""

    feed: FeedArgs


@dataclass(frozen=True)
class Feed:
    """sides: what writes A and B out, or None; apart: whether GLU halves of B's rows lie apart."""

    tile: TileConfig
    sides: tuple[Expand | None, Expand | None]
    apart: bool = False

    def why_not(self) -> str | None:
        tile = self.tile
        if (tile.bm, tile.bn, tile.cluster) != (GROUP, GROUP, (1, 1)) or not tile.pingpong:
            return (
                f"operands are written out beside ping-pong tiles of {GROUP} x {GROUP}, no others"
            )
        if any(side.meets or side.operand.contiguous != "k" for side in self.written):
            return "operands that are written out beside the product are K-major, in their order"
        if any(side != self.expand for side in self.written):
            return "operands that are written out beside the product are of one format"
        return None

    @property
    def written(self) -> tuple[Expand, ...]:
        return tuple(side for side in self.sides if side is not None)

    def extents(self, sides) -> tuple:
        """On the host: ((groups of A, of B), slabs, batches); sides: what `prepare` of each of `written` returned."""
        counts = iter([(side.rows + GROUP - 1) // GROUP for side in sides])
        # A constant zero among a kernel's arguments stops the compiler, which does not say why.
        groups = tuple(
            sides[0].rows - sides[0].rows if side is None else next(counts) for side in self.sides
        )
        batches = sides[0].batches
        if len(sides) == 2:
            batches = at_least(batches, sides[1].batches)
        return groups, self.written[0].tiles_k(sides[0]), batches

    def bytes(self, sides) -> Int64:
        """On the host: those of the counters."""
        groups, slabs, batches = self.extents(sides)
        return Int64(4) * counters_of(groups[0] + groups[1], slabs, batches)

    @cute.jit
    def prepare(self, sides, counters: cute.Tensor, blocks: Int32, stream) -> FeedArgs:
        """On the host: takes the counters down. blocks: that may be resident; sides: as in `extents`."""
        groups, slabs, batches = self.extents(sides)
        total = groups[0] + groups[1]
        args = FeedArgs(
            tuple(sides),
            groups,
            slabs,
            at_most(groups[0], Int32(self.tile.raster)),
            self.tile.raster + (blocks + self.tile.raster - 1) // self.tile.raster,
            batches * total * slabs * PIECES,
            cute.make_tensor(
                cute.recast_ptr(counters.iterator, dtype=Int32),
                cute.make_layout(counters_of(total, slabs, batches)),
            ),
        )
        grid = (cute.size(args.counters) + RESET_THREADS - 1) // RESET_THREADS
        self.reset(args).launch(grid=[grid, 1, 1], block=[RESET_THREADS, 1, 1], stream=stream)
        return args

    @cute.kernel
    def reset(self, args: FeedArgs):
        """Counters may hold anything before."""
        cute.arch.griddepcontrol_launch_dependents()
        block, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        at = block * RESET_THREADS + thread
        if at < cute.size(args.counters):
            args.counters[at] = Int32(0)

    def counter(self, args: FeedArgs, batch: Int32, group: Int32, slab: Int32) -> Int32:
        """Which counter has the pieces of a group's slab that are written; B's groups follow upon A's."""
        total = args.groups[0] + args.groups[1]
        return 1 + (batch * total + group) * args.slabs + slab

    @cute.jit
    def claim(self, args: FeedArgs) -> Int32:
        """A warp: the number of the next piece, in its first lane."""
        piece = Int32(0)
        if cute.arch.lane_idx() == 0:
            piece = cute.arch.atomic_add(
                args.counters.iterator, Int32(1), sem="relaxed", scope="gpu"
            )
        return piece

    def claimed(self, piece: Int32) -> Int32:
        """A warp: what `claim` has returned, in all lanes."""
        return cute.arch.make_warp_uniform(cute.arch.shuffle_sync(piece, 0))

    @cute.jit
    def run(self, args: FeedArgs):
        """A warp: write pieces out until none is left.

        While some rows are expanded the next are on their way, be they of another piece. It is one short loop over
        batches of rows: a body with all batches of a piece took longer (docs/ops/dense/swiglu.md has the times).
        """
        expand, pitch = self.expand, self.pitch(args)
        words, later = expand.words(BATCH), expand.words(BATCH)
        asked, loaded = self.claim(args), cutlass.Boolean(False)
        piece, counter, left, codes = (Int32(0) for _ in range(4))
        at, stride, codes_at, line = (Int64(0) for _ in range(4))
        k, block = Int32(0), Int32(0)
        while piece < args.pieces:
            here, column, scale, ready, done = line, k, block, codes, Int32(0)
            if left == 0:
                done = counter
                piece, asked, counter, left, at, stride, codes_at, line, k, block = self.following(
                    args, asked
                )
            else:
                # The last rows may begin among those before.
                step = at_most(left, Int32(BATCH))
                left -= step
                at += step * stride
                codes_at += step * CODES_ROW
                line += step * pitch
            if piece < args.pieces:
                codes = expand.fetch(at, stride, codes_at, later)
            if loaded:
                expand.finish(args.sides[0], here, pitch, column, scale, words, ready)
            self.count(args, done)
            loaded = cutlass.Boolean(True)
            words.store(later.load())

    @cute.jit
    def following(self, args: FeedArgs, asked: Int32) -> tuple:
        """A warp: the next piece with whole batches of rows; what is between is written.

        asked: what `claim` has returned. (its number, what `claim` returned then, its counter, the rows after the first
        batch, the bytes between rows, and of that batch what `reach` says)
        """
        piece, counter, left = Int32(0), Int32(0), Int32(-1)
        at, stride, codes_at, line = Int64(0), Int64(0), Int64(0), Int64(0)
        k, block = Int32(0), Int32(0)
        while (left < 0) & (piece < args.pieces):
            piece = self.claimed(asked)
            asked = self.claim(args)
            if piece < args.pieces:
                of_b, batch, row, end, k0, counter = self.locate(args, piece)
                left = end - row - BATCH
                each = 0
                for side in cutlass.range_constexpr(2):
                    if cutlass.const_expr(self.sides[side] is not None):
                        values = args.sides[each]
                        if of_b == side:
                            places = self.expand.places(values, batch)
                            if left < 0:
                                self.expand.one_by_one(values, places, row, end, k0, 1)
                            else:
                                stride = values.outer_stride
                                at, codes_at, line, k, block = self.expand.reach(
                                    values, places, row, k0, 1, BATCH
                                )
                        each += 1
                if left < 0:
                    self.count(args, counter)
        return piece, asked, counter, left, at, stride, codes_at, line, k, block

    @property
    def expand(self) -> Expand:
        """What writes a side out: one as the other."""
        return self.written[0]

    def pitch(self, args: FeedArgs) -> Int64:
        """Bytes from one row of what is written to the next."""
        return self.expand.line(args.sides[0], Int64(0), 1)

    @cute.jit
    def locate(self, args: FeedArgs, piece: Int32) -> tuple:
        """(whether it is of B, batch, first row, the one after the last, first K element, counter) of a piece."""
        total = args.groups[0] + args.groups[1]
        column = args.slabs * PIECES
        batch = piece // (total * column)
        piece -= batch * (total * column)
        first = piece // (args.segment * column) * args.segment
        piece -= first * column
        line = at_most(args.segment, total - first) * PIECES
        slab = piece // line
        piece -= slab * line
        group, part = first + piece // PIECES, piece % PIECES
        # A's first band, all of B, and the rest of A; counters have B behind A.
        of_b, counter = Int32(0), group
        if group >= args.lead:
            if group < args.lead + args.groups[1]:
                of_b, group = Int32(1), group - args.lead
                counter = group + args.groups[0]
            else:
                group -= args.groups[1]
                counter = group
        row, end = group * GROUP + part * PIECE_ROWS, Int32(0)
        each = 0
        for side in cutlass.range_constexpr(2):
            if cutlass.const_expr(self.sides[side] is not None):
                if (of_b == side) & (batch < args.sides[each].batches):
                    end = args.sides[each].rows
                    if cutlass.const_expr(self.apart and side == 1):
                        # A tile has its rows in turns from either half, which is made of whole turns.
                        half = end // 2
                        end = half * (part % 2 + 1)
                        row = half * (part % 2) + group * (GROUP // 2) + part // 2 * GLU_ROWS
                each += 1
        counter = self.counter(args, batch, counter, slab)
        return of_b, batch, row, at_most(row + PIECE_ROWS, end), slab * SLAB, counter

    @cute.jit
    def count(self, args: FeedArgs, counter: Int32):
        """A warp: a piece is written, if there was one before."""
        if counter > 0:
            # The main loop reads through another proxy, on any multiprocessor.
            cute.arch.fence_proxy("async.global")
            cute.arch.sync_warp()
            if cute.arch.lane_idx() == 0:
                cute.arch.red(
                    args.counters.iterator + counter,
                    Int32(1),
                    op="add",
                    dtype="s32",
                    sem="release",
                    scope="gpu",
                )

    @cute.jit
    def written_slabs(self, args: FeedArgs, item, slab: Int32) -> Int32:
        """A warp: a bit for each slab from `slab` on, lowest first: whether a tile's rows of both sides are written.

        What is written may then be read by TMA.
        """
        lane = cute.arch.lane_idx()
        own, done = slab + lane, cutlass.Boolean(True)
        if own < args.slabs:
            each = 0
            for side in cutlass.range_constexpr(2):
                if cutlass.const_expr(self.sides[side] is not None):
                    group = item.n0 // GROUP + args.groups[0] if side == 1 else item.m0 // GROUP
                    batch = item.batch
                    if args.sides[each].batches == 1:
                        batch = Int32(0)
                    place = args.counters.iterator + self.counter(args, batch, group, own)
                    count = cute.arch.load(place, Int32, sem="acquire", scope="gpu")
                    done = done & (count == PIECES)
                    each += 1
        made = cute.arch.vote_ballot_sync(done)
        # Whichever lane copies has seen what all of them have.
        cute.arch.sync_warp()
        cute.arch.fence_proxy("async.global")
        return made


@dataclass(frozen=True)
class FedBody(PlainBody):
    """The plain body of a product whose spare warps write sides out, in the workspace."""

    feed: Feed
    role_registers = ROLE_REGISTERS
    assisted = True

    def why_not(self) -> str | None:
        return self.feed.why_not() or PlainBody.why_not(self)

    def assist(self, a: FedArgs) -> None:
        """A warp without a role, as long as there is something to write."""
        cute.arch.griddepcontrol_wait()
        self.feed.run(a.feed)

    @cute.jit
    def produce(self, buffers: PlainBuffers, a: FedArgs, b: MatrixArgs, item, state):
        """As PlainBody's, but stages wait until what they copy is written."""
        cute.arch.griddepcontrol_wait()
        views = self.views(buffers, a, b, item)
        stages = cutlass.const_expr(SLAB // self.a.tile_k)
        first, written = Int32(0), self.feed.written_slabs(a.feed, item, Int32(0))
        for i in cutlass.range(self.k_tiles(item.k_count), unroll=1):
            slab = i // stages
            if slab - first >= LANES:
                first, written = slab, self.feed.written_slabs(a.feed, item, slab)
            while (written >> (slab - first)) & 1 == 0:
                written = self.feed.written_slabs(a.feed, item, first)
            self.fill(buffers, a, b, views, i, state)
            state.advance()
        return state
