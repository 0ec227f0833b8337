"""The main-loop body for block-scaled operands: both sides become BF16 on their way to WGMMA.

May import: the CuTe DSL, and every file of this folder except gemm.py and epilogues.

A is decoded in the registers of the consumer warpgroups (the register-operand form of WGMMA). B is
decoded by one converter warpgroup into a second ring of BF16 stages in shared memory. The raw ring
feeds both:

    producer --raw--> consumers (A)
                 `--> converter --bf16--> consumers (B)

Within 64 K elements a consumer works in two groups, each its own set of A registers: two 64-row
blocks of all 64 K, or (with one row block) two halves of K. A group is decoded while the tensor
core runs the other one.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from .bits import opaque, store_shared_v4
from .operand import BlockScaledOperand, OperandArgs, OperandBuffers
from .rings import Ring
from .tile import TileConfig

BF16_K = 64
BF16_ROW_BYTES = 128


@dataclass(frozen=True)
class DecodedBuffers:
    """Shared memory of this body."""

    a: OperandBuffers
    b: OperandBuffers
    bf16: cute.Tensor
    raw: Ring
    decoded: Ring


@dataclass(frozen=True)
class DecodedBody:
    """Producer, converter and consumer of one kernel whose sides are both block-scaled."""

    tile: TileConfig
    a: BlockScaledOperand
    b: BlockScaledOperand

    def why_not(self) -> str | None:
        if self.a.decoder.tile_k != self.b.decoder.tile_k:
            return f"{self.a.element} and {self.b.element} differ in width"
        return None

    def smem_bytes(self) -> int:
        raw = self.a.stage_bytes(self.tile.bm) + self.b.stage_bytes(self.tile.bn)
        return raw * self.tile.raw_stages + self.bf16_bytes() * self.tile.bf16_stages

    def bf16_bytes(self) -> int:
        return self.tile.bn * BF16_ROW_BYTES

    def bf16_layout(self):
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, BFloat16)
        shape = (self.tile.bn, BF16_K, self.tile.bf16_stages)
        return cute.tile_to_shape(atom, shape, order=(0, 1, 2))

    def allocate(self, smem) -> DecodedBuffers:
        layout = self.bf16_layout()
        consumer_warps = 4 * self.tile.warpgroups
        return DecodedBuffers(
            a=self.a.allocate(smem, self.tile.bm, self.tile.raw_stages),
            b=self.b.allocate(smem, self.tile.bn, self.tile.raw_stages),
            bf16=smem.allocate_tensor(BFloat16, layout.outer, 1024, swizzle=layout.inner),
            raw=Ring.allocate(smem, self.tile.raw_stages, 1, consumer_warps + 4),
            decoded=Ring.allocate(smem, self.tile.bf16_stages, 4, consumer_warps),
        )

    def initialize(self, buffers: DecodedBuffers) -> None:
        buffers.raw.initialize()
        buffers.decoded.initialize()

    def producer_state(self, buffers: DecodedBuffers):
        return buffers.raw.producer_state()

    def converter_states(self, buffers: DecodedBuffers):
        return buffers.raw.consumer_state(), buffers.decoded.producer_state()

    def consumer_states(self, buffers: DecodedBuffers):
        return buffers.raw.consumer_state(), buffers.decoded.consumer_state()

    def accumulators(self) -> list:
        """One FP32 fragment for each 64-row block."""
        shape = ((2, 2, self.tile.bn // 8), 1, 1)
        return [cute.make_rmem_tensor(shape, Float32) for _ in range(self.tile.m_blocks)]

    def k_tiles(self, k_count: Int32) -> Int32:
        return (k_count + self.a.decoder.tile_k - 1) // self.a.decoder.tile_k

    @cute.jit
    def produce(self, buffers, a: OperandArgs, b: OperandArgs, item, state):
        """One warp: fill the raw ring for one work item. Waits on raw.empty, signals raw.full."""
        tile = self.tile
        a_shared, a_global = self.a.partition(a, buffers.a, tile.bm, item.m0, item.k0, item.batch)
        b_shared, b_global = self.b.partition(b, buffers.b, tile.bn, item.n0, item.k0, item.batch)
        first = item.k0 // self.a.decoder.tile_k
        for i in cutlass.range(self.k_tiles(item.k_count), unroll=1):
            buffers.raw.wait_empty(state)
            barrier = buffers.raw.full + state.index
            a_rows, a_k = self.a.valid_atoms(a, tile.bm, item.m0, first + i)
            b_rows, b_k = self.b.valid_atoms(b, tile.bn, item.n0, first + i)
            count = (a_rows * a_k + b_rows * b_k) * 512
            count += self.a.data_bytes(tile.bm) + self.b.data_bytes(tile.bn)
            with cute.arch.elect_one():
                buffers.raw.expect(state, count)
                self.a.load_scales(
                    a,
                    buffers.a,
                    tile.bm,
                    item.m0,
                    first + i,
                    item.batch,
                    state.index,
                    barrier.toint(),
                )
                self.b.load_scales(
                    b,
                    buffers.b,
                    tile.bn,
                    item.n0,
                    first + i,
                    item.batch,
                    state.index,
                    barrier.toint(),
                )
            cute.copy(
                a.tma_atom, a_global[None, i], a_shared[None, state.index], tma_bar_ptr=barrier
            )
            cute.copy(
                b.tma_atom, b_global[None, i], b_shared[None, state.index], tma_bar_ptr=barrier
            )
            state.advance()
        return state

    def existing_blocks(self, operand: BlockScaledOperand, args, k_tile) -> Int32:
        """How many blocks from the K tile's first on lie inside K."""
        decoder = operand.decoder
        return (args.k + decoder.sf_vec - 1) // decoder.sf_vec - k_tile * decoder.blocks

    @cute.jit
    def convert(self, buffers, b: OperandArgs, item, raw_state, bf16_state, thread):
        """The converter warpgroup: one thread per row of B, for one work item.

        Waits on raw.full and decoded.empty; signals raw.empty and decoded.full.
        """
        decoder = self.b.decoder
        bn = self.tile.bn
        first = item.k0 // decoder.tile_k
        words = cute.make_rmem_tensor(16, Int32)
        codes = cute.make_rmem_tensor(decoder.blocks, Int32)
        # With fewer rows than threads the spare threads repeat rows; the stores agree.
        row = thread & (bn - 1)
        scale_row = row + (item.n0 & 127 if cutlass.const_expr(bn % 128 != 0) else 0)
        for i in cutlass.range(self.k_tiles(item.k_count), unroll=1):
            buffers.raw.wait_full(raw_state)
            stage = raw_state.index
            data = self.b.data_stage(buffers.b, bn, stage)
            for t in cutlass.range_constexpr(4):
                at = data + self.b.data_offset(bn, row, Int32(t))
                chunk = self.b.load_words(at, bn, 0)
                for w in cutlass.range_constexpr(4):
                    words[4 * t + w] = chunk[w]
            scales = self.b.scale_stage(buffers.b, bn, stage) + self.b.scale_offset(scale_row)
            existing = self.existing_blocks(self.b, b, first + i)
            row_codes = self.b.row_codes(scales, first + i, existing)
            for j in cutlass.range_constexpr(decoder.blocks):
                codes[j] = row_codes[j]
            buffers.raw.release(raw_state)
            raw_state.advance()
            for half in cutlass.range_constexpr(decoder.halves):
                buffers.decoded.wait_empty(bf16_state)
                base = buffers.bf16.iterator.toint() + bf16_state.index * self.bf16_bytes()
                self.convert_row(words, codes, half, base, row)
                buffers.decoded.arrive_full(bf16_state)
                bf16_state.advance()
        return raw_state, bf16_state

    @cute.jit
    def convert_row(self, words, codes, half: cutlass.Constexpr, base, row):
        """Decode 64 K elements of one row and store them in WGMMA's 128-byte swizzle."""
        seen = self.convert_steps(words, codes, half, base, row, False)
        if cutlass.const_expr(self.b.decoder.bits == 8):
            row_codes = [codes[j] for j in range(self.b.decoder.blocks)]
            if self.b.decoder.special(seen, row_codes):
                self.convert_steps(words, codes, half, base, row, True)

    def convert_steps(self, words, codes, half: int, base, row, exact: bool) -> Int32:
        """Decode and store a row, fast or exactly; returns what `special` wants to see."""
        decoder = self.b.decoder
        seen = Int32(0)
        factors = []
        for t in range(4):
            block = t * decoder.chunk_elements // decoder.sf_vec
            code = codes[block + decoder.scale_of(half)]
            factors.append(decoder.exact_factor(code) if exact else decoder.factor(code))
        for step in range(4):
            pairs = []
            for t in range(4):
                chunk = [words[4 * t + w] for w in range(4)]
                if exact:
                    pairs.append(decoder.exact_step(chunk, step, factors[t]))
                else:
                    *pair, seen = decoder.step(chunk, half, step, factors[t], seen)
                    pairs.append(pair)
            for upper in range(2):
                piece = (2 * step + upper) ^ (row & 7)
                at = base + row * BF16_ROW_BYTES + (piece << 4)
                store_shared_v4(at, *(pair[upper] for pair in pairs))
        return seen

    def mma_op(self):
        return warpgroup.MmaF16BF16Op(
            BFloat16,
            Float32,
            (64, self.tile.bn, 16),
            warpgroup.OperandSource.RMEM,
            OperandMajorMode.K,
            OperandMajorMode.K,
        )

    @cute.jit
    def consume(self, buffers, a: OperandArgs, item, accumulators, raw_state, bf16_state, thread):
        """A consumer warpgroup: sum one work item into zeroed `accumulators` (one per row block).

        Waits on raw.full and decoded.full; signals raw.empty and decoded.empty.
        """
        decoder = self.a.decoder
        tile = self.tile
        tiled_mma = cute.make_tiled_mma(self.mma_op())
        b_fragment = tiled_mma.make_fragment_B(tiled_mma.get_slice(0).partition_B(buffers.bf16))
        warpgroup_index, warp, lane = thread // 128, (thread // 32) % 4, thread % 32
        block0 = warpgroup_index * (64 * tile.m_blocks)
        row0 = block0 + warp * 16 + lane // 4
        chunk = opaque(lane % 4)
        # Tiles of 64 rows can start in the middle of a scale atom.
        scale_row = row0 + (item.m0 & 127 if cutlass.const_expr(tile.bm % 128 != 0) else 0)
        data_at = opaque(self.a.data_offset(tile.bm, row0, chunk))
        scale_at = opaque(self.a.scale_offset(scale_row))
        first = item.k0 // decoder.tile_k
        rows = cutlass.const_expr(2 * tile.m_blocks)
        words = cute.make_rmem_tensor((4, rows), Int32)
        codes = cute.make_rmem_tensor((decoder.scales_per_chunk, rows), Int32)
        k_steps = cutlass.const_expr(4 if tile.m_blocks == 2 else 2)
        fragments = [self.a_fragment(k_steps) for _ in range(2)]
        promoted = None
        if cutlass.const_expr(tile.promote_k is not None):
            promoted = cute.make_rmem_tensor(accumulators[0].layout, Float32)
            promoted.fill(0.0)
        release = bf16_state.clone()
        for i in cutlass.range(self.k_tiles(item.k_count), unroll=1):
            buffers.raw.wait_full(raw_state)
            existing = self.existing_blocks(self.a, a, first + i)
            data = self.a.data_stage(buffers.a, tile.bm, raw_state.index) + data_at
            scales = self.a.scale_stage(buffers.a, tile.bm, raw_state.index) + scale_at
            for r in cutlass.range_constexpr(rows):
                # Neither 8 nor 64 rows down does a row's swizzle change.
                down, block_down = 8 * (r % 2), 64 * (r // 2)
                loaded = self.a.load_words(data, tile.bm, down + block_down)
                for w in cutlass.range_constexpr(4):
                    words[w, r] = loaded[w]
                # 8 rows are 128 bytes in a scale atom, and 64 rows are 8 bytes.
                found = self.a.chunk_codes(
                    scales + 16 * down + block_down // 8, chunk, first + i, existing
                )
                for j in cutlass.range_constexpr(decoder.scales_per_chunk):
                    codes[j, r] = found[j]
            buffers.raw.release(raw_state)
            raw_state.advance()
            for half in cutlass.range_constexpr(decoder.halves):
                for group in cutlass.range_constexpr(2):
                    # Its registers were last read two groups ago.
                    warpgroup.wait_group(1)
                    if cutlass.const_expr(group == 1):
                        if (i > 0) | Boolean(half > 0):
                            buffers.decoded.release(release)
                            release.advance()
                    self.decode_group(
                        words, codes, half, group, fragments[group], item.m_valid > block0
                    )
                    if cutlass.const_expr(group == 0):
                        buffers.decoded.wait_full(bf16_state)
                    self.multiply_group(
                        group, fragments[group], b_fragment, bf16_state.index, accumulators
                    )
                bf16_state.advance()
            if cutlass.const_expr(tile.promote_k is not None):
                if (i + 1) % (tile.promote_k // decoder.tile_k) == 0:
                    warpgroup.wait_group(0)
                    promoted.store(promoted.load() + accumulators[0].load())
                    accumulators[0].fill(0.0)
        warpgroup.wait_group(0)
        if item.k_count > 0:
            buffers.decoded.release(release)
        if cutlass.const_expr(tile.promote_k is not None):
            accumulators[0].store(promoted.load() + accumulators[0].load())
        return raw_state, bf16_state

    def a_fragment(self, k_steps: int):
        """A operand registers: word v + 2*h + 4*k is row half v, K half h, K step k."""
        return cute.make_rmem_tensor(((2, 2, 2), 1, k_steps), BFloat16)

    @cute.jit
    def decode_group(
        self, words, codes, half: cutlass.Constexpr, group: cutlass.Constexpr, fragment, rows_exist
    ):
        """Fill one group's A registers from raw words.

        Both branches also keep the compiler from sinking the arithmetic behind the warpgroup's
        fence, where it would have to serialize every WGMMA.
        """
        if cutlass.const_expr(self.a.decoder.bits == 8):
            special = self.decode_steps(words, codes, half, group, fragment)
            if cute.arch.vote_any_sync(special):
                self.decode_exactly(words, codes, group, fragment)
        else:
            if rows_exist:
                self.decode_steps(words, codes, half, group, fragment)
            else:
                fragment.fill(0.0)

    def group_shape(self, group: int) -> tuple[int, int, int]:
        """(row block, first K step, K steps) of a group."""
        return (group, 0, 4) if self.tile.m_blocks == 2 else (0, 2 * group, 2)

    def decode_steps(self, words, codes, half: int, group: int, fragment):
        """Decode a group; the result says whether it has to be repeated exactly."""
        decoder = self.a.decoder
        registers = cute.recast_tensor(fragment, Int32)
        block, step0, steps = self.group_shape(group)
        seen = Int32(0)
        used = [codes[decoder.scale_of(half), 2 * block + v] for v in range(2)]
        for v in range(2):
            factor = decoder.factor(used[v])
            chunk = [words[w, 2 * block + v] for w in range(4)]
            for step in range(steps):
                lower, upper, seen = decoder.step(chunk, half, step0 + step, factor, seen)
                registers[v + 4 * step] = lower
                registers[v + 4 * step + 2] = upper
        return decoder.special(seen, used) if decoder.bits == 8 else None

    def decode_exactly(self, words, codes, group: int, fragment) -> None:
        """Decode a group of 8-bit elements by the path that serves every code."""
        decoder = self.a.decoder
        registers = cute.recast_tensor(fragment, Int32)
        block, step0, steps = self.group_shape(group)
        for v in range(2):
            factor = decoder.exact_factor(codes[0, 2 * block + v])
            chunk = [words[w, 2 * block + v] for w in range(4)]
            for step in range(steps):
                lower, upper = decoder.exact_step(chunk, step0 + step, factor)
                registers[v + 4 * step] = lower
                registers[v + 4 * step + 2] = upper

    def multiply_group(self, group: int, fragment, b_fragment, stage, accumulators):
        """Issue one group's WGMMAs as a commit group."""
        block, step0, steps = self.group_shape(group)
        accumulator = accumulators[block]
        atom = cute.make_mma_atom(self.mma_op())
        atom.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.fence()
        for step in range(steps):
            cute.gemm(
                atom,
                accumulator,
                fragment[None, None, step],
                b_fragment[None, None, step0 + step, stage],
                accumulator,
            )
        warpgroup.commit_group()
