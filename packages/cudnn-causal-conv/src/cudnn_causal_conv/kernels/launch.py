"""What the executables' host functions share: rules of addresses and strides, symbolic arguments. Imports the DSL."""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

TYPES = {
    "float32": cutlass.Float32,
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "int32": cutlass.Int32,
}
# Of the arrays that are not of rank 3.
RANKS = {
    "bias": 1,
    "weight": 2,
    "seq_idx": 2,
    "cu_seqlens": 1,
    "cache_seqlens": 1,
    "conv_state_indices": 1,
}
INDICES = ("seq_idx", "cu_seqlens", "cache_seqlens", "conv_state_indices")
MOST_UNITS = 2**31 - 1


def multiple(values: list, of: int) -> Boolean:
    """Whether all of the integers are multiples of a power of two."""
    joined = Int64(values[0])
    for value in values[1:]:
        joined = joined | Int64(value)
    return (joined & Int64(of - 1)) == 0


def address_of(tensor) -> Int64:
    """Of the first element; 0, which any rule accepts, of None."""
    return Int64(0) if tensor is None else tensor.iterator.toint()


def steps_of(tensor, *axes: int) -> list:
    """Byte strides along axes; 0 of axes of extent 1, whose strides say nothing."""
    size = tensor.element_type.width // 8
    return [Int64(tensor.stride[axis]) * size * Int64(tensor.shape[axis] > 1) for axis in axes]


def ceil_div(a, b) -> Int64:
    return (Int64(a) + (Int64(b) - 1)) // Int64(b)


def divisor(value):
    """For divisions by a run-time number in kernels; 1 in place of 0, which divides nothing."""
    return cute.FastDivmodDivisorV2(cutlass.max(Int32(value), Int32(1)))


def are_contiguous(weight, bias) -> Boolean:
    """Whether the rows of the weight, and the biases if any, follow each other."""
    channels, width = weight.shape
    rows = (weight.stride[0] == width) | (channels == 1)
    legal = rows & ((weight.stride[1] == 1) | (width == 1))
    if bias is None:
        return legal
    return legal & ((bias.stride[0] == 1) | (channels == 1))


def fake(name: str, dtype: str, rank: int | None = None):
    """A symbolic array of any extents and strides, aligned to its elements."""
    rank, kind = rank or RANKS.get(name, 3), TYPES[dtype]
    shape = tuple(cute.sym_int() for _ in range(rank))
    stride = tuple(cute.sym_int64() for _ in range(rank))
    return cute.runtime.make_fake_tensor(kind, shape, stride=stride, assumed_align=kind.width // 8)


def fakes(config) -> list:
    """Symbolic arguments in the order of `config.names`, the block count and the stream."""
    own = {"weight": config.weight, "bias": config.bias, **dict.fromkeys(INDICES, "int32")}
    ranks = dict.fromkeys(("x", "out"), 2) if getattr(config, "flat", False) else {}
    arrays = [fake(n, own.get(n, config.x), ranks.get(n)) for n in config.names]
    return [*arrays, Int32(1), cute.runtime.make_fake_stream()]
