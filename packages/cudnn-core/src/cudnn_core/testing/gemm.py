"""An independent model of the block-scaled GEMM, and makers of hostile data and outputs for it.

May import tensor_desc, numpy and ml_dtypes; torch and jax are used where the test has imported them. Shares no code
with the engines: element values come from ml_dtypes or are written out, scales are addressed by the byte-offset
formula, products are summed in float64.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from ..tensor_desc import TensorDesc

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float4_e2m1fn": 6.0}
GUARD, GUARD_BYTE, POISON = 256, 0xA5, 0xFF


@dataclass(frozen=True)
class Recipe:
    """Element type, scale type and elements per scale."""

    element: str
    scale: str
    vec: int

    @property
    def fp4(self) -> bool:
        return self.element == "float4_e2m1fn"

    @property
    def nan_scale(self) -> int:
        return 255 if self.scale == "float8_e8m0fnu" else 0x7F


RECIPES = {
    "mxfp8": Recipe("float8_e4m3fn", "float8_e8m0fnu", 32),
    "mxfp8_e5m2": Recipe("float8_e5m2", "float8_e8m0fnu", 32),
    "mxfp4": Recipe("float4_e2m1fn", "float8_e8m0fnu", 32),
    "mxfp4_16": Recipe("float4_e2m1fn", "float8_e8m0fnu", 16),
    "nvfp4": Recipe("float4_e2m1fn", "float8_e4m3fn", 16),
}


@dataclass(frozen=True)
class Case:
    """One problem with its layouts. Containers: "native", "uint8" (FP4), "int8" (E8M0 scales)."""

    m: int
    n: int
    k: int
    l: int = 1
    recipe: str = "mxfp8"
    a_major: str = "k"
    b_major: str = "k"
    c_dtype: str = "float32"
    c_major: str = "n"
    container: str = "native"
    scale_view: str = "logical"
    scale_container: str = "native"

    @property
    def format(self) -> Recipe:
        return RECIPES[self.recipe]

    @property
    def blocks(self) -> int:
        return -(-self.k // self.format.vec)

    def options(self) -> dict[str, Any]:
        """The keyword arguments of a wrapper call."""
        return {
            "c_major": self.c_major,
            "c_dtype": self.c_dtype,
            "sf_vec_size": self.format.vec,
        }

    def __str__(self) -> str:
        name = f"{self.m}x{self.n}x{self.k}x{self.l}-{self.recipe}"
        name += f"-{self.a_major}{self.b_major}{self.c_major}-{self.c_dtype}"
        extra = (self.container, self.scale_view, self.scale_container)
        usual = ("native", "logical", "native")
        return name + "".join(f"-{e}" for e, u in zip(extra, usual, strict=True) if e != u)


# --- values ----------------------------------------------------------------------------------------------------------


@functools.cache
def table(dtype: str) -> np.ndarray:
    """The float64 value of every code of an element or scale type."""
    if dtype == "float4_e2m1fn":
        return np.array([*E2M1_MAGNITUDES, *(-v for v in E2M1_MAGNITUDES)])
    if dtype == "float8_e8m0fnu":
        return np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan])
    return np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float64)


def encode(x: np.ndarray, dtype: str) -> np.ndarray:
    """Codes (one a byte) of float64 values: nearest even, saturating; NaN is 0x7F, or +6 in E2M1."""
    nan = np.isnan(x)
    clipped = np.clip(np.where(nan, 0.0, x), -LARGEST[dtype], LARGEST[dtype])
    if dtype == "float4_e2m1fn":
        distance = np.abs(np.abs(clipped)[..., None] - np.array(E2M1_MAGNITUDES))
        # Of two equally near codes the even one wins: an odd code is moved away by next to nothing.
        code = (distance + np.array([0, 1] * 4) * 1e-12).argmin(axis=-1).astype(np.uint8)
        code |= np.signbit(clipped).astype(np.uint8) << 3
    else:
        code = clipped.astype(np.float32).astype(getattr(ml_dtypes, dtype)).view(np.uint8)
    return np.where(nan, np.uint8(7 if dtype == "float4_e2m1fn" else 0x7F), code)


def expand(codes: np.ndarray, scales: np.ndarray, recipe: Recipe) -> np.ndarray:
    """(L, rows, K) float64: element times scale, rounded to BF16 as every engine does."""
    factor = table(recipe.scale)[scales][..., np.arange(codes.shape[-1]) // recipe.vec]
    with np.errstate(all="ignore"):
        product = (table(recipe.element)[codes] * factor).astype(np.float32)
        return product.astype(ml_dtypes.bfloat16).astype(np.float64)


def convert(acc: np.ndarray, dtype: str) -> np.ndarray:
    """The float64 values that FP32 `acc` has once it is stored as `dtype`."""
    if dtype in LARGEST or dtype == "uint8":
        dtype = "float4_e2m1fn" if dtype == "uint8" else dtype
        return table(dtype)[encode(acc.astype(np.float64), dtype)]
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    with np.errstate(all="ignore"):
        return acc.astype(kind).astype(np.float64)


# --- memory ----------------------------------------------------------------------------------------------------------


def scale_bytes(scales: np.ndarray, padding: int) -> np.ndarray:
    """(L, rows, blocks) bytes at the offsets of the 128x4 atom layout; every other byte is `padding`."""
    batches, rows, blocks = scales.shape
    big_r, big_q = -(-rows // 128), -(-blocks // 4)
    memory = np.full(batches * big_r * big_q * 512, padding, np.uint8)
    for index in np.ndindex(batches, rows):
        batch, r = index
        j = np.arange(blocks)
        atom = (batch * big_r + r // 128) * big_q + j // 4
        memory[atom * 512 + (r % 32) * 16 + (r // 32) % 4 * 4 + j % 4] = scales[index]
    return memory


def to_framework(flat: np.ndarray, framework: str) -> Any:
    """A byte buffer as NumPy ("numpy", "jax") or torch ("torch", "cuda") array."""
    if framework in ("numpy", "jax"):
        return flat
    torch = sys.modules["torch"]
    # What comes from an empty array has stride 0, and cannot be viewed as a wider type.
    tensor = torch.from_numpy(flat) if flat.size else torch.empty(0, dtype=torch.uint8)
    return tensor.cuda() if framework == "cuda" else tensor


def shaped(flat: Any, dtype: str, extents: tuple, keep: int, order: tuple) -> Any:
    """A byte buffer as `dtype`, of `extents` in memory, cut to `keep` along the last, axes in `order`."""
    if isinstance(flat, np.ndarray):
        kind = np.uint8 if dtype == "float4_e2m1fn" else getattr(ml_dtypes, dtype, dtype)
        return flat.view(kind).reshape(extents)[..., :keep].transpose(order)
    torch = sys.modules["torch"]
    kind = getattr(torch, "float4_e2m1fn_x2" if dtype == "float4_e2m1fn" else dtype)
    return flat.view(kind).view(extents)[..., :keep].permute(order)


def matrix(codes: np.ndarray, dtype: str, major: str, framework: str, pad: int, offset: int) -> Any:
    """(L, rows, K) codes as a (rows, K, L) array; major "k" makes K contiguous, any other the rows.

    pad: bytes that nobody may use, between rows. offset: bytes before the first element.
    """
    k_inner = major == "k"
    memory = codes if k_inner else codes.swapaxes(1, 2)
    if dtype == "float4_e2m1fn" or dtype == "uint8":
        memory = memory[..., 0::2] | (memory[..., 1::2] << 4)
    extents = (*memory.shape[:2], memory.shape[2] + pad)
    flat = np.full(offset + math.prod(extents), 0x7F, np.uint8)
    flat[offset:].reshape(extents)[..., : memory.shape[2]] = memory
    order = (1, 2, 0) if k_inner else (2, 1, 0)
    placed = to_framework(flat, framework)[offset:]
    return shaped(placed, dtype, extents, memory.shape[2], order)


def scale_tensor(
    scales: np.ndarray, dtype: str, view: str, framework: str, padding: int, offset: int
):
    """Scale bytes as a 6-D array in the "logical" or the "physical" view."""
    batches, rows, blocks = scales.shape
    flat = np.concatenate([np.full(offset, padding, np.uint8), scale_bytes(scales, padding)])
    extents = (batches, -(-rows // 128), -(-blocks // 4), 32, 4, 4)
    order = (3, 4, 1, 5, 2, 0) if view == "logical" else (0, 1, 2, 3, 4, 5)
    return shaped(to_framework(flat, framework)[offset:], dtype, extents, 4, order)


class Guarded:
    """An output in the middle of a larger buffer: poisoned with NaN, guard bytes around and between rows."""

    def __init__(self, case: Case, framework: str, pad: int = 0) -> None:
        dtype = case.c_dtype
        packed = dtype in ("float4_e2m1fn", "uint8")
        rows, columns = (case.m, case.n // 2 if packed else case.n)
        major_n = case.c_major == "n"
        inner, outer = (columns, rows) if major_n else (rows, columns)
        size = 4 if dtype == "float32" else 2 if dtype in ("float16", "bfloat16") else 1
        extents = (case.l, outer, inner + pad)
        self._place = (dtype, extents, inner, (1, 2, 0) if major_n else (2, 1, 0))
        self._end = GUARD + math.prod(extents) * size
        flat = np.full(self._end + GUARD, GUARD_BYTE, np.uint8)
        self.flat = to_framework(flat, framework)
        self.poison()

    @property
    def tensor(self) -> Any:
        """The output as the operation gets it."""
        return shaped(self.flat[GUARD : self._end], *self._place)

    def poison(self) -> None:
        """Fill the output, and only it, with NaN."""
        self._fill(self.flat, POISON)

    def _fill(self, flat: Any, byte: int) -> None:
        _, extents, inner, _ = self._place
        size = (self._end - GUARD) // max(1, math.prod(extents))
        whole = (*extents[:2], extents[2] * size)
        region = flat[GUARD : self._end].reshape(whole)
        region[..., : inner * size] = byte

    def assert_guards(self) -> None:
        """No byte outside the output changed."""
        flat = host(self.flat).copy()
        self._fill(flat, GUARD_BYTE)
        assert (flat == GUARD_BYTE).all(), "bytes outside the output were written"


def amax_tensor(framework: str, prior: float = float("-inf")) -> Any:
    """A float32 (1, 1, 1) holding `prior`."""
    return shaped(
        to_framework(np.full(1, prior, np.float32).view(np.uint8), framework),
        "float32",
        (1, 1, 1),
        1,
        (0, 1, 2),
    )


def host(x: Any) -> np.ndarray:
    """A NumPy array of the same elements; packed FP4 is uint8."""
    if type(x).__module__.partition(".")[0] != "torch":
        return np.asarray(x)
    torch = sys.modules["torch"]
    x = x.detach().cpu()
    name = str(x.dtype).removeprefix("torch.")
    if x.element_size() == 1:
        return x.view(torch.uint8).numpy().view(getattr(ml_dtypes, name, np.uint8))
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if name == "bfloat16" else x.numpy()


def bits(x: Any) -> np.ndarray:
    """The bit patterns of an array's elements, for comparisons that know no NaN."""
    array = host(x)
    return array.view(f"u{array.itemsize}")


