"""Causal depthwise convolution over whole sequences, with bias and SiLU fused.

Contract, reference, engines and the public function. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_core.adapters import adapter_of
from cudnn_core.api_base import check_buffers_disjoint
from cudnn_core.contract import Array, Attribute, Contract, Problem, Signature
from cudnn_core.contract.operands import addresses_once
from cudnn_core.engine import HopperEngine, ReferenceEngine
from cudnn_core.errors import mismatch
from cudnn_core.op import Op
from cudnn_core.plan import Plan

from . import backward
from .operands import FLOATS, FULL_SEQUENCE, activation, full_sequence_operands, why_not_float64

__all__ = ["causal_conv1d"]


def _boolean(value: Any, argument: str) -> bool:
    if value is not True and value is not False:
        raise TypeError(mismatch(argument, "True or False", repr(value)))
    return value


def _wants_states(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
    return attributes["return_final_states"]


CONTRACT = Contract(
    "conv/conv1d",
    operands=(
        *full_sequence_operands(),
        Array(
            "out",
            ("B", "D", "T"),
            output=True,
            dtypes=FLOATS,
            dtype_of="x",
            like="x",
        ),
        Array(
            "final_states",
            ("R", "D", "W-1"),
            output=True,
            dtypes=FLOATS,
            dtype_of="x",
            order=(1, 2, 0),
            when=_wants_states,
            empty_from="initial_states",
        ),
    ),
    attributes=(
        activation(NotImplementedError),
        Attribute("return_final_states", False, _boolean),
    ),
    **FULL_SEQUENCE,
    # Rows are independent of each other; so are channels.
    folds=(frozenset("BR"), frozenset("D")),
)


def reference(signature: Signature, *arrays: Any) -> None:
    """NumPy: FP32 multiply-adds as on the GPU (FP64 for float64), exact sigmoid, one rounding."""
    from .reference import forward

    named = signature.named(arrays)
    operands = [named.get(o.name) for o in CONTRACT.inputs]
    activation = signature.attribute("activation")
    forward(*operands, activation, named["out"], named.get("final_states"))


def configure(problem: Problem):
    """The kernel configuration of a problem."""
    from .kernels.host import configure_forward

    return configure_forward(problem)


def source(plan: Plan):
    """What the compile cache needs to build the kernel of a plan."""
    from .kernels.host import source_forward

    return source_forward(plan)


def examples(everything: bool):
    """(label, problem) of the kernels that `cudnn compile` makes."""
    from .examples import full_sequence

    return full_sequence(CONTRACT, everything)


OP = Op(
    CONTRACT,
    engines=(ReferenceEngine(reference), HopperEngine(configure, source, why_not_float64)),
    namespace="cudnn_causal_conv",
    short_name="causal_conv1d",
    examples=examples,
    backward=backward.OP,
    keeps_operands=True,
)


def causal_conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    *,
    seq_idx: Any = None,
    cu_seqlens: Any = None,
    initial_states: Any = None,
    return_final_states: bool = False,
    final_states_out: Any = None,
) -> Any:
    """Causal depthwise convolution along the last axis: y = act(sum_j weight[:, j] * x[:, :, t - (W-1) + j] + bias).

    Formula, for each sequence of T' tokens with its own time, channel d, and the state r of the sequence::

        h[tau]            = x[d, tau] for tau >= 0, initial_states[r, d, tau + W-1] (or 0) for tau < 0
        z[d,t]            = sum_{j=0..W-1} weight[d,j] h[t - (W-1) + j] + bias[d]
        y[d,t]            = z, or z sigma(z)
        final_states[r,d] = h[T' - (W-1)], ..., h[T' - 1]

    x: (B, D, T), float32, float16, bfloat16 (CPU arrays also float64), any strides; channel-last storage is the
        transpose of (B, T, D). weight: (D, W), 2 <= W <= 256, in any of these dtypes (float64 only with float64).
    bias: (D,) in weight's dtype or x's, or None. activation: None or "identity"; "silu" or "swish".
    seq_idx: (B, T) int32: a tap counts where its token has the id of the current one; ids below 0 are padding,
        whose output is 0. Excludes cu_seqlens and states.
    cu_seqlens: (N+1,) int32, contiguous, needs B = 1: sequence i is tokens cu[i] to cu[i+1]. Contents stay on the
        device: they are clamped to [0, T] and to their order; empty sequences are legal; tokens in none give 0.
    initial_states: (R, D, W-1), dtype of x, any strides; R = N with cu_seqlens, else B.
    return_final_states: also return the final states, with strides ((W-1) D, 1, D): bitwise copies of inputs.
    final_states_out: (R, D, W-1), dtype of x, any strides: written and returned in their place. Not with JAX.

    Returns y, shape and dtype of x, its strides where they are dense; or (y, final_states).
    Numerics: FP32 sums (FP64 for float64), oldest tap first, then bias, then SiLU; one RNE rounding. One call over a
        sequence equals calls over its chunks through the states, and packed ones equal separate ones, bit for bit.
    Gradients: of x, weight, bias and initial_states in torch and JAX, first order only; see `causal_conv1d_backward`.
    Raises: NotImplementedError (activation; float64 on a GPU), ValueError (shapes, combinations, devices, overlap),
        TypeError (not a tensor, dtypes that do not agree, return_final_states no bool), RuntimeError (no engine).
    Launch: one kernel, no sync, on the current stream, capturable after one warm call, bitwise repeatable.
    """
    inputs = (x, weight, bias, seq_idx, cu_seqlens, initial_states)
    if return_final_states is False and final_states_out is None:
        return OP.run(inputs, (activation, False))[0]
    CONTRACT.parse_attributes(
        {"activation": activation, "return_final_states": return_final_states}
    )
    if final_states_out is None:
        y, final_states = OP.run(inputs, (activation, return_final_states))
        return y, final_states
    return _into(inputs, activation, return_final_states, final_states_out)


def _into(inputs: tuple[Any, ...], activation: Any, returned: bool, states: Any) -> tuple[Any, Any]:
    """(y, states), with the final states written into `states`."""
    if not returned:
        raise ValueError(
            mismatch("final_states_out", "None unless return_final_states", "a tensor")
        )
    adapter = adapter_of(inputs[0])
    if adapter is not None and adapter.name == "jax":
        expected = "None, as JAX arrays cannot be written; use the states that are returned"
        raise ValueError(mismatch("final_states_out", expected, "an array"))
    attributes = (activation, returned)
    watched = adapter is not None and adapter.watches()
    if not watched:
        _check_states_out(inputs, attributes, states)
    y, final_states = OP.run(inputs, attributes)
    if watched:
        _check_like(adapter, states, final_states)
    adapter.assign(states, final_states)
    return y, states


def _check_like(adapter: Any, states: Any, final_states: Any) -> None:
    """As `_check_states_out`, of what a tracer can tell: kind, dtype, shape and device."""
    name = "final_states_out"
    if adapter_of(states) is not adapter:
        raise TypeError(mismatch(name, f"a {adapter.name} array, as x is", type(states).__name__))
    if states.dtype != final_states.dtype:
        raise TypeError(mismatch(name, f"dtype {final_states.dtype} (x's)", states.dtype))
    if tuple(states.shape) != tuple(final_states.shape):
        text = f"shape (R, D, W-1) = {tuple(final_states.shape)}"
        raise ValueError(mismatch(name, text, f"shape {tuple(states.shape)}"))
    if states.device != final_states.device:
        raise ValueError(mismatch(name, f"it on {final_states.device}, as x is", states.device))


def _check_states_out(inputs: tuple[Any, ...], attributes: tuple[Any, ...], states: Any) -> None:
    """ValueError or TypeError, before anything is launched, for states that cannot be written."""
    adapter, problem = OP.bind(inputs, attributes)
    expected, name = problem.outputs[1], "final_states_out"
    if adapter_of(states) is not adapter:
        raise TypeError(mismatch(name, f"a {adapter.name} array, as x is", type(states).__name__))
    got = adapter.describe(states, name)
    if got.dtype != expected.dtype:
        raise TypeError(mismatch(name, f"dtype {expected.dtype.name} (x's)", got.dtype.name))
    if tuple(got.shape) != tuple(expected.shape):
        text = f"shape (R, D, W-1) = {tuple(expected.shape)}"
        raise ValueError(mismatch(name, text, f"shape {tuple(got.shape)}"))
    if got.device != problem.device:
        raise ValueError(mismatch(name, f"it on {problem.device}, as x is", got.device))
    if not adapter.is_writable(states):
        raise ValueError(mismatch(name, "an array to write into", "a read-only one"))
    stride = tuple(abs(step) for step in got.stride)
    if 0 not in got.shape and not addresses_once(tuple(got.shape), stride):
        came = f"shape {tuple(got.shape)} with strides {tuple(got.stride)}"
        raise ValueError(mismatch(name, "strides that address each element once", came))
    for operand, x in zip(CONTRACT.inputs, inputs, strict=True):
        try:
            check_buffers_disjoint([(name, states)], [(operand.name, x)])
        except ValueError:
            raise ValueError(f"{name} must not share memory with {operand.name}") from None
