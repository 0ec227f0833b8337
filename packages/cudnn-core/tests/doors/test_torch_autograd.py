"""Gradients of an op that names its backward op, in torch: eager, compiled, absent operands, twice, in place."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad
from torch.library import opcheck

from cudnn_core.adapters.torch import ADAPTER
from cudnn_core.doors import torch_autograd, torch_op
from cudnn_core.op import Op
from cudnn_core.prepared import Latest
from cudnn_core.testing.channels import BACKWARD, OP, STORE, channels


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def operands(offset=True, bounds=False):
    torch.manual_seed(0)
    x, weight = torch.randn(1 if bounds else 2, 3, 6).double(), torch.randn(3).double()
    more = torch.randn(3).double().requires_grad_() if offset else None
    ends = torch.tensor([0, 2, 6], dtype=torch.int32) if bounds else None
    return x.requires_grad_(), weight.requires_grad_(), more, ends


def wanted(tensors):
    return [x for x in tensors if x is not None and x.requires_grad]


OPTIONS = [("plus", False), ("minus", True)]
every = pytest.mark.parametrize("options", OPTIONS, ids=str)
presence = pytest.mark.parametrize("offset, bounds", [(True, False), (False, False), (True, True)])


@every
@presence
def test_gradients(options, offset, bounds):
    tensors = operands(offset, bounds)

    def function(*values):
        chosen, given = [], iter(values)
        for x in tensors:
            chosen.append(next(given) if x is not None and x.requires_grad else x)
        return tuple(x for x in channels(*chosen, *options) if x is not None)

    assert torch.autograd.gradcheck(function, tuple(wanted(tensors)))


@every
@presence
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_gradients(options, offset, bounds, backend):
    tensors = operands(offset, bounds)
    compiled = torch.compile(channels, fullgraph=True, backend=backend)
    results = []
    for function in (channels, compiled):
        made = [x for x in function(*tensors, *options) if x is not None]
        results.append(
            (*made, *torch.autograd.grad(sum(x.square().sum() for x in made), wanted(tensors)))
        )
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_nothing_is_recorded_unless_a_gradient_is_wanted():
    tensors = [None if x is None else x.detach() for x in operands()]
    assert channels(*tensors)[0].grad_fn is None
    with torch.no_grad():
        assert channels(*operands())[0].grad_fn is None


def test_outputs_that_nothing_used():
    tensors = operands()
    y, totals = channels(*tensors, "plus", True)
    (dx,) = torch.autograd.grad(totals.sum(), tensors[0], retain_graph=True)
    assert (dx == 1).all()
    (dx,) = torch.autograd.grad(y.sum(), tensors[0])
    assert torch.equal(dx, tensors[1].detach()[:, None].expand_as(dx))


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_second_derivative_is_refused(backend):
    function = torch.compile(channels, backend=backend) if backend else channels
    tensors = operands()
    first = torch.autograd.grad(function(*tensors)[0].sum(), wanted(tensors), create_graph=True)
    with pytest.raises(
        RuntimeError, match="channels_backward is a gradient .*not differentiable twice"
    ):
        first[0].sum().backward()


@pytest.mark.parametrize("first", ["forward", "backward"])
def test_a_second_derivative_is_refused_whichever_op_is_registered_first(first):
    names = "cudnn_core_toy", f"{first}_first"
    backward = Op(
        BACKWARD.contract, BACKWARD.engines, names[0], f"{names[1]}_backward", is_gradient=True
    )
    op = Op(OP.contract, OP.engines, *names, backward=backward)
    torch_op.register((backward if first == "backward" else op).qualified)
    x, weight, _, _ = operands()
    (y,) = torch_op.outputs(op, (x, weight, None, None), ("plus", False))[:1]
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not differentiable twice"):
        dx.sum().backward()


def test_a_backward_op_says_that_it_is_one():
    with pytest.raises(ValueError, match="is_gradient"):
        Op(OP.contract, OP.engines, "cudnn_core_toy", "undeclared", backward=STORE)


def test_looks_that_threads_counted_past_zero_are_used_up(monkeypatch):
    OP.forget()
    tensors = operands()
    channels(*tensors)
    (prepared,) = OP._prepared.values()
    OP._latest, prepared.gradient.tape.latest = Latest(-1), Latest(-1)
    monkeypatch.setattr(type(ADAPTER), "recognizer", lambda self, tensors: pytest.fail("looked"))
    torch.autograd.grad(channels(*tensors)[0].sum(), wanted(tensors))
    OP.forget()


def test_gradients_are_prepared_once_for_each_layout():
    OP.forget()
    tensors = operands()
    BACKWARD.engines[0].asked = 0
    y, _ = channels(*tensors)
    for _ in range(3):
        torch.autograd.grad(y, wanted(tensors), torch.ones_like(y), retain_graph=True)
    assert BACKWARD.engines[0].asked == 1
    torch.autograd.grad(y, wanted(tensors), torch.ones(()).double().expand_as(y), retain_graph=True)
    assert BACKWARD.engines[0].asked == 2


def test_layouts_of_gradients_are_remembered_within_a_bound():
    OP.forget()
    tensors = operands()
    y, _ = channels(*tensors)
    for pad in range(torch_autograd.REMEMBERED + 5):
        dout = torch.ones(2, 3, 6 + pad).double()[:, :, :6]
        torch.autograd.grad(y, wanted(tensors), dout, retain_graph=True)
    (prepared,) = OP._prepared.values()
    assert len(prepared.gradient.tape.backwards) <= torch_autograd.REMEMBERED


def test_known_tensors_are_those_of_equal_metadata():
    x, w = torch.randn(2, 3, 6), torch.randn(3)
    same = ADAPTER.recognizer((x, w))
    if same is None:
        pytest.skip("this torch has no guards")
    assert same(x, w) and same(torch.randn(2, 3, 6), w.clone())
    with torch.no_grad():
        assert same(x, w)
    others = (
        x[:, :, :5],
        x.double(),
        x.transpose(0, 1),
        x.to("meta"),
        torch.randn(2, 6, 3).transpose(1, 2),
        torch.nn.Parameter(x),
        torch.randn(2, 3, 6).requires_grad_(),
    )
    assert not any(same(other, w) for other in others)
    assert not same(x, None) and not same(None, w)


TRANSFORMS = {
    "vmap": lambda f, x: torch.vmap(f)(x[None]),
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_nothing_is_known_at_a_look_under_a_transform(transform):
    """What a call may then leave out: whether torch transforms functions."""
    x = torch.randn(2, 3, 6)
    same = ADAPTER.recognizer((x,))
    if same is None:
        pytest.skip("this torch has no guards")
    seen = []

    def function(y):
        seen.append(same(x) or same(y))
        return y * 1

    TRANSFORMS[transform](function, x)
    assert seen and not any(seen) and same(x)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_tracker_says_what_the_adapter_says(wanted):
    x = torch.randn(2, 3, requires_grad=wanted)
    tracks = ADAPTER.tracker((x,))
    for context in (torch.enable_grad(), torch.no_grad(), forward_ad.dual_level()):
        with context:
            assert tracks((x,)) == ADAPTER.tracks_gradient((x,))
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        assert tracks((dual,)) and ADAPTER.tracks_gradient((dual,))


def test_refusals_of_calls_that_are_known():
    """Twice the same first, so that the third is known at a look."""
    OP.forget()
    tensors = operands()
    x, *others = tensors
    for _ in range(2):
        y, _ = channels(*tensors)
        torch.autograd.grad(y.sum(), wanted(tensors), retain_graph=True)
    first = torch.autograd.grad(y.sum(), wanted(tensors), create_graph=True)
    with pytest.raises(RuntimeError, match="not differentiable twice"):
        first[0].sum().backward()
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        channels(forward_ad.make_dual(x, x.detach()), *others)
    y, _ = channels(*tensors)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_without_guards(monkeypatch):
    """Another torch may lack what the quick look is made of."""
    monkeypatch.setattr(type(ADAPTER), "recognizer", lambda self, tensors: None)
    OP.forget()
    tensors = operands()
    y, _ = channels(*tensors)
    first, second = (
        torch.autograd.grad(y.sum(), wanted(tensors), retain_graph=True) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_gradients_of_changing_layouts_are_right_after_each_other():
    tensors = operands()
    y, _ = channels(*tensors)
    dense = torch.randn(2, 3, 6).double()
    wide = torch.zeros(2, 3, 9).double()
    wide[:, :, 2:8] = dense
    expected = torch.autograd.grad(y, wanted(tensors), dense, retain_graph=True)
    for dout in (dense, dense, wide[:, :, 2:8], dense, wide[:, :, 2:8], wide[:, :, 2:8]) * 3:
        got = torch.autograd.grad(y, wanted(tensors), dout, retain_graph=True)
        for one, other in zip(got, expected, strict=True):
            assert torch.equal(one, other)


def test_the_latest_call_is_known_only_when_it_is_the_same():
    """Values are right whatever the order of presences, options, layouts and modes."""
    OP.forget()
    x, weight, offset, _ = operands()
    bounds = torch.tensor([0, 2, 6], dtype=torch.int32)
    calls = [
        (x, weight, None, None, "plus", False),
        (x, weight, offset, None, "plus", False),
        (x, weight, offset, None, "minus", False),
        (x[:1], weight, None, bounds, "plus", True),
        (x.transpose(0, 1).contiguous().transpose(0, 1), weight, None, None, "plus", False),
        (x.detach(), weight.detach(), None, None, "plus", False),
    ]
    sign = {"plus": 1, "minus": -1}
    for first in calls:
        for second in calls:
            for call in (first, first, second, first):
                y, totals = channels(*call)
                expected = sign[call[4]] * call[0] * weight[:, None]
                expected = expected if call[2] is None else expected + offset[:, None]
                assert torch.equal(y, expected)
                assert y.requires_grad == call[0].requires_grad
                assert (totals is None) == (not call[5])
    assert OP._latest.left == 0
    with torch.no_grad():
        assert channels(*calls[0])[0].grad_fn is None


def test_opcheck():
    for name in (OP.qualified, STORE.qualified):
        torch_op.register(name)
    ops = torch.ops.cudnn_core_toy
    for offset, bounds in ((True, False), (False, True)):
        opcheck(ops.channels.default, (*operands(offset, bounds), "plus", True))
    opcheck(ops.store.default, (torch.randn(2, 3), torch.randn(2, 3), "plus"))


def test_schemas():
    assert torch_op.schema(OP).endswith("Tensor? bounds, str sign, bool totals) -> Tensor[]")
    assert torch_op.schema(STORE) == '(Tensor x, Tensor(a!) store, str sign="plus") -> (Tensor)'


# --- in place --------------------------------------------------------------------------------------------------------


def test_what_is_written_has_a_new_version():
    store = torch.zeros(2, 3)
    STORE.run((torch.ones(2, 3), store), ())
    assert store._version == 1 and (store == 1).all()


def test_compiled_in_place():
    compiled = torch.compile(
        lambda x, s: STORE.run((x, s), ())[0], fullgraph=True, backend="aot_eager"
    )
    store = torch.zeros(2, 3)
    for step in range(3):
        assert (compiled(torch.ones(2, 3), store) == step).all()
    assert (store == 3).all()


def test_inference_only():
    x = torch.ones(2, 3, requires_grad=True)
    for function in (STORE.run, torch.compile(STORE.run, backend="eager")):
        with pytest.raises(RuntimeError, match="store is inference-only"):
            function((x, torch.zeros(2, 3)), ())
        with torch.no_grad():
            function((x, torch.zeros(2, 3)), ())
    assert STORE.run((x, torch.zeros(2, 3)), (), ignore_gradient=True)[0].grad_fn is None


def test_meta_tensors():
    x = torch.empty(2, 3, device="meta")
    assert STORE.run((x, x.clone()), ())[0].is_meta
    assert channels(x[..., None], x[0])[0].shape == (2, 3, 1)


def test_the_backward_may_be_registered_first():
    """In a process of its own: an op is registered once."""
    code = """
import torch
from cudnn_core.doors import torch_op
from cudnn_core.testing.channels import BACKWARD, OP
torch_op.register(BACKWARD.qualified)
torch_op.register(OP.qualified)
name = BACKWARD.qualified
assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "Autograd")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
