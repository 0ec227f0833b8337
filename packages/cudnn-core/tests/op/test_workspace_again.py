"""Workspaces that callers give again: known at one look, unless they changed or an operand came to lie in them."""

import gc
import threading
import warnings
import weakref

import numpy as np
import pytest
from scratch_engines import Place, aligned, inside

from cudnn_core import workspace as module
from cudnn_core.engine import Workspace


@pytest.fixture
def looks(monkeypatch):
    """How often a workspace was looked at as a whole."""
    seen, check = [], module.check_workspace

    def count(*arguments):
        seen.append(arguments)
        check(*arguments)

    monkeypatch.setattr(module, "check_workspace", count)
    return seen


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


def test_array_that_changed_in_place(host):
    tensors = host.tensors()
    run, given = host.door(*tensors), aligned(264)
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
    assert len(host.engine.given) == 1


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
