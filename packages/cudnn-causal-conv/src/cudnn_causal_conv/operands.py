"""What the three contracts of this package share: operands, attributes and rules. May import core's contract types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_core.contract import Array, Attribute, Signature
from cudnn_core.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32
from cudnn_core.errors import mismatch

FLOATS = (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)
ACTIVATIONS = {None: "identity", "identity": "identity", "silu": "silu", "swish": "silu"}
NARROWEST, WIDEST = 2, 256


def activation(refusal: type[Exception]) -> Attribute:
    """None or "identity"; "silu" or "swish"."""

    def parse(value: Any, argument: str) -> str:
        if (value is None or isinstance(value, str)) and value in ACTIVATIONS:
            return ACTIVATIONS[value]
        raise refusal(mismatch(argument, "None, 'identity', 'silu' or 'swish'", repr(value)))

    return Attribute("activation", "identity", parse)


def weight_operands(refusal: type[Exception] = ValueError) -> tuple[Array, Array]:
    """The filter and its optional bias."""
    return (
        Array("weight", ("D", "W"), dtypes=FLOATS, refusal=refusal),
        Array("bias", ("D",), dtypes=FLOATS, refusal=refusal, optional=True),
    )


def full_sequence_operands() -> tuple[Array, ...]:
    """The inputs of the forward, which are the first of the backward."""
    return (
        Array("x", ("B", "D", "T"), dtypes=FLOATS),
        *weight_operands(),
        Array("seq_idx", ("B", "T"), dtypes=(INT32,), refusal=TypeError, optional=True),
        Array(
            "cu_seqlens", ("N+1",), dtypes=(INT32,), refusal=TypeError, optional=True, packed=True
        ),
        Array("initial_states", ("R", "D", "W-1"), dtypes=FLOATS, optional=True),
    )


def states_of(given: frozenset[str]) -> dict[str, str]:
    """There is a state for each packed sequence, or else for each batch row."""
    return {"R": "N" if "cu_seqlens" in given else "B"}


def one_kind_of_sequences(given: frozenset[str], attributes: Mapping[str, Any]) -> None:
    """seq_idx goes with neither cu_seqlens nor states."""
    if "seq_idx" not in given:
        return
    for other in ("cu_seqlens", "initial_states", "dfinal_states"):
        if other in given:
            raise ValueError(f"seq_idx and {other} are mutually exclusive: expected one of them")
    if attributes.get("return_final_states"):
        expected = "no final states together with seq_idx"
        raise ValueError(mismatch("return_final_states", expected, "True"))


def packed_in_one_row(signature: Signature, dims: Mapping[str, int]) -> None:
    """cu_seqlens divides a single row."""
    if signature.has("cu_seqlens") and dims["B"] != 1:
        expected = "batch extent B = 1 with cu_seqlens"
        raise ValueError(mismatch("x", expected, f"B = {dims['B']}"))


def width_within(narrowest: int):
    """A rule: the filter has from `narrowest` to 256 taps."""

    def rule(signature: Signature, dims: Mapping[str, int]) -> None:
        if not narrowest <= dims["W"] <= WIDEST:
            raise ValueError(
                f"weight: kernel_size must be between {narrowest} and {WIDEST}, inclusive; got {dims['W']}"
            )

    return rule


def agreeing_dtypes(signature: Signature, dims: Mapping[str, int]) -> None:
    """x, states and gradients in one dtype; weight free, bias in weight's or x's; float64 all or none."""
    dtypes = {plan.name: plan.dtype for plan in signature.operands}
    x, weight = dtypes["x"], dtypes["weight"]
    if (x == "float64") != (weight == "float64"):
        raise TypeError(mismatch("weight", f"dtype {x}, or neither in float64", weight))
    if dtypes.get("bias", x) not in (x, weight):
        raise TypeError(mismatch("bias", f"dtype {weight} (weight's) or {x} (x's)", dtypes["bias"]))
    for name in ("initial_states", "conv_state", "dout", "dfinal_states"):
        if dtypes.get(name, x) != x:
            raise TypeError(mismatch(name, f"dtype {x} (x's)", dtypes[name]))


# What the contracts of forward and backward have in common.
FULL_SEQUENCE = {
    "early": (one_kind_of_sequences,),
    "aliases": states_of,
    "rules": (width_within(NARROWEST), packed_in_one_row, agreeing_dtypes),
    "vital": ("B", "D", "T", "R"),
}


def why_not_float64(problem: Any) -> str | None:
    """float64 is the reference engine's alone."""
    if problem.signature.operand("x").dtype == "float64":
        return "it has no float64 kernels; CPU arrays run in float64"
    return None
