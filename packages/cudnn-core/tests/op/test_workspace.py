"""Workspaces: scratch memory that an engine asks for, made by the adapter for each call."""

import gc
import threading
import warnings
import weakref

import numpy as np
import pytest

from cudnn_core import workspace as module
from cudnn_core.engine import Workspace
from cudnn_core.op import Op
from cudnn_core.tensor_desc import TensorDesc
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
        (lambda y: aligned(600)[::-1], ValueError, "workspace: expected a contiguous"),
        (lambda y: aligned(600)[:1].repeat(0), ValueError, "workspace: expected at least"),
        (lambda y: np.broadcast_to(aligned(1), 600), ValueError, "workspace: expected a contig"),
        (lambda y: aligned(600).view("c8"), ValueError, "workspace dtype: expected"),
        (lambda y: np.full(600, None), ValueError, "workspace dtype: expected"),
        (lambda y: bytearray(263), TypeError, "workspace: expected a numpy tensor.* a bytearray"),
        (lambda y: 263, TypeError, "workspace: expected a numpy tensor.* a int"),
        (lambda y: False, TypeError, "workspace: expected a numpy tensor.* a bool"),
        (lambda y: "mine", TypeError, "workspace: expected a numpy tensor.* a str"),
        (lambda y: np.uint8(1), TypeError, "workspace: expected a numpy tensor.* a uint8"),
        (lambda y: [1, 2], TypeError, "workspace: expected a numpy tensor.* a list"),
        (
            lambda y: TensorDesc.of("uint8", (600,)),
            TypeError,
            "workspace: expected a numpy tensor.* a TensorDesc",
        ),
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
    assert not engine.given


def test_class_without_need_of_one_takes_any(door, engine, tensors):
    run = toy.Toy(*tensors)
    run.compile()
    assert run.workspace_size == 0
    for given in (aligned(8), aligned(8, 1), aligned(0, 1)):
        run._run(tensors, None, workspace=given)
    x, w, y, _ = tensors
    np.testing.assert_allclose(y[..., 0], x[..., 0] @ w[..., 0].T, rtol=1e-5)


def test_class_takes_one_into_which_nothing_is_written(door, engine, tensors):
    engine.sizes = (Workspace(0, zeroed=True), Workspace(0))
    run = door(*tensors)
    assert run.workspace_size == 0
    run(*tensors, workspace=aligned(0))
    ((_, first, second),) = engine.given
    assert first.size == second.size == 0


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_and_matrices_are_flat_bytes_too(door, engine, tensors):
    given = aligned(512)
    for seen in (np.asmatrix(given.reshape(2, 256)), np.ma.masked_array(given), given.view(Kind)):
        run = door(*tensors)
        run(*tensors, workspace=seen)
        _, first, second = engine.given.pop()
        assert type(first) is np.ndarray and first.ctypes.data == given.ctypes.data
        assert (first.nbytes, second.nbytes) == (48, 7)


class Kind(np.ndarray):
    """A subclass of NumPy's array."""


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


class Place:
    """One of PLACES: arrays over NumPy's memory, so that they can be put anywhere, and the class door."""

    def __init__(self, name):
        self.engine = LaunchEngine() if name == "gpu" else ScratchEngine()
        self.torch = None if name == "numpy" else pytest.importorskip("torch")
        op = Op(toy.CONTRACT, (self.engine,), "cudnn_core_place", f"toy_{name}")

        class Door(toy.Toy):
            def execute(self, x, w, y, top, current_stream=None, *, workspace=None):
                self._run((x, w, y, top), current_stream, workspace=workspace)

        Door.op = op
        self.door = Door

    def array(self, x):
        return x if self.torch is None else self.torch.from_numpy(x)

    def tensors(self, y=None):
        fresh = np.full((3, 4, 1), np.nan, np.float32) if y is None else y
        return [self.array(x) for x in (*inputs(), fresh, np.zeros((1, 1, 1), np.float32))]

    def right(self, tensors):
        x, w, y, _ = (np.asarray(x)[..., 0] for x in tensors)
        np.testing.assert_allclose(y, x @ w.T, rtol=1e-5)


@pytest.fixture(params=PLACES)
def place(request):
    return Place(request.param)


@pytest.fixture
def gpu():
    return Place("gpu")


