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


# --- workspaces that callers of a class give -----------------------------------------------------------------------


def aligned(nbytes, offset=0):
    """Bytes whose address is a multiple of 256, plus the offset; not zero."""
    whole = np.full(nbytes + 512, 7, np.uint8)
    start = -whole.ctypes.data % 256 + offset
    return whole[start : start + nbytes]


@pytest.fixture
def door(op):
    class Scratch(toy.Toy):
        def execute(self, x, w, y, top, current_stream=None, *, workspace=None):
            self._run((x, w, y, top), current_stream, workspace=workspace)

    Scratch.op = op
    return Scratch


@pytest.fixture
def tensors():
    y, top = np.full((3, 4, 1), np.nan, np.float32), np.zeros((1, 1, 1), np.float32)
    return (*inputs(), y, top)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_class_takes_the_callers(door, engine, tensors, dtype):
    run = door(*tensors)
    # The second begins at the next multiple of 256.
    assert run.workspace_size == 256 + 7
    given = aligned(264).view(dtype).reshape(2, -1)
    for _ in range(2):
        given.view(np.uint8)[...] = 7
        run(*tensors, workspace=given)
    x, w, y, _ = tensors
    np.testing.assert_allclose(y[..., 0], x[..., 0] @ w[..., 0].T, rtol=1e-5)
    assert len(engine.given) == 2
    for start, first, second in engine.given:
        assert not start.any() and (first.nbytes, second.nbytes) == (48, 7)
        assert first.ctypes.data == given.ctypes.data
        assert second.ctypes.data == given.ctypes.data + 256


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda y: aligned(262), ValueError, "workspace: expected at least 263 bytes, got 262"),
        (lambda y: aligned(263, 16), ValueError, "workspace: expected 256-byte alignment"),
        (lambda y: aligned(600)[::2], ValueError, "workspace: expected a contiguous"),
        (lambda y: bytearray(263), TypeError, "workspace: expected a numpy tensor"),
        (lambda y: 263, TypeError, "workspace: expected a numpy tensor"),
        (lambda y: y, ValueError, "workspace: expected at least"),
    ],
)
def test_class_refuses_what_is_no_workspace(door, engine, tensors, make, error, said):
    run = door(*tensors)
    with pytest.raises(error, match=said):
        run(*tensors, workspace=make(tensors[2]))
    assert not engine.given


def test_class_refuses_memory_that_is_not_to_be_written(door, engine, tensors):
    run, given = door(*tensors), aligned(264)
    given.flags.writeable = False
    with pytest.raises(ValueError, match="workspace: expected an array to write into"):
        run(*tensors, workspace=given)
    shared = aligned(3 * 4 * 4 + 300)
    x, w, _, top = tensors
    y = shared[128 : 128 + 48].view(np.float32).reshape(3, 4, 1)
    with pytest.raises(ValueError, match="workspace is written and must not overlap"):
        run(x, w, y, top, workspace=shared)
    assert not engine.given


def test_class_without_need_of_one_takes_any(door, engine, tensors):
    run = toy.Toy(*tensors)
    run.compile()
    assert run.workspace_size == 0
    run._run(tensors, None, workspace=aligned(8))
    x, w, y, _ = tensors
    np.testing.assert_allclose(y[..., 0], x[..., 0] @ w[..., 0].T, rtol=1e-5)