def values(x: Any, dtype: str) -> np.ndarray:
    """(L, M, N) float64 of an output (M, N, L) of that dtype."""
    array = host(x)
    if dtype in ("float4_e2m1fn", "uint8"):
        pair = np.stack([array & 15, array >> 4], axis=2)  # (M, N/2, 2, L)
        codes = pair.reshape(array.shape[0], 2 * array.shape[1], array.shape[2])
        array = table("float4_e2m1fn")[codes]
    return np.moveaxis(array.astype(np.float64), -1, 0)


# --- problems with data ----------------------------------------------------------------------------------------------


@dataclass
class Data:
    """Codes (L, rows, K) and scale bytes (L, rows, blocks) of both operands of a case."""

    case: Case
    a: np.ndarray
    b: np.ndarray
    sfa: np.ndarray
    sfb: np.ndarray

    def product(self) -> np.ndarray:
        """(L, M, N) in float64."""
        recipe = self.case.format
        left, right = expand(self.a, self.sfa, recipe), expand(self.b, self.sfb, recipe)
        with np.errstate(all="ignore"):
            return left @ right.swapaxes(1, 2)

    def accumulator(self) -> np.ndarray:
        """(L, M, N) float32: the product, rounded once."""
        with np.errstate(all="ignore"):
            return self.product().astype(np.float32)

    def expected(self) -> np.ndarray:
        """(L, M, N) float64: what C holds."""
        return convert(self.accumulator(), self.case.c_dtype)

    def amax(self, prior: float = float("-inf")) -> np.float32:
        """What the amax buffer holds afterwards; NaN anywhere gives NaN."""
        found = np.abs(self.accumulator()).ravel().tolist()
        kept = prior if prior > 0 or math.isnan(prior) else 0.0
        if math.isnan(kept) or any(map(math.isnan, found)):
            return np.float32(np.nan)
        return np.float32(max([kept, *found]))

    def inputs(self, framework: str = "numpy", pad: int = 0, offset: int = 0) -> tuple:
        """(a, b, sfa, sfb) in the case's layouts, NaN codes in the padding of the scales."""
        case, recipe = self.case, self.case.format
        element = recipe.element if case.container == "native" else case.container
        scale = recipe.scale if case.scale_container == "native" else case.scale_container
        arrays = (
            matrix(self.a, element, case.a_major, framework, pad, offset),
            matrix(self.b, element, case.b_major, framework, pad, offset),
            scale_tensor(self.sfa, scale, case.scale_view, framework, recipe.nan_scale, offset),
            scale_tensor(self.sfb, scale, case.scale_view, framework, recipe.nan_scale, offset),
        )
        if framework != "jax":
            return arrays
        return tuple(map(sys.modules["jax"].numpy.asarray, arrays))

    def with_case(self, **changes: Any) -> Data:
        """The same numbers in other layouts."""
        return replace(self, case=replace(self.case, **changes))


