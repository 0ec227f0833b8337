"""Operands that the tensor core reads as they lie in memory: global to shared memory by TMA.

May import: the CuTe DSL, arguments.py, rings.py, tile.py.

A stage of a side with `rows` rows is 128 bytes of K of each row, swizzled as WGMMA expects it.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from .arguments import DSL_TYPES

STAGE_ROW_BYTES = 128
# GLU halves alternate in the tile by so many rows of the operand.
GLU_ROWS = 32


@dataclass(frozen=True)
class MatrixArgs:
    """Run-time values of one side: the tensor map and the extents."""

    tma_atom: cute.CopyAtom
    tma_tensor: cute.Tensor
    extent: Int32
    k: Int32
    batches: Int32


@dataclass(frozen=True)
class MatrixOperand:
    """A (rows, K, L) operand of 16-bit, TF32 or FP8 elements, K- or (16-bit only) row-contiguous.

    element: "float16", "bfloat16", "float32" (read as TF32), "float8_e4m3fn" or "float8_e5m2".
    contiguous: "k" or "mn". batch: whether L is the "last" or the "outer" mode of the tensor.
    glu: rows come in turns of 32 from the first and the second half of the tensor, whose extent
    must then be a multiple of 64. sharers: blocks of a cluster that each load a part of the stage
    for all of them.
    """

    element: str
    contiguous: str = "k"
    batch: str = "last"
    glu: bool = False
    sharers: int = 1

    @property
    def dtype(self):
        return cutlass.TFloat32 if self.element == "float32" else DSL_TYPES[self.element]

    @property
    def bits(self) -> int:
        return {"float16": 16, "bfloat16": 16, "float32": 32}.get(self.element, 8)

    @property
    def tile_k(self) -> int:
        """K elements of a stage."""
        return STAGE_ROW_BYTES * 8 // self.bits

    @property
    def major(self) -> OperandMajorMode:
        return OperandMajorMode.K if self.contiguous == "k" else OperandMajorMode.MN

    def why_not(self, rows: int) -> str | None:
        """The reason why tiles of so many rows cannot be loaded, or None."""
        if self.contiguous == "mn" and self.bits != 16:
            return f"{self.element} must be K-major"
        if self.contiguous == "mn" and rows % 16:
            return f"row-contiguous tiles need a multiple of 16 rows, got {rows}"
        if self.glu and rows % (2 * GLU_ROWS):
            return f"GLU halves need tiles of a multiple of {2 * GLU_ROWS} rows, got {rows}"
        if rows % (8 * self.sharers):
            return f"{self.sharers} blocks cannot share tiles of {rows} rows"
        return None

    def stage_bytes(self, rows: int) -> int:
        return rows * STAGE_ROW_BYTES

    def smem_layout(self, rows: int, stages: int):
        kinds = warpgroup.SmemLayoutAtomKind
        if self.contiguous == "k":
            kind, order = kinds.K_SW128, (0, 1, 2)
        else:
            # A swizzle line cannot be longer than what is contiguous in the tile.
            wide = GLU_ROWS if self.glu else rows
            kind = kinds.MN_SW128 if wide % 64 == 0 else kinds.MN_SW64
            kind, order = kind if wide % 32 == 0 else kinds.MN_SW32, (1, 0, 2)
        atom = warpgroup.make_smem_layout_atom(kind, self.dtype)
        return cute.tile_to_shape(atom, (rows, self.tile_k, stages), order=order)

    @cute.jit
    def prepare(self, tensor: cute.Tensor, rows: cutlass.Constexpr) -> MatrixArgs:
        """On the host: the tensor map for tiles of `rows` rows."""
        mn, k, batches = (0, 1, 2) if self.batch == "last" else (1, 2, 0)
        extent, k_extent, batch_extent = (Int32(tensor.shape[i]) for i in (mn, k, batches))
        outer = k if self.contiguous == "mn" else mn
        outer_stride = self.tma_stride(tensor.shape[outer], tensor.stride[outer])
        batch_stride = self.tma_stride(tensor.shape[batches], tensor.stride[batches])
        row_stride, k_stride = outer_stride, 1
        if cutlass.const_expr(self.contiguous == "mn"):
            row_stride, k_stride = 1, outer_stride
        row_shape = extent
        if cutlass.const_expr(self.glu):
            half = cute.assume(Int64(extent // 2) * row_stride, divby=128 // self.bits)
            row_shape = (GLU_ROWS, 2, extent // (2 * GLU_ROWS))
            row_stride = (row_stride, half, GLU_ROWS * row_stride)
        matrix = cute.make_tensor(
            cute.recast_ptr(tensor.iterator, dtype=self.dtype),
            cute.make_layout(
                (row_shape, k_extent, batch_extent), stride=(row_stride, k_stride, batch_stride)
            ),
        )
        op = cpasync.CopyBulkTensorTileG2SOp()
        if cutlass.const_expr(self.sharers > 1):
            op = cpasync.CopyBulkTensorTileG2SMulticastOp()
        layout = cute.slice_(self.smem_layout(rows, 1), (None, None, 0))
        tma_atom, tma_tensor = cpasync.make_tiled_tma_atom(
            op, matrix, layout, (rows, self.tile_k), num_multicast=self.sharers
        )
        return MatrixArgs(tma_atom, tma_tensor, extent, k_extent, batch_extent)

    @cute.jit
    def tma_stride(self, extent, stride):
        """A stride for the tensor map; extents of 1 may carry any stride, so it is unused."""
        align = cutlass.const_expr(128 // self.bits)
        value = Int64(stride)
        if Int32(extent) == 1:
            value = Int64(align)
        return cute.assume(value, divby=align)

    def allocate(self, smem, rows: int, stages: int) -> cute.Tensor:
        layout = self.smem_layout(rows, stages)
        return smem.allocate_tensor(self.dtype, layout.outer, 1024, swizzle=layout.inner)

    @cute.jit
    def partition(
        self, args: MatrixArgs, buffer: cutlass.Constexpr, rows: cutlass.Constexpr, row0, k0, batch
    ):
        """(shared, global) views for the copies of a work item, indexed by stage and K tile."""
        # An operand with one batch serves every batch.
        if args.batches == 1:
            batch = Int32(0)
        tile = args.tma_tensor[None, None, batch]
        tile = cute.local_tile(cute.domain_offset((row0, k0), tile), (rows, self.tile_k), (0, None))
        return cpasync.tma_partition(
            args.tma_atom,
            self.share() if self.sharers > 1 else 0,
            cute.make_layout(self.sharers),
            cute.group_modes(buffer, 0, 2),
            cute.group_modes(tile, 0, 2),
        )

    def share(self) -> Int32:
        """Which part of a shared stage this block loads: blocks that share are consecutive."""
        return cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())

    def copy(self, args: MatrixArgs, source, target, barrier) -> None:
        """The producer warp: copy one stage, or this block's part of it for the whole cluster."""
        mask = None if self.sharers == 1 else Int16((1 << self.sharers) - 1)
        cute.copy(args.tma_atom, source, target, tma_bar_ptr=barrier, mcast_mask=mask)
