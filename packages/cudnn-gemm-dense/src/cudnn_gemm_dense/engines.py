"""The engines of the dense ops, and the Op they make. Imports no framework, and kernels only for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cudnn_core.contract import Contract, Problem
from cudnn_core.engine import HopperEngine, ReferenceEngine, Workspace
from cudnn_core.op import Op
from cudnn_core.plan import Plan

AMAX = "dense/amax"


def operation(contract: Contract, reference: Callable[..., None]) -> Op:
    """`gemm_<stem>` for a contract called ``dense/<stem>``: NumPy on the host, kernels on Hopper GPUs."""

    def examples(everything: bool) -> Iterator[tuple[str, Problem]]:
        from . import kernels

        make = kernels.amax_examples if contract.name == AMAX else kernels.fused_examples
        return make(contract, everything)

    engines = (ReferenceEngine(reference), HopperEngine(configure, source, why_not, workspaces))
    stem = contract.name.rpartition("/")[2]
    return Op(contract, engines, "cudnn_gemm_dense", f"gemm_{stem}", examples)


def configure(problem: Problem):
    """The kernel configuration of a problem: operands as bound, the tile from the extents."""
    from . import kernels

    amax = problem.signature.op == AMAX
    return kernels.amax_config(problem) if amax else kernels.fused_config(problem)


def source(plan: Plan):
    """What the compile cache needs to build the kernel of a plan."""
    from . import kernels

    return kernels.source(plan)


def why_not(problem: Problem) -> str | None:
    """The reason why no kernel serves a problem, or None."""
    from . import kernels

    return kernels.why_not(problem)


def workspaces(problem: Problem) -> tuple[Workspace, ...]:
    """Scratch memory of the kernels."""
    from . import kernels

    return kernels.workspaces(problem)
