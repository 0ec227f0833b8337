"""Gradients of the causal convolution, recomputing what the forward did not keep.

Contract, reference, engines and the public function. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnn_core.contract import Array, Contract, Problem, Signature
from cudnn_core.engine import HopperEngine, ReferenceEngine, Workspace
from cudnn_core.op import Op
from cudnn_core.plan import Plan
from cudnn_core.tuple_dict import TupleDict

from .operands import FLOATS, FULL_SEQUENCE, activation, full_sequence_operands, why_not_float64

__all__ = ["causal_conv1d_backward"]


def _has_bias(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
    return "bias" in dtypes


def _has_states(attributes: Mapping[str, Any], dtypes: Mapping[str, str]) -> bool:
    return "initial_states" in dtypes


CONTRACT = Contract(
    "conv/backward",
    operands=(
        *full_sequence_operands(),
        Array("dout", ("B", "D", "T"), dtypes=FLOATS),
        Array("dfinal_states", ("R", "D", "W-1"), dtypes=FLOATS, optional=True),
        Array(
            "dx",
            ("B", "D", "T"),
            output=True,
            dtypes=FLOATS,
            dtype_of="x",
            like="x",
        ),
        Array("dweight", ("D", "W"), output=True, dtypes=FLOATS, dtype_of="weight", like="weight"),
        Array(
            "dbias",
            ("D",),
            output=True,
            dtypes=FLOATS,
            dtype_of="bias",
            like="bias",
            when=_has_bias,
        ),
        Array(
            "dinitial_states",
            ("R", "D", "W-1"),
            output=True,
            dtypes=FLOATS,
            dtype_of="x",
            like="initial_states",
            when=_has_states,
            empty_from="dfinal_states",
        ),
    ),
    attributes=(activation(NotImplementedError),),
    **FULL_SEQUENCE,
    folds=(frozenset("D"),),
)


def reference(signature: Signature, *arrays: Any) -> None:
    """NumPy: z as the forward sums it, then everything in FP64, one rounding to each result's dtype."""
    from .reference import backward

    named = signature.named(arrays)
    operands = [named.get(o.name) for o in CONTRACT.inputs]
    outputs = {o.name: named[o.name] for o in CONTRACT.outputs if o.name in named}
    backward(*operands, signature.attribute("activation"), outputs)


def configure(problem: Problem):
    """The kernel configuration of a problem."""
    from .kernels.host_backward import configure_backward

    return configure_backward(problem)


def source(plan: Plan):
    """What the compile cache needs to build the kernels of a plan."""
    from .kernels.host_backward import source_backward

    return source_backward(plan)


def workspaces(problem: Problem) -> tuple[Workspace, ...]:
    """Partial sums of the gradients of weight and bias, which are added in a fixed order."""
    from .kernels.host_backward import workspaces_backward

    return workspaces_backward(problem)


def examples(everything: bool):
    """(label, problem) of the kernels that `cudnn compile` makes."""
    from .examples import full_sequence

    return full_sequence(CONTRACT, everything)


OP = Op(
    CONTRACT,
    engines=(
        ReferenceEngine(reference),
        HopperEngine(configure, source, why_not_float64, workspaces),
    ),
    namespace="cudnn_causal_conv",
    short_name="causal_conv1d_backward",
    examples=examples,
    is_gradient=True,
    keeps_operands=True,
)


def causal_conv1d_backward(
    dout: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    *,
    seq_idx: Any = None,
    cu_seqlens: Any = None,
    initial_states: Any = None,
    dfinal_states: Any = None,
) -> TupleDict:
    """Gradients of `causal_conv1d`, for a training loop without automatic differentiation.

    Formula, with z, h and the sequences of the forward, and sigma the logistic function::

        dz[t]        = dout[t] * act'(z[t])     act' = 1, or sigma(z) (1 + z (1 - sigma(z)))
        dh[tau]      = sum_j weight[j] dz[tau + W-1 - j] + dfinal_states[tau - (T - (W-1))], where they exist
        dx           = dh[0:];  dinitial_states = dh[-(W-1):0]
        dweight[d,j] = sum dz[t] h[t - (W-1) + j];  dbias[d] = sum dz[t]   over tokens and sequences

    dout: (B, D, T), dtype of x, any strides. dfinal_states: (R, D, W-1), dtype of x, or None for zeros. The others are
        the forward's operands. Padding tokens (seq_idx below 0, or outside of cu_seqlens) contribute nothing.

    Returns TupleDict(dx like x, dweight like weight, dbias like bias, dinitial_states like initial_states), strides
        included where those are dense; None in place of the gradient of what was None.
    Numerics: FP32 sums (FP64 in the reference), one rounding to the dtype of each result; sums over tokens in a fixed
        order, so repeats are bit-equal.
    Raises: as `causal_conv1d`. Launch: asynchronous on the current stream, capturable after one warm call.
    """
    inputs = (x, weight, bias, seq_idx, cu_seqlens, initial_states, dout, dfinal_states)
    return TupleDict.of(OP.output_names, OP.run(inputs, (activation,)))
