"""The causal convolution on torch CPU tensors: autograd, torch.compile, registered ops, meta tensors, helpers."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from cudnn_causal_conv import causal_conv1d, causal_conv1d_backward, causal_conv1d_update, compat
from cudnn_causal_conv.conv1d import OP
from cudnn_causal_conv.testing import Case, make

DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
KINDS = {
    "plain": Case(),
    "channel-last": Case(layout="d", activation=None, bias=False),
    "padded": Case(layout="padded"),
    "states": Case(initial=True, final=True),
    "packed states": Case(lengths=(3, 1, 0, 9, 2), initial=True, final=True),
    "ids": Case(ids=True),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Each test's graphs are its own: together they pass the limit of recompiles."""
    torch._dynamo.reset()


def tensor(x):
    """A torch tensor over a NumPy array: same memory, same strides."""
    if x is None:
        return None
    return (
        torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16)
        if x.dtype == "bfloat16"
        else torch.from_numpy(x)
    )


def torched(data, grad=False):
    """The data as tensors; those that have a gradient want it."""
    names = (
        "x",
        "weight",
        "bias",
        "seq_idx",
        "cu_seqlens",
        "initial_states",
        "dout",
        "dfinal_states",
    )
    made = replace(data, **{name: tensor(getattr(data, name)) for name in names})
    for x in made.differentiable().values():
        x.requires_grad_(grad)
    return made


def call(data, function=causal_conv1d):
    """The outputs as a tuple."""
    final = data.dfinal_states is not None
    made = function(*data.positional(), **data.keywords(), return_final_states=final)
    return made if final else (made,)


def gradients(data, outputs, **options):
    given = [data.dout, data.dfinal_states][: len(outputs)]
    return torch.autograd.grad(outputs, list(data.differentiable().values()), given, **options)


def assert_equal(first, second):
    for a, b in zip(first, second, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a, b)


# --- eager -----------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_as_numpy(kind, dtype):
    data = make(replace(KINDS[kind], x=dtype))
    mine = torched(data)
    for got, expected in zip(call(mine), call(data), strict=True):
        assert got.dtype is DTYPES[dtype] and torch.equal(got, tensor(expected))
        assert got.stride() == tensor(expected).stride()


@kinds
def test_gradients_are_those_of_the_backward(kind):
    data = torched(make(KINDS[kind]), grad=True)
    got = gradients(data, call(data))
    plain = torched(make(KINDS[kind]))
    made = causal_conv1d_backward(
        plain.dout, *plain.positional(), **plain.keywords(), dfinal_states=plain.dfinal_states
    )
    assert_equal(got, [g for g in made if g is not None])


