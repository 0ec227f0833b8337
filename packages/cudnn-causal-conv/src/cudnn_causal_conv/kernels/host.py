"""From bound problems to the forward and update kernels: configuration and cache source.

Imports neither the DSL nor a framework: planning a call must stay cheap.
"""

from __future__ import annotations

from importlib import import_module

from cudnn_core.cache import KernelSource
from cudnn_core.contract import Problem
from cudnn_core.plan import Plan
from cudnn_core.tensor_desc import TensorDesc

from .config import WIDEST_UNROLLED, ForwardConv, UpdateConv, layout_of

# What these kernels are traced from, beside core's own device code.
DEVICE_CODE = (
    "cudnn_causal_conv.kernels.config",
    "cudnn_causal_conv.kernels.arithmetic",
    "cudnn_causal_conv.kernels.memory",
    "cudnn_causal_conv.kernels.sequences",
    "cudnn_causal_conv.kernels.launch",
    "cudnn_causal_conv.kernels.forward",
    "cudnn_causal_conv.kernels.rows",
    "cudnn_causal_conv.kernels.columns",
    "cudnn_causal_conv.kernels.strided",
    "cudnn_causal_conv.kernels.update",
)


def described(problem: Problem) -> dict[str, TensorDesc]:
    """The metadata of the operands that are present, by name."""
    present = [desc for desc in problem.descs if desc is not None]
    return {plan.name: desc for plan, desc in zip(problem.signature.operands, present, strict=True)}


def dtypes(problem: Problem) -> dict[str, str | None]:
    """The dtype names of x, weight and bias; bias None where there is none."""
    signature = problem.signature
    return {
        name: signature.operand(name).dtype if signature.has(name) else None
        for name in ("x", "weight", "bias")
    }


def configure_forward(problem: Problem) -> ForwardConv:
    """The kernel configuration of a bound forward call."""
    signature, descs = problem.signature, described(problem)
    ends = [(descs[name].shape, descs[name].stride) for name in ("x", "out")]
    return ForwardConv(
        **dtypes(problem),
        width=descs["weight"].shape[1],
        activation=signature.attribute("activation"),
        layout=layout_of(*ends),
        has_seq_idx=signature.has("seq_idx"),
        has_cu_seqlens=signature.has("cu_seqlens"),
        has_initial=signature.has("initial_states"),
        has_final=signature.has("final_states"),
    )


def source_of(plan: Plan, name: str, module: str, code: tuple[str, ...]) -> KernelSource:
    """What the compile cache needs to build a plan with `build(config)` of a module of this folder.

    The executable takes `plan.config.names`, then the number of thread blocks that may run at once (int32), then the
    stream.
    """

    def build():
        return *import_module(f".{module}", __package__).build(plan.config), ""

    return KernelSource(name, key=plan, build=build, sources=code)


def source_forward(plan: Plan) -> KernelSource:
    """The forward of a plan."""
    return source_of(plan, "causal_conv1d_fwd", "forward", DEVICE_CODE)


def configure_update(problem: Problem) -> UpdateConv:
    """The kernel configuration of a bound decode step."""
    signature, descs = problem.signature, described(problem)
    width = descs["weight"].shape[1]
    form, length = state_form(descs["conv_state"], width)
    return UpdateConv(
        **dtypes(problem),
        width=width,
        activation=signature.attribute("activation"),
        state=form,
        state_length=length,
        has_cache_seqlens=signature.has("cache_seqlens"),
        has_indices=signature.has("conv_state_indices"),
        flat=len(descs["x"].shape) == 2,
    )


def state_form(state: TensorDesc, width: int) -> tuple[str, int]:
    """`UpdateConv`'s state and state_length: lengths next to the width, in the usual orders, have their own kernels."""
    _, d, length = state.shape
    _, channel_step, step = state.stride
    if 0 < length <= WIDEST_UNROLLED and length - width in (-1, 0):
        if (channel_step == length or d == 1) and (step == 1 or length == 1):
            return "compact", length
        if channel_step == 1 or d == 1:
            return "d", length
    return "any", 0


def source_update(plan: Plan) -> KernelSource:
    """The update of a plan."""
    return source_of(plan, "causal_conv1d_update", "update", DEVICE_CODE)
