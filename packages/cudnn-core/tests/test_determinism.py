"""determinism: the policy table, and that a warning comes once."""

import warnings

import numpy as np
import pytest

from cudnn_core import determinism
from cudnn_core.adapters import adapter_of
from cudnn_core.determinism import resolve

NUMPY = adapter_of(np.zeros(1))


class Switch:
    """Stands for a framework's switch."""

    def __init__(self, enabled, warn_only=False):
        self.state = enabled, warn_only

    def deterministic(self):
        return self.state


@pytest.fixture(autouse=True)
def _nothing_warned(monkeypatch):
    monkeypatch.setattr(determinism, "_warned", set())


@pytest.mark.parametrize("has_path", [True, False])
@pytest.mark.parametrize("asked", [None, False])
def test_nothing_asked_means_no(asked, has_path):
    assert resolve(asked, Switch(False), has_path, "op") is False
    assert resolve(asked, NUMPY, has_path, "op") is False


def test_none_follows_the_switch_and_an_argument_overrides_it():
    assert resolve(None, Switch(True), True, "op") is True
    assert resolve(True, Switch(False), True, "op") is True
    assert resolve(False, Switch(True), True, "op") is False
    assert resolve(False, Switch(True), False, "op") is False


@pytest.mark.parametrize("asked, switch", [(None, Switch(True)), (True, Switch(True, True))])
def test_a_request_without_a_path_raises(asked, switch):
    with pytest.raises(RuntimeError, match="gemm has no deterministic implementation"):
        resolve(asked, switch, False, "gemm")


def test_warn_only_warns_once_for_each_operation():
    switch = Switch(True, warn_only=True)
    for name in ("a", "b"):
        with pytest.warns(RuntimeWarning, match=f"{name} has no deterministic"):
            assert resolve(None, switch, False, name) is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve(None, switch, False, "a") is False
        assert resolve(None, switch, True, "c") is True


@pytest.mark.parametrize("bad", [1, 0, "yes", np.True_])
def test_flags_are_bools(bad):
    with pytest.raises(TypeError, match="deterministic: expected a bool or None"):
        resolve(bad, Switch(False), True, "op")


def test_each_call_follows_torch_as_it_then_is():
    torch = pytest.importorskip("torch")
    adapter = adapter_of(torch.zeros(1))
    before = torch.are_deterministic_algorithms_enabled()
    try:
        seen = []
        for enabled in (True, False, True):
            torch.use_deterministic_algorithms(enabled)
            seen.append(resolve(None, adapter, True, "op"))
        assert seen == [True, False, True]
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(RuntimeWarning):
            assert resolve(None, adapter, False, "op") is False
    finally:
        torch.use_deterministic_algorithms(before)
