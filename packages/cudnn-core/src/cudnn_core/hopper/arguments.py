"""Symbolic tensors with which kernels are compiled; what they declare, the generated host code checks.

May import: the CuTe DSL.
"""

import cutlass
import cutlass.cute as cute

DSL_TYPES = {
    "float32": cutlass.Float32,
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "float8_e4m3fn": cutlass.Float8E4M3FN,
    "float8_e5m2": cutlass.Float8E5M2,
    "float8_e8m0fnu": cutlass.Float8E8M0FNU,
    "float4_e2m1fn": cutlass.Float4E2M1FN,
    "uint8": cutlass.Uint8,
    "int8": cutlass.Int8,
}


def matrix(
    rows,
    columns,
    dtype: str,
    container: str,
    contiguous: str,
    *,
    batched: bool,
    batch: str = "last",
    aligned: bool = True,
):
    """(rows, columns, L), or (L, rows, columns), with one contiguous mode and dynamic strides.

    rows, columns: symbols that tensors share. container: "native", or "uint8" for packed FP4. contiguous: "first" or
    "second" of the two. aligned: strides are multiples of 16 bytes and so is the base, as the tensor copy engine wants
    them. Without batches the last extent is 1, and its stride, which then means nothing, goes unchecked.
    """
    packed = dtype == "float4_e2m1fn"
    element = DSL_TYPES[dtype if container == "native" else container]
    if packed and container == "uint8":
        # Half as many bytes as codes; the extents of other tensors count codes.
        columns = cute.sym_int32()
    elif packed:
        columns = cute.sym_int32(divisibility=2)
    # Native FP4 counts codes, and an address needs whole bytes.
    unit = 2 if element.width == 4 else 1
    quantum = 128 // element.width if aligned else unit
    outer = cute.sym_int64(divisibility=quantum)
    if batched:
        extent, batch_stride = cute.sym_int32(), cute.sym_int64(divisibility=quantum)
    else:
        extent, batch_stride = 1, cute.sym_int64(divisibility=unit)
    shape = [rows, columns, extent]
    stride = [1, outer, batch_stride] if contiguous == "first" else [outer, 1, batch_stride]
    if batch == "outer":
        shape, stride = [shape[2], *shape[:2]], [stride[2], *stride[:2]]
    align = 16 if aligned else max(1, element.width // 8)
    return cute.runtime.make_fake_tensor(element, tuple(shape), tuple(stride), assumed_align=align)


def scales(dtype: str, container: str, form: str, batched: bool):
    """Either view of the atoms; the strides between atoms are dynamic."""
    element = DSL_TYPES[dtype if container == "native" else container]
    r, q, batches = cute.sym_int32(), cute.sym_int32(), cute.sym_int32() if batched else 1
    sr, sq, sl = cute.sym_int64(), cute.sym_int64(), cute.sym_int64()
    if form == "logical":
        shape, stride = (32, 4, r, 4, q, batches), (16, 4, sr, 1, sq, sl)
    else:
        shape, stride = (batches, r, q, 32, 4, 4), (sl, sr, sq, 16, 4, 1)
    return cute.runtime.make_fake_tensor(element, shape, stride, assumed_align=16)


def scalar(per_batch: bool, rank: int = 3):
    """One FP32 number (1, ..., 1), or one a batch (L, 1, ..., 1)."""
    shape, strides = (1,) * rank, tuple(cute.sym_int64() for _ in range(rank))
    if per_batch:
        shape, strides = (cute.sym_int32(), *shape[1:]), (1, *strides[1:])
    return cute.runtime.make_fake_tensor(cutlass.Float32, shape, strides, assumed_align=4)


def column(rows, *, batched: bool, batch: str = "last"):
    """One FP32 number a row, (rows, 1, L) or (L, rows, 1), with any strides."""
    extent = cute.sym_int32() if batched else 1
    shape = (rows, 1, extent) if batch == "last" else (extent, rows, 1)
    strides = tuple(cute.sym_int64() for _ in range(3))
    return cute.runtime.make_fake_tensor(cutlass.Float32, shape, strides, assumed_align=4)


def workspace():
    """Scratch memory, in bytes; its base is a multiple of 256."""
    return cute.runtime.make_fake_tensor(
        cutlass.Uint8, (cute.sym_int64(),), (1,), assumed_align=256
    )


def launch() -> list:
    """How many thread blocks may be resident, and the stream."""
    return [cutlass.Int32(1), cute.runtime.make_fake_stream()]
