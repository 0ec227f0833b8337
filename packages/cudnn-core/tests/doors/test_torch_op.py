"""The torch door on a toy operation: schema, registration, compiled calls, opcheck, what it refuses."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from cudnn_core.doors import torch_op
from cudnn_core.testing.toy import OP, OPTIONAL_OP, Toy, toy


def operands(m=5, n=4, k=3, batches=2, seed=0):
    rng = np.random.default_rng(seed)
    make = lambda rows: torch.from_numpy(rng.integers(-4, 5, (batches, rows, k)).astype(np.float32))  # noqa: E731
    return make(m).permute(1, 2, 0), make(n).permute(1, 2, 0)


def expected(x, w):
    return torch.einsum("mkl,nkl->mnl", x, w)


def registered():
    torch_op.register(OP.qualified)
    return torch.ops.cudnn_core_toy.toy.default


@pytest.fixture
def counter():
    torch._dynamo.reset()
    return CompileCounterWithBackend("aot_eager")


def test_the_schema_is_the_contract():
    text = torch_op.schema(OP)
    assert text == (
        '(Tensor x_tensor, Tensor w_tensor, str y_major="n", str y_dtype="float32", str sign="plus", int width=32, '
        'str batch="last", str amax="global") -> (Tensor, Tensor)'
    )
    assert str(registered()._schema).startswith("cudnn_core_toy::toy(Tensor x_tensor")


@pytest.mark.parametrize(
    "default, text",
    [
        (1.5, ("float", "1.5")),
        (True, ("bool", "True")),
        (None, ("int[]?", "None")),
        (3, ("int", "3")),
    ],
)
def test_types_of_the_schema(default, text):
    assert torch_op._schema_type(default) == text
    with pytest.raises(TypeError, match="no torch schema type"):
        torch_op._schema_type(object())


def test_registration_happens_once():
    assert registered() is registered()


def test_the_op_computes_what_the_wrapper_does():
    x, w = operands()
    y, top = registered()(x, w, "m", "float16", "minus")
    eager = toy(x, w, "m", "float16", "minus")
    assert y.stride() == eager[0].stride() and y.dtype is torch.float16
    torch.testing.assert_close(y, eager[0], rtol=0, atol=0)
    assert top.item() == eager[1].item() == expected(x, w).abs().max()


@pytest.mark.parametrize("m", [1, 5])
def test_opcheck(m):
    x, w = operands(m)
    torch.library.opcheck(registered(), (x, w), {"y_dtype": "bfloat16", "y_major": "m"})


def test_compiled_calls_with_dynamic_sizes(counter):
    def call(x, w):
        result = toy(x, w, "n", "float32", "minus")
        y, top = result
        return y + 1, top, result["y_tensor"] is y

    make = torch.compile(call, fullgraph=True, backend=counter, dynamic=True)
    for m in (5, 7, 2, 1, 0, 9):
        x, w = operands(m)
        y, top, same = make(x, w)
        assert same is True
        torch.testing.assert_close(y, 1 - expected(x, w), rtol=0, atol=0)
        assert top.item() == (expected(x, w).abs().max().item() if m else 0.0)
    assert counter.frame_count <= 3  # 0 and 1 are special to torch


@pytest.mark.parametrize("spelling", ["float16", torch.float16, np.float16])
def test_compiled_calls_take_dtypes_in_every_spelling(counter, spelling):
    x, w = operands()
    make = torch.compile(lambda x, w: toy(x, w, "n", spelling)[0], backend=counter)
    assert make(x, w).dtype is torch.float16


def test_an_explicit_stream_is_for_plain_eager_calls(counter):
    x, w = operands()
    make = torch.compile(lambda x, w: toy(x, w, stream=0)[0], fullgraph=True, backend=counter)
    with pytest.raises(Exception, match="stream: expected None inside torch.compile"):
        make(x, w)


def test_the_fake_kernel_is_the_contract(counter):
    x, w = operands()
    make = torch.compile(lambda x, w: toy(x, w)[0], fullgraph=True, backend=counter)
    with pytest.raises(Exception, match=r"w_tensor: expected K = 3 \(from x_tensor\), got K = 2"):
        make(x, w[:, :2].contiguous())


@pytest.mark.parametrize("op", [OP, OPTIONAL_OP], ids=lambda op: op.short_name)
def test_no_gradient_is_invented(op, counter):
    """Results are constants however the op is called: none seems to have a gradient that backward leaves out."""
    x, w = operands()
    x = x.clone().requires_grad_()
    given = (x, w) if op is OP else (x, None, w)
    torch_op.register(op.qualified)
    for function in (
        lambda *tensors: op(tensors, ()),
        torch.compile(lambda *tensors: tuple(op(tensors, ())), fullgraph=True, backend=counter),
        getattr(torch.ops.cudnn_core_toy, op.short_name),
    ):
        made = [y for y in function(*given) if y is not None]
        assert torch.equal(made[0], expected(x, w)) and not any(y.requires_grad for y in made)


@pytest.mark.parametrize(
    "take",
    [
        lambda f, x: torch.func.grad(f)(x),
        lambda f, x: torch.func.vjp(f, x)[1](torch.tensor(1.0)),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.jacfwd(f)(x),
        lambda f, x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, x])),
    ],
    ids=["grad", "vjp", "jvp", "jacfwd", "vmap of grad"],
)
def test_transforms_that_ask_for_a_derivative_are_refused(take):
    x, w = operands()
    with pytest.raises(NotImplementedError, match="toy: expected no derivative to be taken"):
        take(lambda x: toy(x, w)[0].sum(), x)


def test_tangents_are_refused():
    x, w = operands()
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match="toy: expected no derivative .*a tangent"):
            toy(forward_ad.make_dual(x, x), w)
        assert torch.equal(toy(x, w)[0], expected(x, w))


@pytest.mark.parametrize(
    "other", [3, "w", [1.0], object(), np.float32(1)], ids=lambda x: type(x).__name__
)
def test_what_is_no_tensor_is_told_in_one_way(other):
    x, _ = operands()
    with pytest.raises(TypeError, match="toy: w_tensor: expected a tensor, got") as plain:
        toy(x, other)
    with FakeTensorMode() as mode, pytest.raises(TypeError) as fake:
        toy(mode.from_tensor(x), other)
    assert str(fake.value) == str(plain.value)


def test_the_compiler_tells_what_is_no_tensor(counter):
    x, _ = operands()
    make = torch.compile(lambda x: toy(x, 3)[0], fullgraph=True, backend=counter)
    with pytest.raises(Exception, match=r"toy: w_tensor: expected a tensor, got 3 \(int\)"):
        make(x)


@pytest.mark.parametrize("way", ["compiled", "vmap", "fake", "meta"])
def test_a_class_wants_memory_to_write_into(way):
    torch._dynamo.reset()
    tensors = [*operands(), torch.zeros(2, 5, 4).permute(1, 2, 0), torch.zeros(1)]
    op = Toy(*tensors)
    op(*tensors)
    with pytest.raises(Exception, match="Toy.execute: expected tensors with memory to write into"):
        if way == "compiled":
            torch.compile(op.execute, backend="eager")(*tensors)
        elif way == "vmap":
            torch.func.vmap(lambda x: op.execute(x, *tensors[1:]))(torch.stack(tensors[:1]))
        elif way == "meta":
            op.execute(*(x.to("meta") for x in tensors))
        else:
            with FakeTensorMode() as mode:
                op.execute(*map(mode.from_tensor, tensors))


def test_a_class_works_under_dispatch_modes_and_with_subclasses():
    class Sub(torch.Tensor):
        pass

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    x, w = operands()
    y, top = torch.zeros(2, 5, 4).permute(1, 2, 0), torch.zeros(1)
    op = Toy(x, w, y, top)
    op.compile()
    with Mode():
        op.execute(x.as_subclass(Sub), w, y, top)
    assert torch.equal(y, expected(x, w))


def test_fake_kernel_refuses_mixed_devices():
    with FakeTensorMode():
        x, w = torch.empty(4, 8, 1), torch.empty(4, 8, 1, device="cuda")
        with pytest.raises(ValueError, match="w_tensor: expected it on cpu, as x_tensor is"):
            toy(x, w)


# --- optional operands -----------------------------------------------------------------------------------------------

# (whether there is a bias, attributes, which of y, sum and top exist)
PRESENCE = [
    (True, (), (True, True, True)),
    (False, (), (True, False, True)),
    (True, ("m", "float16"), (True, True, False)),
    (False, ("n", "float32", "minus"), (True, False, False)),
]


def optional_operands(bias, m=5, n=4):
    x, w = operands(m, n)
    return x, (torch.ones(x.shape[2], m, n).permute(1, 2, 0) if bias else None), w


def test_the_schema_of_optional_operands():
    text = torch_op.schema(OPTIONAL_OP)
    assert text.startswith("(Tensor x_tensor, Tensor? bias_tensor, Tensor w_tensor, str y_major=")
    assert text.endswith(" -> Tensor[]")


@pytest.mark.parametrize("bias, attributes, exist", PRESENCE)
def test_the_op_returns_the_tensors_that_exist(bias, attributes, exist):
    torch_op.register(OPTIONAL_OP.qualified)
    target = torch.ops.cudnn_core_toy.toy_optional.default
    inputs = optional_operands(bias)
    made = target(*inputs, *attributes)
    eager = [y for y in OPTIONAL_OP(inputs, attributes) if y is not None]
    assert len(made) == len(eager) == sum(exist)
    for got, want in zip(made, eager, strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    torch.library.opcheck(target, (*inputs, *attributes))


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("bias, attributes, exist", PRESENCE)
def test_compiled_calls_give_none_for_what_does_not_exist(
    counter, bias, attributes, exist, dynamic
):
    def call(x, bias, w):
        result = OPTIONAL_OP((x, bias, w), attributes)
        y, sums, top = result
        return [y, sums, top], result["sum_tensor"] is None, list(result.keys())

    make = torch.compile(call, fullgraph=True, backend=counter, dynamic=dynamic)
    for m in (5, 7):
        inputs = optional_operands(bias, m)
        outputs, no_sum, keys = make(*inputs)
        assert keys == ["y_tensor", "sum_tensor", "top_tensor"] and no_sum is not exist[1]
        assert tuple(y is not None for y in outputs) == exist
        for got, want in zip(outputs, OPTIONAL_OP(inputs, attributes), strict=True):
            if want is not None:
                torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_compiled_calls_with_and_without_an_optional_operand(counter):
    """One function that meets both: a graph each."""
    make = torch.compile(lambda *a: OPTIONAL_OP(a, ())[1], fullgraph=True, backend=counter)
    for bias in (True, False, True):
        assert (make(*optional_operands(bias)) is not None) is bias
    assert counter.frame_count == 2
