"""Device, TensorDesc and stride arithmetic: an array's metadata. Imports no framework.

Extents and strides may be symbolic integers (torch.SymInt): nothing here hashes one, and one is
compared only where the answer is needed.
"""

import dataclasses
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from .dtypes import FLOAT4_E2M1FN, UINT8, DType, as_dtype

__all__ = [
    "Device",
    "TensorDesc",
    "as_device",
    "canonical_stride",
    "contiguous_stride",
    "logical_fp4",
    "physical_fp4",
    "stride_order",
]

Ints = Sequence[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """Where an array lives: `str()` is "type" or "type:index"."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


def as_device(x: Any) -> Device:
    """A Device from a Device, a name ("cpu", "cuda:1"), or an object with `.type` and `.index`."""
    if isinstance(x, Device):
        return x
    if isinstance(x, str):
        kind, colon, index = x.partition(":")
        if kind and not colon:
            return Device(kind)
        if kind and index.isdecimal():
            return Device(kind, int(index))
    elif isinstance(getattr(x, "type", None), str):
        return Device(x.type, getattr(x, "index", None))
    raise TypeError(f'device: expected a Device or a name such as "cuda:0", got {x!r}')


def contiguous_stride(shape: Ints) -> tuple:
    """C-contiguous strides: each the product of the later extents (a zero extent gives zeros)."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


def canonical_stride(shape: Ints, stride: Ints) -> tuple:
    """Strides in which every dim of extent 1 gets the product of all extents; the others stay.

    The stride of such a dim addresses nothing, so two arrays that differ only there are the same.
    """
    if not any(extent == 1 for extent in shape):
        return tuple(stride)
    total = math.prod(shape)
    return tuple(total if extent == 1 else step for extent, step in zip(shape, stride, strict=True))


def stride_order(shape: Ints, stride: Ints) -> tuple[int, ...]:
    """Dims from innermost to outermost: by stride, then by extent, then by index."""
    return tuple(sorted(range(len(shape)), key=lambda d: (stride[d], shape[d], d)))


def packed_dim(shape: Ints, stride: Ints) -> int:
    """The dim along which FP4 codes are packed: the one of stride 1.

    Several dims can have stride 1 where extents are 0 or 1. An empty dim is then the packed one,
    next comes one
    longer than 1: the stride of a dim of extent 1 says nothing. `RuntimeError` when no stride is 1.
    """
    unit = [d for d, step in enumerate(stride) if step == 1]
    if not unit:
        raise RuntimeError(
            f"packed FP4 needs a dimension of stride 1, got shape {tuple(shape)}, "
            f"stride {tuple(stride)}"
        )
    if len(unit) == 1:
        return unit[0]
    for wanted in (lambda extent: extent == 0, lambda extent: extent != 1):
        for d in unit:
            if wanted(shape[d]):
                return d
    return unit[0]


def logical_fp4(shape: Ints, stride: Ints, axis: int | None = None) -> tuple[tuple, tuple]:
    """Logical (shape, stride) of packed FP4: the packed extent doubled, every other stride doubled.

    axis: the packed dim when the caller knows it; otherwise `packed_dim` finds it.
    """
    packed = packed_dim(shape, stride) if axis is None else axis
    return (
        tuple(2 * extent if d == packed else extent for d, extent in enumerate(shape)),
        tuple(1 if d == packed else 2 * step for d, step in enumerate(stride)),
    )


def physical_fp4(shape: Ints, stride: Ints, axis: int | None = None) -> tuple[tuple, tuple]:
    """Inverse of `logical_fp4`: (shape, stride) of the bytes. `ValueError` for unpaired codes."""
    packed = packed_dim(shape, stride) if axis is None else axis
    if shape[packed] % 2:
        raise ValueError(
            f"packed FP4 needs an even extent along dim {packed}, got shape {tuple(shape)}"
        )
    for d, step in enumerate(stride):
        if d != packed and shape[d] > 1 and step % 2:
            raise ValueError(
                f"packed FP4 needs even strides outside dim {packed}, got stride {tuple(stride)}"
            )
    return (
        tuple(extent // 2 if d == packed else extent for d, extent in enumerate(shape)),
        tuple(1 if d == packed else step // 2 for d, step in enumerate(stride)),
    )


def _integers(values: Iterable) -> tuple:
    # NumPy integers become int; symbolic ones, not numbers.Integral, pass through untouched.
    return tuple(
        v if type(v) is int or not isinstance(v, numbers.Integral) else int(v) for v in values
    )


def _counts(values: Any, argument: str) -> tuple:
    """`values` as a tuple of integers, symbolic ones included; `TypeError` naming `argument` for others."""
    if isinstance(values, Iterable) and not isinstance(values, str):
        values = _integers(values)
        # What is neither a plain number nor text is taken for a symbolic integer.
        if not any(
            isinstance(v, (numbers.Number, str, type(None))) and type(v) is not int for v in values
        ):
            return values
    raise TypeError(f"{argument}: expected integers, got {values!r}")


@dataclasses.dataclass(frozen=True)
class TensorDesc:
    """Metadata of an array in logical elements; its methods mirror torch's and return descriptors.

    stride_order: dims from innermost to outermost; None derives it from `stride` when first read.
    interpret_uint8_as_fp4x2: the bytes come in a uint8 container. With dtype float4_e2m1fn, shape
    and stride are those of the codes (see `as_fp4`).
    `ValueError` when ranks differ, an extent is negative or stride_order is no permutation;
    `TypeError` for extents and strides that are no integers, and when device is none.
    """

    dtype: DType
    shape: tuple
    stride: tuple
    stride_order: tuple[int, ...]
    device: Device
    interpret_uint8_as_fp4x2: bool = False
    name: str = ""

    def __post_init__(self):
        def put(field: str, value: object) -> None:
            object.__setattr__(self, field, value)

        label = f"{self.name}: " if self.name else ""
        put("dtype", as_dtype(self.dtype))
        put("shape", _counts(self.shape, f"{label}shape"))
        put("stride", _counts(self.stride, f"{label}stride"))
        put("device", as_device(self.device))
        rank = len(self.shape)
        if any(type(extent) is int and extent < 0 for extent in self.shape):
            raise ValueError(f"{label}shape: expected extents of 0 or more, got {self.shape}")
        if len(self.stride) != rank:
            raise ValueError(
                f"{label}stride: expected {rank} entries for shape {self.shape}, got {self.stride}"
            )
        if self.stride_order is None:
            object.__delattr__(self, "stride_order")  # __getattr__ derives it
            return
        put("stride_order", _integers(self.stride_order))
        if sorted(self.stride_order) != list(range(rank)):
            raise ValueError(
                f"{label}stride_order: expected a permutation of 0..{rank - 1}, "
                f"got {self.stride_order}"
            )

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "stride_order" and "stride" in self.__dict__:
            order = stride_order(self.shape, self.stride)
            object.__setattr__(self, "stride_order", order)
            return order
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")

    @classmethod
    def of(
        cls,
        dtype: Any,
        shape: Ints,
        stride: Ints | None = None,
        device: Any = "cpu",
        name: str = "",
    ) -> "TensorDesc":
        """A descriptor with strides that default to C-contiguous and a derived stride_order."""
        if stride is None:
            label = f"{name}: " if name else ""
            stride = contiguous_stride(_counts(shape, f"{label}shape"))
        return cls(dtype, shape, stride, None, device, name=name)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True  # a descriptor is never "empty": `if desc:` must not ask for len()

    def numel(self) -> Any:
        """The number of elements."""
        return math.prod(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one extent of it."""
        return self.shape if dim is None else self.shape[self._dim(dim)]

    def as_fp4(self, axis: int | None = None) -> "TensorDesc":
        """A uint8 descriptor seen as FP4, two codes in a byte: metadata of the codes."""
        if self.dtype is not UINT8:
            raise ValueError(f"{self.name or 'tensor'}: expected uint8, got {self.dtype}")
        shape, stride = logical_fp4(self.shape, self.stride, axis)
        return TensorDesc(FLOAT4_E2M1FN, shape, stride, None, self.device, True, self.name)

    def permute(self, *dims: Any) -> "TensorDesc":
        """Dims in another order. `RuntimeError` when `dims` is no permutation of them."""
        wanted = dims[0] if len(dims) == 1 and not isinstance(dims[0], numbers.Integral) else dims
        order = [self._dim(d) for d in wanted]
        if len(order) != self.ndim:
            raise RuntimeError(f"permute: expected {self.ndim} dims, got {tuple(wanted)}")
        if len(set(order)) != self.ndim:
            raise RuntimeError(f"permute: repeated dims in {tuple(wanted)}")
        return self._with([self.shape[d] for d in order], [self.stride[d] for d in order])

    def transpose(self, dim0: int, dim1: int) -> "TensorDesc":
        """Two dims exchanged."""
        order = list(range(self.ndim))
        a, b = self._dim(dim0), self._dim(dim1)
        order[a], order[b] = b, a
        return self.permute(order)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> "TensorDesc":
        """Without the dims of extent 1, or without those of `dim` that have it."""
        if dim is None:
            chosen = set(range(self.ndim))
        elif isinstance(dim, numbers.Integral):
            chosen = {self._dim(dim)}
        else:
            chosen = {self._dim(d) for d in dim}
        keep = [d for d in range(self.ndim) if d not in chosen or self.shape[d] != 1]
        return self._with([self.shape[d] for d in keep], [self.stride[d] for d in keep])

    def unsqueeze(self, dim: int) -> "TensorDesc":
        """A dim of extent 1 inserted at `dim`."""
        at = self._dim(dim, self.ndim + 1)
        step = 1 if at == self.ndim else self.stride[at] * self.shape[at]
        return self._with(
            (*self.shape[:at], 1, *self.shape[at:]), (*self.stride[:at], step, *self.stride[at:])
        )

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether elements are dense in row-major order, or in a channels-last order."""
        order = _format_order(memory_format)
        if any(extent == 0 for extent in self.shape):
            return True
        if order is None:
            order = range(self.ndim)
        elif len(order) != self.ndim:
            return False
        step = 1
        for d in reversed(order):
            if self.shape[d] != 1:
                if self.stride[d] != step:
                    return False
                step = step * self.shape[d]
        return True

    def contiguous(self) -> "TensorDesc":
        """This descriptor when contiguous, otherwise that of a contiguous copy."""
        if self.is_contiguous():
            return self
        return self._with(self.shape, contiguous_stride(self.shape))

    def view(self, *shape: Any) -> "TensorDesc":
        """The same elements in another shape. `RuntimeError` where strides do not permit."""
        one = len(shape) == 1 and not isinstance(shape[0], numbers.Integral)
        wanted = _fill_unknown(list(_integers(shape[0] if one else shape)), self.numel())
        stride = _view_stride(self.shape, self.stride, wanted)
        if stride is None:
            raise RuntimeError(
                f"view: shape {tuple(wanted)} does not fit shape {self.shape} "
                f"with stride {self.stride}"
            )
        return self._with(wanted, stride)

    def as_strided(self, size: Ints, stride: Ints, storage_offset: int = 0) -> "TensorDesc":
        """Other shape and strides, same first element. `RuntimeError` for another offset."""
        if storage_offset:
            raise RuntimeError(f"as_strided: storage_offset must be 0, got {storage_offset}")
        return self._with(size, stride)

    def _with(self, shape: Iterable, stride: Iterable) -> "TensorDesc":
        return dataclasses.replace(
            self, shape=tuple(shape), stride=tuple(stride), stride_order=None
        )

    def _dim(self, dim: int, rank: int | None = None) -> int:
        rank = self.ndim if rank is None else rank
        if not -rank <= dim < rank:
            raise IndexError(f"dimension {dim} is out of range for a tensor of {rank} dims")
        return dim % rank


def _format_order(memory_format: Any) -> tuple[int, ...] | None:
    """Dims from outermost to innermost of a memory format; None is row-major."""
    name = "contiguous_format" if memory_format is None else str(memory_format)
    match name.removeprefix("torch."):
        case "contiguous_format":
            return None
        case "channels_last":
            return (0, 2, 3, 1)
        case "channels_last_3d":
            return (0, 2, 3, 4, 1)
    raise ValueError(
        f"memory_format: expected contiguous_format, channels_last or channels_last_3d, "
        f"got {memory_format}"
    )


def _fill_unknown(wanted: list, numel: Any) -> list:
    """`wanted` with its one -1 replaced. `RuntimeError` when the sizes do not agree."""
    unknown = [d for d, extent in enumerate(wanted) if extent == -1]
    known = math.prod(extent for extent in wanted if extent != -1)
    if len(unknown) > 1:
        raise RuntimeError(f"view: only one dimension may be -1, got {tuple(wanted)}")
    if any(extent < -1 for extent in wanted):
        raise RuntimeError(f"view: negative extent in {tuple(wanted)}")
    if unknown:
        if known == 0 or numel % known:
            raise RuntimeError(f"view: cannot infer -1 in {tuple(wanted)} for {numel} elements")
        wanted[unknown[0]] = numel // known
    elif known != numel:
        raise RuntimeError(f"view: shape {tuple(wanted)} does not hold {numel} elements")
    return wanted


def _view_stride(shape: Ints, stride: Ints, wanted: Ints) -> tuple | None:
    """Strides of `wanted` over the elements of (shape, stride), or None when there are none."""
    if any(extent == 0 for extent in shape):
        return contiguous_stride([max(e, 1) for e in wanted])
    # Runs of old dims that are dense among themselves, innermost first: [elements, stride].
    runs: list[list] = []
    for extent, step in zip(reversed(shape), reversed(stride), strict=True):
        if extent == 1:
            continue
        if runs and step == runs[-1][1] * runs[-1][0]:
            runs[-1][0] = runs[-1][0] * extent
        else:
            runs.append([extent, step])
    out, run, taken = [], 0, 1
    for extent in reversed(wanted):
        if extent != 1 and run < len(runs) and taken == runs[run][0]:
            run, taken = run + 1, 1
        size, step = runs[run] if run < len(runs) else (1, taken)
        out.append(step * taken)
        taken = taken * extent
        if run < len(runs) and size % taken:
            return None
    return tuple(reversed(out))
