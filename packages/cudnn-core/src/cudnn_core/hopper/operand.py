"""Block-scaled operands: bytes and scale atoms from global memory to shared memory to registers.

May import: the CuTe DSL, bits.py, decode.py, matrix.py, schedule.py.

The object knows the layout in global memory and in shared memory, issues the copies of a raw stage,
and gives the decoding warps words and scale codes. A raw stage of a tile with `rows` rows is 64
bytes of each row, then the 512-byte scale atoms that cover them: atom (row // 128, q) holds 4
scales of 128 rows, row r at byte (r%32)*16 + (r//32)*4.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8
from cutlass.cute.nvgpu import cpasync, warpgroup

from .bits import (
    bulk_load,
    load_shared_u8,
    load_shared_u16,
    load_shared_v4,
    opaque,
)
from .decode import Decoder
from .matrix import GLU_ROWS
from .schedule import at_least, at_most

ROW_BYTES = 64
ATOM_BYTES = 512


@dataclass(frozen=True)
class OperandArgs:
    """Run-time values of one side: the tensor map, the scale atoms, and the extents."""

    tma_atom: cute.CopyAtom
    tma_tensor: cute.Tensor
    atoms: cute.Tensor
    extent: Int32
    k: Int32
    batches: Int32


@dataclass(frozen=True)
class OperandBuffers:
    """Where a side's raw stages lie in shared memory."""

    data: cute.Tensor
    data_base: Int32
    scale_base: Int32