@kinds
def test_gradcheck(kind):
    data = torched(make(replace(KINDS[kind], x="float64", t=9)), grad=True)
    named = data.differentiable()

    def function(*tensors):
        return call(replace(data, **dict(zip(named, tensors, strict=True))))

    assert torch.autograd.gradcheck(function, tuple(named.values()))


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(
    "dtype, tolerance", [("float64", 1e-12), ("float32", 2e-6), ("bfloat16", 2e-2)]
)
def test_against_conv1d_of_torch(dtype, tolerance, activation):
    data = torched(make(replace(KINDS["plain"], x=dtype, activation=activation)), grad=True)
    z = F.conv1d(F.pad(data.x, (3, 0)), data.weight[:, None], data.bias, groups=5)
    y = F.silu(z) if activation else z
    for got, want in zip(
        (*call(data), *gradients(data, call(data))), (y, *gradients(data, (y,))), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_only_what_requires_grad_gets_one():
    for names in (("x",), ("weight",), ("bias", "initial_states")):
        data = torched(make(KINDS["states"]))
        wanted = [getattr(data, name).requires_grad_() for name in names]
        y, final = call(data)
        assert y.requires_grad
        got = torch.autograd.grad((y, final), wanted, (data.dout, data.dfinal_states))
        every = torched(make(KINDS["states"]), grad=True)
        named = dict(zip(every.differentiable(), gradients(every, call(every)), strict=True))
        assert_equal(got, [named[name] for name in names])


def test_no_gradient_is_recorded_unasked():
    data = torched(make(KINDS["plain"]), grad=True)
    with torch.no_grad():
        assert call(data)[0].grad_fn is None
    assert call(torched(make(KINDS["plain"])))[0].grad_fn is None
    with torch.inference_mode():
        assert call(torched(make(KINDS["plain"])))[0].is_inference()


@pytest.mark.parametrize("used", [0, 1])
def test_an_unused_output_has_no_gradient(used):
    data = torched(make(KINDS["states"]), grad=True)
    named = list(data.differentiable().values())
    weights = (data.dout, data.dfinal_states)
    got = torch.autograd.grad(call(data)[used], named, weights[used])
    zeros = [torch.zeros_like(weight) for weight in weights]
    zeros[used] = weights[used]
    expected = torch.autograd.grad(call(data), named, zeros)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_not_differentiable_twice():
    for function in (causal_conv1d, torch.compile(causal_conv1d, backend="eager")):
        data = torched(make(KINDS["plain"]), grad=True)
        (dx,) = torch.autograd.grad(function(*data.positional()).sum(), data.x, create_graph=True)
        assert dx.requires_grad
        with pytest.raises(RuntimeError, match="not differentiable twice"):
            dx.sum().backward()


def test_the_first_derivative_with_create_graph_is_right():
    data = torched(make(KINDS["states"]), grad=True)
    expected = gradients(data, call(data))
    assert_equal(gradients(data, call(data), create_graph=True), expected)


def test_forward_mode_is_refused():
    data = torched(make(KINDS["plain"]))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(data.x, torch.ones_like(data.x))
        with pytest.raises(NotImplementedError, match="jvp"):
            causal_conv1d(dual, data.weight)


def test_forward_mode_with_plain_operands_is_no_matter():
    with forward_ad.dual_level():
        assert causal_conv1d_update(torch.ones(2, 3), torch.zeros(2, 3, 3), torch.ones(3, 4)).any()


def test_transforms_are_refused():
    """A derivative that torch would leave out is an error, not zero."""
    data = torched(make(KINDS["plain"]))

    def function(x):
        return causal_conv1d(x, data.weight, data.bias, "silu").sum()

    with pytest.raises(
        NotImplementedError, match="causal_conv1d: expected gradients by torch.auto"
    ):
        torch.func.jvp(function, (data.x,), (data.x,))
    with pytest.raises(
        NotImplementedError, match="causal_conv1d: expected gradients by torch.auto"
    ):
        torch.func.grad(function)(data.x)
    with FakeTensorMode() as mode, forward_ad.dual_level():
        x = mode.from_tensor(data.x)
        with pytest.raises(NotImplementedError, match="got a tangent"):
            causal_conv1d(forward_ad.make_dual(x, x), mode.from_tensor(data.weight))


def test_negated_views():
    """Part of a conjugate is a view whose memory has the numbers with the other sign."""
    data = torched(make(Case(x="float32", bias=False)))
    OP.forget()
    for x in (data.x, torch._neg_view(data.x), data.x):
        y = causal_conv1d(x, data.weight, None, "silu")
        assert torch.equal(y, causal_conv1d(x.clone(), data.weight, None, "silu"))
    x = data.x.requires_grad_()
    for sign in (1, -1):
        y = causal_conv1d(x, data.weight, None, "silu")
        grad = data.dout if sign == 1 else torch._neg_view(data.dout)
        (dx,) = torch.autograd.grad(y, x, grad)
        assert torch.equal(
            dx, sign * causal_conv1d_backward(data.dout, x, data.weight, None, "silu")["dx"]
        )


def test_strided_and_expanded_gradients():
    data = torched(make(KINDS["plain"]), grad=True)
    expected = gradients(data, call(data))
    wide = torch.zeros(2, 17, 12)
    wide[:, :, 2:7] = data.dout.transpose(1, 2)
    split = wide[:, :, 2:7].transpose(1, 2)
    assert_equal(gradients(replace(data, dout=split), call(data)), expected)
    one = torch.tensor(0.5).expand(2, 5, 17)
    assert_equal(
        gradients(replace(data, dout=one), call(data)),
        gradients(replace(data, dout=one.contiguous()), call(data)),
    )


def test_gradients_reach_through_the_returned_buffer():
    data = torched(make(KINDS["states"]), grad=True)
    expected = gradients(data, call(data))
    out = torch.empty(2, 3, 5).transpose(1, 2)
    y, final = causal_conv1d(
        *data.positional(), **data.keywords(), return_final_states=True, final_states_out=out
    )
    assert final is out and out.grad_fn is not None and out.stride() == (15, 1, 5)
    assert_equal(gradients(data, (y, final)), expected)


def test_final_states_feed_decoding():
    data = torched(make(Case(x="bfloat16")))
    y, states = causal_conv1d(*data.positional(), return_final_states=True)
    assert states.stride() == (15, 1, 5) and states._base is None
    whole = causal_conv1d(torch.cat([data.x, data.x[:, :, :1]], dim=2), *data.positional()[1:])
    version = states._version
    token = causal_conv1d_update(data.x[:, :, 0], states, *data.positional()[1:])
    assert torch.equal(token, whole[:, :, -1]) and states._version == version + 1
    assert y.shape == data.x.shape


def test_checkpoint_unpacks_once():
    data = torched(make(KINDS["packed states"]), grad=True)
    expected = gradients(data, call(data))
    outputs = checkpoint(lambda: call(data), use_reentrant=False)
    assert_equal(gradients(data, outputs), expected)


def test_a_changed_operand_is_noticed():
    data = torched(make(KINDS["plain"]), grad=True)
    (y,) = call(data)
    with torch.no_grad():
        data.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_tensors_may_come_back_in_another_layout():
    """Offloading hooks do that; the gradients are the same."""
    data = torched(make(KINDS["padded"]), grad=True)
    expected = gradients(data, call(data))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous(), lambda x: x):
        outputs = call(data)
    for a, b in zip(gradients(data, outputs), expected, strict=True):
        assert torch.equal(a, b)