@pytest.fixture
def looks(monkeypatch):
    """How often a workspace was looked at as a whole."""
    seen, check = [], module.check_workspace

    def count(*arguments):
        seen.append(arguments)
        check(*arguments)

    monkeypatch.setattr(module, "check_workspace", count)
    return seen


def inside(arena, offset, shape):
    """Floats of an arena, from a byte on."""
    nbytes = int(np.prod(shape)) * 4
    return arena[offset : offset + nbytes].view(np.float32).reshape(shape)


@pytest.mark.parametrize("name", ["x_tensor", "w_tensor", "y_tensor", "top_tensor"])
def test_workspace_that_reaches_into_an_operand(place, name):
    """Also when it was good for the calls before."""
    arena = aligned(1024)
    # What follows is a view that ends or begins inside, encloses the workspace, or lies in it.
    index = ["x_tensor", "w_tensor", "y_tensor", "top_tensor"].index(name)
    free = place.tensors()
    shape = free[index].shape
    size = int(np.prod(shape)) * 4
    whole = place.array(arena)
    given = whole[256 : 256 + 264]
    run = place.door(*free)
    run(*free, workspace=given)
    run(*free, workspace=given)
    place.right(free)
    calls = len(place.engine.given)
    for offset in (256, 256 + 200, 256 + 260, 256 - size + 4):
        hit = place.tensors()
        hit[index] = place.array(inside(arena, offset, shape))
        if place.torch is not None:
            hit[index] = whole[offset : offset + size].view(place.torch.float32).reshape(shape)
        for _ in range(2):
            with pytest.raises(
                ValueError, match=f"workspace: expected memory .* with {name}.* overl"
            ):
                run(*hit, workspace=given)
    assert len(place.engine.given) == calls
    for offset in (256 - size, 256 + 264):
        beside = place.tensors()
        beside[index] = place.array(inside(arena, offset, shape))
        beside[0][...], beside[1][...] = free[0], free[1]
        run(*beside, workspace=given)
        place.right(beside)


def test_operands_that_share_memory_with_it_through_another_library(gpu):
    """No view of the workspace is a tensor of torch when it comes first."""
    arena = aligned(1024)
    tensors = gpu.tensors()
    run, given = gpu.door(*tensors), gpu.array(arena)
    run(*tensors, workspace=given)
    hit = gpu.tensors(inside(arena, 512, (3, 4, 1)))
    with pytest.raises(ValueError, match="workspace: expected memory .* with y_tensor.* overlap"):
        run(*hit, workspace=given)


def test_workspace_of_a_larger_problem_serves_a_smaller(place):
    given = place.array(aligned(4096))
    for _ in range(2):
        tensors = place.tensors()
        place.door(*tensors)(*tensors, workspace=given)
        place.right(tensors)


def test_empty_operand_inside_a_workspace_is_in_nobodys_way(place):
    arena = aligned(512)
    tensors = place.tensors()
    tensors[0] = place.array(inside(arena, 64, (0, 8, 1)))
    tensors[2] = place.array(inside(arena, 128, (0, 4, 1)))
    run = place.door(*tensors)
    run(*tensors, workspace=place.array(arena))
    assert not tensors[3].any()


@pytest.mark.parametrize("owner", ["numpy", "torch"])
def test_a_good_workspace_is_known_again(gpu, looks, owner, monkeypatch):
    """Whoever owns its memory: what NumPy has may be an operand some day, of torch's own no view was made."""
    monkeypatch.setattr(module, "ALIGNMENT", 64)

    def fresh():
        if owner == "numpy":
            return gpu.array(aligned(263))
        return gpu.torch.empty(263, dtype=gpu.torch.uint8)

    first, second = fresh(), fresh()
    assert module.adapter_of(first).is_shared(first) == (owner == "numpy")
    tensors = gpu.tensors()
    run = gpu.door(*tensors)
    for given in (first, first, second, first, second, first, first):
        run(*tensors, workspace=given)
        gpu.right(tensors)
        assert gpu.engine.given[-1] == given.data_ptr()
    assert len(looks) == 2
    assert weakref.getweakrefcount(first) == weakref.getweakrefcount(second) == 1
    for given in [fresh() for _ in range(module.KNOWN)]:
        run(*tensors, workspace=given)
    assert weakref.getweakrefcount(first) == weakref.getweakrefcount(second) == 0


