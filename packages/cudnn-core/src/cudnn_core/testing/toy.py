"""A small operation for tests of what all operations share. Imports the contract, the op, and numpy when it runs.

y[m,n,l] = +-sum_k x[m,k,l] * w[n,k,l] and top = max(prior, 0, max |y|), in NumPy on the host. The toy with optional
operands adds a bias (M, N, L) if there is one, and then also gives the sum before it; it gives no top for FP16 results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..contract import (
    Contract,
    Matrix,
    ScalarTensor,
    Signature,
    choice,
    dtype_attribute,
)
from ..dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FLOAT32
from ..engine import ReferenceEngine
from ..op import Op, OpClass

INPUTS, OUTPUTS = (FLOAT32, FLOAT16), (FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3FN)


def no_negated_halves(signature: Signature, dims: Any) -> None:
    """A rule between operands and attributes, to see one refuse."""
    if signature.attribute("sign") == "minus" and signature.operand("x_tensor").dtype == "float16":
        raise ValueError("sign: expected 'plus' for float16 inputs, got 'minus'")


CONTRACT = Contract(
    "core/toy",
    operands=(
        Matrix("x_tensor", ("M", "K", "L"), dtypes=INPUTS, majors={"k": "K", "m": "M"}),
        Matrix("w_tensor", ("N", "K", "L"), dtypes=INPUTS, majors={"k": "K", "n": "N"}),
        Matrix(
            "y_tensor",
            ("M", "N", "L"),
            output=True,
            dtypes=OUTPUTS,
            majors={"n": "N", "m": "M"},
            dtype_from="y_dtype",
            major_from="y_major",
        ),
        ScalarTensor("top_tensor", (), output=True, initial=float("-inf"), per_batch_from="amax"),
    ),
    attributes=(
        choice("y_major", "n", ("n", "m"), of_output=True),
        dtype_attribute("y_dtype", FLOAT32, OUTPUTS, of_output=True),
        choice("sign", "plus", ("plus", "minus")),
        choice("width", 32, (16, 32)),
        choice("batch", "last", ("last", "outer")),
        choice("amax", "global", ("global", "per_batch")),
    ),
    rules=(no_negated_halves,),
)


def reference(signature: Signature, x: Any, w: Any, y: Any, top: Any) -> None:
    """The toy itself, in place."""
    import numpy as np

    sign = -1.0 if signature.attribute("sign") == "minus" else 1.0
    product = sign * np.einsum("mkl,nkl->mnl", x.astype(np.float64), w.astype(np.float64))
    y[...] = product.astype(np.float32).astype(y.dtype)
    axes = (0, 1) if signature.attribute("amax") == "per_batch" else None
    largest = np.abs(product).max(axis=axes, initial=0.0)
    top[...] = np.maximum(top, largest.reshape(top.shape))


class CountingEngine(ReferenceEngine):
    """The reference engine, which counts how often it was asked for a plan and keeps the distinct answers."""

    def __init__(self, function: Any = reference) -> None:
        super().__init__(function)
        self.asked = 0
        self.plans: set[Any] = set()

    def plan(self, problem: Any) -> Any:
        made = super().plan(problem)
        self.asked += 1
        self.plans.add(made)
        return made


ENGINE = CountingEngine()
OP = Op(CONTRACT, engines=(ENGINE,), namespace="cudnn_core_toy", short_name="toy")


def toy(x_tensor: Any, w_tensor: Any, *attributes: Any, stream: Any = None) -> Any:
    """The wrapper door; attributes in contract order."""
    return OP((x_tensor, w_tensor), attributes, stream)


class Toy(OpClass):
    """The class door."""

    op = OP

    def __init__(
        self, sample_x: Any, sample_w: Any, sample_y: Any, sample_top: Any, **options: Any
    ) -> None:
        samples = {
            "sample_x": sample_x,
            "sample_w": sample_w,
            "sample_y": sample_y,
            "sample_top": sample_top,
        }
        super().__init__(samples, options)

    def execute(self, x: Any, w: Any, y: Any, top: Any, current_stream: Any = None) -> None:
        """Write y, accumulate top."""
        self._run((x, w, y, top), current_stream)


def biased(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
    """Whether there is a bias, so that the sum before it is a result of its own."""
    return "bias_tensor" in dtypes


def wide_result(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
    """Whether the toy with optional operands gives `top`: not for FP16 results, nor when signs are turned."""
    return dtypes["y_tensor"] != "float16" and attributes["sign"] == "plus"


_X, _W, _Y, _TOP = CONTRACT.operands
OPTIONAL_CONTRACT = replace(
    CONTRACT,
    name="core/toy_optional",
    operands=(
        _X,
        replace(_Y, name="bias_tensor", output=False, optional=True),
        _W,
        _Y,
        replace(_Y, name="sum_tensor", when=biased),
        replace(_TOP, when=wide_result),
    ),
)


def optional_reference(signature: Signature, *arrays: Any) -> None:
    """The toy with optional operands, in place."""
    import numpy as np

    named = signature.named(arrays)
    bias, y, top = named.get("bias_tensor"), named["y_tensor"], named.get("top_tensor")
    per_batch = signature.attribute("amax") == "per_batch"
    spare = np.zeros((y.shape[2] if per_batch else 1, 1, 1), np.float32)
    reference(signature, named["x_tensor"], named["w_tensor"], y, spare if top is None else top)
    if signature.has("sum_tensor"):
        named["sum_tensor"][...] = y
    if bias is not None:
        y[...] = (y.astype(np.float32) + bias.astype(np.float32)).astype(y.dtype)


OPTIONAL_OP = Op(
    OPTIONAL_CONTRACT, (CountingEngine(optional_reference),), "cudnn_core_toy", "toy_optional"
)


class ToyOptional(OpClass):
    """The class door of the toy with optional operands."""

    op = OPTIONAL_OP

    def __init__(self, x: Any, bias: Any, w: Any, y: Any, sums: Any, top: Any, **options: Any):
        samples = {"sample_x": x, "sample_bias": bias, "sample_w": w}
        super().__init__(samples | {"sample_y": y, "sample_sum": sums, "sample_top": top}, options)

    def execute(self, *tensors: Any, current_stream: Any = None) -> None:
        """x, bias, w, y, sum, top: None where the sample was."""
        self._run(tensors, current_stream)
