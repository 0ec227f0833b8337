"""Engines: who can run a Problem. Selection follows the device; a refusal names every engine and its reason.

May import plan, contract types, float_env, device_info and the compile cache; never a framework or an op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from . import env
from .contract import Problem, Signature
from .device_info import device_count, device_info
from .dtypes import UINT8
from .errors import mismatch
from .float_env import ieee_arithmetic
from .plan import Plan
from .tensor_desc import Device, TensorDesc

# Of one axis in CUDA kernels; strides and byte offsets have 64 bits.
LARGEST_EXTENT = 2**31 - 1


class Executable(Protocol):
    """A compiled Plan: called with inputs, outputs, workspaces, numbers, scalars, then the stream handle.

    Operands that are absent from the signature are left out of the arguments.
    """

    def __call__(self, *arguments: Any) -> None: ...


@dataclass(frozen=True)
class Workspace:
    """`nbytes` of scratch memory, a flat uint8 array; zeroed: starts as zeros, else as anything.

    On CUDA devices its base is a multiple of 256 bytes, which every allocator there gives.
    """

    nbytes: int
    zeroed: bool = False

    def describe(self, device: Device) -> TensorDesc:
        """The array to allocate."""
        return TensorDesc(UINT8, (self.nbytes,), (1,), None, device, name="workspace")


class Engine(ABC):
    """One way of running an op."""

    name: str
    platform: str

    @abstractmethod
    def why_not(self, problem: Problem) -> str | None:
        """None if this engine runs the problem, otherwise the reason, in a sentence for users."""

    @abstractmethod
    def why_not_device(self, device: Device) -> str | None:
        """None if this engine runs on the device, otherwise the reason."""

    @abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """The compile key, tile included, that this engine chooses for the problem."""

    def workspaces(self, problem: Problem) -> tuple[Workspace, ...]:
        """Scratch memory that the executable takes behind its outputs, made anew for each call."""
        return ()

    def scalars(self, problem: Problem) -> tuple[Any, ...]:
        """What the executable takes between the numbers of the call and the stream, the same for every call."""
        return ()

    @abstractmethod
    def compile(self, plan: Plan) -> Executable:
        """The executable of a plan, from the cache or freshly compiled."""


class ReferenceEngine(Engine):
    """NumPy on the host: the executable specification.

    function(signature, *arguments): NumPy arrays in contract order, inputs then outputs (written in place), then the
    numbers; those of absent operands are left out, and `signature.named(arguments)` says which is which.
    """

    name = "reference"
    platform = "cpu"

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def why_not(self, problem: Problem) -> str | None:
        return None

    def why_not_device(self, device: Device) -> str | None:
        return None if device.type == "cpu" else "it runs on host arrays only"

    def plan(self, problem: Problem) -> Plan:
        return Plan(problem.signature.op, self.name, "", problem.signature)

    def compile(self, plan: Plan) -> Executable:
        signature: Signature = plan.config

        def run(*arguments: Any) -> None:
            *given, _stream = arguments
            with ieee_arithmetic():
                self._function(signature, *given)

        return run


def why_not_hopper(device: Device) -> str | None:
    """None if kernels for sm_90a run on the device, otherwise the reason."""
    if device.type != "cuda":
        return "it needs a CUDA device"
    if device_count() == 0:
        return "no CUDA device is visible to this process"
    major, minor = device_info(device.index or 0).compute_capability
    if major != 9:
        return f"it needs compute capability 9.x (H100, H200), {device} has {major}.{minor}"
    return None


class HopperEngine(Engine):
    """CuTe DSL kernels for compute capability 9.x.

    configure(problem) chooses the kernel configuration (a frozen dataclass, tile included); why_not(problem) declines
    what no kernel serves; source(plan) makes the cache's KernelSource; workspaces(problem) says what scratch memory
    the kernels take. All come from the op's package.
    """

    name = "hopper"
    platform = "cuda"
    arch = "sm_90a"

    def __init__(
        self,
        configure: Callable[[Problem], Hashable],
        source: Callable[[Plan], Any],
        why_not: Callable[[Problem], str | None] = lambda problem: None,
        workspaces: Callable[[Problem], tuple[Workspace, ...]] = lambda problem: (),
    ) -> None:
        self._configure = configure
        self._source = source
        self._why_not = why_not
        self._workspaces = workspaces

    def why_not(self, problem: Problem) -> str | None:
        for symbol, extent in problem.dims.items():
            if extent > LARGEST_EXTENT:
                return f"{symbol} = {extent} is more than {LARGEST_EXTENT}, as coordinates have 32 bits"
        return self._why_not(problem)

    def why_not_device(self, device: Device) -> str | None:
        return why_not_hopper(device)

    def plan(self, problem: Problem) -> Plan:
        return Plan(problem.signature.op, self.name, self.arch, self._configure(problem))

    def workspaces(self, problem: Problem) -> tuple[Workspace, ...]:
        return self._workspaces(problem)

    def scalars(self, problem: Problem) -> tuple[int]:
        """How many thread blocks may run at once: one a multiprocessor, less the margin the user keeps free."""
        blocks = device_info(problem.device.index or 0).sm_count
        margin = env.get("CUDNNFE_CLUSTER_OVERLAP_MARGIN")
        if margin >= blocks:
            expected = f"fewer than the {blocks} multiprocessors of {problem.device}"
            raise ValueError(mismatch("CUDNNFE_CLUSTER_OVERLAP_MARGIN", expected, margin))
        return (blocks - margin,)

    def source(self, plan: Plan) -> Any:
        """What the compile cache needs to build this plan."""
        return self._source(plan)

    def compile(self, plan: Plan) -> Executable:
        from . import cache

        return cache.get(self._source(plan))


def select(engines: Sequence[Engine], problem: Problem) -> Engine:
    """The first engine that runs the problem where its arrays live.

    RuntimeError if no engine runs on the device; NotImplementedError if one does but declines the problem.
    """
    declined, fits_device = [], False
    for engine in engines:
        reason = engine.why_not_device(problem.device)
        if reason is None:
            fits_device = True
            reason = engine.why_not(problem)
            if reason is None:
                return engine
        declined.append(f"{engine.name}: {reason}")
    message = (
        f"{problem.signature.op}: no engine runs this on {problem.device} ({'; '.join(declined)})"
    )
    raise NotImplementedError(message) if fits_device else RuntimeError(message)
