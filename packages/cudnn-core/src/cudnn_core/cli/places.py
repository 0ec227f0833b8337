"""Where a demo's arrays live, and how its calls are timed there: NumPy on the host, torch on a GPU.

May import NumPy; torch inside the place that stands for it.
"""

import importlib.util
import itertools
import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

# Long enough for the host to queue every timed call behind it, so that events see the device alone.
_HEAD_START_CYCLES = 50_000_000


class Place(ABC):
    """A kind of array with the few float operations that a demo needs around the operations."""

    title: str
    engine: str
    repeat: int
    # Side of the square problems: large enough to mean something, over in a moment.
    side: int

    @abstractmethod
    def put(self, array: np.ndarray) -> Any:
        """A float array of this place."""

    @abstractmethod
    def get(self, array: Any) -> np.ndarray:
        """A float array of this place, as NumPy."""

    @abstractmethod
    def normal(self, shape: tuple[int, ...], seed: int) -> Any:
        """float32 numbers from N(0, 1), the same for equal seeds."""

    @abstractmethod
    def product64(self, a: Any, b: Any) -> Any:
        """a @ b.T in float64."""

    @abstractmethod
    def error(self, got: Any, exact: Any) -> float:
        """Relative Frobenius error of `got` against `exact`, in float64."""

    @abstractmethod
    def largest(self, array: Any) -> float:
        """The largest absolute value."""

    @abstractmethod
    def gelu(self, array: Any) -> Any:
        """x (1 + erf(x / sqrt 2)) / 2 in float32."""

    @abstractmethod
    def silu(self, array: Any) -> Any:
        """x / (1 + exp(-x))."""

    @abstractmethod
    def seconds(self, call: Callable[[], Any], repeat: int) -> float:
        """Median time of one call, after warm-up."""


class Host(Place):
    """NumPy arrays, for the reference engine; wall-clock time."""

    title = "NumPy on the CPU"
    engine = "reference"
    repeat = 5
    side = 512

    def put(self, array: np.ndarray) -> np.ndarray:
        return array

    def get(self, array: np.ndarray) -> np.ndarray:
        return array

    def normal(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)

    def product64(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.astype(np.float64) @ b.astype(np.float64).T

    def error(self, got: np.ndarray, exact: np.ndarray) -> float:
        exact = exact.astype(np.float64)
        return float(np.linalg.norm(got.astype(np.float64) - exact) / np.linalg.norm(exact))

    def largest(self, array: np.ndarray) -> float:
        return float(np.abs(array).max())

    def gelu(self, array: np.ndarray) -> np.ndarray:
        return gelu(array)

    def silu(self, array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return array / (1 + np.exp(-array))

    def seconds(self, call: Callable[[], Any], repeat: int) -> float:
        call()
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


class TorchCuda(Place):
    """torch tensors on one CUDA device, for the Hopper engine; time between CUDA events."""

    engine = "hopper"
    repeat = 30
    side = 8192

    def __init__(self, device: str = "cuda:0") -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)

    @property
    def title(self) -> str:
        return f"PyTorch on {self._torch.cuda.get_device_name(self._device)}"

    def put(self, array: np.ndarray) -> Any:
        return self._torch.from_numpy(array).to(self._device)

    def get(self, array: Any) -> np.ndarray:
        return array.cpu().numpy()

    def normal(self, shape: tuple[int, ...], seed: int) -> Any:
        generator = self._torch.Generator(self._device).manual_seed(seed)
        return self._torch.randn(shape, generator=generator, device=self._device)

    def product64(self, a: Any, b: Any) -> Any:
        return a.double() @ b.double().T

    def error(self, got: Any, exact: Any) -> float:
        exact = exact.double()
        return ((got.double() - exact).norm() / exact.norm()).item()

    def largest(self, array: Any) -> float:
        return array.abs().max().item()

    def gelu(self, array: Any) -> Any:
        return self._torch.nn.functional.gelu(array)

    def silu(self, array: Any) -> Any:
        return self._torch.nn.functional.silu(array)

    def seconds(self, call: Callable[[], Any], repeat: int) -> float:
        cuda = self._torch.cuda
        for _ in range(3):
            call()
        events = [cuda.Event(enable_timing=True) for _ in range(repeat + 1)]
        cuda.synchronize()
        cuda._sleep(_HEAD_START_CYCLES)
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events)) / 1e3


def gelu(array: np.ndarray) -> np.ndarray:
    """x erfc(-x / sqrt 2) / 2 of a NumPy array: in float64, rounded once to its dtype."""
    wide = array.astype(np.float64)
    erfc = np.frompyfunc(math.erfc, 1, 1)(wide / -math.sqrt(2.0)).astype(np.float64)
    return (wide * erfc / 2.0).astype(array.dtype)


class NoPlace(RuntimeError):
    """The engine that was asked for cannot run here; the message says why."""


def choose(engine: str) -> Place:
    """The place of the `engine` asked for; "auto" takes the best one that is here.

    Raises NoPlace.
    """
    if engine == "reference":
        return Host()
    reason = why_not_hopper()
    if reason is None:
        return TorchCuda()
    if engine == "hopper":
        raise NoPlace(f"the engine hopper cannot run here: {reason}")
    return Host()


def why_not_hopper() -> str | None:
    """Why the demo cannot use the Hopper engine, None if it can.

    Asks the driver first: torch takes seconds to import, and is imported beside a Hopper GPU only.
    """
    from cudnn_core import engine
    from cudnn_core.tensor_desc import Device

    try:
        reason = engine.why_not_hopper(Device("cuda", 0))
    except RuntimeError as error:
        reason = str(error)
    if reason is not None:
        return reason
    if importlib.util.find_spec("cutlass") is None or importlib.util.find_spec("tvm_ffi") is None:
        install = "pip install 'nvidia-cutlass-dsl[cu13]' apache-tvm-ffi"
        return f"the kernel compiler is not installed; {install}"
    if importlib.util.find_spec("torch") is None:
        return "it needs torch for its arrays; pip install torch"
    import torch

    if not torch.cuda.is_available():
        return "this build of torch cannot use the GPU; install one made for CUDA"
    return None