@dataclass(frozen=True)
class BlockScaledOperand:
    """A (rows, K, L) operand of bytes with scales in 128x4 atoms.

    element, scale: format names; None: without scales, which only the expansion serves. sf_vec:
    elements per scale. contiguous: "k", or "mn" (8-bit only), which only the expansion serves.
    container: "native" or "uint8" (FP4 only: two codes a byte). sf_form: the view in which the
    scale tensor comes. batch: whether L is the "last" or the "outer" mode of the tensor.
    glu: the rows of tiles come in turns of 32 from the first and the second half of the tensor,
    whose extent must then be a multiple of 64.
    """

    element: str
    scale: str | None
    sf_vec: int
    contiguous: str
    container: str
    sf_form: str
    batch: str
    glu: bool = False

    @property
    def decoder(self) -> Decoder:
        return Decoder(self.element, self.scale, self.sf_vec)

    def why_not(self, rows: int) -> str | None:
        """The reason why tiles of so many rows cannot be decoded, or None."""
        if self.scale is None:
            return f"{self.element} without scales is not decoded"
        if self.contiguous != "k":
            return "decoded operands must be K-major"
        if self.glu and rows % (2 * GLU_ROWS):
            return f"GLU halves need tiles of a multiple of {2 * GLU_ROWS} rows, got {rows}"
        return None

    def data_bytes(self, rows: int) -> int:
        return rows * ROW_BYTES

    @property
    def parts(self) -> int:
        """Ranges of consecutive rows that make a tile."""
        return 2 if self.glu else 1

    def part_atoms(self, rows: int) -> int:
        """Scale atoms along the rows of a part of a tile."""
        if self.glu:
            # A part may begin at any multiple of 32 rows.
            return (rows // 2 - 32 + 127) // 128 + 1
        return (rows + 127) // 128

    def row_atoms(self, rows: int) -> int:
        return self.parts * self.part_atoms(rows)

    def scale_bytes(self, rows: int) -> int:
        return self.row_atoms(rows) * self.decoder.atoms_k * ATOM_BYTES

    def scale_group(self, pieces: int) -> int:
        """How many of a stage's pieces have their scales in common."""
        return min(pieces, self.decoder.scale_pieces)

    def stage_bytes(self, rows: int, pieces: int = 1) -> int:
        """Bytes of a raw stage with so many pieces of each row."""
        scales = self.scale_bytes(rows) * (pieces // self.scale_group(pieces))
        return self.data_bytes(rows) * pieces + scales

    def smem_layout(self, rows: int, stages: int):
        """Rows carry the 64-byte swizzle."""
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW64, Uint8)
        return cute.tile_to_shape(atom, (rows, ROW_BYTES, stages), order=(0, 1, 2))

    @cute.jit
    def prepare(self, tensor: cute.Tensor, scales: cute.Tensor, rows: cutlass.Constexpr):
        """On the host: the tensor map and the scale atoms, from the user's tensors."""
        mn, k, batches = 0, 1, 2
        if cutlass.const_expr(self.batch == "outer"):
            batches, mn, k = 0, 1, 2
        extent, k_extent, batch_extent = tensor.shape[mn], tensor.shape[k], tensor.shape[batches]
        # FP4 has two codes a byte: native tensors count codes, uint8 containers count bytes.
        native4 = cutlass.const_expr(self.decoder.bits == 4 and self.container == "native")
        per_byte = cutlass.const_expr(8 // self.decoder.bits)
        unit = cutlass.const_expr(2 if native4 else 1)
        k_bytes = Int32(k_extent) // unit
        row_stride = self.tma_stride(tensor.shape[mn], tensor.stride[mn], unit)
        batch_stride = self.tma_stride(batch_extent, tensor.stride[batches], unit)
        row_shape = Int32(extent)
        if cutlass.const_expr(self.glu):
            half = cute.assume(Int64(row_shape // 2) * row_stride, divby=16)
            row_shape = (GLU_ROWS, 2, row_shape // (2 * GLU_ROWS))
            row_stride = (row_stride, half, GLU_ROWS * row_stride)
        bytes_ = cute.make_tensor(
            cute.recast_ptr(tensor.iterator, dtype=Uint8),
            cute.make_layout(
                (row_shape, k_bytes, Int32(batch_extent)), stride=(row_stride, 1, batch_stride)
            ),
        )
        layout = cute.slice_(self.smem_layout(rows, 1), (None, None, 0))
        tma_atom, tma_tensor = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), bytes_, layout, (rows, ROW_BYTES)
        )
        r, q, batches = (2, 4, 5) if self.sf_form == "logical" else (1, 2, 0)
        atoms = cute.make_tensor(
            cute.recast_ptr(scales.iterator, dtype=Uint8),
            cute.make_layout(
                tuple(Int32(scales.shape[i]) for i in (r, q, batches)),
                stride=tuple(Int64(scales.stride[i]) for i in (r, q, batches)),
            ),
        )
        return OperandArgs(
            tma_atom, tma_tensor, atoms, Int32(extent), k_bytes * per_byte, Int32(batch_extent)
        )

    @cute.jit
    def tma_stride(self, extent, stride, unit: cutlass.Constexpr):
        """A byte stride for the tensor map; extents of 1 may carry any stride, so it is unused."""
        value = Int64(stride) // unit
        if Int32(extent) == 1:
            value = Int64(16)
        return cute.assume(value, divby=16)

    def allocate(self, smem, rows: int, stages: int, pieces: int = 1) -> OperandBuffers:
        layout = self.smem_layout(rows, stages * pieces)
        data = smem.allocate_tensor(Uint8, layout.outer, 1024, swizzle=layout.inner)
        count = self.scale_bytes(rows) * stages * (pieces // self.scale_group(pieces))
        scales = smem.allocate_array(Uint8, count, byte_alignment=128)
        return OperandBuffers(data, data.iterator.toint(), scales.toint())

    @cute.jit
    def batch_index(self, args: OperandArgs, batch: Int32) -> Int32:
        """An operand with one batch serves every batch."""
        if args.batches == 1:
            batch = Int32(0)
        return batch

    def partition(self, args: OperandArgs, buffers: OperandBuffers, rows: int, row0, k0, batch):
        """(shared, global) views for the copies of a work item, indexed by stage and K tile."""
        tile = args.tma_tensor[None, None, self.batch_index(args, batch)]
        tile = cute.domain_offset((row0, k0 // (self.decoder.tile_k // ROW_BYTES)), tile)
        tile = cute.local_tile(tile, (rows, ROW_BYTES), (0, None))
        return cpasync.tma_partition(
            args.tma_atom,
            0,
            cute.make_layout(1),
            cute.group_modes(buffers.data, 0, 2),
            cute.group_modes(tile, 0, 2),
        )

    def first_row(self, args: OperandArgs, row0, part: int) -> Int32:
        """The row of the tensor with which a part of a tile begins."""
        if self.glu:
            return part * (args.extent // 2) + row0 // 2
        return row0

    @cute.jit
    def valid_atoms(
        self, args: OperandArgs, rows: cutlass.Constexpr, row0, k_tile, part: cutlass.Constexpr
    ):
        """How many (row, K) atoms of a part of a stage exist in the scale tensor."""
        along_rows = args.atoms.shape[0] - self.first_row(args, row0, part) // 128
        # Blocks of a cluster can lie beyond the last row.
        along_rows = at_least(at_most(along_rows, Int32(self.part_atoms(rows))), Int32(0))
        along_k = args.atoms.shape[1] - self.first_q(k_tile)
        return along_rows, at_most(along_k, Int32(self.decoder.atoms_k))

    def scale_count(self, args: OperandArgs, rows: int, row0, k_tile, pieces: int) -> Int32:
        """Bytes of a stage's scale atoms that exist."""
        atoms = Int32(0)
        for part in range(self.parts):
            for piece in range(0, pieces, self.decoder.scale_pieces):
                along_rows, along_k = self.valid_atoms(args, rows, row0, k_tile + piece, part)
                atoms += along_rows * at_least(along_k, Int32(0))
        return atoms * ATOM_BYTES

    def first_q(self, k_tile: Int32) -> Int32:
        """The first K atom of a raw stage."""
        if self.decoder.blocks < 4:
            return k_tile * self.decoder.blocks // 4
        return k_tile * self.decoder.atoms_k

    @cute.jit
    def load_scales(
        self, args, buffers, rows: cutlass.Constexpr, row0, k_tile, batch, stage, barrier
    ):
        """One thread: copy the scale atoms of a stage that exist."""
        base = buffers.scale_base + stage * self.scale_bytes(rows)
        batch = self.batch_index(args, batch)
        atoms_k = cutlass.const_expr(self.decoder.atoms_k)
        for part in cutlass.range_constexpr(self.parts):
            along_rows, along_k = self.valid_atoms(args, rows, row0, k_tile, part)
            first = self.first_row(args, row0, part) // 128
            for i in cutlass.range_constexpr(self.part_atoms(rows)):
                for j in cutlass.range_constexpr(atoms_k):
                    if (along_rows > i) & (along_k > j):
                        offset = cute.crd2idx(
                            (first + i, self.first_q(k_tile) + j, batch), args.atoms.layout
                        )
                        slot = cutlass.const_expr((part * self.part_atoms(rows) + i) * atoms_k + j)
                        bulk_load(
                            base + slot * ATOM_BYTES,
                            args.atoms.iterator.toint() + offset,
                            Int32(ATOM_BYTES),
                            barrier,
                        )

    def data_stage(self, buffers: OperandBuffers, rows: int, stage: Int32) -> Int32:
        """The shared-memory address of a stage's bytes."""
        return buffers.data_base + stage * self.data_bytes(rows)

    def data_offset(self, row: Int32, lane4: Int32) -> Int32:
        """Where the share of a row of a quad's thread `lane4` lies in a stage."""
        # The 64-byte swizzle of the tensor map: bits 4-5 are xored with bits 7-8.
        return row * ROW_BYTES + ((((row >> 1) & 3) ^ lane4) << 4)

    def load_words(self, at: Int32, down: int) -> tuple:
        """A thread's words of a row that lies `down` rows below the one whose share is at address `at`.

        Neither 8 nor 32 nor 64 rows down does a swizzle change.
        """
        return load_shared_v4(at + down * ROW_BYTES)

    def scale_stage(self, buffers: OperandBuffers, rows: int, stage: Int32) -> Int32:
        """The shared-memory address of a stage's scale atoms."""
        return buffers.scale_base + stage * self.scale_bytes(rows)

    def scale_offsets(
        self, args, rows: int, row0, row: Int32, downs: list[int], lane4: Int32
    ) -> list:
        """Where the scales of a quad's thread `lane4` lie in a stage, by row, as (a thread's number, a constant).

        row: in the tile that begins at row0; downs: how far below it the rows lie (0, 8, 32, 64 and
        sums of them).
        """
        block = self.decoder.share_start(lane4)
        share = (block >> 2) * ATOM_BYTES + (block & 3)
        if not self.glu:
            # Tiles of 64 rows can start in the middle of an atom.
            start = row + (row0 & 127 if rows % 128 else 0)
            base = opaque(self.atom_offset(start >> 7, start) + share)
            return [(base, 16 * (down % 32) + 4 * (down // 32)) for down in downs]
        made = []
        for down in downs:
            # With 32 or 0 rows of `row` in a turn, `down` alone says which half it is of.
            part, turn = down // GLU_ROWS % 2, row + down - down // GLU_ROWS % 2 * GLU_ROWS
            first = self.first_row(args, row0, part)
            there = first + (turn // (2 * GLU_ROWS)) * GLU_ROWS + turn % GLU_ROWS
            slot = (there >> 7) - (first >> 7) + part * self.part_atoms(rows)
            made.append((opaque(self.atom_offset(slot, there) + share), 0))
        return made

    def atom_offset(self, slot: Int32, row: Int32) -> Int32:
        """Where the first scale of a row lies in a stage whose atom number `slot` holds it."""
        within = ((row & 31) << 4) + (((row >> 5) & 3) << 2)
        return slot * (self.decoder.atoms_k * ATOM_BYTES) + within

    def first_block(self, k_tile: Int32) -> Int32:
        """Position of a stage's first block within the stage's first atom."""
        if self.decoder.blocks < 4:
            return (k_tile * self.decoder.blocks) & 3
        return Int32(0)

    def load_codes(self, at: Int32, k_tile: Int32) -> Int32:
        """The scale codes of a thread's share of a row, in the lowest bytes.

        at: the address of the first one in the stage.
        """
        at += self.first_block(k_tile)
        return load_shared_u8(at) if self.decoder.share_blocks == 1 else load_shared_u16(at)

    @cute.jit
    def guard(self, codes: Int32, inside: Int32) -> Int32:
        """A thread's codes of a row, with blocks past the end of K made neutral.

        Padding lies there for scales, and zeros for elements. inside: how many of the blocks lie in K.
        """
        count = cutlass.const_expr(self.decoder.share_blocks)
        if inside < count:
            mask = (Int32(1) << (at_least(inside, Int32(0)) * 8)) - 1
            neutral = Int32(self.decoder.neutral * (0x0101 if count == 2 else 1))
            codes = (codes & mask) | (neutral & ~mask)
        return codes