def test_nothing_is_kept_alive():
    data = torched(make(KINDS["plain"]), grad=True)
    (y,) = call(data)
    y.sum().backward()
    kept = [weakref.ref(x) for x in (data.x, data.weight, y)]
    del data, y
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3


def test_parameters_and_modules():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 4))

        def forward(self, x):
            return causal_conv1d(x, self.weight, None, "silu")

    layer, x = Layer(), torch.randn(2, 5, 9)
    layer(x).sum().backward()
    assert layer.weight.grad.shape == (5, 4)


# --- torch.compile and dispatch --------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_equals_eager(kind, backend):
    data = torched(make(replace(KINDS[kind], x="bfloat16")), grad=True)
    compiled = torch.compile(causal_conv1d, fullgraph=True, backend=backend)
    expected, got = call(data), call(data, compiled)
    assert_equal(got, expected)
    assert_equal(gradients(data, got), gradients(data, expected))


def test_used_twice_in_one_graph():
    data = torched(make(KINDS["states"]), grad=True)

    def block(x, weight, bias, states):
        y, states = causal_conv1d(
            x, weight, bias, "silu", initial_states=states, return_final_states=True
        )
        return causal_conv1d(y, weight, bias, initial_states=states)

    arguments = tuple(data.differentiable().values())
    expected = block(*arguments)
    got = torch.compile(block, fullgraph=True, backend="aot_eager")(*arguments)
    assert torch.equal(got, expected)
    assert_equal(
        torch.autograd.grad(got, arguments, data.dout),
        torch.autograd.grad(expected, arguments, data.dout),
    )


def test_dynamic_lengths_compile_few_graphs():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(causal_conv1d, fullgraph=True, dynamic=True, backend=counter)
    weight = torch.randn(5, 4, requires_grad=True)
    for t in (11, 64, 65, 7, 128, 1, 0):
        x = torch.randn(2, t, 5).transpose(1, 2)
        got, expected = compiled(x, weight, None, "silu"), causal_conv1d(x, weight, None, "silu")
        assert torch.equal(got, expected) and got.stride() == expected.stride()
    # One for most lengths; 1 and 0 are always their own.
    assert counter.frame_count <= 3


def test_compiled_update_writes_the_state():
    weight, tokens = torch.randn(5, 4), torch.randn(6, 3, 5)
    states = torch.randn(4, 5, 3), torch.zeros(4, 5, 3)
    states[1].copy_(states[0])
    slots = torch.tensor([2, -1, 0], dtype=torch.int32)

    def step(x, state):
        return causal_conv1d_update(x, state, weight, None, "silu", conv_state_indices=slots)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for x in tokens:
        assert torch.equal(compiled(x, states[0]), step(x, states[1]))
        assert torch.equal(*states)


