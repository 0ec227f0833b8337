"""How calls are timed: in turns, and medians. May import the standard library and protocol.

A Clock is the device together with the host's clock; tests give one that counts instead of waiting.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .protocol import Call, Train

# Host time is the median of this many calls at a tiny size; the queue is drained after each hundred.
HOST_CALLS, DRAIN = 1000, 100
WARM_UP = 3
# Calls in a train of those that events cannot time; the second is twice as long.
SHORT_TRAIN = 5

Sampler = Callable[[], float]


class Clock(Protocol):
    """Seconds of the host and of one device."""

    def now(self) -> float:
        """The host's clock."""

    def drain(self) -> None:
        """Wait until the device has done everything."""

    def idle(self, seconds: float) -> None:
        """Queue work: the device waits at least this long, then reads enough to evict what its L2 cache holds."""

    def mark(self) -> Any:
        """Queue an event."""

    def between(self, start: Any, end: Any) -> float:
        """Time from one event that has passed to another."""

    def free(self) -> None:
        """Give memory that nobody holds any more back to the device."""


@dataclass(frozen=True)
class Effort:
    """How long to look: rounds until about `seconds` are spent on a case, but not fewer or more than so many."""

    seconds: float = 0.6
    least: int = 9
    most: int = 60


QUICK = Effort(seconds=0.1, least=5, most=15)


def medians(clock: Clock, samplers: Mapping[str, Sampler], effort: Effort) -> dict[str, float]:
    """Median of each sampler's values. They take turns, and each round begins with another one.

    In turns, so that all see the same clock speeds and temperature; rotated, because a kernel also sees what the one
    before it left behind. The first round is thrown away, and its length sets how many there are.
    """
    names = list(samplers)
    start = clock.now()
    for name in names:
        samplers[name]()
    spent = max(clock.now() - start, 1e-9)
    rounds = min(effort.most, max(effort.least, int(effort.seconds / spent)))
    values: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds):
        turn = round_ % len(names)
        for name in (*names[turn:], *names[:turn]):
            values[name].append(samplers[name]())
    return {name: statistics.median(found) for name, found in values.items()}


def device_sampler(clock: Clock, call: Call | Train) -> Sampler:
    """Device time of one call, from a cold L2 cache, without the host's share."""
    if isinstance(call, Train):
        return lambda: slope(clock, call)
    for _ in range(WARM_UP):
        call()
    clock.drain()
    start = clock.now()
    call()
    # The device idles for twice the time that the host needs, so the kernels are queued when the first event passes.
    lead = 2 * (clock.now() - start)
    clock.drain()

    def sample() -> float:
        clock.idle(lead)
        start = clock.mark()
        call()
        end = clock.mark()
        clock.drain()
        return clock.between(start, end)

    return sample


def slope(clock: Clock, train: Train, length: int = SHORT_TRAIN) -> float:
    """Time of one more call in a train of them: what starting and waiting cost cancels out."""
    took = []
    for calls in (length, 2 * length):
        clock.drain()
        start = clock.now()
        for _ in range(calls):
            result = train.call()
        train.wait(result)
        took.append(clock.now() - start)
    return (took[1] - took[0]) / length


def host_sampler(clock: Clock, call: Call, calls: int = DRAIN) -> Sampler:
    """Median time until an asynchronous call returns, of one hundred, the queue drained before them."""
    for _ in range(WARM_UP):
        call()

    def sample() -> float:
        clock.drain()
        times = []
        for _ in range(calls):
            start = clock.now()
            call()
            times.append(clock.now() - start)
        return statistics.median(times)

    return sample


SAMPLERS = {"device": device_sampler, "host": host_sampler}


def host_seconds(clock: Clock, call: Call) -> float:
    """Median host time of HOST_CALLS asynchronous calls, the queue drained every DRAIN."""
    for _ in range(WARM_UP):
        call()
    times = []
    for i in range(HOST_CALLS):
        if i % DRAIN == 0:
            clock.drain()
        start = clock.now()
        call()
        times.append(clock.now() - start)
    clock.drain()
    return statistics.median(times)


def roofline(flops: float, nbytes: float, flop_rate: float, byte_rate: float) -> float:
    """Seconds that the work takes at best: the longer of arithmetic and traffic. NaN when neither is known."""
    least = max(flops / flop_rate, nbytes / byte_rate)
    return least if least > 0 else math.nan
