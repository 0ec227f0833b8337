"""Scratch memory that an engine asks for, made by the adapter for each call."""

import numpy as np
import pytest
from scratch_engines import inputs

from cudnn_core.engine import Workspace


@pytest.fixture
def engine(host):
    return host.engine


@pytest.fixture
def op(host):
    return host.op


def check(engine, calls):
    assert len(engine.given) == calls
    for start, first, second in engine.given:
        assert not start.any(), "a zeroed workspace did not start as zeros"
        assert (first.nbytes, second.nbytes) == (48, 7)
    buffers = [buffer.ctypes.data for _, *pair in engine.given for buffer in pair]
    assert len(set(buffers)) == 2 * calls, "two calls shared a workspace"


def test_wrapper_gives_each_call_its_own(op, engine):
    x, w = inputs()
    for _ in range(3):
        outputs = op((x, w), ())
    assert tuple(outputs) and list(outputs.keys()) == ["y_tensor", "top_tensor"]
    np.testing.assert_allclose(outputs[0][..., 0], x[..., 0] @ w[..., 0].T, rtol=1e-5)
    check(engine, 3)


def test_class_gives_each_call_its_own(host):
    tensors = host.tensors()
    run = host.door(*tensors)
    run(*tensors)
    run(*tensors)
    host.right(tensors)
    check(host.engine, 2)


def test_calls_share_one_in_which_there_is_nothing(op, engine):
    engine.sizes = (Workspace(0, zeroed=True), Workspace(0))
    for _ in range(2):
        op(inputs(), ())
    (_, *first), (_, *second) = engine.given
    assert first[0] is second[0] and first[1] is second[1] and first[0].size == 0


def test_empty_problem_on_the_host_has_them_too(op, engine):
    outputs = op(inputs(m=0), ())
    assert outputs["y_tensor"].shape == (0, 4, 1) and outputs["top_tensor"] == 0
    check(engine, 1)


def test_torch_tensors_get_torch_memory(op, engine):
    torch = pytest.importorskip("torch")
    x, w = inputs()
    outputs = op((torch.from_numpy(x), torch.from_numpy(w)), ())
    np.testing.assert_allclose(outputs[0][..., 0].numpy(), x[..., 0] @ w[..., 0].T, rtol=1e-5)
    check(engine, 1)
