"""`Op.run` on NumPy arrays: plain outputs, operands in place, overlaps, what is remembered."""

import contextlib

import numpy as np
import pytest

from cudnn_core.adapters.numpy import NumpyAdapter
from cudnn_core.tensor_desc import Device
from cudnn_core.testing.channels import OP, STORE, channels


def x(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_outputs_in_contract_order_with_none_for_the_absent():
    y, totals = channels(x(2, 3, 4), x(3))
    assert totals is None and (y == x(2, 3, 4) * x(3)[:, None]).all()
    y, totals = channels(x(2, 3, 4), x(3), x(3), None, "minus", True)
    assert (totals == x(2, 3, 4).sum(axis=2)).all() and totals.strides == (4, 8)


def test_a_call_is_remembered_by_presence():
    OP.forget()
    for offset in (None, x(3), None, x(3)):
        channels(x(2, 3, 4), x(3), offset)
    assert len(OP._prepared) == 2


def test_empty_outputs():
    y, totals = channels(x(2, 3, 0), x(3), None, None, "plus", True)
    assert y.shape == (2, 3, 0) and not totals.any()


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4)])
def test_mutated_operands_are_written(shape):
    store = x(2, 3)
    (before,) = STORE.run((np.ones(shape, np.float32), store), ())
    assert (before == x(2, 3)).all() and (store == x(2, 3) + (1 if len(shape) == 2 else 4)).all()


def test_a_call_makes_its_device_current_before_it_allocates(monkeypatch):
    """In a thread where it is not, once for the whole call."""
    current, entered = [], []

    @contextlib.contextmanager
    def guard(adapter, device):
        entered.append(device)
        current.append(device)
        yield
        current.pop()

    allocator = NumpyAdapter.allocator

    def watched(*arguments, **named):
        assert named["guarded"]
        make = allocator(*arguments, **named)
        return lambda: make() if current else pytest.fail("allocated elsewhere")

    monkeypatch.setattr(
        NumpyAdapter, "ready_stream", lambda adapter, device: lambda: 0 if current else None
    )
    monkeypatch.setattr(NumpyAdapter, "guard", guard)
    monkeypatch.setattr(NumpyAdapter, "allocator", watched)
    OP.forget()
    y, _ = channels(x(2, 3, 4), x(3))
    assert (y == x(2, 3, 4) * x(3)[:, None]).all() and entered == [Device("cpu")]
    OP.forget()


def test_mutated_operands_must_be_writable_and_alone():
    buffer = np.zeros(12, np.float32)
    first, second = buffer[:6].reshape(2, 3), buffer[6:].reshape(2, 3)
    STORE.run((first, second), ())
    with pytest.raises(
        ValueError, match="store: expected memory that it does not share with x, as it is written"
    ):
        STORE.run((first, buffer[5:11].reshape(2, 3)), ())
    with pytest.raises(ValueError, match="share with x"):
        STORE.run((buffer[4:10].reshape(2, 3)[::-1], second[::-1]), ())
    second.flags.writeable = False
    with pytest.raises(
        ValueError, match="store: expected an array to write into, got a read-only one"
    ):
        STORE.run((first, second), ())


def test_options_are_refused_before_arrays():
    with pytest.raises(ValueError, match="sign"):
        OP.run((None, None, None, None), ("neither",))
    with pytest.raises(TypeError, match="weight: expected a tensor"):
        channels(x(2, 3, 4), 3)