def test_no_workspace_is_kept(place):
    tensors = place.tensors()
    run = place.door(*tensors)
    given = place.array(aligned(263))
    run(*tensors, workspace=given)
    place.engine.given.clear()
    watch = weakref.ref(given)
    del given
    gc.collect()
    assert watch() is None


def test_other_buffers_at_the_same_address(gpu):
    """As freed memory is given out again: the size, the framework and the kind of what comes then."""
    tensors = gpu.tensors()
    run = gpu.door(*tensors)
    memory = aligned(1024)
    for good in (memory[:263], memory[:264], memory[:264].view(np.float32).reshape(2, 33)):
        run(*tensors, workspace=gpu.array(good))
        gpu.right(tensors)
        # Another object than the one that was just freed, most likely with its id.
        with pytest.raises(ValueError, match="workspace: expected at least 263 bytes, got 262"):
            run(*tensors, workspace=gpu.array(memory[:262]))
        with pytest.raises(ValueError, match="workspace: expected a contiguous"):
            run(*tensors, workspace=gpu.array(memory[:526])[::2])
        with pytest.raises(TypeError, match="workspace: expected a torch tensor"):
            run(*tensors, workspace=memory[:263])
        with pytest.raises(ValueError, match="workspace: expected 256-byte alignment"):
            run(*tensors, workspace=gpu.array(memory[1:264]))
    assert len(gpu.engine.given) == 3


def shrink(torch, given):
    given.resize_(262)


def swap(torch, given):
    given.set_(torch.zeros(262, dtype=torch.uint8))


def swap_data(torch, given):
    given.data = torch.zeros(262, dtype=torch.uint8)


def swap_within(torch, given):
    given.set_(given.untyped_storage(), 0, (262,), (1,))


def drop(torch, given):
    given.untyped_storage().resize_(0)


def misalign(torch, given):
    given.set_(given.untyped_storage(), 1, (299,), (1,))


def move(torch, given):
    given.data = given.data.clone()[:262]


CHANGES = [shrink, swap, swap_data, swap_within, misalign, move]


# NumPy's view of torch's memory, which the host's engine makes, forbids to drop it.
@pytest.mark.parametrize(
    ("name", "change"),
    [("gpu", drop), *((name, change) for name in ("torch", "gpu") for change in CHANGES)],
)
def test_workspace_that_changed_in_place(name, change, monkeypatch):
    # What torch allocates on the host is aligned to 64 bytes only.
    monkeypatch.setattr(module, "ALIGNMENT", 64)
    place = Place(name)
    if name == "torch":
        place.engine.sizes = (Workspace(48, zeroed=True), Workspace(199))
    tensors = place.tensors()
    run = place.door(*tensors)
    assert run.workspace_size == 263
    given = place.torch.zeros(300, dtype=place.torch.uint8)
    for _ in range(2):
        run(*tensors, workspace=given)
    change(place.torch, given)
    calls = len(place.engine.given)
    expected = {drop: "a tensor with memory", misalign: "64-byte alignment"}
    said = expected.get(change, "at least 263 bytes, got 262")
    with pytest.raises(ValueError, match=f"workspace: expected {said}"):
        run(*tensors, workspace=given)
    assert len(place.engine.given) == calls


def test_array_that_changed_in_place(tensors, door, engine):
    run, given = door(*tensors), aligned(264)
    run(*tensors, workspace=given)
    given.flags.writeable = False
    with pytest.raises(ValueError, match="workspace: expected an array to write into"):
        run(*tensors, workspace=given)
    given.flags.writeable = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        given.strides = (0,)
    with pytest.raises(ValueError, match="workspace: expected a contiguous"):
        run(*tensors, workspace=given)
    assert len(engine.given) == 1


