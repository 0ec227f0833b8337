"""Operand kinds of a contract: matrices with majors, block scale factors in the 128x4 atom layout, scalars.

Each kind knows how to check a TensorDesc (`bind`) and how to describe an output to allocate (`describe`). What it
found goes into a frozen `OperandPlan`, which is part of the compile key and so holds no extent, stride or pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..dtypes import FLOAT4_E2M1FN, FLOAT8_E8M0FNU, FLOAT32, INT8, UINT8, DType
from ..errors import axes, mismatch, one_of
from ..tensor_desc import Device, TensorDesc, contiguous_stride, logical_fp4, physical_fp4
from .dims import Dims

ATOM_ROWS, ATOM_BLOCKS = 128, 4


@dataclass(frozen=True)
class OperandPlan:
    """What a kernel must know of one operand at compile time."""

    name: str
    dtype: str
    container: str
    major: str = ""
    tma: bool = True


@dataclass(frozen=True)
class Operand:
    """Common fields. `dims` are the logical axes; an optional operand may be None.

    when(attributes, dtypes) says whether the operand applies to a call at all; one that does not is None. It sees the
    attributes that are in the signature, and the logical dtype names of the operands that stand before this one and
    are present. Extents and layouts decide nothing, so that a graph can tell from its constants which tensors exist.
    An output that applies is made for a caller who passes none, unless by_default(attributes, dtypes) says no; it sees
    all attributes. Only a class may leave out, or give, what is optional.
    A `mutated` input is read and then written in place; where arrays are immutable, its new content is a result.

    shared: whether executables take an array of one batch for every batch of a call that `jax.vmap` makes.
    """

    # Whether the executable counts on a 16-byte aligned base address.
    aligned_base: ClassVar[bool] = True

    name: str
    dims: tuple[str, ...]
    output: bool = False
    optional: bool = False
    mutated: bool = False
    meaning: str = ""
    when: Callable[[Mapping[str, Any], Mapping[str, str]], bool] | None = None
    by_default: Callable[[Mapping[str, Any], Mapping[str, str]], bool] | None = None
    shared: bool = True

    @property
    def may_be_absent(self) -> bool:
        """Whether some call leaves this operand out."""
        return self.optional or self.when is not None

    def applies(self, attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
        """Whether the operand belongs to a call with these attributes and earlier operands."""
        return self.when is None or bool(self.when(attributes, dtypes))

    def is_made(
        self,
        attributes: Mapping[str, Any],
        selecting: Mapping[str, Any],
        dtypes: Mapping[str, str],
    ) -> bool:
        """Whether a caller who passes no outputs gets this one: it is wanted, and applies."""
        wanted = self.by_default is None or bool(self.by_default(attributes, dtypes))
        return wanted and self.applies(selecting, dtypes)

    def logical(self, dtype: DType) -> DType:
        """What an array of this dtype is taken for."""
        return dtype

    def bind(self, desc: TensorDesc, dims: Dims, attributes: Mapping[str, Any]) -> OperandPlan:
        raise NotImplementedError

    def describe(self, dims: Mapping[str, int], attributes: Mapping[str, Any], device: Device):
        raise NotImplementedError

    def make(
        self,
        dims: Mapping[str, int],
        attributes: Mapping[str, Any],
        device: Device,
        bound: Mapping[str, TensorDesc],
    ) -> TensorDesc:
        """What to allocate for this output; `bound` has the operands that stand before it, by name."""
        return self.describe(dims, attributes, device)


def _check_rank(desc: TensorDesc, dims: tuple[str, ...], name: str) -> None:
    if len(desc.shape) != len(dims):
        hint = (
            "add a trailing batch axis of extent 1 (x[..., None])" if len(desc.shape) == 2 else ""
        )
        expected = f"rank {len(dims)} {axes(dims)}"
        raise ValueError(mismatch(name, expected, f"shape {tuple(desc.shape)}", hint))


def _check_dtype(dtype: DType, allowed: Mapping[str, DType], name: str, hint: str = "") -> None:
    if dtype.name not in allowed:
        raise ValueError(mismatch(name, f"dtype {one_of(allowed)}", dtype.name, hint))


def _named(dtypes: tuple[DType, ...]) -> dict[str, DType]:
    return {dtype.name: dtype for dtype in dtypes}


@dataclass(frozen=True)
class Matrix(Operand):
    """A matrix (rows, columns, batch) with one contiguous mode out of `majors`.

    `majors` maps a letter to the axis that is contiguous. FP4 is packed two to a byte along that axis, as
    float4_e2m1fn_x2 or as a uint8 container of halved extent. `aligned` operands are read by the tensor copy engine:
    their strides (and the extent of a contiguous contraction axis) must be multiples of 16 bytes.
    """

    dtypes: tuple[DType, ...] = ()
    majors: Mapping[str, str] = field(default_factory=dict, hash=False)
    aligned: bool = False
    dtype_from: str = ""
    major_from: str = ""
    fp4_major: str = ""

    def logical(self, dtype: DType) -> DType:
        return FLOAT4_E2M1FN if dtype is UINT8 else dtype

    def bind(self, desc: TensorDesc, dims: Dims, attributes: Mapping[str, Any]) -> OperandPlan:
        label = desc.name or self.name
        _check_rank(desc, self.dims, label)
        wide = desc.dtype.name.startswith(("float16", "bfloat16", "float32", "float64"))
        hint = "cudnn.quantize makes block-scaled operands" if wide and not self.output else ""
        _check_dtype(desc.dtype, _named(self.dtypes), label, hint)
        logical = desc
        if desc.dtype is UINT8:
            logical = as_logical_fp4(desc, self.dims.index(self.majors[self.fp4_major]), label)
        elif desc.dtype.is_fp4 and 0 in desc.shape:
            logical = repacked(desc, self.dims.index(self.majors[self.fp4_major]))
        for symbol, extent in zip(self.dims, logical.shape, strict=True):
            dims.bind(symbol, extent, label)
        major = self._major(logical, attributes.get(self.major_from))
        tma = self._tma_ready(logical, major)
        if self.aligned and not tma:
            raise ValueError(self._alignment_message(logical, major))
        container = "uint8" if logical.interpret_uint8_as_fp4x2 else "native"
        return OperandPlan(self.name, logical.dtype.name, container, major, tma)

    def _major(self, desc: TensorDesc, wanted: str | None) -> str:
        """The major whose axis is contiguous. Strides of extent-1 axes are arbitrary and never asked."""
        candidates = [
            letter
            for letter, axis in self.majors.items()
            if self._admits(desc, self.dims.index(axis))
        ]
        if desc.dtype.is_fp4:
            candidates = [letter for letter in candidates if letter == self.fp4_major]
        if not candidates:
            allowed = [self.fp4_major] if desc.dtype.is_fp4 else list(self.majors)
            layouts = " or ".join(f"{m}-major (stride 1 along {self.majors[m]})" for m in allowed)
            got = f"shape {tuple(desc.shape)} with strides {tuple(desc.stride)}"
            raise ValueError(mismatch(desc.name or self.name, layouts, got))
        return wanted if wanted in candidates else candidates[0]

    def _admits(self, desc: TensorDesc, contiguous: int) -> bool:
        """Whether the axis has stride 1 and the others do not step inside or against it."""
        if 0 in desc.shape:
            return True  # nothing is addressed, so strides say nothing
        if desc.shape[contiguous] != 1 and desc.stride[contiguous] != 1:
            return False
        span = desc.shape[contiguous]
        for axis, (extent, stride) in enumerate(zip(desc.shape, desc.stride, strict=True)):
            if axis == contiguous or extent == 1:
                continue
            if stride < span:
                return False
        return not self.output or addresses_once(desc.shape, desc.stride)

    def _tma_ready(self, desc: TensorDesc, major: str) -> bool:
        """Whether every stride that is used is a multiple of 16 bytes.

        A single row of an output counts as used: where arrays cannot be viewed with other strides (JAX), its stride
        reaches the executable's checks.
        """
        quantum = 128 // desc.dtype.bits
        contiguous = self.contiguous_axis(major)
        if (self.output or self.majors[major] == "K") and desc.shape[contiguous] % quantum != 0:
            # A contraction is read in whole chunks; a last chunk that is not whole is not stored exactly.
            return False
        return 0 in desc.shape or all(
            axis == contiguous
            or (extent == 1 and (not self.output or symbol == "L"))
            or stride % quantum == 0
            for axis, (symbol, extent, stride) in enumerate(
                zip(self.dims, desc.shape, desc.stride, strict=True)
            )
        )

    def contiguous_axis(self, major: str) -> int:
        """The axis that is contiguous in this major."""
        return self.dims.index(self.majors[major])

    def _alignment_message(self, desc: TensorDesc, major: str) -> str:
        quantum = 128 // desc.dtype.bits
        axis = self.majors[major]
        expected = (
            f"{axis if axis == 'K' else 'strides'} a multiple of 16 bytes "
            f"({quantum} elements of {desc.dtype.name})"
        )
        got = f"{axis} = {desc.shape[self.dims.index(axis)]}, strides {tuple(desc.stride)}"
        hint = "pad K with zeros" if axis == "K" else ""
        return mismatch(desc.name or self.name, expected, got, hint)

    def describe(self, dims: Mapping[str, int], attributes: Mapping[str, Any], device: Device):
        """The compact output of the asked dtype and major; FP4 packed along the contiguous axis."""
        dtype = attributes[self.dtype_from]
        major = attributes[self.major_from] if self.major_from else next(iter(self.majors))
        if (dtype.is_fp4 or dtype is UINT8) and major != self.fp4_major:
            expected = f"{self.fp4_major!r} when {self.name} is FP4"
            raise ValueError(mismatch(self.major_from, expected, repr(major)))
        shape = tuple(dims[symbol] for symbol in self.dims)
        contiguous = self.dims.index(self.majors[major])
        if dtype is UINT8:
            shape = _halved(shape, contiguous, self.name, self.dims)
        elif dtype.is_fp4:
            _halved(shape, contiguous, self.name, self.dims)
        order = [contiguous, *(axis for axis in range(len(shape)) if axis != contiguous)]
        return TensorDesc.of(dtype, shape, compact_stride(shape, order), device, self.name)


def addresses_once(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether each axis steps over all that the axes inside it span: no two elements share memory.

    True for symbolic extents, which belong to outputs that are allocated compact.
    """
    if not all(type(number) is int for number in (*shape, *stride)):
        return True
    reach = 0
    for step, extent in sorted((s, e) for e, s in zip(shape, stride, strict=True) if e != 1):
        if step <= reach:
            return False
        reach += (extent - 1) * step
    return True


