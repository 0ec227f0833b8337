"""One case after another: check, refuse or time, and make a row. May import the standard library, protocol, timing,
results.
"""

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .protocol import Absent, Call, Case, Limit, Maker, Train, Trial, WrongResult
from .results import Row, make_row
from .timing import Clock, Effort, device_times, host_times, roofline

_LOGGER = logging.getLogger(__name__)

# States of an outcome. The last two make the command fail.
MEASURED, CHECKED, NOT_BUILT, WRONG, FAILED = "measured", "right", "not built", "WRONG", "FAILED"


@dataclass(frozen=True)
class Outcome:
    """What became of a case; `absent` says of each peer or bound that could not run why."""

    case: Case
    state: str
    note: str = ""
    row: Row | None = None
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        return self.state in (WRONG, FAILED)


@dataclass(frozen=True)
class Bench:
    """Where and how cases run.

    clock: the device; rates: (bytes a second, operations a second by type), asked for when the first row is made.
    wanted: whether to run a case's peer or bound of that name. check_only: nothing is timed, but peers are made ready,
    so that a later run finds everything compiled.
    """

    clock: Clock
    device: str
    rates: Callable[[], tuple[float, Mapping[str, float]]]
    effort: Effort
    versions: Mapping[str, str]
    wanted: Callable[[Case, str], bool] = lambda case, name: True
    check_only: bool = False

    def run(self, case: Case) -> Outcome:
        """Check and time one case. A wrong or failing operation is an outcome, not an exception."""
        reason = case.not_built()
        if reason is not None:
            return Outcome(case, NOT_BUILT, reason)
        try:
            return self._run(case)
        except WrongResult as error:
            return Outcome(case, WRONG, f"{error}; not timed")
        except NotImplementedError as error:
            return Outcome(case, NOT_BUILT, str(error))
        # One case must not stop the others: what a compiler or a driver raises is its own.
        except Exception as error:
            _LOGGER.debug("%s %s %s", case.op, case.case, case.dtype, exc_info=True)
            return Outcome(case, FAILED, _told(error))
        finally:
            gc.collect()

    def _run(self, case: Case) -> Outcome:
        trial = case.prepare(self.device)
        trial.check()
        calls, absent = self._calls(case, trial)
        if self.check_only:
            if trial.host is not None:
                trial.host()()
            return Outcome(case, CHECKED, absent=absent)
        if case.clock == "host":
            times = host_times(self.clock, calls)
        else:
            times = device_times(self.clock, calls, self.effort)
        peers = {name: times[name] for name in trial.peers if name in times}
        bounds = self._bounds(trial, times)
        host = self._host(case, trial, times)
        byte_rate, flop_rates = self.rates()
        least = roofline(trial.flops, trial.nbytes, flop_rates[trial.rate], byte_rate)
        row = make_row(case, trial, times[OURS], host, peers, bounds, least, self.versions)
        return Outcome(case, MEASURED, row=row, absent=absent)

    def _calls(self, case: Case, trial: Trial) -> tuple[dict[str, Call | Train], dict[str, str]]:
        """The calls to time, ours first, and why the others are absent."""
        calls: dict[str, Call | Train] = {OURS: trial.ours}
        absent = {}
        others = {**trial.bounds, **trial.peers}
        wanted = {name for name in others if self.wanted(case, name)}
        # A limit is worth what it is a limit of.
        limits = [others[name] for name in wanted if isinstance(others[name], Limit)]
        wanted.update(limit.of for limit in limits if limit.of is not None)
        for name, maker in others.items():
            if isinstance(maker, Limit) or name not in wanted:
                continue
            made = make_ready(maker)
            if isinstance(made, Absent):
                absent[name] = made.reason
            else:
                calls[name] = made
        return calls, absent

    def _bounds(self, trial: Trial, times: Mapping[str, float]) -> dict[str, float]:
        """Seconds of the bounds that were measured, and of the limits that follow from them."""
        found = {}
        for name, bound in trial.bounds.items():
            if not isinstance(bound, Limit):
                if name in times:
                    found[name] = times[name]
            elif bound.of is None or bound.of in times:
                base = 0.0 if bound.of is None else bound.scale * times[bound.of]
                found[name] = base + bound.plus_us * 1e-6
        return found

    def _host(self, case: Case, trial: Trial, times: Mapping[str, float]) -> float | None:
        if case.clock == "host":
            return times[OURS]
        if trial.host is None:
            return None
        return host_times(self.clock, {OURS: trial.host()}, rounds=1)[OURS]


OURS = ""


def make_ready(maker: Maker) -> Call | Train | Absent:
    """The call of a maker after a first run of it, or why there is none: other people's code fails as it likes."""
    try:
        made = maker()
        if isinstance(made, Train):
            made.wait(made.call())
        elif not isinstance(made, Absent):
            made()
    except ImportError as error:
        return Absent(f"not installed ({_told(error)})")
    except Exception as error:
        _LOGGER.debug("a peer failed", exc_info=True)
        return Absent(f"it failed: {_told(error)}")
    return made


def _told(error: Any) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