@pytest.mark.parametrize("name", ["torch", "gpu"])
@pytest.mark.parametrize(
    "make",
    [
        lambda torch, x: x.view(torch.float32).requires_grad_(),
        lambda torch, x: torch.nn.Parameter(x.view(torch.bfloat16)),
        lambda torch, x: x.view(torch.float8_e4m3fn).reshape(8, 33),
        lambda torch, x: x.view(torch.float4_e2m1fn_x2),
        lambda torch, x: x.view(torch.bool),
        lambda torch, x: x.as_subclass(type("Sub", (torch.Tensor,), {})),
    ],
)
def test_any_kind_of_tensor_is_memory(name, make):
    place = Place(name)
    tensors = place.tensors()
    run = place.door(*tensors)
    given = make(place.torch, place.array(aligned(264)))
    for _ in range(2):
        run(*tensors, workspace=given)
        place.right(tensors)
    first = place.engine.given[-1]
    assert given.data_ptr() == (first if name == "gpu" else first[1].ctypes.data)


@pytest.mark.parametrize("name", ["torch", "gpu"])
def test_tensor_of_the_inference_mode(name, monkeypatch):
    monkeypatch.setattr(module, "ALIGNMENT", 64)
    place = Place(name)
    tensors = place.tensors()
    run = place.door(*tensors)
    with place.torch.inference_mode():
        given = place.torch.ones(264, dtype=place.torch.uint8)
        run(*tensors, workspace=given)
    run(*tensors, workspace=given.view(place.torch.float32))
    place.right(tensors)


def fake(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(264, dtype=torch.uint8)


@pytest.mark.parametrize("name", ["torch", "gpu"])
@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (fake, ValueError, "a tensor with memory, got one without"),
        (lambda torch: torch.zeros(264, device="meta"), ValueError, "a tensor with memory"),
        (lambda torch: torch.zeros(8, 33).to_sparse(), ValueError, "a strided tensor"),
        (lambda torch: torch.zeros(264)[::2], ValueError, "a contiguous tensor"),
        (lambda torch: torch.zeros(1).expand(264), ValueError, "a contiguous tensor"),
        (lambda torch: aligned(264), TypeError, "a torch tensor, .* got a ndarray"),
        (lambda torch: torch.Tensor, TypeError, "a torch tensor"),
        (lambda torch: "mine", TypeError, "a torch tensor, .* got a str"),
    ],
)
def test_what_is_no_memory_of_torch(name, make, error, said):
    place = Place(name)
    tensors = place.tensors()
    run = place.door(*tensors)
    for _ in range(2):
        with pytest.raises(error, match=f"workspace: expected {said}"):
            run(*tensors, workspace=make(place.torch))
        run(*tensors, workspace=place.array(aligned(264)))
        place.right(tensors)


def test_tensor_on_another_device(gpu, monkeypatch):
    tensors = gpu.tensors()
    run = gpu.door(*tensors)
    given = gpu.array(aligned(264))
    adapter = module.adapter_of(given)
    place = type(adapter).device
    other = place(adapter, gpu.torch.empty(0, device="meta"))
    monkeypatch.setattr(
        type(adapter), "device", lambda self, x: other if x is given else place(self, x)
    )
    with pytest.raises(ValueError, match="workspace: expected a tensor on cpu, got meta"):
        run(*tensors, workspace=given)


def test_arrays_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    place = Place("numpy")
    tensors = place.tensors()
    run = place.door(*tensors)
    with pytest.raises(TypeError, match="workspace: expected a numpy tensor"):
        run(*tensors, workspace=jnp.zeros(264, "uint8"))
    arrays = [jnp.asarray(x) for x in tensors]
    run = place.door(*arrays)
    with pytest.raises(NotImplementedError, match="JAX arrays are immutable"):
        run(*arrays, workspace=jnp.zeros(264, "uint8"))


def test_operands_are_refused_before_the_workspace(place):
    tensors = place.tensors()
    run = place.door(*tensors)
    run.compile()
    for wrong, error in ((tensors[0][:2], ValueError), ("x", TypeError), (None, ValueError)):
        with pytest.raises(error, match="x_tensor"):
            run(wrong, *tensors[1:], workspace=place.array(aligned(8)))


def test_threads_each_with_a_workspace_of_their_own(place):
    """They share the class: neither gets the other's, nor is one refused for the other's sake."""
    samples = place.tensors()
    run = place.door(*samples)
    run.compile()
    arena = place.array(aligned(4096))
    failed = []

    def work(index):
        given = arena[index * 512 : index * 512 + 264]
        try:
            for _ in range(50):
                tensors = place.tensors()
                run(*tensors, workspace=given)
                place.right(tensors)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(place.engine.given) == 200