def test_compiled_with_a_buffer_for_states():
    data = torched(make(KINDS["plain"]))
    out = torch.zeros(2, 5, 3)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x, weight, out):
        return causal_conv1d(x, weight, return_final_states=True, final_states_out=out)

    _, final = run(data.x, data.weight, out)
    assert final is out and torch.equal(out, data.x[:, :, -3:])


def operator(name):
    """The registered op; a meta call registers it."""
    causal_conv1d(torch.empty(1, 2, 3, device="meta"), torch.empty(2, 2, device="meta"))
    causal_conv1d_update(*(torch.empty(s, device="meta") for s in ((1, 2), (1, 2, 1), (2, 2))))
    return getattr(torch.ops.cudnn_causal_conv, name).default


@kinds
def test_opcheck_forward_and_backward(kind):
    data = torched(make(KINDS[kind]), grad=True)
    tensors = (data.x, data.weight, data.bias, *data.keywords().values())
    activation, final = data.case.activation or "identity", data.dfinal_states is not None
    opcheck(operator("causal_conv1d"), (*tensors, activation, final))
    plain = torched(make(KINDS[kind]))
    tensors = (plain.x, plain.weight, plain.bias, *plain.keywords().values())
    opcheck(
        operator("causal_conv1d_backward"),
        (*tensors, plain.dout, plain.dfinal_states, activation),
    )


@pytest.mark.parametrize("x", [(3, 5), (3, 5, 2)])
def test_opcheck_update(x):
    slots = torch.tensor([2, -1, 0], dtype=torch.int32)
    arguments = (torch.randn(x), torch.randn(4, 5, 3), torch.randn(5, 4), None, None, slots, "silu")
    opcheck(operator("causal_conv1d_update"), arguments)


def test_schemas():
    assert "Tensor(a!) conv_state" in str(operator("causal_conv1d_update")._schema)
    assert "!" not in str(operator("causal_conv1d")._schema)


@pytest.mark.parametrize("layout", ["t", "d", "padded", "any"])
def test_fake_and_real_strides_agree(layout):
    data = torched(make(Case(layout=layout, initial=True, final=True)))
    real = call(data)
    with FakeTensorMode() as mode:
        names = ("x", "weight", "bias", "initial_states")
        fake = call(replace(data, **{n: mode.from_tensor(getattr(data, n)) for n in names}))
    assert [x.stride() for x in fake] == [x.stride() for x in real]


def test_meta_tensors_keep_the_whole_contract():
    def meta(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, device="meta", dtype=dtype)

    x = meta(2, 7, 5).transpose(1, 2)
    y, final = causal_conv1d(x, meta(5, 4), return_final_states=True)
    assert y.stride() == x.stride() and y.is_meta and final.stride() == (15, 1, 5)
    with pytest.raises(ValueError, match="kernel_size must be between"):
        causal_conv1d(x, meta(5, 1))
    for activation in (None, "identity", "silu", "swish"):
        for length in (3, 4):
            out = causal_conv1d_update(
                meta(2, 8), meta(3, 8, length), meta(8, 4), meta(8), activation
            )
            assert out.shape == (2, 8) and out.is_contiguous()
    with pytest.raises(ValueError, match="state length L"):
        causal_conv1d_update(meta(2, 8), meta(3, 8, 2), meta(8, 4))
    with pytest.raises(ValueError, match="activation"):
        causal_conv1d_update(meta(2, 8), meta(3, 8, 3), meta(8, 4), None, "relu")
    with pytest.raises(TypeError, match="conv_state_indices: expected dtype"):
        causal_conv1d_update(
            meta(2, 8), meta(3, 8, 3), meta(8, 4), conv_state_indices=meta(2, dtype=torch.int64)
        )


# --- the update and refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(4))
def test_update_is_inference_only(index):
    tensors = [torch.randn(s) for s in ((3, 5), (3, 5, 3), (5, 4), (5,))]
    tensors[index].requires_grad_()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="inference-only"):
            causal_conv1d_update(*tensors)
        with torch.no_grad():
            causal_conv1d_update(*tensors)
    # The peer takes what requires grad, and no gradient flows.
    if index != 1:
        assert compat.causal_conv1d_update(*tensors).grad_fn is None


