"""IEEE arithmetic on the host, whatever a framework switched off."""

import sys
import threading

import numpy as np
import pytest

from cudnn_core.float_env import ieee_arithmetic

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="serves Linux")


def keeps_subnormals():
    return bool((np.full(64, 2.0**-140, np.float32) * np.ones(64, np.float32)).all())


@pytest.fixture
def flushing():
    """A thread's setting, as torch makes it; undone afterwards."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    yield
    torch.set_flush_denormal(False)


def test_on_inside_and_as_before_outside(flushing):
    assert not keeps_subnormals()
    with ieee_arithmetic():
        assert keeps_subnormals()
        with ieee_arithmetic():
            assert keeps_subnormals()
        assert keeps_subnormals()
    assert not keeps_subnormals()


def test_restored_after_an_error(flushing):
    with pytest.raises(KeyError), ieee_arithmetic():
        raise KeyError
    assert not keeps_subnormals()


def test_changes_nothing_where_nothing_was_changed():
    assert keeps_subnormals()
    with ieee_arithmetic():
        assert keeps_subnormals()
    assert keeps_subnormals()


def test_each_thread_has_its_own(flushing):
    seen = []
    with ieee_arithmetic():
        thread = threading.Thread(target=lambda: seen.append(keeps_subnormals()))
        thread.start()
        thread.join()
        assert keeps_subnormals()
    assert seen == [True]  # a thread starts with the settings of the one that started it
    assert not keeps_subnormals()
