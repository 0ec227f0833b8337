"""Formats on JAX arrays, eager or traced. Imports jax, formats.*.

Integer arithmetic throughout (formats.bits): XLA flushes subnormals on CPU and may divide
approximately on GPU.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ..tuple_dict import register_with_jax
from . import bits, layout
from .spec import E2M1, E4M3, Format, Geometry, float_bits, scale_magnitude

register_with_jax()

ENGINES = ("jax",)


class jax_ops:
    """What formats.layout and formats.bits need of an array library."""

    atom_view = "physical"
    permute = staticmethod(jnp.transpose)
    where = staticmethod(jnp.where)
    clamp = staticmethod(jnp.clip)

    @staticmethod
    def contiguous(array):
        return array

    @staticmethod
    def pad(array, rows, columns):
        return jnp.pad(array, ((0, 0), (0, rows), (0, columns)))

    @staticmethod
    def like(value, array):
        return jnp.full_like(array, value)

    @staticmethod
    def bits_of_integer(array):
        return lax.bitcast_convert_type(array.astype(jnp.float32), jnp.int32)

    @staticmethod
    def maximum_last(array):
        return array.max(-1)

    @staticmethod
    def take(table, index):
        return jnp.asarray(table, jnp.int32)[index]


def dtype_name(x) -> str:
    return x.dtype.name


def _words(x):
    """FP32 words of an array of any input dtype, exactly (XLA's widening may flush BF16)."""
    if x.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.int32) << 16
    return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)


def _bytes(x):
    return x if x.dtype == jnp.uint8 else lax.bitcast_convert_type(x, jnp.uint8)


def _divide(a, b):
    """IEEE FP32 quotient of two magnitudes, bit by bit; for scalars."""
    exponent_a, sig_a = bits.significand(jax_ops, a)
    exponent_b, sig_b = bits.significand(jax_ops, b)
    smaller = (sig_a < sig_b).astype(jnp.int32)

    def step(_, state):
        quotient, rest = state
        fits = (rest >= sig_b).astype(jnp.int32)
        return (quotient << 1) | fits, (rest - fits * sig_b) << 1

    start = (jnp.zeros_like(sig_a), sig_a << smaller)
    quotient, rest = lax.fori_loop(0, 26, step, start)
    kept = (quotient << 1) | (rest != 0).astype(jnp.int32)
    exponent = exponent_a - exponent_b + 127 - smaller
    shift = jnp.clip(3 + jnp.clip(1 - exponent, 0, 26), 3, 28)
    rounded = (jnp.clip(exponent - 1, 0, 254) << 23) + bits.round_shift(kept, shift)
    result = jnp.clip(rounded, 0, bits.INF)
    result = jnp.where((a == 0) | (b == bits.INF), 0, result)
    result = jnp.where((b == 0) | (a == bits.INF), bits.INF, result)
    return jnp.where((a > bits.INF) | (b > bits.INF), bits.NAN, result)


def quantize(x, fmt: Format, geo: Geometry, scale_layout: str, per_tensor_scale, engine=None):
    given = per_tensor_scale if per_tensor_scale is not True else None
    if given is not None:
        given = jnp.asarray(given, jnp.float32).reshape(())
    return _quantize(x, given, fmt, geo, scale_layout, per_tensor_scale is True)


@partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _quantize(x, given, fmt: Format, geo: Geometry, scale_layout: str, computed: bool):
    word = layout.canonical(jax_ops, _words(x), geo)
    constant = None
    if computed:
        amax = jnp.max(word & 0x7FFFFFFF, initial=0)
        amax = jnp.where(amax == bits.INF, bits.FLOAT_MAX, amax)
        limit = jnp.int32(float_bits(E2M1.max_value * E4M3.max_value))
        given = lax.bitcast_convert_type(_divide(amax, limit), jnp.float32)
    if given is not None:
        magnitude = lax.bitcast_convert_type(given, jnp.int32) & 0x7FFFFFFF
        constant = _divide(jnp.int32(float_bits(1.0)), magnitude)
        constant = jnp.where(constant == bits.INF, bits.FLOAT_MAX, constant)
    k, v = geo.k, fmt.block
    word = jnp.pad(word, ((0, 0), (0, 0), (0, geo.blocks * v - k)))
    word = word.reshape(geo.batch, geo.rows, geo.blocks, v)
    code, scale = bits.quantize_blocks(jax_ops, word, fmt, constant)
    code = code.astype(jnp.uint8).reshape(geo.batch, geo.rows, geo.blocks * v)[..., :k]
    if fmt.is_fp4:
        data = bits.pack_fp4(jnp.pad(code, ((0, 0), (0, 0), (0, k % 2))))
    else:
        data = lax.bitcast_convert_type(code, jnp.dtype(fmt.element.name))
    # Laid out as bytes: as E8M0 numbers the padding zeros would turn into NaN.
    scale = layout.present(jax_ops, scale.astype(jnp.uint8), geo, scale_layout)
    return (
        layout.restore(jax_ops, data, geo, data.shape[-1]),
        lax.bitcast_convert_type(scale, jnp.dtype(fmt.scale)),
        given,
    )


