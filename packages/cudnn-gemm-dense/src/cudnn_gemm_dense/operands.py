"""What the contracts of the dense ops share: both sides of the product, quantized outputs, common options and rules.

Each side is 16-bit, FP32, plain FP8 or block-scaled on its own. May import cudnn_core.contract; no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cudnn_core.contract import (
    Attribute,
    Column,
    Matrix,
    Number,
    OutputScale,
    ScalarTensor,
    ScaleFactor,
    Signature,
    block_sizes,
    choice,
    dtype_attribute,
    tile_hint,
)
from cudnn_core.dtypes import (
    BFLOAT16,
    FLOAT4_E2M1FN,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    UINT8,
    DType,
)
from cudnn_core.errors import mismatch

from .config import RECIPES

WIDE = (FLOAT32, FLOAT16, BFLOAT16)
FP8 = (FLOAT8_E4M3FN, FLOAT8_E5M2)
FP4 = (FLOAT4_E2M1FN, UINT8)
SCALES = (FLOAT8_E8M0FNU, FLOAT8_E4M3FN)

FP8_NAMES = tuple(dtype.name for dtype in FP8)
FP4_NAME = FLOAT4_E2M1FN.name
NARROW_NAMES = (*FP8_NAMES, FP4_NAME)


A = Matrix(
    "a_tensor",
    ("M", "K", "L"),
    dtypes=(*FP8, *FP4, *WIDE),
    majors={"k": "K", "m": "M"},
    fp4_major="k",
    aligned=True,
    meaning="left operand",
)
B = replace(
    A,
    name="b_tensor",
    dims=("N", "K", "L"),
    majors={"k": "K", "n": "N"},
    meaning="right operand, transposed",
)
SFA = ScaleFactor(
    "sfa_tensor",
    ("M", "K", "L"),
    dtypes=SCALES,
    int8_is_e8m0=True,
    optional=True,
)
SFB = replace(SFA, name="sfb_tensor", dims=("N", "K", "L"), side=1)
PROB = Column("prob_tensor", ("M", "1", "L"), meaning="factor of each row")
NORM_CONST = ScalarTensor(
    "norm_const_tensor", (), rank=1, optional=True, meaning="factor before quantization"
)
ALPHA = Number("alpha", 1.0)

# out_format -> the types of its elements; its scales and its block. None stands for FP8 by dtype alone, which is MXFP8.
FORMAT_ELEMENTS = {"mxfp8": FP8, "mxfp4": FP4, "nvfp4": FP4}
FORMAT_SCALES = {
    None: (FLOAT8_E8M0FNU, 32),
    "mxfp8": (FLOAT8_E8M0FNU, 32),
    "mxfp4": (FLOAT8_E8M0FNU, 32),
    "nvfp4": (FLOAT8_E4M3FN, 16),
}


def check_sides(signature: Signature, dims: Mapping[str, int]) -> None:
    """Rule: each side is a format of its own, and FP32 goes with FP32."""
    for side, (name, scale) in enumerate((("a_tensor", "sfa_tensor"), ("b_tensor", "sfb_tensor"))):
        _check_side(signature, name, scale, side)
    a, b = signature.operand("a_tensor"), signature.operand("b_tensor")
    if (a.dtype == FLOAT32.name) != (b.dtype == FLOAT32.name):
        expected = f"dtype {FLOAT32.name} (a_tensor's)"
        if b.dtype == FLOAT32.name:
            expected = f"a narrower dtype than {FLOAT32.name}, as a_tensor is {a.dtype}"
        raise ValueError(mismatch("b_tensor", expected, b.dtype))


def _check_side(signature: Signature, name: str, scale: str, side: int) -> None:
    """Scales are there where elements need them, of a type and a block length that go with the elements."""
    element = signature.operand(name).dtype
    fp4 = element == FP4_NAME
    if not signature.has(scale):
        if fp4:
            raise ValueError(mismatch(scale, f"block scales, which {name} in FP4 needs", "None"))
        return
    if element not in NARROW_NAMES:
        hint = "cudnn.quantize makes block-scaled operands"
        expected = f"None, as {name} is {element}, which has no block scales"
        raise ValueError(mismatch(scale, expected, "a tensor", hint))
    sf, vec = signature.operand(scale).dtype, vec_of(signature, side)
    if (element, sf, vec) not in RECIPES.values():
        legal = "float8_e8m0fnu scales with sf_vec_size 32"
        if fp4:
            legal = "float8_e8m0fnu scales with sf_vec_size 16 or 32, or float8_e4m3fn with 16"
        raise ValueError(
            mismatch("sf_vec_size", f"{legal} for {name} {element}", f"{sf} with {vec}")
        )


def vec_of(signature: Signature, side: int) -> int:
    """Elements that share a scale on the left (0) or the right (1)."""
    return (SFA, SFB)[side].vec(dict(signature.attributes))


def output(name: str, dtypes: tuple[DType, ...], dtype_from: str, major_from: str, **more: Any):
    """A matrix (M, N, L) that the op stores."""
    more = {"dims": ("M", "N", "L"), "majors": {"n": "N", "m": "M"}} | more
    return Matrix(
        name,
        output=True,
        dtypes=dtypes,
        fp4_major="n",
        dtype_from=dtype_from,
        major_from=major_from,
        **more,
    )


def output_scale(name: str, matrix: str, columns: str = "N") -> OutputScale:
    """The block scales of the quantized output `matrix`."""

    def applies(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
        return attributes["out_format"] is not None or dtypes[matrix] in FP8_NAMES

    return OutputScale(
        name,
        ("M", columns, "L"),
        output=True,
        vec_from="out_format",
        formats=FORMAT_SCALES,
        when=applies,
        meaning=f"block scales of {matrix}",
    )


def amax_of(matrix: str, rank: int, dtypes_with: tuple[str, ...]) -> ScalarTensor:
    """max |value| of the output `matrix` before it is rounded; made by default for FP4 A and the dtypes given."""

    def wanted(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
        return (
            attributes["amax"] != "none"
            and dtypes["a_tensor"] == FP4_NAME
            and dtypes[matrix] in dtypes_with
        )

    return ScalarTensor(
        "amax_tensor",
        (),
        output=True,
        optional=True,
        initial=float("-inf"),
        rank=rank,
        per_batch_from="amax",
        by_default=wanted,
        meaning=f"max(prior, 0, max |{matrix}|) of the FP32 values",
    )


def check_quantized(matrix: str) -> Callable[[Signature, Mapping[str, int]], None]:
    """Rule: the output `matrix`, its format and norm_const fit together."""

    def rule(signature: Signature, dims: Mapping[str, int]) -> None:
        dtype, out_format = signature.operand(matrix).dtype, signature.attribute("out_format")
        if out_format is not None:
            elements = {element.name for element in FORMAT_ELEMENTS[out_format]} - {UINT8.name}
            if dtype not in elements:
                expected = f"dtype {' or '.join(sorted(elements))} (out_format {out_format!r})"
                raise ValueError(mismatch(matrix, expected, dtype))
            return
        norm_const = signature.has("norm_const_tensor")
        if dtype == FP4_NAME:
            raise ValueError(
                mismatch("out_format", f"'mxfp4' or 'nvfp4', as {matrix} is {FP4_NAME}", None)
            )
        if dtype in FP8_NAMES and not norm_const:
            expected = f"a tensor, as {matrix} is {dtype}"
            raise ValueError(mismatch("norm_const_tensor", expected, "None"))
        if dtype not in FP8_NAMES and norm_const:
            expected = f"None, as {matrix} is {dtype}, which is not quantized"
            raise ValueError(mismatch("norm_const_tensor", expected, "a tensor"))

    return rule


def quantized_dtype(dtype: Any, out_format: str | None) -> Any:
    """The dtype of an output to allocate: as asked for, or the elements of its format in place of a wide dtype."""
    if not isinstance(out_format, str) or out_format not in FORMAT_ELEMENTS:
        return dtype  # None, or the contract's to refuse
    if any(wide == dtype for wide in WIDE):
        return FORMAT_ELEMENTS[out_format][0]
    return dtype


def options(tiles_n: tuple[int, ...], clusters: tuple[int, ...]) -> tuple[Attribute, ...]:
    """Attributes that the ops with quantized outputs share: hints, block lengths, the output's format."""
    return (
        tile_hint("mma_tiler_mn", None, ((128, 256), tiles_n)),
        tile_hint("cluster_shape_mn", None, (clusters, clusters), largest_product=16),
        block_sizes("sf_vec_size", 16, (16, 32)),
        replace(choice("out_format", None, (None, *FORMAT_ELEMENTS)), schema="str?"),
    )


# What no parameter shows: how a batch lies in memory and what JAX makes of it. They end every list of attributes.
PLACING = (
    choice("batch", "last", ("last", "outer")),
    choice("amax", "global", ("global", "per_batch", "none")),
    choice("scale_view", "logical", ("logical", "physical"), of_output=True),
)
WITHOUT_AMAX = ("last", "none")


def stored_as(name: str, default: DType, allowed: tuple[DType, ...], optional: bool = False):
    """The attribute that names an output's dtype."""
    return dtype_attribute(name, default, allowed, of_output=True, optional=optional)


def major(name: str) -> Attribute:
    """The attribute that names the contiguous mode of the outputs."""
    return choice(name, "n", ("n", "m"), of_output=True)
