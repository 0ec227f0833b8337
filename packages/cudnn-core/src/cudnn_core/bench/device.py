"""The GPU as a clock: CUDA events of torch, a cold L2 cache, and the rates that it reaches. Imports torch.

Every timed call starts behind a sleep that lets the host finish queueing, and behind a sweep that reads four times the
L2 cache, so that no call finds its operands there because another call, or itself, has just used them. Reading leaves
clean lines: a sweep that wrote would make the timed kernel wait for its write-backs.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch

from .timing import Effort, device_sampler, host_seconds, host_times, medians

# No H100 or H200 runs faster, so that so many cycles last at least a second.
CYCLES_PER_SECOND = 2.0e9
_GIB = 1 << 30
# Calls whose median tells how fast a core is.
CORE_CALLS = 300


class Cuda:
    """One CUDA device, by torch; see `timing.Clock`."""

    def __init__(self, device: int = 0) -> None:
        torch.cuda.set_device(device)
        self.properties = torch.cuda.get_device_properties(device)
        sweep = 4 * self.properties.L2_cache_size
        self._sweep = torch.rand(sweep // 4, device="cuda")
        self._largest = torch.empty((), device="cuda")

    @property
    def name(self) -> str:
        return self.properties.name

    @property
    def multiprocessors(self) -> int:
        return self.properties.multi_processor_count

    @property
    def folder(self) -> str:
        """The name as a folder: "NVIDIA H100 80GB HBM3" is "h100-80gb-hbm3"."""
        return folder_of(self.name)

    def now(self) -> float:
        return time.perf_counter()

    def drain(self) -> None:
        torch.cuda.synchronize()

    def idle(self, seconds: float) -> None:
        torch.cuda._sleep(int(CYCLES_PER_SECOND * (seconds + 20e-6)))
        torch.amax(self._sweep, dim=0, out=self._largest)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end) * 1e-3

    def free(self) -> None:
        """Give what the last case allocated back, so that the next one has the whole memory."""
        torch.cuda.empty_cache()

    @cached_property
    def byte_rate(self) -> float:
        """Bytes read and written a second by a copy of 1 GiB."""
        source = torch.randint(-128, 128, (_GIB,), device="cuda", dtype=torch.int8)
        target = torch.empty_like(source)
        return 2 * _GIB / self._once(lambda: target.copy_(source))

    @cached_property
    def flop_rates(self) -> dict[str, float]:
        """Operations a second of torch.mm (BF16) and torch._scaled_mm (FP8) at 8192 cubed, on N(0, 1)."""
        n = 8192
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        rates = {"bfloat16": self._once(lambda: torch.mm(a, b.T, out=out))}
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        rates["float8"] = self._once(
            lambda: torch._scaled_mm(a8, b8.T, one, one, out_dtype=torch.bfloat16)
        )
        return {name: 2.0 * n**3 / seconds for name, seconds in rates.items()}

    def _once(self, call: Any) -> float:
        return medians(self, {"": device_sampler(self, call)}, Effort())[""]

    @cached_property
    def empty_call(self) -> float:
        """Host seconds of torch.add(x, 1, out=y), the measure beside which host times stand."""
        return host_times(self, {"": self._empty_call()}, rounds=1)[""]

    def _empty_call(self) -> Any:
        x = torch.zeros(128, device="cuda")
        return partial(torch.add, x, 1, out=torch.empty_like(x))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """The calling thread on the fastest of its cores.

        On a machine that is shared, cores whose other half works for somebody else take up to 1.7 times as long (the
        host of an H200, 2026-12-02), and threads move between them in the middle of a measurement.
        """
        try:
            cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores)
        except (AttributeError, OSError):  # no such thing here, or not ours to choose
            yield
            return
        call = self._empty_call()
        try:
            os.sched_setaffinity(0, {min(cores, key=partial(self._core_seconds, call))})
            yield
        finally:
            os.sched_setaffinity(0, cores)

    def _core_seconds(self, call: Any, core: int) -> float:
        os.sched_setaffinity(0, {core})
        return host_seconds(self, call, CORE_CALLS)


def folder_of(name: str) -> str:
    """A GPU's name as a folder: "NVIDIA H200" is "h200"."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\bnvidia\b", "", name.lower())).strip("-")