def _halved(shape: tuple[int, ...], axis: int, name: str, dims: tuple[str, ...]):
    if shape[axis] % 2 != 0:
        expected = f"an even {dims[axis]} to pack FP4 two to a byte"
        raise ValueError(mismatch(name, expected, f"{dims[axis]} = {shape[axis]}"))
    return tuple(extent // 2 if i == axis else extent for i, extent in enumerate(shape))


def compact_stride(shape: tuple[int, ...], order: list[int]) -> tuple[int, ...]:
    """Strides of a compact tensor whose axes, innermost first, are `order`."""
    stride, step = [0] * len(shape), 1
    for axis in order:
        stride[axis] = step
        step = step * shape[axis]
    return tuple(stride)


def as_logical_fp4(desc: TensorDesc, axis: int, label: str) -> TensorDesc:
    """A uint8 container read as FP4 packed along `axis`: that extent doubles, the other strides double."""
    if 0 not in desc.shape and desc.shape[axis] != 1 and desc.stride[axis] != 1:
        got = f"shape {tuple(desc.shape)} with strides {tuple(desc.stride)}"
        raise ValueError(mismatch(label, f"packed FP4 bytes contiguous along axis {axis}", got))
    return desc.as_fp4(axis)


def repacked(desc: TensorDesc, axis: int) -> TensorDesc:
    """An empty array of packed FP4, whose strides do not say which axis is packed, seen as packed along `axis`."""
    shape, stride = logical_fp4(*physical_fp4(desc.shape, desc.stride), axis)
    return replace(desc, shape=shape, stride=stride, stride_order=None)


@dataclass(frozen=True)
class ScaleFactor(Operand):
    """Block scales of a matrix in 512-byte atoms of 128 rows by 4 blocks (spec core, section 10).

    `dims` are (rows, contraction, batch). Two views of the same bytes are accepted: "logical"
    (32, 4, R, 4, Q, L) and "physical" (L, R, Q, 32, 4, 4), with R = ceil(rows/128), Q = ceil(contraction/(4*vec)).
    int8 passes for E8M0 where `int8_is_e8m0`. The attribute `vec_from` is a block length, or a pair of which this
    operand takes that of its `side`.
    """

    dtypes: tuple[DType, ...] = ()
    vec_from: str = "sf_vec_size"
    side: int = 0
    int8_is_e8m0: bool = False

    def logical(self, dtype: DType) -> DType:
        return FLOAT8_E8M0FNU if dtype is INT8 else dtype

    def bind(self, desc: TensorDesc, dims: Dims, attributes: Mapping[str, Any]) -> OperandPlan:
        allowed = _named(self.legal(attributes)) | ({"int8": INT8} if self.int8_is_e8m0 else {})
        hint = "a view of the bytes as a scale dtype is free" if desc.dtype is UINT8 else ""
        _check_dtype(desc.dtype, allowed, desc.name or self.name, hint)
        atoms_r, atoms_q, batch = self.atoms(dims, attributes)
        logical = (32, 4, atoms_r, 4, atoms_q, batch)
        physical = (batch, atoms_r, atoms_q, 32, 4, 4)
        shape = tuple(desc.shape)
        if len(shape) == 6 and shape == logical and self._strides_ok(desc, logical):
            form = "logical"
        elif len(shape) == 6 and shape == physical and self._strides_ok(desc, physical):
            form = "physical"
        else:
            raise ValueError(self._message(desc, logical, physical, dims, attributes))
        dtype = self.logical(desc.dtype)
        return OperandPlan(self.name, dtype.name, "int8" if desc.dtype is INT8 else "native", form)

    def legal(self, attributes: Mapping[str, Any]) -> tuple[DType, ...]:
        """The dtypes that these attributes allow."""
        return self.dtypes

    def vec(self, attributes: Mapping[str, Any]) -> int:
        """Elements that share a scale."""
        value = attributes[self.vec_from]
        return value[self.side] if isinstance(value, tuple) else value

    @property
    def vec_text(self) -> str:
        """What messages call the block length."""
        return self.vec_from

    def atoms(self, dims: Mapping[str, int], attributes: Mapping[str, Any]):
        """(R, Q, L)."""
        rows, contraction, batch = (dims[symbol] for symbol in self.dims)
        return -(-rows // ATOM_ROWS), _block_atoms(contraction, self.vec(attributes)), batch

    @staticmethod
    def strides(shape: tuple[int, ...], physical: bool) -> tuple[int, ...]:
        """The only strides of the layout for a view of this shape."""
        if physical:
            return contiguous_stride(shape)
        _, _, atoms_r, _, atoms_q, _ = shape
        return (16, 4, 512 * atoms_q, 1, 512, 512 * atoms_q * atoms_r)

    def _strides_ok(self, desc: TensorDesc, shape: tuple[int, ...]) -> bool:
        expected = self.strides(shape, physical=shape[3] == 32)
        if any(extent == 0 for extent in shape):
            return True
        return all(
            extent == 1 or got == want
            for extent, got, want in zip(shape, desc.stride, expected, strict=True)
        )

    def _message(self, desc: TensorDesc, logical, physical, dims, attributes) -> str:
        rows, contraction, _ = self.dims
        vec = self.vec(attributes)
        expected = (
            f"shape {logical} with strides {self.strides(logical, False)} or contiguous shape "
            f"{physical} ({rows} = {dims[rows]}, {contraction} = {dims[contraction]}, "
            f"{self.vec_text} = {vec})"
        )
        shape = tuple(desc.shape)
        got = f"shape {shape} with strides {tuple(desc.stride)}"
        if shape in (logical, physical):
            hint = "the memory order is the layout, and a copy such as .contiguous() changes it"
        elif len(shape) < 6:
            hint = "cudnn.pack_scales makes this layout from plain scales"
        else:
            other = 16 if vec == 32 else 32
            atoms_q = _block_atoms(dims[contraction], other)
            fits = atoms_q in (shape[4], shape[2]) and atoms_q not in (logical[4], physical[2])
            hint = f"these look like scales for {self.vec_text} = {other}" if fits else ""
        return mismatch(desc.name or self.name, expected, got, hint)


def _block_atoms(contraction: int, vec: int) -> int:
    return -(-contraction // (ATOM_BLOCKS * vec))


@dataclass(frozen=True)
class OutputScale(ScaleFactor):
    """Block scales that an operation writes beside a quantized output, padding included.

    formats: value of the attribute `vec_from` -> (scale dtype, block length). The attribute `view_from` says which
    view of the bytes a caller gets who passes none: "logical", or "physical" where arrays have no strides (JAX).
    """

    formats: Mapping[Any, tuple[DType, int]] = field(default_factory=dict, hash=False)
    view_from: str = "scale_view"

    def legal(self, attributes: Mapping[str, Any]) -> tuple[DType, ...]:
        return (self.formats[attributes[self.vec_from]][0],)

    def vec(self, attributes: Mapping[str, Any]) -> int:
        return self.formats[attributes[self.vec_from]][1]

    @property
    def vec_text(self) -> str:
        return "the block length"

    def describe(self, dims: Mapping[str, int], attributes: Mapping[str, Any], device: Device):
        atoms_r, atoms_q, batch = self.atoms(dims, attributes)
        physical = attributes.get(self.view_from) == "physical"
        shape = (32, 4, atoms_r, 4, atoms_q, batch)
        if physical:
            shape = (batch, atoms_r, atoms_q, 32, 4, 4)
        (dtype,) = self.legal(attributes)
        return TensorDesc.of(dtype, shape, self.strides(shape, physical), device, self.name)


@dataclass(frozen=True)
class Column(Operand):
    """One FP32 number a row, shape (M, 1, L) with any strides; `dims` are (rows, "1", batch).

    An output accumulates; one that is allocated is contiguous and starts from `initial`.
    """

    aligned_base: ClassVar[bool] = False
    shared: bool = False
    initial: float | None = None

    def bind(self, desc: TensorDesc, dims: Dims, attributes: Mapping[str, Any]) -> OperandPlan:
        label = desc.name or self.name
        _check_rank(desc, self.dims, label)
        if desc.dtype is not FLOAT32:
            raise ValueError(mismatch(label, "dtype float32", desc.dtype.name))
        rows, _, batch = self.dims
        if desc.shape[1] != 1:
            expected = f"shape ({rows}, 1, {batch})"
            raise ValueError(mismatch(label, expected, f"shape {tuple(desc.shape)}"))
        dims.bind(rows, desc.shape[0], label)
        dims.bind(batch, desc.shape[2], label)
        once = addresses_once(desc.shape, tuple(abs(step) for step in desc.stride))
        if self.output and not once and 0 not in desc.shape:
            got = f"shape {tuple(desc.shape)} with strides {tuple(desc.stride)}"
            raise ValueError(mismatch(label, "an output whose elements share no memory", got))
        return OperandPlan(self.name, FLOAT32.name, "native")

    def describe(self, dims: Mapping[str, int], attributes: Mapping[str, Any], device: Device):
        shape = (dims[self.dims[0]], 1, dims[self.dims[2]])
        return TensorDesc.of(FLOAT32, shape, None, device, self.name)


@dataclass(frozen=True)
class ScalarTensor(Operand):
    """One FP32 number on the device: any rank with all extents 1, seen as (1,) * rank.

    Where the attribute `per_batch_from` says "per_batch" it holds one number a batch, shape (L, 1, ..., 1).
    `initial` is what an allocated output starts from.
    """

    aligned_base: ClassVar[bool] = False
    rank: int = 3
    initial: float = 0.0
    per_batch_from: str = ""

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A tensor's extents with unit axes added or left out at the end, as many as can be, to have the rank."""
        while len(shape) > self.rank and shape[-1] == 1:
            shape = shape[:-1]
        return shape + (1,) * (self.rank - len(shape))

    def shape(self, dims: Mapping[str, int], attributes: Mapping[str, Any]) -> tuple[int, ...]:
        """The extents seen by kernels."""
        per_batch = attributes.get(self.per_batch_from) == "per_batch"
        return (dims["L"] if per_batch else 1, *(1,) * (self.rank - 1))

    def bind(self, desc: TensorDesc, dims: Dims, attributes: Mapping[str, Any]) -> OperandPlan:
        label = desc.name or self.name
        if desc.dtype is not FLOAT32:
            raise ValueError(mismatch(label, "dtype float32", desc.dtype.name))
        expected = self.shape(dims, attributes)
        if self.seen(tuple(desc.shape)) != expected:
            text = f"float32 of shape {expected} (trailing unit axes are free)"
            raise ValueError(mismatch(label, text, f"shape {tuple(desc.shape)}"))
        return OperandPlan(self.name, FLOAT32.name, "native")

    def describe(self, dims: Mapping[str, int], attributes: Mapping[str, Any], device: Device):
        shape = self.shape(dims, attributes)
        return TensorDesc.of(FLOAT32, shape, None, device, self.name)
