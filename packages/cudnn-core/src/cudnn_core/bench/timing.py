"""How calls are timed: in turns, and medians. May import the standard library and protocol.

A Clock is the device together with the host's clock; tests give one that counts instead of waiting.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from .protocol import Call, Train

# Host time is the median of this many calls. Whatever else the machine does only adds, so that of many such medians the
# least counts. Short ones, in turns, since what a neighbour takes from a core comes and goes within a second; and each
# round of so many turns looks anew for the fastest core.
HOST_CALLS, HOST_TURNS, HOST_ROUNDS = 100, 10, 5
WARM_UP = 3
# Calls whose median tells how long the host needs for one, and how often a sample that came too late is taken again.
TRIAL_CALLS, TRIES = 5, 5
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

    def quiet(self) -> AbstractContextManager[None]:
        """While it lasts, the calling thread stays where the host is fastest."""


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
        for name in _turn(names, round_):
            values[name].append(samplers[name]())
    return {name: statistics.median(found) for name, found in values.items()}


def _turn(names: list[str], round_: int) -> list[str]:
    """All names, each round beginning with another one."""
    first = round_ % len(names)
    return names[first:] + names[:first]


def device_times(
    clock: Clock, calls: Mapping[str, Call | Train], effort: Effort
) -> dict[str, float]:
    """Median device time of each call, the calls in turns."""
    samplers = {name: device_sampler(clock, call) for name, call in calls.items()}
    return medians(clock, samplers, effort)


def device_sampler(clock: Clock, call: Call | Train) -> Sampler:
    """Device time of one call, from a cold L2 cache, without the host's share."""
    if isinstance(call, Train):
        return lambda: slope(clock, call)
    for _ in range(WARM_UP):
        call()
    clock.drain()
    # The device idles for twice the time that the host needs, so the kernels are queued when the first event passes.
    lead = 2 * statistics.median(_once(clock, call) for _ in range(TRIAL_CALLS))

    def sample() -> float:
        wait = lead
        for _ in range(TRIES):
            clock.idle(wait)
            began = clock.now()
            start = clock.mark()
            call()
            end = clock.mark()
            late = clock.now() - began > wait
            clock.drain()
            if not late:
                break
            # The host was interrupted, and its share may be in the number. A call that waits for the device is always
            # late: its share belongs there.
            wait *= 2
        return clock.between(start, end)

    return sample


def _once(clock: Clock, call: Call) -> float:
    start = clock.now()
    call()
    took = clock.now() - start
    clock.drain()
    return took


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


def host_times(
    clock: Clock, calls: Mapping[str, Call], rounds: int = HOST_ROUNDS
) -> dict[str, float]:
    """Of each call the least of many `host_seconds`, the calls in turns."""
    names = list(calls)
    found = dict.fromkeys(names, math.inf)
    for _ in range(rounds):
        with clock.quiet():
            for turn in range(HOST_TURNS):
                for name in _turn(names, turn):
                    found[name] = min(found[name], host_seconds(clock, calls[name]))
    return found


def host_seconds(clock: Clock, call: Call, calls: int = HOST_CALLS) -> float:
    """Median time until an asynchronous call returns, of so many that begin with nothing queued.

    What it returned is dropped afterwards.
    """
    for _ in range(WARM_UP):
        call()
    clock.drain()
    times = []
    for _ in range(calls):
        start = clock.now()
        result = call()
        times.append(clock.now() - start)
        del result
    clock.drain()
    return statistics.median(times)


def roofline(flops: float, nbytes: float, flop_rate: float, byte_rate: float) -> float:
    """Seconds that the work takes at best: the longer of arithmetic and traffic. NaN when neither is known."""
    least = max(flops / flop_rate, nbytes / byte_rate)
    return least if least > 0 else math.nan
