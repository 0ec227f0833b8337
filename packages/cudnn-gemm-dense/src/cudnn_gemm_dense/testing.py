"""An independent model of the dense ops with operands of any format, and hostile memory for them. For tests.

Sums are float64; activations are float64 of the FP32 pre-activation. Shares no code with the engines. May import
cudnn_core.testing, numpy and ml_dtypes; torch and jax are used where the test has imported them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from cudnn_core.testing.gemm import (
    GUARD,
    GUARD_BYTE,
    RECIPES,
    encode,
    expand,
    host,
    scale_bytes,
    scale_tensor,
    shaped,
    table,
    to_framework,
)

PLAIN = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FORMATS = (*PLAIN, *RECIPES)
# Few-bit values: products and sums of some thousand are exact in FP32, whatever the order.
FEW = np.array([0, 0.5, 1, 1.5, 2, 3, -0.5, -1, -1.5, -2, -3])


def element_of(format: str) -> str:
    """The element dtype of a format."""
    return RECIPES[format].element if format in RECIPES else format


def kind_of(dtype: str) -> Any:
    """The NumPy type of an array of that dtype; FP4 is bytes."""
    name = "uint8" if dtype == "float4_e2m1fn" else dtype
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass
class Side:
    """One operand: `data` (L, rows, K) codes, or numbers if wide; scales (L, rows, blocks) or None."""

    format: str
    data: np.ndarray
    scales: np.ndarray | None = None

    @property
    def element(self) -> str:
        return element_of(self.format)

    @property
    def vec(self) -> int:
        return RECIPES[self.format].vec if self.format in RECIPES else 16

    def values(self) -> np.ndarray:
        """(L, rows, K) float64 as the product takes them."""
        if self.scales is not None:
            return expand(self.data, self.scales, RECIPES[self.format])
        if self.data.dtype == np.uint8:
            return table(self.element)[self.data]
        return self.data.astype(np.float64)

    def tensor(
        self,
        framework: str = "numpy",
        major: str = "k",
        pad: int = 0,
        offset: int = 0,
        container: str = "native",
    ) -> Any:
        """(rows, K, L); major "k" or any other for contiguous rows. pad, offset: elements of NaN bytes around."""
        k_inner = major == "k"
        memory = self.data if k_inner else self.data.swapaxes(1, 2)
        dtype = self.element if container == "native" else container
        if self.element == "float4_e2m1fn":
            memory = memory[..., 0::2] | (memory[..., 1::2] << 4)
        order = (1, 2, 0) if k_inner else (2, 1, 0)
        return placed(memory, dtype, order, framework, pad, offset)

    def scale(self, framework: str = "numpy", view: str = "logical", offset: int = 0) -> Any:
        """The atoms, NaN codes in the padding; None without scales."""
        if self.scales is None:
            return None
        recipe = RECIPES[self.format]
        made = scale_tensor(self.scales, recipe.scale, view, framework, recipe.nan_scale, offset)
        return sys.modules["jax"].numpy.asarray(made) if framework == "jax" else made


def placed(
    memory: np.ndarray, dtype: str, order: tuple, framework: str, pad: int = 0, offset: int = 0
) -> Any:
    """An array with the axes of `memory` in `order`, inside a larger buffer of NaN bytes."""
    extents = (*memory.shape[:-1], memory.shape[-1] + pad)
    start, size = offset * memory.itemsize, (offset + math.prod(extents)) * memory.itemsize
    flat = np.full(size, 0xFF, np.uint8)
    flat[start:].view(memory.dtype).reshape(extents)[..., : memory.shape[-1]] = memory
    made = shaped(to_framework(flat, framework)[start:], dtype, extents, memory.shape[-1], order)
    return sys.modules["jax"].numpy.asarray(made) if framework == "jax" else made


def side(format: str, l: int, rows: int, k: int, seed: int, values: np.ndarray = FEW) -> Side:
    """Values drawn from a few, and scales of 1/2, 1, 2 (E4M3: 1.5 too)."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(values, (l, rows, k))
    element = element_of(format)
    if element in ("float32", "float16", "bfloat16"):
        return Side(format, drawn.astype(kind_of(element)))
    codes = encode(drawn, element)
    if format not in RECIPES:
        return Side(format, codes)
    recipe = RECIPES[format]
    pool = np.array([126, 127, 128], np.uint8)
    if recipe.scale == "float8_e4m3fn":
        pool = encode(np.array([0.5, 1.0, 1.5, 2.0]), recipe.scale)
    return Side(format, codes, rng.choice(pool, (l, rows, -(-k // recipe.vec))))


@dataclass
class Call:
    """One problem of any dense op; `column` (L, M, 1) is prob and `gradient` (L, M, N) dsReLU's C."""

    a: Side
    b: Side
    column: np.ndarray
    gradient: np.ndarray
    alpha: float = 1.0

    @property
    def extents(self) -> tuple[int, int, int, int]:
        l, m, k = self.a.data.shape
        return m, self.b.data.shape[1], k, l

    def vec(self) -> Any:
        return (self.a.vec, self.b.vec)

    def accumulator(self) -> np.ndarray:
        """(L, M, N) float32: the products, summed in float64 and rounded; exact for few-bit values."""
        with np.errstate(all="ignore"):
            return (self.a.values() @ self.b.values().swapaxes(1, 2)).astype(np.float32)

    def preactivation(self) -> np.ndarray:
        """(L, M, N) float32: alpha times the product, one rounding more."""
        with np.errstate(all="ignore"):
            return np.float32(self.alpha) * self.accumulator()


def make_call(
    m: int, n: int, k: int, l: int = 1, a: str = "bfloat16", b: str = "bfloat16", seed: int = 0
) -> Call:
    """A problem of few-bit values."""
    rng = np.random.default_rng(seed + 1000)
    quarter = rng.choice(np.array([-2, -1, -0.25, 0, 0.5, 1, 1.25, 2], np.float32), (l, m, 1))
    gradient = rng.choice(np.array([-3, -1, -0.5, 0, 0.75, 1, 2], np.float32), (l, m, n))
    return Call(side(a, l, m, k, seed), side(b, l, n, k, seed + 1), quarter, gradient)


# --- what comes after the product ------------------------------------------------------------------------------------


def swiglu(x: np.ndarray, layout: str = "interleaved") -> np.ndarray:
    """(L, M, N/2) float64 of (L, M, N): column by column, as the contract counts them."""
    wide, columns = x.astype(np.float64), x.shape[-1] // 2
    j = np.arange(columns)
    up = 64 * (j // 32) + j % 32 if layout == "interleaved" else j
    gate = up + 32 if layout == "interleaved" else j + columns
    u, g = wide[..., up], wide[..., gate]
    with np.errstate(all="ignore"):
        return u * g / (1 + np.exp(-g))


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0), where NaN stays."""
    wide = x.astype(np.float64)
    return np.where(wide < 0, 0.0, wide)


def srelu(call: Call) -> np.ndarray:
    """(L, M, N) float64."""
    with np.errstate(all="ignore"):
        return relu(call.preactivation()) ** 2 * call.column


def dsrelu(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """d (L, M, N) and dprob (L, M, 1), float64."""
    r = relu(call.preactivation())
    with np.errstate(all="ignore"):
        d = 2 * r * (call.gradient.astype(np.float64) * call.column)
        return d, (r * r * call.gradient).sum(axis=-1, keepdims=True)


def quantize(
    x: np.ndarray, element: str, scale: str, block: int, norm_const: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Codes (L, M, N) and scale bytes (L, M, blocks) of finite FP32 x by the contract's formulas, block by block."""
    largest = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float4_e2m1fn": 6.0}[element]
    f32, nc = np.float32, np.float32(norm_const)
    codes = np.zeros(x.shape, np.uint8)
    scales = np.zeros((*x.shape[:2], -(-x.shape[2] // block)), np.uint8)
    for index in np.ndindex(scales.shape):
        columns = slice(index[2] * block, (index[2] + 1) * block)
        values = x[index[0], index[1], columns].astype(f32)
        with np.errstate(all="ignore"):
            wanted = f32(f32(np.abs(values).max(initial=0) * f32(1.0 / largest)) * nc)
            if scale == "float8_e8m0fnu":
                code = next(c for c in range(255) if c == 254 or 2.0 ** (c - 127) >= float(wanted))
            else:
                code = int(encode(np.array(float(wanted)), scale))
            gain = min(
                f32(nc * f32(f32(1.0) / f32(table(scale)[code]))), f32(3.4028234663852886e38)
            )
            codes[index[0], index[1], columns] = encode((values * gain).astype(np.float64), element)
        scales[index] = code
    return codes, scales


# --- memory ----------------------------------------------------------------------------------------------------------


def column_tensor(column: np.ndarray, framework: str = "numpy", m_inner: bool = False) -> Any:
    """(L, M, 1) as (M, 1, L) float32: contiguous, or with strides (1, 1, M)."""
    memory = column.astype(np.float32)
    if m_inner:
        return placed(memory.swapaxes(1, 2).copy(), "float32", (2, 1, 0), framework)
    flat = memory.transpose(1, 2, 0).copy()
    return placed(flat, "float32", (0, 1, 2), framework)


def matrix_tensor(x: np.ndarray, dtype: str, major: str, framework: str = "numpy", pad: int = 0):
    """(L, M, N) as (M, N, L) of a wide dtype."""
    memory = x if major == "n" else x.swapaxes(1, 2)
    order = (1, 2, 0) if major == "n" else (2, 1, 0)
    return placed(memory.astype(kind_of(dtype)), dtype, order, framework, pad)


def batch_first(x: Any) -> np.ndarray:
    """(L, rows, columns) of an output (rows, columns, L) on any device, in its own type."""
    return np.moveaxis(host(x), -1, 0)


def values(x: Any) -> np.ndarray:
    """(L, rows, columns) float64 of an output; packed FP4 becomes its codes' values."""
    array = batch_first(x)
    if array.dtype == np.uint8:
        pair = np.stack([array & 15, array >> 4], axis=-1)
        array = table("float4_e2m1fn")[pair.reshape(*array.shape[:2], 2 * array.shape[2])]
    return array.astype(np.float64)


class Output:
    """An output (M, N, L), scales or a column, in the middle of a larger buffer: NaN inside, guard bytes around."""

    def __init__(
        self, shape: tuple[int, int, int], dtype: str, major: str = "n", framework="numpy", pad=0
    ) -> None:
        rows, columns, batches = shape
        columns = columns // 2 if dtype in ("float4_e2m1fn", "uint8") else columns
        inner, outer = (columns, rows) if major == "n" else (rows, columns)
        size = kind_of(dtype).itemsize
        self._extents = (batches, outer, (inner + pad) * size)
        self._inner = inner * size
        self._end = GUARD + math.prod(self._extents)
        self.flat = to_framework(np.full(self._end + GUARD, GUARD_BYTE, np.uint8), framework)
        self._fill(self.flat, 0xFF)
        order = (1, 2, 0) if major == "n" else (2, 1, 0)
        extents = (batches, outer, inner + pad)
        self.tensor = shaped(self.flat[GUARD : self._end], dtype, extents, inner, order)

    def _fill(self, flat: Any, byte: int) -> None:
        flat[GUARD : self._end].reshape(self._extents)[..., : self._inner] = byte

    def assert_guards(self) -> None:
        """No byte outside the output changed."""
        flat = host(self.flat).copy()
        self._fill(flat, GUARD_BYTE)
        assert (flat == GUARD_BYTE).all(), "bytes outside the output were written"


class ScaleOutput:
    """Output scales in either view, NaN before, guard bytes around."""

    def __init__(self, rows, columns, batches, dtype, block, view="logical", framework="numpy"):
        self.extents = (batches, -(-rows // 128), -(-columns // (4 * block)), 32, 4, 4)
        self._end = GUARD + math.prod(self.extents)
        flat = np.full(self._end + GUARD, GUARD_BYTE, np.uint8)
        flat[GUARD : self._end] = 0xFF
        self.flat = to_framework(flat, framework)
        order = (3, 4, 1, 5, 2, 0) if view == "logical" else (0, 1, 2, 3, 4, 5)
        self.tensor = shaped(self.flat[GUARD : self._end], dtype, self.extents, 4, order)

    def memory(self) -> np.ndarray:
        """The bytes in memory order."""
        return host(self.flat)[GUARD : self._end]

    def assert_guards(self) -> None:
        flat = host(self.flat)
        assert (flat[:GUARD] == GUARD_BYTE).all() and (flat[self._end :] == GUARD_BYTE).all()


def scale_memory(x: Any) -> np.ndarray:
    """The bytes of scales in memory order, out of either view."""
    array = host(x).view(np.uint8)
    return (array.transpose(5, 2, 4, 0, 1, 3) if array.shape[:2] == (32, 4) else array).ravel()


def expected_scale_memory(scales: np.ndarray) -> np.ndarray:
    """(L, rows, blocks) bytes in memory order, zeros in the padding."""
    return scale_bytes(scales, 0)


def operands(
    op: str, call: Call, framework: str, view: str = "logical", container: str = "native"
) -> list:
    """Arrays of an op with an activation, in its contract's order; None where a side has no scales.

    container: of FP4, "native" or "uint8".
    """
    a, b = (
        s.tensor(framework, container=container if s.element == "float4_e2m1fn" else "native")
        for s in (call.a, call.b)
    )
    scales = [s.scale(framework, view) for s in (call.a, call.b)]
    if op == "swiglu":
        return [a, b, *scales]
    prob = column_tensor(call.column, framework)
    if op == "srelu":
        return [a, b, *scales, prob]
    return [a, b, matrix_tensor(call.gradient, "float32", "n", framework), *scales, prob]
