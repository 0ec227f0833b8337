"""The benchmark's cases: their checks accept PyTorch's convolution and refuse wrong ones."""

import pytest

torch = pytest.importorskip("torch")

import cudnn_causal_conv
from cudnn_causal_conv import _bench, _bench_work
from cudnn_core.bench.measure import WRONG, Bench
from cudnn_core.bench.protocol import Case, WrongResult
from cudnn_core.bench.timing import Effort

SHAPE, UPDATES = (2, 24, 40), (3, 24)
COPY = "copy of as many bytes"


def sequence(x, weight, bias, activation):
    """A stand-in for the operation, in FP32 with one rounding at the end."""
    assert activation == "silu"
    return _bench_work.by_torch(x.float(), weight.float(), bias.float()).to(x.dtype)


def update(x, state, weight, bias, activation):
    """A stand-in for the decode step."""
    assert activation == "silu"
    history = torch.cat((state, x[:, :, None]), dim=-1)
    state.copy_(history[:, :, 1:])
    sums = (history[:, :, -4:].float() * weight.float()).sum(-1) + bias.float()
    return torch.nn.functional.silu(sums).to(x.dtype)


@pytest.fixture
def operations(monkeypatch):
    """Put functions in the place of the public ones; by default right ones."""

    def put(full=sequence, step=update):
        monkeypatch.setitem(vars(cudnn_causal_conv), "causal_conv1d", full)
        monkeypatch.setitem(vars(cudnn_causal_conv), "causal_conv1d_update", step)

    put()
    return put


def trial(layout="rows", *, backward=False, host_bound=False):
    return _bench_work.sequence_trial(
        SHAPE, "cpu", layout, backward=backward, host_bound=host_bound
    )


def test_every_row_of_the_acceptance_has_a_case():
    found = {(c.op, c.case): (dict(c.targets), c.clock) for c in _bench.cases()}
    forward, backward = "causal-conv/conv1d", "causal-conv/conv1d_backward"
    last = " channel-last"
    for shape in ("8,4096,4096", "2,8192,16384"):
        assert found[forward, shape] == ({COPY: 0.93}, "device")
        assert found[backward, shape] == ({COPY: 0.90}, "device")
        assert found[forward, shape + last] == ({COPY: 0.90}, "device")
        assert found[backward, shape + last] == ({COPY: 0.85}, "device")
    for layout in ("", last):
        assert found[forward, "64,5120,128" + layout] == ({COPY: 0.80}, "device")
        assert found[backward, "64,5120,128" + layout] == ({COPY: 0.70}, "device")
        over = {"empty autograd.Function + 12 us": 1.0}, {"empty autograd.Function + 15 us": 1.0}
        assert found[forward, f"1,2048,2048{layout} call"] == (over[0], "host")
        assert found[backward, f"1,2048,2048{layout} call"] == (over[1], "host")
        assert found[backward, f"1,2048,2048{layout} own thread call"] == ({}, "host")
    step = "causal-conv/conv1d_update"
    assert found[step, "256,8192 graph"] == ({COPY: 0.80}, "device")
    assert found[step, "16,4096 call"] == ({"14 us": 1.0}, "host")
    assert len(found) == 20


def test_each_target_names_a_bound(operations, monkeypatch):
    monkeypatch.setattr(_bench_work, "replay", lambda call: call)
    shapes = {3: SHAPE, 2: UPDATES}
    for case in _bench.cases():
        op, shape, how = case.prepare.args
        made = _bench.prepare(op, shapes[len(shape)], how, "cpu")
        made.check()
        assert case.targets.keys() <= made.bounds.keys(), case.case


@pytest.mark.parametrize("layout", ["rows", "channel-last"])
@pytest.mark.parametrize("backward", [False, True])
def test_bytes_and_layouts(operations, layout, backward):
    made = trial(layout, backward=backward)
    made.check()
    assert made.nbytes == (3 if backward else 2) * 2 * 24 * 40 * 2
    inputs = _bench_work.make_inputs(SHAPE, "cpu", layout, grad=False)
    assert inputs.x.shape == SHAPE and inputs.x.stride(1 if layout == "channel-last" else 2) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, w, b, a: sequence(x, w.flip(1), b, a),
        lambda x, w, b, a: sequence(x, w, torch.zeros_like(b), a),
        lambda x, w, b, a: sequence(x.roll(1, -1), w, b, a),
        lambda x, w, b, a: torch.nn.functional.silu(sequence(x, w, b, a)),
        lambda x, w, b, a: sequence(x, w, b, a).to(torch.float8_e4m3fn).to(x.dtype),
        lambda x, w, b, a: sequence(x, w, b, a).index_fill(2, torch.tensor([39]), torch.nan),
    ],
    ids=["taps reversed", "no bias", "a token late", "silu twice", "rounded twice", "unwritten"],
)
def test_a_wrong_forward_is_refused(operations, wrong):
    operations(full=wrong)
    with pytest.raises(WrongResult, match="^y: "):
        trial().check()


class Spoilt(torch.autograd.Function):
    """The right output, with one gradient scaled by 1.1."""

    which = 0

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return sequence(x, weight, bias, "silu")

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            found = list(torch.autograd.grad(sequence(*leaves, "silu"), leaves, dy))
        found[Spoilt.which] = found[Spoilt.which] * 1.1
        return tuple(found)


@pytest.mark.parametrize(("which", "name"), list(enumerate(["dx", "dweight", "dbias"])))
def test_a_wrong_gradient_is_refused(operations, monkeypatch, which, name):
    monkeypatch.setattr(Spoilt, "which", which)
    operations(full=lambda x, w, b, a: Spoilt.apply(x, w, b))
    with pytest.raises(WrongResult, match=f"^{name}: "):
        trial(backward=True).check()


def stale(x, state, weight, bias, activation):
    return update(x, state.clone(), weight, bias, activation)


def one_slot_off(x, state, weight, bias, activation):
    y = update(x, state, weight, bias, activation)
    state[0, 0, 0] += 1
    return y


@pytest.mark.parametrize("wrong", [stale, one_slot_off])
def test_a_wrong_state_is_refused(operations, wrong):
    operations(step=wrong)
    with pytest.raises(WrongResult, match="conv_state"):
        _bench_work.update_trial(UPDATES, "cpu", graph=False).check()


def test_the_state_is_put_back_before_each_check(operations):
    made = _bench_work.update_trial(UPDATES, "cpu", graph=False)
    for _ in range(3):
        made.ours()
    made.check()


def test_the_bench_does_not_time_a_wrong_kernel(operations):
    operations(full=lambda x, w, b, a: torch.zeros_like(x))
    case = Case("causal-conv/conv1d", "2,24,40", "bf16->bf16", {}, lambda device: trial())
    # Without a clock: touching it would be an error of another kind.
    found = Bench(None, "cpu", dict, Effort(), {}).run(case)
    assert found.state == WRONG and found.note.startswith("y: ")


def test_the_empty_function_is_differentiable_and_does_nothing(operations):
    made = trial(backward=True, host_bound=True)
    dx, dweight, dbias = made.bounds[_bench.EMPTY]()()
    assert dx.shape == SHAPE and dweight.shape == (24, 4) and dbias.shape == (24,)
    assert trial(host_bound=True).bounds[_bench.EMPTY]()().shape == SHAPE
