"""The timing loops on a clock that counts."""

import math

import pytest
from clock import FakeClock

from cudnn_core.bench import timing
from cudnn_core.bench.protocol import Train
from cudnn_core.bench.timing import Effort

MICRO = 1e-6


@pytest.fixture
def clock():
    return FakeClock()


@pytest.mark.parametrize("host", [1, 10, 300])
def test_device_time_is_without_the_hosts_however_slow_it_is(clock, host):
    """Without the lead the host's gap would lie between the two events."""
    call = clock.call("f", host * MICRO, 25 * MICRO)
    sample = timing.device_sampler(clock, call)
    assert [sample() for _ in range(3)] == pytest.approx([25 * MICRO] * 3)
    assert clock.idles == pytest.approx([2 * host * MICRO] * 3)


@pytest.mark.parametrize("interrupted", [3, 7, 8, 9])
def test_an_interrupted_sample_is_taken_again(clock, interrupted):
    """The host stops for 500 us in one call: of those that tell the lead, or of those that are timed."""
    calls = [0]

    def call():
        calls[0] += 1
        clock.host += 500 * MICRO * (calls[0] == interrupted + 1)
        clock.call("f", 10 * MICRO, 25 * MICRO)()

    sample = timing.device_sampler(clock, call)
    assert [sample() for _ in range(3)] == pytest.approx([25 * MICRO] * 3)
    assert min(clock.idles) == clock.idles[0] == pytest.approx(20 * MICRO)
    timed = interrupted >= timing.WARM_UP + timing.TRIAL_CALLS
    assert len(clock.idles) == 3 + timed
    assert max(clock.idles) == pytest.approx((40 if timed else 20) * MICRO)


def test_a_call_that_waits_for_the_device_is_timed_all_the_same(clock):
    """No lead is long enough for it: the host's share belongs to it."""

    def call():
        clock.call("f", 10 * MICRO, 25 * MICRO)()
        clock.drain()

    sample = timing.device_sampler(clock, call)
    assert sample() == sample() == pytest.approx(25 * MICRO)
    assert len(clock.idles) == 2 * timing.TRIES


def test_every_timed_call_comes_after_a_sweep(clock):
    sample = timing.device_sampler(clock, clock.call("f", 1e-6, 1e-6))
    clock.log.clear()
    sample()
    assert clock.log == ["idle", "f", "drain"]


def test_the_slow_first_calls_are_not_timed(clock):
    left = [3]

    def call():
        clock.call("f", 1e-6, 1.0 if left[0] > 0 else 2e-6)()
        left[0] -= 1

    assert timing.device_sampler(clock, call)() == pytest.approx(2e-6)


def test_medians_take_turns_and_rotate(clock):
    calls = {name: clock.call(name, 1.0, 0.0) for name in "abc"}
    samplers = {n: lambda c=c: (c(), 1.0)[1] for n, c in calls.items()}
    assert timing.medians(clock, samplers, Effort(0.0, 4, 9)) == dict.fromkeys("abc", 1.0)
    assert "".join(clock.log) == "abc" + "abc" + "bca" + "cab" + "abc"


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 4), (60.0, 6), (1e9, 9)])
def test_rounds_follow_the_budget_within_bounds(clock, seconds, rounds):
    call = clock.call("f", 10.0, 0.0)
    timing.medians(clock, {"": lambda: (call(), 1.0)[1]}, Effort(seconds, 4, 9))
    assert len(clock.log) == 1 + rounds


def test_it_is_the_median_and_the_first_round_is_dropped(clock):
    values = iter([1e9, 1.0, 2.0, 3.0, 4.0, 500.0])
    assert timing.medians(clock, {"": lambda: next(values)}, Effort(0.0, 5, 5)) == {"": 3.0}


def test_a_train_gives_the_slope(clock):
    """Waiting costs 50 us at each end; a call takes 7 us of the device."""

    def wait(result):
        assert result == "jax"
        clock.drain()
        clock.host += 50 * MICRO

    train = Train(clock.call("jax", 1 * MICRO, 7 * MICRO), wait)
    assert timing.device_sampler(clock, train)() == pytest.approx(7 * MICRO)


def test_host_time_leaves_the_device_out(clock):
    call = clock.call("f", 3 * MICRO, 80 * MICRO)
    assert timing.host_seconds(clock, call) == pytest.approx(3 * MICRO)
    warm, calls = timing.WARM_UP, timing.HOST_CALLS
    # Nothing is queued when they begin, nor afterwards.
    assert clock.log == [*["f"] * warm, "drain", *["f"] * calls, "drain"]


def test_host_time_ends_when_a_call_returns(clock):
    class Result:
        def __del__(self):
            clock.host += 30 * MICRO

    def call():
        clock.host += 3 * MICRO
        return Result()

    assert timing.host_seconds(clock, call) == pytest.approx(3 * MICRO)
    assert clock.host == pytest.approx(33 * MICRO * (timing.WARM_UP + timing.HOST_CALLS))


def test_host_times_are_the_least_of_medians_in_turns(clock):
    """Most turns lie in a busy spell of the machine, which adds to all calls; each has one turn without."""
    taken, one = [], timing.WARM_UP + timing.HOST_CALLS

    def call_of(name, host, calm):
        def run():
            turn = len(taken) // (2 * one)
            taken.append(name)
            clock.host += host + 40 * MICRO * (turn != calm)

        return run

    calls = {"ours": call_of("ours", 3 * MICRO, 7), "empty": call_of("empty", 2 * MICRO, 41)}
    found = timing.host_times(clock, calls)
    assert found == pytest.approx({"ours": 3 * MICRO, "empty": 2 * MICRO})
    turns = timing.HOST_ROUNDS * timing.HOST_TURNS
    assert taken[::one] == ["ours", "empty", "empty", "ours"] * (turns // 2)
    assert len(taken) == 2 * turns * one
    assert clock.log[0] == "quiet" and clock.log.count("quiet") == timing.HOST_ROUNDS


def test_roofline_is_the_longer_of_arithmetic_and_traffic():
    assert timing.roofline(10.0, 4.0, 5.0, 4.0) == 2.0
    assert timing.roofline(10.0, 12.0, 5.0, 4.0) == 3.0
    assert math.isnan(timing.roofline(0.0, 0.0, 5.0, 4.0))
