"""Formats on PyTorch tensors. Imports torch and its adapter, float_env, formats.*.

CUDA tensors take the Hopper kernel, CPU tensors formats.reference (ten times as fast as chains of
PyTorch operations), all others, and any on request, PyTorch operations. While torch.compile traces,
under dispatch modes and for tensor subclasses, an operator of formats.torch_op stands for the call.
"""

from functools import cache

import torch

from ..adapters.torch import ADAPTER
from ..float_env import ieee_arithmetic
from . import bits, layout
from .spec import E2M1, E4M3, FLOAT_MAX, ElementType, Format, Geometry, scale_magnitude

ENGINES = ("hopper", "reference", "torch")
_FP4 = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
# Pieces of this many elements keep the temporaries of the CPU path in cache.
_PIECE = 1 << 18


class torch_ops:
    """What formats.layout and formats.bits need of an array library."""

    atom_view = "logical"
    permute = staticmethod(torch.permute)
    where = staticmethod(torch.where)
    clamp = staticmethod(torch.clamp)

    @staticmethod
    def contiguous(array):
        return array.contiguous()

    @staticmethod
    def pad(array, rows, columns):
        return torch.nn.functional.pad(array, (0, columns, 0, rows))

    @staticmethod
    def like(value, array):
        return torch.full_like(array, value)

    @staticmethod
    def bits_of_integer(array):
        return array.to(torch.float32).view(torch.int32)

    @staticmethod
    def maximum_last(array):
        return array.amax(-1)

    @staticmethod
    def take(table, index):
        return _table(table, torch.int32, index.device)[index]


def dtype_name(x) -> str:
    return str(x.dtype).removeprefix("torch.")


@cache
@ieee_arithmetic()
def _table(values: tuple, dtype, device):
    """A constant on the device; kept, so that later calls copy nothing from the host."""
    return torch.tensor(values, dtype=dtype, device=device)


# --- quantize ----------------------------------------------------------------------------------


@torch.no_grad()
def quantize(x, fmt: Format, geo: Geometry, scale_layout: str, per_tensor_scale, engine=None):
    x = x.detach()
    if per_tensor_scale is not None and per_tensor_scale is not True:
        per_tensor_scale = _scalar(per_tensor_scale, x)
    work = quantize_now
    if ADAPTER.needs_op((x,)):
        from . import torch_op

        work = torch_op.quantize
    return work(x, fmt, geo, scale_layout, per_tensor_scale, engine)


@ieee_arithmetic()
def quantize_now(x, fmt: Format, geo: Geometry, scale_layout: str, per_tensor_scale, engine):
    """(data, scale, per-tensor scale) of x, which is None, True or a 0-d FP32 tensor."""
    x = x.resolve_neg()  # the sign that a lazily negated view only notes down
    engine = engine or _default_engine(x)
    if engine == "hopper":
        from .kernels import host

        return host.quantize(x, fmt, geo, scale_layout, per_tensor_scale)
    if per_tensor_scale is True:
        per_tensor_scale = tensor_scale(x)
    constant = None
    if per_tensor_scale is not None:
        constant = _norm_constant(per_tensor_scale)
    ordered = layout.canonical(torch_ops, x, geo)
    data, scale = quantize_blocks(ordered, fmt, constant, engine)
    if rows_contiguous(x, geo) and not fmt.is_fp4:
        data = data.mT.contiguous().mT
    data, scale = publish_data(data, fmt, geo), publish_scale(scale, fmt, geo, scale_layout)
    return data, scale, per_tensor_scale


def _default_engine(x) -> str:
    if x.is_cuda:
        return "hopper"
    return "reference" if x.device.type == "cpu" else "torch"


def publish_data(data, fmt: Format, geo: Geometry):
    """Bytes (L, rows, extent) -> the public dtype and axes."""
    return layout.restore(torch_ops, data.view(data_dtype(fmt)), geo, data.shape[-1])


def publish_scale(plain, fmt: Format, geo: Geometry, scale_layout: str):
    """Bytes (L, rows, blocks) -> the public dtype and layout."""
    return finish_scale(layout.present(torch_ops, plain, geo, scale_layout), fmt)


def finish_scale(scale, fmt: Format):
    return scale.view(getattr(torch, fmt.scale))


def _scalar(value, x):
    """A number or a one-element tensor as a 0-d FP32 tensor on x's device."""
    if not isinstance(value, torch.Tensor):
        return torch.full((), value, dtype=torch.float32, device=x.device)
    if value.device != x.device:
        raise ValueError(f"per_tensor_scale: expected device {x.device}, got {value.device}")
    return value.detach().to(torch.float32).reshape(())


def data_dtype(fmt: Format):
    return _FP4 if fmt.is_fp4 else getattr(torch, fmt.element.name)


def rows_contiguous(x, geo: Geometry) -> bool:
    """Whether the rows, not the contraction axis, are x's contiguous axis (an M-major operand)."""
    if len(geo.order) < 2 or geo.rows == 1 or geo.k == 1:
        return False
    return x.stride(geo.order[-2]) == 1 != x.stride(geo.order[-1])


def tensor_scale(x):
    """min(max |x|, FLT_MAX) / (6 * 448), rounded once; 0 for an empty tensor."""
    if x.numel() == 0:
        return x.new_zeros((), dtype=torch.float32)
    amax = torch.clamp(x.abs().amax().to(torch.float64), max=FLOAT_MAX)
    return (amax / (E2M1.max_value * E4M3.max_value)).to(torch.float32)