def dequantize(data, scale, fmt: Format, geo: Geometry, scale_layout, per_tensor_scale, dtype):
    if per_tensor_scale is not None:
        per_tensor_scale = jnp.asarray(per_tensor_scale, jnp.float32).reshape(())
    return _dequantize(data, scale, per_tensor_scale, fmt, geo, scale_layout, dtype)


@partial(jax.jit, static_argnums=(3, 4, 5, 6))
def _dequantize(data, scale, per_tensor_scale, fmt: Format, geo: Geometry, scale_layout, dtype):
    codes = layout.canonical(jax_ops, _bytes(data), geo)
    if fmt.is_fp4:
        codes = jnp.stack((codes & 0xF, codes >> 4), axis=-1)
        codes = codes.reshape(*codes.shape[:-2], 2 * codes.shape[-2])[..., : geo.k]
    codes = codes.astype(jnp.int32)
    plain = layout.absorb(jax_ops, _bytes(scale), geo, scale_layout)
    plain = jnp.repeat(plain, fmt.block, axis=-1)[..., : geo.k].astype(jnp.int32)
    negative = codes >= fmt.element.sign_code
    element = [float_bits(fmt.element.magnitude(c)) for c in range(fmt.element.sign_code)]
    factor = [float_bits(scale_magnitude(fmt.scale, c)) for c in range(256)]
    if not fmt.scale_is_e8m0:
        negative ^= plain >= 0x80
    magnitude = bits.multiply(
        jax_ops,
        jax_ops.take(element, codes & (fmt.element.sign_code - 1)),
        jax_ops.take(factor, plain),
    )
    if per_tensor_scale is not None:
        word = lax.bitcast_convert_type(per_tensor_scale, jnp.int32)
        magnitude = bits.multiply(jax_ops, magnitude, jnp.full_like(magnitude, word & 0x7FFFFFFF))
        negative ^= word < 0
    word = magnitude | jnp.where(negative, jnp.int32(-(1 << 31)), 0)
    return layout.restore(jax_ops, _narrow(word, dtype), geo, geo.k)


def _narrow(word, dtype: str):
    """FP32 words -> an array of ``dtype``, to nearest even."""
    if dtype != "bfloat16":
        return lax.bitcast_convert_type(word, jnp.float32).astype(dtype)
    # Written out: a conversion instruction would flush BF16's subnormals.
    magnitude = word & 0x7FFFFFFF
    high = jnp.where(
        magnitude > bits.INF, bits.NAN >> 16, (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
    )
    high = high | jnp.where(word < 0, 0x8000, 0)
    return lax.bitcast_convert_type(high.astype(jnp.uint16), jnp.bfloat16)


@partial(jax.jit, static_argnums=(1, 2))
def pack_scales(plain, geo: Geometry, scale_layout: str):
    bytes_ = layout.canonical(jax_ops, _bytes(plain), geo)
    atoms = layout.present_atoms(jax_ops, layout.pack(jax_ops, bytes_), scale_layout)
    return lax.bitcast_convert_type(atoms, plain.dtype)


@partial(jax.jit, static_argnums=(1,))
def unpack_scales(scale, geo: Geometry):
    plain = layout.absorb(jax_ops, scale, geo, "atom")
    return layout.restore(jax_ops, plain, geo, geo.k)
