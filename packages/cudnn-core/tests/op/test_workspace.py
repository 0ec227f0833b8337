"""Workspaces that callers of a class give: which are taken, and which refused in what words."""

import numpy as np
import pytest
from scratch_engines import Place, aligned

from cudnn_core import workspace as module
from cudnn_core.engine import Workspace
from cudnn_core.tensor_desc import TensorDesc
from cudnn_core.testing import toy


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_class_takes_the_callers(host, dtype):
    tensors = host.tensors()
    run = host.door(*tensors)
    # The second begins at the next multiple of 256.
    assert run.workspace_size == 256 + 7
    given = aligned(264).view(dtype).reshape(2, -1)
    for _ in range(2):
        given.view(np.uint8)[...] = 7
        run(*tensors, workspace=given)
    host.right(tensors)
    assert len(host.engine.given) == 2
    for start, first, second in host.engine.given:
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
def test_class_refuses_what_is_no_workspace(host, make, error, said):
    tensors = host.tensors()
    run = host.door(*tensors)
    with pytest.raises(error, match=said):
        run(*tensors, workspace=make(tensors[2]))
    assert not host.engine.given


def test_class_refuses_memory_that_is_not_to_be_written(host):
    tensors = host.tensors()
    run, given = host.door(*tensors), aligned(264)
    given.flags.writeable = False
    with pytest.raises(ValueError, match="workspace: expected an array to write into"):
        run(*tensors, workspace=given)
    assert not host.engine.given


def test_class_without_need_of_one_takes_any(host):
    tensors = host.tensors()
    run = toy.Toy(*tensors)
    run.compile()
    assert run.workspace_size == 0
    for given in (aligned(8), aligned(8, 1), aligned(0, 1)):
        run._run(tensors, None, workspace=given)
    host.right(tensors)


def test_class_takes_one_into_which_nothing_is_written(host):
    tensors = host.tensors()
    host.engine.sizes = (Workspace(0, zeroed=True), Workspace(0))
    run = host.door(*tensors)
    assert run.workspace_size == 0
    run(*tensors, workspace=aligned(0))
    ((_, first, second),) = host.engine.given
    assert first.size == second.size == 0


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_and_matrices_are_flat_bytes_too(host):
    tensors = host.tensors()
    given = aligned(512)
    for seen in (np.asmatrix(given.reshape(2, 256)), np.ma.masked_array(given), given.view(Kind)):
        run = host.door(*tensors)
        run(*tensors, workspace=seen)
        _, first, second = host.engine.given.pop()
        assert type(first) is np.ndarray and first.ctypes.data == given.ctypes.data
        assert (first.nbytes, second.nbytes) == (48, 7)


class Kind(np.ndarray):
    """A subclass of NumPy's array."""


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
