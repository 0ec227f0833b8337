"""The decode step of the causal convolution: one token (or a few) a row, against a state that is updated in place.

Contract, reference, engines and the public function. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_core.contract import Array, Contract, Problem, Signature
from cudnn_core.dtypes import INT32
from cudnn_core.engine import HopperEngine, ReferenceEngine
from cudnn_core.errors import mismatch
from cudnn_core.op import Op
from cudnn_core.plan import Plan

from .operands import (
    FLOATS,
    activation,
    agreeing_dtypes,
    weight_operands,
    why_not_float64,
    width_within,
)

__all__ = ["causal_conv1d_update"]


def _room_for_history(signature: Signature, dims: Mapping[str, int]) -> None:
    """A slot holds at least what a token's taps reach back to, and one number."""
    least = max(dims["W"] - 1, 1)
    if dims["L"] < least:
        expected = (
            f"state length L of at least W-1 = {dims['W'] - 1}" if dims["W"] > 1 else "L >= 1"
        )
        raise ValueError(mismatch("conv_state", expected, f"L = {dims['L']}"))


def _a_slot_for_each_row(signature: Signature, dims: Mapping[str, int]) -> None:
    if not signature.has("conv_state_indices") and dims["P"] < dims["N"]:
        expected = f"at least N = {dims['N']} slots without conv_state_indices"
        raise ValueError(mismatch("conv_state", expected, dims["P"]))


INTEGERS = {"dtypes": (INT32,), "refusal": TypeError, "optional": True, "packed": True}

CONTRACT = Contract(
    "conv/update",
    operands=(
        Array(
            "x",
            ("N", "D", "S"),
            dtypes=FLOATS,
            refusal=TypeError,
            droppable=True,
        ),
        Array(
            "conv_state",
            ("P", "D", "L"),
            dtypes=FLOATS,
            refusal=TypeError,
            mutated=True,
        ),
        *weight_operands(TypeError),
        Array("cache_seqlens", ("N",), **INTEGERS),
        Array("conv_state_indices", ("N",), **INTEGERS),
        Array(
            "out",
            ("N", "D", "S"),
            output=True,
            dtypes=FLOATS,
            dtype_of="x",
            like="x",
            droppable=True,
        ),
    ),
    attributes=(activation(ValueError),),
    rules=(width_within(1), _room_for_history, _a_slot_for_each_row, agreeing_dtypes),
    vital=("N", "D", "S", "P"),
    folds=(frozenset("D"),),
)


def reference(signature: Signature, *arrays: Any) -> None:
    """NumPy: the arithmetic of the full-sequence reference; states move bit for bit."""
    from .reference import update

    named = signature.named(arrays)
    if named["x"].ndim == 2:
        named.update({name: named[name][:, :, None] for name in ("x", "out")})
    operands = [named.get(o.name) for o in CONTRACT.inputs]
    update(*operands, signature.attribute("activation"), named["out"])


def configure(problem: Problem):
    """The kernel configuration of a problem."""
    from .kernels.host import configure_update

    return configure_update(problem)


def source(plan: Plan):
    """What the compile cache needs to build the kernel of a plan."""
    from .kernels.host import source_update

    return source_update(plan)


def examples(everything: bool):
    """(label, problem) of the kernels that `cudnn compile` makes."""
    from .examples import decode

    return decode(CONTRACT, everything)


OP = Op(
    CONTRACT,
    engines=(ReferenceEngine(reference), HopperEngine(configure, source, why_not_float64)),
    namespace="cudnn_causal_conv",
    short_name="causal_conv1d_update",
    examples=examples,
    inference_only=True,
    keeps_operands=True,
)


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    *,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> Any:
    """One token for each of N rows: its convolution with the row's state, which moves on by that token in place.

    Formula, for row n and s = conv_state_indices[n] (or n)::

        hist              = conv_state[s,d,0..L-1], x[n,d]
        y[n,d]            = act(sum_{j=0..W-1} weight[d,j] hist[L+1-W+j] + bias[d])
        conv_state[s,d,:] = hist[1..L]                                            bit for bit

    x: (N, D), float32, float16, bfloat16 (CPU arrays also float64), any strides; N may be 0.
    conv_state: (P, D, L), dtype of x, L >= W-1, any strides; P >= N without indices, and slots that no row names stay.
    weight: (D, W), 1 <= W <= 256; bias: (D,) or None; dtypes and activation as in `causal_conv1d`.
    conv_state_indices: (N,) int32, contiguous: the slot of each row. A row whose index is negative or past the end is
        padding: its output is 0 and no state is written. Rows that exist must name different slots.
    cache_seqlens: only None; `cudnn_causal_conv.compat` has the circular buffer, and x with several tokens.

    Returns y (N, D), dtype of x. With JAX, whose arrays cannot be written: (y, new conv_state); under `jax.jit` with
        conv_state donated there is no copy.
    Numerics: as `causal_conv1d`: L updates equal one call over L tokens, bit for bit. Inference only.
    Raises: TypeError (not a tensor, dtype), ValueError (activation, shapes, devices, conv_state overlapping another
        operand), RuntimeError (a tensor requires grad while grad mode is on; no engine), NotImplementedError
        (cache_seqlens; float64 on a GPU). Launch: one kernel, no sync, capturable after one warm call.
    """
    if cache_seqlens is not None:
        raise NotImplementedError(
            "cache_seqlens: expected None, got a circular buffer's lengths; "
            "cudnn_causal_conv.compat.causal_conv1d_update takes them"
        )
    # An object without dimensions is left to the contract, whose refusal is another.
    if getattr(x, "ndim", 2) != 2:
        expected = "shape [N, D] (several tokens a row: cudnn_causal_conv.compat)"
        raise ValueError(mismatch("x", expected, f"shape {tuple(x.shape)}"))
    made = OP.run((x, conv_state, weight, bias, None, conv_state_indices), (activation,))
    return made[0] if len(made) == 1 else tuple(made)
