"""A case's way: checked, refused or timed, its peers present or not."""

import pytest
from clock import FakeClock

from cudnn_core.bench import measure
from cudnn_core.bench.protocol import Absent, Case, Limit, Train, Trial, WrongResult
from cudnn_core.bench.results import KEYS, check_rows
from cudnn_core.bench.timing import Effort

VERSIONS = {"torch": "2.11", "dsl": "4.8", "date": "2026-12-01"}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def bench(clock):
    return make_bench(clock)


def make_bench(clock, **options):
    def rates():
        return 4e12, {"bfloat16": 8e14, "float8": 16e14}

    return measure.Bench(clock, "cpu", rates, Effort(0.0, 3, 3), VERSIONS, **options)


def right():
    pass


def case(clock, *, clock_kind="device", targets=None, **trial):
    """A case whose operation takes 10 us of the device and 2 us of the host."""
    trial = {"ours": clock.call("ours", 2e-6, 10e-6), "check": right, **trial}
    return Case(
        op="fake/op",
        case="1,2,3",
        dtype="bf16->bf16",
        targets=targets or {},
        prepare=lambda device: Trial(**trial),
        clock=clock_kind,
    )


def test_a_measured_case_is_a_row_of_the_schema(clock, bench):
    found = bench.run(
        case(
            clock,
            targets={"peer": 1.5, "bound": 0.5},
            peers={"peer": lambda: clock.call("peer", 1e-6, 20e-6)},
            bounds={"bound": lambda: clock.call("bound", 1e-6, 5e-6)},
            flops=4e9,
            nbytes=8e6,
            host=lambda: clock.call("tiny", 3e-6, 1e-6),
        )
    )
    assert found.state == measure.MEASURED and not found.is_failure and found.absent == {}
    assert check_rows([found.row], "test") == [found.row]
    assert found.row == {
        "op": "fake/op",
        "case": "1,2,3",
        "dtype": "bf16->bf16",
        "ours_us": 10.0,
        "host_us": 3.0,
        "peers": {"peer": 20.0},
        "targets": {"peer": 1.5, "bound": 0.5},
        "bounds": {"bound": 5.0},
        "tflops": 400.0,
        "tb_s": 0.8,
        # 4e9 operations at 8e14 a second are 5 us, 8e6 bytes at 4e12 are 2 us
        "roofline": 0.5,
        **VERSIONS,
    }
    assert tuple(found.row) == KEYS


def test_a_wrong_kernel_is_refused_and_never_timed(clock, bench):
    def check():
        clock.log.append("check")
        raise WrongResult("y: 3% of the elements are off")

    found = bench.run(case(clock, check=check, peers={"peer": lambda: pytest.fail("made")}))
    assert found.state == measure.WRONG and found.is_failure and found.row is None
    assert found.note == "y: 3% of the elements are off; not timed"
    assert clock.log == ["check"]


def test_the_check_comes_first(clock, bench):
    found = bench.run(case(clock, check=lambda: clock.log.append("check")))
    assert found.row is not None and clock.log[0] == "check"


def test_what_is_not_built_is_skipped(clock, bench):
    planned = Case("fake/op", "1", "f", {}, pytest.fail, not_built=lambda: "it is coming")
    found = bench.run(planned)
    assert (found.state, found.note, found.is_failure) == ("not built", "it is coming", False)

    def refuse(device):
        raise NotImplementedError("no kernel for this")

    found = bench.run(Case("fake/op", "1", "f", {}, refuse))
    assert (found.state, found.note, found.is_failure) == ("not built", "no kernel for this", False)


def test_an_operation_that_fails_is_a_failure_and_not_the_end(clock, bench):
    def check():
        raise ValueError("a_tensor: expected\n  this, got that")

    found = bench.run(case(clock, check=check))
    assert found.state == measure.FAILED and found.is_failure
    assert found.note == "ValueError: a_tensor: expected this, got that"


def missing():
    raise ModuleNotFoundError("No module named 'quack'")


def broken():
    raise RuntimeError("it wants another compiler")


def breaks_when_called():
    return broken


@pytest.mark.parametrize(
    ("maker", "told"),
    [
        (missing, "not installed (ModuleNotFoundError: No module named 'quack')"),
        (broken, "it failed: RuntimeError: it wants another compiler"),
        (breaks_when_called, "it failed: RuntimeError: it wants another compiler"),
        (lambda: Absent("JAX sees no GPU"), "JAX sees no GPU"),
    ],
)
def test_a_missing_peer_is_reported_and_the_rest_is_measured(clock, bench, maker, told):
    peers = {"gone": maker, "here": lambda: clock.call("here", 1e-6, 40e-6)}
    found = bench.run(case(clock, targets={"gone": 1.0}, peers=peers))
    assert found.absent == {"gone": told} and not found.is_failure
    assert found.row["peers"] == {"here": 40.0} and found.row["targets"] == {"gone": 1.0}


def test_unwanted_peers_are_not_even_made(clock):
    bench = make_bench(clock, wanted=lambda case, name: name == "mm")
    found = bench.run(
        case(clock, peers={"jax": broken, "mm": lambda: clock.call("mm", 0.0, 30e-6)})
    )
    assert found.absent == {} and found.row["peers"] == {"mm": 30.0}


def test_a_wanted_limit_brings_what_it_is_a_limit_of(clock):
    bench = make_bench(clock, wanted=lambda case, name: name in case.targets)
    bounds = {
        "empty": lambda: clock.call("empty", 6e-6, 1e-6),
        "empty + 12 us": Limit(of="empty", plus_us=12.0),
        "other": broken,
    }
    targets = {"empty + 12 us": 1.0}
    found = bench.run(case(clock, clock_kind="host", targets=targets, bounds=bounds))
    assert found.row["bounds"] == {"empty": 6.0, "empty + 12 us": 18.0} and found.absent == {}


def test_limits_follow_from_what_was_measured(clock, bench):
    bounds = {
        "empty": lambda: clock.call("empty", 6e-6, 1e-6),
        "empty + 12 us": Limit(of="empty", plus_us=12.0),
        "1.5 x empty": Limit(of="empty", scale=1.5),
        "14 us": Limit(plus_us=14.0),
        "3 x gone": Limit(of="gone", scale=3.0),
        "gone": missing,
    }
    row = bench.run(case(clock, clock_kind="host", bounds=bounds)).row
    assert row["bounds"] == {"empty": 6.0, "empty + 12 us": 18.0, "1.5 x empty": 9.0, "14 us": 14.0}
    assert row["ours_us"] == row["host_us"] == 2.0
    assert row["roofline"] is row["tflops"] is row["tb_s"] is None


def test_checking_times_nothing_but_makes_peers_ready(clock):
    made = []
    bench = make_bench(clock, check_only=True)
    train = Train(lambda: made.append("jax"), lambda result: made.append("waited"))
    peers = {"mm": lambda: lambda: made.append("mm"), "jax": lambda: train}
    found = bench.run(case(clock, peers=peers, host=lambda: lambda: made.append("tiny")))
    assert found.state == measure.CHECKED and found.row is None
    assert made == ["mm", "jax", "waited", "tiny"] and clock.log == []