def exact(case: Case, seed: int = 0) -> Data:
    """Few-bit values whose products and sums are exact in FP32: every order of summation gives the same bits."""
    rng = np.random.default_rng(seed)
    recipe = case.format
    pool = encode(np.array([0, 0.5, 1, 1.5, 2, 3, -0.5, -1, -1.5, -2, -3]), recipe.element)
    if recipe.scale == "float8_e8m0fnu":
        scales = np.array([126, 127, 128], np.uint8)
    else:
        scales = encode(np.array([0.5, 1.0, 1.5, 2.0]), "float8_e4m3fn")
    shapes = [(case.l, case.m, case.k), (case.l, case.n, case.k)]
    blocks = [(case.l, case.m, case.blocks), (case.l, case.n, case.blocks)]
    return Data(
        case, *(rng.choice(pool, s) for s in shapes), *(rng.choice(scales, s) for s in blocks)
    )


def quantized(case: Case, seed: int = 0, positive: bool = False) -> Data:
    """N(0, 1) data, or its absolute value, quantized with block scales as a user's would be."""
    rng = np.random.default_rng(seed)
    sides = [
        _quantize(rng.standard_normal((case.l, rows, case.k)), case, positive)
        for rows in (case.m, case.n)
    ]
    return Data(case, sides[0][0], sides[1][0], sides[0][1], sides[1][1])


