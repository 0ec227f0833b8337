"""Block-scaled operands: bytes and scale atoms from global memory to shared memory to BF16.

May import: the CuTe DSL, bits.py, decode.py, rings.py, tile.py.

One object per side. It knows the layout in global memory and in shared memory, issues the copies of
a raw stage, and gives the decoding warps words and scale codes. A raw stage of a side with `rows`
rows is 64 bytes of each row, then the 512-byte scale atoms that cover them:
atom (row // 128, q) holds 4 scales of 128 rows, row r at byte (r%32)*16 + (r//32)*4.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8
from cutlass.cute.nvgpu import cpasync, warpgroup

from .bits import bulk_load, load_shared_u8, load_shared_u16, load_shared_u32, load_shared_v4
from .decode import Decoder

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

    element, scale: format names. sf_vec: elements per scale. contiguous: "k" or "mn" (8-bit only).
    container: "native" or "uint8" (FP4 only: two codes a byte). sf_form: the view in which the
    scale tensor comes. batch: whether L is the "last" or the "outer" mode of the tensor.
    """

    element: str
    scale: str
    sf_vec: int
    contiguous: str
    container: str
    sf_form: str
    batch: str

    @property
    def decoder(self) -> Decoder:
        return Decoder(self.element, self.scale, self.sf_vec)

    def data_bytes(self, rows: int) -> int:
        return rows * ROW_BYTES

    def row_atoms(self, rows: int) -> int:
        return (rows + 127) // 128

    def scale_bytes(self, rows: int) -> int:
        return self.row_atoms(rows) * self.decoder.atoms_k * ATOM_BYTES

    def stage_bytes(self, rows: int) -> int:
        return self.data_bytes(rows) + self.scale_bytes(rows)

    def smem_layout(self, rows: int, stages: int):
        """K-major rows carry the 64-byte swizzle; MN-major tiles are plain [k][row]."""
        if self.contiguous == "mn":
            return cute.make_layout((rows, ROW_BYTES, stages), stride=(1, rows, rows * ROW_BYTES))
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
        outer = k if self.contiguous == "mn" else mn
        outer_stride = self.tma_stride(tensor.shape[outer], tensor.stride[outer], unit)
        batch_stride = self.tma_stride(batch_extent, tensor.stride[batches], unit)
        stride = (outer_stride, 1, batch_stride)
        if cutlass.const_expr(self.contiguous == "mn"):
            stride = (1, outer_stride, batch_stride)
        bytes_ = cute.make_tensor(
            cute.recast_ptr(tensor.iterator, dtype=Uint8),
            cute.make_layout((Int32(extent), k_bytes, Int32(batch_extent)), stride=stride),
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

    def allocate(self, smem, rows: int, stages: int) -> OperandBuffers:
        layout = self.smem_layout(rows, stages)
        if isinstance(layout, cute.ComposedLayout):
            data = smem.allocate_tensor(Uint8, layout.outer, 1024, swizzle=layout.inner)
        else:
            data = smem.allocate_tensor(Uint8, layout, 1024)
        scales = smem.allocate_array(Uint8, self.scale_bytes(rows) * stages, byte_alignment=128)
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

    @cute.jit
    def valid_atoms(self, args: OperandArgs, rows: cutlass.Constexpr, row0, k_tile):
        """How many (row, K) atoms of a stage exist in the scale tensor."""
        along_rows = args.atoms.shape[0] - row0 // 128
        if along_rows > self.row_atoms(rows):
            along_rows = Int32(self.row_atoms(rows))
        along_k = args.atoms.shape[1] - self.first_q(k_tile)
        if along_k > self.decoder.atoms_k:
            along_k = Int32(self.decoder.atoms_k)
        return along_rows, along_k

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
        along_rows, along_k = self.valid_atoms(args, rows, row0, k_tile)
        base = buffers.scale_base + stage * self.scale_bytes(rows)
        batch = self.batch_index(args, batch)
        for i in cutlass.range_constexpr(self.row_atoms(rows)):
            for j in cutlass.range_constexpr(self.decoder.atoms_k):
                if (along_rows > i) & (along_k > j):
                    offset = cute.crd2idx(
                        (row0 // 128 + i, self.first_q(k_tile) + j, batch), args.atoms.layout
                    )
                    bulk_load(
                        base + (i * self.decoder.atoms_k + j) * ATOM_BYTES,
                        args.atoms.iterator.toint() + offset,
                        Int32(ATOM_BYTES),
                        barrier,
                    )

    def data_stage(self, buffers: OperandBuffers, rows: int, stage: Int32) -> Int32:
        """The shared-memory address of a stage's bytes."""
        return buffers.data_base + stage * self.data_bytes(rows)

    def data_offset(self, rows: int, row: Int32, chunk: Int32) -> Int32:
        """Where 16-byte chunk `chunk` of a row begins in a stage."""
        if self.contiguous == "k":
            # The 64-byte swizzle of the tensor map: bits 4-5 are xored with bits 7-8.
            return row * ROW_BYTES + ((chunk ^ ((row >> 1) & 3)) << 4)
        return chunk * 16 * rows + row

    def load_words(self, at: Int32, rows: int, down: int) -> tuple:
        """The four words of a chunk that lies `down` rows below the chunk at address `at`."""
        if self.contiguous == "k":
            return load_shared_v4(at + down * ROW_BYTES)
        words = []
        for i in range(4):
            word = load_shared_u8(at + down + 4 * i * rows)
            for j in range(1, 4):
                word = word | (load_shared_u8(at + down + (4 * i + j) * rows) << (8 * j))
            words.append(word)
        return tuple(words)

    def scale_stage(self, buffers: OperandBuffers, rows: int, stage: Int32) -> Int32:
        """The shared-memory address of a stage's scale atoms."""
        return buffers.scale_base + stage * self.scale_bytes(rows)

    def scale_offset(self, row: Int32) -> Int32:
        """Where the first scale of a row lies in a stage's atoms."""
        within = ((row & 31) << 4) + (((row >> 5) & 3) << 2)
        return (row >> 7) * (self.decoder.atoms_k * ATOM_BYTES) + within

    def first_block(self, k_tile: Int32) -> Int32:
        """Position of a stage's first block within the stage's first atom."""
        if self.decoder.blocks < 4:
            return (k_tile * self.decoder.blocks) & 3
        return Int32(0)

    @cute.jit
    def guard(self, code: Int32, block: Int32, existing: Int32) -> Int32:
        """Blocks past the end of K have padding for scales, and zeros for elements."""
        if block >= existing:
            code = Int32(self.decoder.neutral)
        return code

    def chunk_codes(self, at: Int32, chunk: Int32, k_tile: Int32, existing: Int32) -> tuple:
        """Scale codes (one, or two for 16-element blocks) of a row's chunk.

        at: the address of the row's first scale in the stage. existing: how many of the stage's
        blocks lie inside K.
        """
        block = chunk * self.decoder.chunk_elements // self.decoder.sf_vec
        within = block + self.first_block(k_tile)
        at = at + (within & 3) + (within >> 2) * ATOM_BYTES
        if self.decoder.scales_per_chunk == 1:
            return (self.guard(load_shared_u8(at), block, existing),)
        both = load_shared_u16(at)
        return (
            self.guard(both & 0xFF, block, existing),
            self.guard(both >> 8, block + 1, existing),
        )

    def row_codes(self, at: Int32, k_tile: Int32, existing: Int32) -> tuple:
        """Scale codes of all the stage's blocks of one row; arguments as above."""
        codes = []
        for atom in range(self.decoder.atoms_k):
            word = load_shared_u32(at + atom * ATOM_BYTES)
            if self.decoder.blocks < 4:
                word = word >> (8 * self.first_block(k_tile))
            for j in range(min(4, self.decoder.blocks)):
                block = 4 * atom + j
                codes.append(self.guard((word >> (8 * j)) & 0xFF, Int32(block), existing))
        return tuple(codes)
