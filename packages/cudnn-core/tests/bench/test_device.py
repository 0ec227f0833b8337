"""The GPU as a clock; its numerics need one."""

import pytest

torch = pytest.importorskip("torch")

from cudnn_core.bench.device import Cuda, folder_of
from cudnn_core.bench.timing import Effort, device_sampler, medians


@pytest.mark.parametrize(
    ("name", "folder"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"), ("H20", "h20")],
)
def test_folder_of_a_gpu(name, folder):
    assert folder_of(name) == folder


SECONDS = {3: 5e-6, 5: 3e-6, 8: 5e-6}


class Cores(Cuda):
    """Two slow cores beside a fast one; no device."""

    def __init__(self, monkeypatch, error=None):
        self.time, self.at, self.moves = 0.0, set(SECONDS), []
        self.error = error
        monkeypatch.setattr("os.sched_getaffinity", lambda thread: set(self.at), raising=False)
        monkeypatch.setattr("os.sched_setaffinity", self.move, raising=False)

    def move(self, thread, cores):
        assert thread == 0
        if self.error:
            raise self.error
        self.at = cores
        self.moves.append(cores)

    def _empty_call(self):
        def call():
            self.time += max(SECONDS[core] for core in self.at)

        return call

    def now(self):
        return self.time

    def drain(self):
        pass


def test_host_times_are_taken_on_the_fastest_core(monkeypatch):
    clock = Cores(monkeypatch)
    with pytest.raises(ZeroDivisionError), clock.quiet():
        assert clock.at == {5}
        raise ZeroDivisionError
    assert clock.at == {3, 5, 8}


def test_where_cores_cannot_be_chosen_none_is(monkeypatch):
    clock = Cores(monkeypatch, PermissionError("no"))
    with clock.quiet():
        assert clock.at == {3, 5, 8}
    monkeypatch.delattr("os.sched_getaffinity")
    with clock.quiet():
        assert clock.moves == []


@pytest.mark.gpu
class TestCuda:
    def test_a_small_copy_is_timed_from_a_cold_cache(self):
        """32 MiB that the L2 cache could hold: warm they would move faster than memory does."""
        clock = Cuda()
        x = torch.rand(1 << 22, device="cuda")
        y = torch.empty_like(x)
        seconds = medians(
            clock, {"": device_sampler(clock, lambda: y.copy_(x))}, Effort(0.2, 9, 40)
        )[""]
        assert 2 * x.nbytes / seconds < 1.05 * clock.byte_rate

    def test_device_time_does_not_see_the_host(self):
        clock = Cuda()
        x = torch.rand(1 << 20, device="cuda")

        def slow():
            end = clock.now() + 300e-6
            while clock.now() < end:
                pass
            x.mul_(1.0)

        sample = device_sampler(clock, slow)
        # The least of several: another process on the device would lengthen some.
        assert min(sample() for _ in range(20)) < 50e-6

    def test_rates_are_plausible(self):
        clock = Cuda()
        assert 1e12 < clock.byte_rate < 5e12
        assert 3e14 < clock.flop_rates["bfloat16"] < 1e15 < clock.flop_rates["float8"] < 2e15
        assert 0.5e-6 < clock.empty_call < 100e-6