def _quantize(x: np.ndarray, case: Case, positive: bool) -> tuple[np.ndarray, np.ndarray]:
    recipe = case.format
    x = np.abs(x) if positive else x
    padded = np.pad(x, [(0, 0), (0, 0), (0, case.blocks * recipe.vec - case.k)])
    grouped = padded.reshape(*x.shape[:2], case.blocks, recipe.vec)
    want = np.abs(grouped).max(axis=-1) / LARGEST[recipe.element]
    if recipe.scale == "float8_e8m0fnu":
        safe = np.where(want > 0, want, 1.0)
        code = np.clip(np.ceil(np.log2(safe)) + 127, 1, 254).astype(np.uint8)
    else:
        code = np.maximum(encode(want, recipe.scale), 1)  # the smallest positive scale, never 0
    step = np.repeat(table(recipe.scale)[code], recipe.vec, axis=-1)[..., : case.k]
    return encode(x / step, recipe.element), code


def any_codes(case: Case, seed: int = 0) -> Data:
    """Every element code but NaN and Inf, scales within 2^-4 .. 2^4: exact in float64 for E4M3 and E2M1."""
    rng = np.random.default_rng(seed)
    recipe = case.format
    pool = np.flatnonzero(np.isfinite(table(recipe.element))).astype(np.uint8)
    size = table(recipe.scale)
    scales = np.flatnonzero((size >= 2.0**-4) & (size <= 2.0**4)).astype(np.uint8)
    shapes = [(case.l, case.m, case.k), (case.l, case.n, case.k)]
    blocks = [(case.l, case.m, case.blocks), (case.l, case.n, case.blocks)]
    return Data(
        case, *(rng.choice(pool, s) for s in shapes), *(rng.choice(scales, s) for s in blocks)
    )


def assert_matches(outputs: Any, data: Data, prior: float = float("-inf")) -> None:
    """C (and the sign of its zeros' absence: values only) and amax equal the model's, bit for bit."""
    c, amax = outputs
    np.testing.assert_array_equal(values(c, data.case.c_dtype), data.expected())
    np.testing.assert_array_equal(host(amax).ravel(), [data.amax(prior)])


def describe_inputs(case: Case, device: str = "cuda:0") -> list[TensorDesc]:
    """Metadata of (a, b, sfa, sfb) without any data, as torch tensors of the case would have it."""
    recipe = case.format
    scale = recipe.scale if case.scale_container == "native" else case.scale_container
    descs = []
    for side, rows, major in (("a", case.m, case.a_major), ("b", case.n, case.b_major)):
        columns = case.k // 2 if case.container == "uint8" else case.k
        stride = (columns, 1) if major == "k" else (1, rows)
        dtype = recipe.element if case.container == "native" else "uint8"
        shape, stride = (rows, columns, case.l), (*stride, rows * columns)
        descs.append(TensorDesc.of(dtype, shape, stride, device, f"{side}_tensor"))
    for side, rows in (("a", case.m), ("b", case.n)):
        r, q = -(-rows // 128), -(-case.blocks // 4)
        physical = TensorDesc.of(scale, (case.l, r, q, 32, 4, 4), None, device, f"sf{side}_tensor")
        logical = physical.permute(3, 4, 1, 5, 2, 0)
        descs.append(logical if case.scale_view == "logical" else physical)
    return descs
