"""A small operation for tests of what all operations share. Imports the contract, the op, and numpy when it runs.

y[m,n,l] = +-sum_k x[m,k,l] * w[n,k,l] and top = max(prior, 0, max |y|), in NumPy on the host.
"""

from __future__ import annotations

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
