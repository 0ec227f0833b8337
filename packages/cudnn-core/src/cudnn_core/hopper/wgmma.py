"""The warpgroup products of every operand format, and how they are issued.

May import: the CuTe DSL. Nothing of the project.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.atom import make_atom
from cutlass.cute.core import _pack_shape
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.cute.nvgpu.warpgroup.mma import MmaF16BF16Trait, MmaOp


class MmaTF32Op(MmaOp):
    """64 rows by N columns by 8 of K in TF32, both operands K-major; the DSL has none for Hopper."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def __init__(self, columns: int):
        k_major = OperandMajorMode.K
        super().__init__(
            cutlass.TFloat32,
            cutlass.TFloat32,
            Float32,
            (64, columns, 8),
            warpgroup.OperandSource.SMEM,
            k_major,
            k_major,
        )

    def _make_trait(self, *, loc=None, ip=None, **_):
        shape = _pack_shape(self.shape_mnk, loc=loc, ip=ip)
        kind = cute_nvgpu.MmaAtomSM90Type.get(
            shape.type.attribute,
            self.a_major_mode._to_ir(),
            self.b_major_mode._to_ir(),
            self.a_dtype.mlir_type,
            self.b_dtype.mlir_type,
            self.acc_dtype.mlir_type,
            self.a_src._to_ir(),
        )
        accumulate = Boolean(False).ir_value(loc=loc, ip=ip)
        return MmaF16BF16Trait(make_atom(kind, [accumulate], loc=loc, ip=ip))


def product(row_dtype, column_dtype, columns: int, row_major, column_major):
    """64 rows by `columns` columns, operands in shared memory, FP32 sums; K steps are 32 bytes."""
    source = warpgroup.OperandSource.SMEM
    if row_dtype.width == 32:
        return MmaTF32Op(columns)
    if row_dtype.width == 8:
        shape = (64, columns, 32)
        return warpgroup.MmaF8Op(
            row_dtype, column_dtype, Float32, shape, source, row_major, column_major
        )
    shape = (64, columns, 16)
    return warpgroup.MmaF16BF16Op(row_dtype, Float32, shape, source, row_major, column_major)


def atom(op, accumulate: bool):
    """The instruction, adding to its accumulator or overwriting it."""
    made = cute.make_mma_atom(op)
    made.set(warpgroup.Field.ACCUMULATE, accumulate)
    return made
