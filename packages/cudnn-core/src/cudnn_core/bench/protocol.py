"""What a family puts into `cudnn bench`. May import the standard library only.

A family's module `_bench` defines

    cases() -> iterable of Case
    tunings() -> iterable of tuning.Tuning     optional: tables of tiles, for `--tune`

Listing cases imports no framework and touches no device; `prepare` does. A result is a ratio: the time of a named
call over ours. *Peers* do the same work; *bounds* do less (a copy, a bare GEMM in another format) or are limits that an
acceptance names. A target may name either.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Call = Callable[[], Any]


class WrongResult(Exception):
    """The operation's result lies beyond its tolerance; the message says by how much. It is not timed."""


@dataclass(frozen=True)
class Absent:
    """Stands for a call that cannot be made here; `reason` is told to the user, and nothing fails."""

    reason: str


@dataclass(frozen=True)
class Train:
    """A call on streams that CUDA events of the process's framework do not see; `wait` waits for its result.

    Timed on the host's clock, in trains long enough for the difference of two lengths to be the device's time.
    """

    call: Call
    wait: Callable[[Any], Any]


@dataclass(frozen=True)
class Limit:
    """A bound that is not measured itself: `scale` times the bound or peer called `of`, plus `plus_us` microseconds."""

    plus_us: float = 0.0
    of: str | None = None
    scale: float = 1.0


# Makes a call ready (imports its package, compiles, allocates) or says why it is absent.
Maker = Callable[[], Call | Train | Absent]


@dataclass(frozen=True)
class Trial:
    """A case made ready: its inputs are on the device.

    ours: one call of the operation as a user writes it.
    check: runs `ours` on the same inputs and raises WrongResult when its result is wrong.
    peers, bounds: name -> maker of the call; a bound may be a Limit.
    flops, nbytes: work of one call and the bytes it must move; 0 where the number would mean nothing.
    rate: which tensor-core rate counts for the roofline.
    host: makes the same call at a tiny size, to time the host alone.
    """

    ours: Call
    check: Callable[[], None]
    peers: Mapping[str, Maker] = field(default_factory=dict)
    bounds: Mapping[str, Maker | Limit] = field(default_factory=dict)
    flops: float = 0.0
    nbytes: float = 0.0
    rate: Literal["bfloat16", "float8"] = "bfloat16"
    host: Callable[[], Call] | None = None


def _built() -> None:
    return None


@dataclass(frozen=True)
class Case:
    """One row of the results.

    op: the operation, "dense/amax"; case: the shape's numbers, "8192,8192,8192", and what tells this row from others;
    dtype: "bf16xnvfp4->bf16".
    targets: name of a peer or bound -> ratio to reach, their time over ours.
    prepare: device ("cuda", "cpu" in tests) -> Trial. May raise NotImplementedError.
    not_built: the reason why the operation does not exist yet, None when it does.
    clock: "device" is the time between CUDA events; "host" the time until an asynchronous call returns.
    quick: belongs to the short selection.
    """

    op: str
    case: str
    dtype: str
    targets: Mapping[str, float]
    prepare: Callable[[str], Trial]
    not_built: Callable[[], str | None] = _built
    clock: Literal["device", "host"] = "device"
    quick: bool = False