def test_update_marks_the_state_as_written():
    state, weight = torch.randn(3, 5, 3), torch.randn(5, 4, requires_grad=True)
    kept = (state * weight[None, :, :3]).sum()
    with torch.no_grad():
        causal_conv1d_update(torch.randn(3, 5), state, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_inference_tensors():
    with torch.inference_mode():
        state = torch.randn(3, 5, 3)
        assert causal_conv1d_update(torch.randn(3, 5), state, torch.randn(5, 4)).shape == (3, 5)


def test_mixed_frameworks_and_devices():
    x, weight = torch.randn(2, 5, 7), torch.randn(5, 4)
    with pytest.raises(
        ValueError, match="weight: expected a torch array, as x is, got a numpy array"
    ):
        causal_conv1d(x, weight.numpy())
    with pytest.raises(ValueError, match="weight: expected it on cpu, as x is, got meta"):
        causal_conv1d(x, weight.to("meta"))
    with pytest.raises(TypeError, match="final_states_out: expected a torch array"):
        causal_conv1d(x, weight, return_final_states=True, final_states_out=np.zeros((2, 5, 3)))


@pytest.mark.parametrize("kind", ["padded", "states", "packed states", "ids"])
def test_frameworks_take_turns(kind):
    """A call remembered for one framework, without an operand, says nothing of another's with it."""
    data = make(replace(KINDS[kind], bias=True))
    mine = torched(data)
    for _ in range(2):
        plain = causal_conv1d(mine.x, mine.weight, None, "silu")
        mixed = causal_conv1d(*data.positional(), **data.keywords())
        again = causal_conv1d(mine.x, mine.weight, None, "silu")
        given = causal_conv1d(*mine.positional(), **mine.keywords())
        assert torch.equal(plain, again)
        np.testing.assert_array_equal(given.numpy(), mixed)


def test_varlen_states_take_any_integers():
    x = torch.randn(59, 6, dtype=torch.bfloat16)
    ends = [0, 3, 3, 34, 35, 39, 59]
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint64):
        states = compat.causal_conv1d_varlen_states(x, torch.tensor(ends, dtype=dtype), 4)
        assert states.stride() == (24, 1, 6) and states.dtype is x.dtype
        assert torch.equal(states[2], x[30:34].T) and not states[1].any()


def test_layouts_without_strides():
    x, weight = torch.randn(2, 5, 7), torch.randn(5, 4)
    with pytest.raises(ValueError, match="weight: expected a strided tensor, got torch.sparse_csr"):
        causal_conv1d(x, weight.to_sparse_csr())
    with pytest.raises(ValueError, match="x: expected a strided tensor, got a nested one"):
        causal_conv1d(torch.nested.nested_tensor(list(x)), weight)


@pytest.mark.parametrize("activation", [np.array(["silu"] * 2), np.array("silu"), ["silu"]])
def test_an_option_is_looked_at_after_a_like_call(activation):
    x, weight = torch.randn(2, 5, 7), torch.randn(5, 4)
    OP.forget()
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="activation: expected None, 'identity'"):
            causal_conv1d(x, weight, None, activation)
        y = causal_conv1d(x, weight, None, "silu")
        assert torch.equal(causal_conv1d(x, weight, None, np.str_("silu")), y)


@pytest.mark.parametrize(
    "out, error, message",
    [
        (torch.zeros(2, 5, 3, dtype=torch.float16), TypeError, "expected dtype torch.float32"),
        (torch.zeros(2, 5, 3, device="meta"), ValueError, "expected it on cpu, as x is, got meta"),
        (torch.zeros(2, 5, 4), ValueError, r"expected shape \(R, D, W-1\)"),
        (np.zeros((2, 5, 3), np.float32), TypeError, "expected a torch array, as x is"),
    ],
)
def test_fake_tensors_with_a_wrong_buffer_for_states(out, error, message):
    with FakeTensorMode() as mode:
        x, weight = mode.from_tensor(torch.randn(2, 5, 7)), mode.from_tensor(torch.randn(5, 4))
        out = mode.from_tensor(out) if isinstance(out, torch.Tensor) else out
        with pytest.raises(error, match=f"final_states_out: {message}"):
            causal_conv1d(x, weight, return_final_states=True, final_states_out=out)


def test_peers_update_records_no_gradient_when_compiled():
    compiled = torch.compile(compat.causal_conv1d_update, backend="aot_eager", fullgraph=True)
    x, state, weight = torch.randn(2, 5), torch.randn(2, 5, 3), torch.randn(5, 4)
    y = compiled(x, state.clone(), torch.nn.Parameter(weight))
    assert not y.requires_grad
    assert torch.equal(y, compat.causal_conv1d_update(x, state, weight))
