"""Workspaces: scratch memory that an engine asks for, made by the adapter for each call."""

import numpy as np
import pytest

from cudnn_core.engine import Workspace
from cudnn_core.op import Op
from cudnn_core.testing import toy

SIZES = (Workspace(48, zeroed=True), Workspace(7))


class ScratchEngine(toy.CountingEngine):
    """The toy's engine, which also takes two workspaces, spoils them, and keeps what it was given."""

    def __init__(self):
        super().__init__()
        self.given, self.sizes = [], SIZES

    def workspaces(self, problem):
        return self.sizes

    def compile(self, plan):
        run = super().compile(plan)

        def with_scratch(*arguments):
            *arrays, first, second, stream = arguments
            self.given.append((first.copy(), first, second))
            first[...] = 255
            second[...] = 255
            run(*arrays, stream)

        return with_scratch


@pytest.fixture
def engine():
    return ScratchEngine()


@pytest.fixture
def op(engine):
    return Op(toy.CONTRACT, engines=(engine,), namespace="cudnn_core_scratch", short_name="toy")


def inputs(m=3):
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((rows, 8, 1), dtype=np.float32) for rows in (m, 4))


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


def test_class_gives_each_call_its_own(op, engine):
    class Scratch(toy.Toy):
        pass

    Scratch.op = op
    x, w = inputs()
    y, top = np.full((3, 4, 1), np.nan, np.float32), np.zeros((1, 1, 1), np.float32)
    run = Scratch(x, w, y, top)
    run(x, w, y, top)
    run(x, w, y, top)
    np.testing.assert_allclose(y[..., 0], x[..., 0] @ w[..., 0].T, rtol=1e-5)
    check(engine, 2)


def test_calls_share_one_in_which_there_is_nothing(op, engine):
    engine.sizes = (Workspace(0, zeroed=True), Workspace(7))
    for _ in range(2):
        op(inputs(), ())
    (_, *first), (_, *second) = engine.given
    assert first[0] is second[0] and first[0].size == 0 and first[1] is not second[1]


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
