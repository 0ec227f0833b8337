"""What the tests of scratch memory share: engines that ask for it, arrays, and the places where they lie."""

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


def inputs(m=3):
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((rows, 8, 1), dtype=np.float32) for rows in (m, 4))


def aligned(nbytes, offset=0):
    """Bytes whose address is a multiple of 256, plus the offset; not zero."""
    whole = np.full(nbytes + 512, 7, np.uint8)
    start = -whole.ctypes.data % 256 + offset
    return whole[start : start + nbytes]


def inside(arena, offset, shape):
    """Floats of an arena, from a byte on."""
    nbytes = int(np.prod(shape)) * 4
    return arena[offset : offset + nbytes].view(np.float32).reshape(shape)


# On the host, where a call looks at everything again, and as on a GPU, where a launch takes what it gets.
PLACES = ["numpy", "torch", "gpu"]


class LaunchEngine(ScratchEngine):
    """The same as if on a GPU, in one workspace: arrays come as they are, and a good workspace is known again."""

    platform = "launch"

    def __init__(self):
        super().__init__()
        self.sizes = (Workspace(263),)

    def compile(self, plan):
        run = toy.CountingEngine.compile(self, plan)

        def launch(*arguments):
            *arrays, scratch, stream = arguments
            self.given.append(scratch.data_ptr())
            scratch.fill_(255)
            run(*(x.numpy() for x in arrays), stream)

        return launch


class Door(toy.Toy):
    """The toy's class, which also takes the caller's workspace."""

    def execute(self, x, w, y, top, current_stream=None, *, workspace=None):
        """Write y, accumulate top."""
        self._run((x, w, y, top), current_stream, workspace=workspace)


class Place:
    """One of PLACES: arrays over NumPy's memory, so that they can be put anywhere, and the class door."""

    def __init__(self, name):
        self.engine = LaunchEngine() if name == "gpu" else ScratchEngine()
        self.torch = None if name == "numpy" else pytest.importorskip("torch")
        self.op = Op(toy.CONTRACT, (self.engine,), "cudnn_core_place", f"toy_{name}")

    def door(self, *samples):
        """The class, made of samples."""
        made = Door(*samples)
        made.op = self.op
        return made

    def array(self, x):
        return x if self.torch is None else self.torch.from_numpy(x)

    def tensors(self, y=None):
        fresh = np.full((3, 4, 1), np.nan, np.float32) if y is None else y
        return [self.array(x) for x in (*inputs(), fresh, np.zeros((1, 1, 1), np.float32))]

    def right(self, tensors):
        x, w, y, _ = (np.asarray(x)[..., 0] for x in tensors)
        np.testing.assert_allclose(y, x @ w.T, rtol=1e-5)
