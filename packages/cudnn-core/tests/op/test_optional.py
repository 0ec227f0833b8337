"""Optional operands through the wrapper and the class: absent ones are None to callers and unknown to executables."""

import numpy as np
import pytest

from cudnn_core.adapters import adapter_of
from cudnn_core.contract import ScalarTensor
from cudnn_core.engine import Workspace
from cudnn_core.op import REGISTRY, Op
from cudnn_core.prepared import fill_empty, launcher, without_absent
from cudnn_core.testing import toy
from cudnn_core.tuple_dict import TupleDict

KEYS = ["y_tensor", "sum_tensor", "top_tensor"]
PLUS_16, MINUS = ("n", "float16"), ("n", "float32", "minus")


class WatchingEngine(toy.CountingEngine):
    """Counts the arrays that each executable is called with; takes a workspace on demand."""

    def __init__(self, scratch=()):
        super().__init__(toy.optional_reference)
        self.counts, self.scratch = [], scratch

    def workspaces(self, problem):
        return self.scratch

    def compile(self, plan):
        run = super().compile(plan)

        def watched(*arguments):
            if any(a is None for a in arguments):
                raise TypeError("as compiled kernels do")
            self.counts.append(len(arguments) - 1)
            run(*arguments[: len(arguments) - 1 - len(self.scratch)], arguments[-1])

        return watched


@pytest.fixture(autouse=True)
def registry_as_it_was():
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def new_op(*scratch):
    engine = WatchingEngine(scratch)
    op = Op(toy.OPTIONAL_CONTRACT, (engine,), "cudnn_core_toy", f"optional_{id(engine)}")
    return op, engine


def operands(m=5, n=4, k=3, l=1):
    rng = np.random.default_rng(0)
    shapes = (m, k, l), (m, n, l), (n, k, l)
    return [rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes]


def to_torch(x):
    return pytest.importorskip("torch").from_numpy(x)


CONVERT = pytest.mark.parametrize("convert", [np.asarray, to_torch], ids=["numpy", "torch"])


def check(result, x, bias, w, sign=1, top=True):
    assert isinstance(result, TupleDict) and list(result.keys()) == KEYS and len([*result]) == 3
    y, sums, largest = result
    want = sign * np.einsum("mkl,nkl->mnl", x, w)
    np.testing.assert_array_equal(np.asarray(y), want if bias is None else want + bias)
    assert (sums is None) == (bias is None) and (largest is None) == (not top)
    if bias is not None:
        np.testing.assert_array_equal(np.asarray(sums), want)
    if top:
        assert largest.item() == np.abs(want).max(initial=0)


@CONVERT
def test_a_wrapper_call_has_the_outputs_that_apply(convert):
    op, engine = new_op()
    x, bias, w = operands()
    calls = [(bias, (), 6), (None, (), 4), (None, PLUS_16, 3), (bias, PLUS_16, 5), (bias, MINUS, 5)]
    for _ in range(2):
        engine.counts.clear()
        for b, attributes, count in calls:
            inputs = (convert(x), None if b is None else convert(b), convert(w))
            result = op(inputs, attributes)
            check(result, x, b, w, -1 if attributes == MINUS else 1, top=not attributes)
            assert engine.counts.pop() == count
    # Each was prepared once: absent operands do not keep a call from being remembered.
    assert engine.asked == len(calls) == len(op._prepared) and len(engine.plans) == len(calls)


@CONVERT
def test_scratch_memory_stands_behind_the_present_outputs(convert):
    op, engine = new_op(Workspace(48, zeroed=True))
    x, _, w = operands()
    check(op((convert(x), None, convert(w)), ()), x, None, w)
    assert engine.counts == [5]


def test_absent_operands_on_an_explicit_stream_and_with_no_elements():
    op, _ = new_op()
    for m in (5, 0):
        x, bias, w = operands(m)
        check(op((x, None, w), (), 0), x, None, w)
        check(op((x, bias, w), PLUS_16, 0), x, bias, w, top=False)


def test_optional_and_required_operands_are_checked_alike():
    op, _ = new_op()
    x, bias, w = operands()
    with pytest.raises(ValueError, match="bias_tensor: expected M = 5"):
        op((x, bias[:4], w), ())
    with pytest.raises(ValueError, match="w_tensor: expected a tensor, got None"):
        op((x, bias, None), ())
    with pytest.raises(ValueError, match="x_tensor: expected a tensor, got None"):
        op((None, bias, w), ())
    with pytest.raises(TypeError, match="bias_tensor: expected a tensor, got 3"):
        op((x, 3, w), ())
    assert not op._prepared