def _norm_constant(per_tensor_scale):
    """The FP32 word of min(1/|p|, FLT_MAX)."""
    # FP64 has more than twice FP32's digits, so rounding its quotient gives FP32's quotient.
    inverse = torch.clamp(1.0 / per_tensor_scale.to(torch.float64).abs(), max=FLOAT_MAX)
    return inverse.to(torch.float32).view(torch.int32)


def quantize_blocks(x, fmt: Format, constant=None, engine="torch"):
    """(L, rows, K) -> data bytes (L, rows, K or ceil(K/2)) and scale bytes (L, rows, blocks)."""
    batch, rows, k = x.shape
    work = _quantize_rows
    if engine == "reference":
        if x.device.type != "cpu":
            raise RuntimeError(f"engine 'reference': expected a CPU tensor for x, got {x.device}")
        work = _reference_rows
    if x.is_cuda or x.numel() <= _PIECE:
        return work(x, fmt, constant)
    pieces = x.reshape(batch * rows, k).split(max(1, _PIECE // k))
    done = [work(piece, fmt, constant) for piece in pieces]
    data, scale = (torch.cat(kind) for kind in zip(*done, strict=True))
    return data.unflatten(0, (batch, rows)), scale.unflatten(0, (batch, rows))


def _reference_rows(x, fmt: Format, constant):
    from . import reference

    norm_constant = 1.0 if constant is None else constant.view(torch.float32).item()
    code, scale = reference.quantize_blocks(x.to(torch.float32).numpy(), fmt, norm_constant)
    if fmt.is_fp4:
        code = reference.pack_fp4(code)
    return torch.from_numpy(code).contiguous(), torch.from_numpy(scale)


def _quantize_rows(x, fmt: Format, constant):
    *outer, k = x.shape
    blocks = -(-k // fmt.block)
    wide = torch.nn.functional.pad(x.to(torch.float32), (0, blocks * fmt.block - k))
    word = wide.view(torch.int32).reshape(*outer, blocks, fmt.block)
    code, scale = bits.quantize_blocks(torch_ops, word, fmt, constant)
    code = code.to(torch.uint8).reshape(*outer, blocks * fmt.block)[..., :k]
    if fmt.is_fp4:
        code = bits.pack_fp4(torch.nn.functional.pad(code, (0, k % 2)))
    return code.contiguous(), scale.to(torch.uint8)


# --- dequantize and scale layouts --------------------------------------------------------------


@torch.no_grad()
def dequantize(data, scale, fmt: Format, geo: Geometry, scale_layout, per_tensor_scale, dtype):
    if data.device != scale.device:
        raise ValueError(f"scale: expected device {data.device} like data, got {scale.device}")
    if per_tensor_scale is not None:
        per_tensor_scale = _scalar(per_tensor_scale, data)
    work = dequantize_now
    if ADAPTER.needs_op((data, scale)):
        from . import torch_op

        work = torch_op.dequantize
    return work(data, scale, fmt, geo, scale_layout, per_tensor_scale, dtype)


@ieee_arithmetic()
def dequantize_now(data, scale, fmt: Format, geo: Geometry, scale_layout, per_tensor_scale, dtype):
    codes = layout.canonical(torch_ops, data.detach().view(torch.uint8), geo)
    if fmt.is_fp4:
        codes = torch.stack((codes & 0xF, codes >> 4), dim=-1).flatten(-2)[..., : geo.k]
    plain = layout.absorb(torch_ops, scale.detach().view(torch.uint8), geo, scale_layout)
    element = _table(element_values(fmt.element), torch.float32, data.device)
    factor = _table(scale_values(fmt.scale), torch.float32, data.device)
    factor = factor[plain.to(torch.int32)].unsqueeze(-1)
    factor = factor.expand(*plain.shape, fmt.block).flatten(-2)[..., : geo.k]
    x = element[codes.to(torch.int32)] * factor
    if per_tensor_scale is not None:
        x = x * per_tensor_scale
    return restore(x.to(getattr(torch, dtype)), geo)


def restore(x, geo: Geometry):
    """(L, rows, K) -> the caller's axes."""
    return layout.restore(torch_ops, x, geo, geo.k)


@cache
def element_values(element: ElementType) -> tuple[float, ...]:
    positive = [element.magnitude(code) for code in range(element.sign_code)]
    return (*positive, *(-value for value in positive))


@cache
def scale_values(scale: str) -> tuple[float, ...]:
    signed = scale == "float8_e4m3fn"
    return tuple(
        scale_magnitude(scale, code) * (-1 if signed and code & 0x80 else 1) for code in range(256)
    )


def pack_scales(plain, geo: Geometry, scale_layout: str):
    bytes_ = layout.canonical(torch_ops, plain.view(torch.uint8), geo)
    atoms = layout.pack(torch_ops, bytes_).view(plain.dtype)
    return layout.present_atoms(torch_ops, atoms, scale_layout)


def unpack_scales(scale, geo: Geometry):
    plain = layout.absorb(torch_ops, scale.view(torch.uint8), geo, "atom").contiguous()
    return layout.restore(torch_ops, plain.view(scale.dtype), geo, geo.k)