def test_launching_is_the_plain_way_when_nothing_is_absent():
    """Calls without absent operands pay for none: their launch is the adapter's own."""
    op, engine = new_op()
    x, bias, w = operands()
    for inputs, wrapped in (((x, bias, w), False), ((x, None, w), True)):
        adapter, problem = op.bind(inputs, ())
        bare = launcher(op, adapter, problem, engine, engine.compile(engine.plan(problem)))
        launch = without_absent(op, problem, bare)
        assert (launch is bare) is not wrapped
        assert (launch.__name__ == "launch_present") is wrapped


def test_empty_outputs_that_are_present_are_filled():
    op, _ = new_op()
    x, _, w = operands(k=0)
    _, problem = op.bind((x, None, w), ())
    y, top = np.full((5, 4, 1), np.nan, np.float32), np.full((1, 1, 1), -3, np.float32)
    fill_empty(op, adapter_of(x), problem, (x, w, y, top))
    assert not y.any() and top == 0


# --- the class door --------------------------------------------------------------------------------------------------


def class_operands(bias=True, top=True):
    x, b, w = operands()
    y = np.full((5, 4, 1), np.nan, np.float32)
    given = (x, b, w, y, y.copy(), np.zeros((1, 1, 1), np.float32))
    present = (True, bias, True, True, bias, top)
    return [a if there else None for a, there in zip(given, present, strict=True)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sign", ["plus", "minus"])
def test_class(bias, sign):
    tensors = class_operands(bias, sign == "plus")
    toy.ToyOptional(*tensors, sign=sign)(*tensors)
    x, b, w, *outputs = tensors
    named = TupleDict(zip(KEYS, outputs, strict=True))
    check(named, x, b, w, 1 if sign == "plus" else -1, top=sign == "plus")


def test_class_wants_the_samples_that_apply():
    tensors = class_operands()
    for index, name in ((2, "sample_w"), (4, "sample_sum"), (5, "sample_top")):
        with pytest.raises(ValueError, match=f"{name}: expected a tensor, got None"):
            toy.ToyOptional(*tensors[:index], None, *tensors[index + 1 :]).check_support()
    tensors[1] = None
    with pytest.raises(ValueError, match="sample_sum: expected None, as it does not apply .*got a"):
        toy.ToyOptional(*tensors).check_support()
    with pytest.raises(ValueError, match="sample_top: expected None, as it does not apply .*got a"):
        toy.ToyOptional(*class_operands(), sign="minus").check_support()


@pytest.mark.parametrize(
    "convert, platform", [(np.asarray, "cpu"), (to_torch, "cpu"), (np.asarray, "other")]
)
def test_class_wants_an_operand_exactly_when_its_sample_was_there(convert, platform):
    """Also where execute leaves the checks to the executable, as on GPUs."""
    full = [convert(a) for a in class_operands()]
    bare = [None if a is None else convert(a) for a in class_operands(False)]
    engine = WatchingEngine()
    engine.platform = platform

    class Watched(toy.ToyOptional):
        op = Op(toy.OPTIONAL_CONTRACT, (engine,), "cudnn_core_toy", f"class_{id(engine)}")

    with_bias, without = Watched(*full), Watched(*bare)
    for op in (with_bias, without):
        op.compile()
    for _ in range(2):  # before and after a right call
        for index, name in ((1, "bias_tensor"), (4, "sum_tensor"), (5, "top_tensor")):
            with pytest.raises(ValueError, match=f"{name}: expected a tensor, got None"):
                with_bias.execute(*full[:index], None, *full[index + 1 :])
            if bare[index] is None:
                with pytest.raises(
                    ValueError, match=rf"{name}: expected no tensor \(none was decl"
                ):
                    without.execute(*bare[:index], full[index], *bare[index + 1 :])
        with_bias.execute(*full)
        without.execute(*bare)


def test_an_optional_output_is_the_class_users_choice():
    """Without a condition, wrappers make it and a class may leave it out."""
    *others, top = toy.CONTRACT.operands
    assert isinstance(top, ScalarTensor)
    contract = toy.replace(
        toy.OPTIONAL_CONTRACT, operands=(*others, toy.replace(top, optional=True))
    )
    op = Op(contract, (WatchingEngine(),), "cudnn_core_toy", "chosen")

    class Chosen(toy.Toy):
        pass

    Chosen.op = op
    x, _, w = operands()
    y = np.zeros((5, 4, 1), np.float32)
    assert op((x, w), ())["top_tensor"] is not None
    Chosen(x, w, y, None)(x, w, y, None)
    np.testing.assert_array_equal(y, np.einsum("mkl,nkl->mnl", x, w))
