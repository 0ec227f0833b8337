"""Op: engines chosen, calls remembered within bounds, plans shared, threads, the class door."""

import gc
import sys
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

from cudnn_core.engine import Engine, HopperEngine, ReferenceEngine, select
from cudnn_core.op import REGISTRY, REMEMBERED_CALLS, Op
from cudnn_core.plan import Plan
from cudnn_core.prepared import Prepared
from cudnn_core.tensor_desc import Device, TensorDesc
from cudnn_core.testing.toy import CONTRACT, ENGINE, OP, CountingEngine, Toy, reference, toy
from cudnn_core.tuple_dict import TupleDict


def operands(m=5, n=4, k=3, l=2, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, (rows, k, l)).astype(np.float32) for rows in (m, n)]


def expected(x, w):
    return np.einsum("mkl,nkl->mnl", x, w)


def small_op(function=reference):
    """An Op of its own: nothing remembered yet."""
    engine = CountingEngine(function)
    return Op(CONTRACT, (engine,), "cudnn_core_toy", f"toy_{id(engine)}"), engine


@pytest.fixture(autouse=True)
def registry_as_it_was():
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


# --- results ---------------------------------------------------------------------------------------------------------


def test_a_call_gives_its_outputs_by_name_and_place():
    x, w = (np.ascontiguousarray(a.transpose(2, 0, 1)).transpose(1, 2, 0) for a in operands())
    result = toy(x, w)
    assert isinstance(result, TupleDict) and list(result.keys()) == ["y_tensor", "top_tensor"]
    np.testing.assert_array_equal(result["y_tensor"], expected(x, w))
    assert result[1].item() == np.abs(expected(x, w)).max()


def test_attributes_select_what_is_computed():
    x, w = operands(l=1)
    y, _ = toy(x, w, "m", "float16", "minus")
    assert y.dtype == np.float16 and y.strides[0] == 2
    np.testing.assert_array_equal(y, -expected(x, w))


# --- engines ---------------------------------------------------------------------------------------------------------


class Declines(Engine):
    """Fits the device, runs nothing."""

    name, platform = "picky", "cpu"

    def why_not(self, problem):
        return "M is not prime"

    def why_not_device(self, device):
        return None if device.type == "cpu" else "it is picky about devices too"

    def plan(self, problem):
        raise AssertionError("asked for a plan after declining")

    compile = plan


def problem(device="cpu"):
    descs = [TensorDesc.of("float32", shape, device=device) for shape in ((5, 3, 1), (4, 3, 1))]
    return CONTRACT.bind(descs, {})


def test_extents_beyond_32_bits_are_declined():
    """CUDA kernels count coordinates in 32 bits."""
    engine = HopperEngine(lambda problem: None, lambda plan: None)
    shapes = {2**31 - 1: None, 2**31: "M = 2147483648 is more than 2147483647"}
    for rows, reason in shapes.items():
        descs = [TensorDesc.of("float32", shape) for shape in ((rows, 3, 1), (4, 3, 1))]
        said = engine.why_not(CONTRACT.bind(descs, {}))
        assert said is None if reason is None else reason in said


def test_the_first_engine_that_can_runs_it():
    last = ReferenceEngine(reference)
    assert select((Declines(), last), problem()) is last
    first = ReferenceEngine(reference)
    assert select((first, last), problem()) is first


def test_a_declined_problem_and_an_unserved_device_are_told_apart():
    with pytest.raises(
        NotImplementedError, match=r"core/toy: no engine runs this on cpu \(picky: M is not prime\)"
    ):
        select((Declines(),), problem())
    text = r"core/toy: no engine runs this on cuda:3 \(picky: it is picky about devices too; reference: it runs on host"
    with pytest.raises(RuntimeError, match=text):
        select((Declines(), ReferenceEngine(reference)), problem("cuda:3"))


def test_the_reference_plan_is_the_signature():
    plan = ENGINE.plan(problem())
    assert plan == Plan("core/toy", "reference", "", problem().signature)


# --- remembered calls ------------------------------------------------------------------------------------------------


def test_a_second_call_is_not_prepared_again():
    op, engine = small_op()
    x, w = operands(l=1)
    for _ in range(3):
        op((x, w), ())
    assert engine.asked == 1
    op((x, w), ("m",))
    op((x[:, :, :], w), ())
    assert engine.asked == 2
    op.forget()
    op((x, w), ())
    assert engine.asked == 3


def test_twenty_thousand_sizes_need_bounded_memory():
    """No call keeps more than its share of a bounded table; the newest calls are the ones remembered."""

    def nothing(signature, x, w, y, top):
        top[...] = x.shape[0]

    op, engine = small_op(nothing)
    big, w = np.zeros((20_000, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    for m in range(1, 20_001):
        assert op((big[:m], w), ())["top_tensor"] == m
    assert len(op._prepared) == REMEMBERED_CALLS <= 10_000
    gc.collect()
    kept = [x for x in gc.get_objects() if type(x) is Prepared and x.names is op.output_names]
    assert len(kept) == REMEMBERED_CALLS
    # Only its owner's names and this list refer to the data: no call kept its view.
    assert sys.getrefcount(big) == 2
    assert engine.asked == 20_000
    for m in (20_000, 20_001 - REMEMBERED_CALLS):
        op((big[:m], w), ())
    assert engine.asked == 20_000
    op((big[:1], w), ())
    assert engine.asked == 20_001


def test_two_hundred_sizes_are_one_plan():
    op, engine = small_op()
    w = np.ones((4, 3, 1), np.float32)
    for m in range(2, 202):
        op((np.ones((m, 3, 1), np.float32), w), ())
    assert engine.asked == 200 and len(engine.plans) == 1


def test_no_tensor_is_kept_alive():
    op, _ = small_op()
    x, w = operands(l=1)
    result = op((x, w), ())
    watched = [weakref.ref(a) for a in (x, w, *result)]
    del x, w, result
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4
    assert len(op._prepared) == 1


PROPERTIES = {
    "dtype of x": lambda x, w: ((x.astype(np.float16), w), ()),
    "dtype of y": lambda x, w: ((x, w), ("n", "float16")),
    "major of y": lambda x, w: ((x, w), ("m",)),
    "major of x": lambda x, w: ((np.asfortranarray(x), w), ()),
    "attribute": lambda x, w: ((x, w), ("n", "float32", "minus")),
}


@pytest.mark.parametrize("change", PROPERTIES)
def test_configurations_do_not_meet_in_either_order(change):
    """X then Y and Y then X: each as in a process of its own."""
    x, w = operands(l=1)
    first, second = ((x, w), ()), PROPERTIES[change](x, w)
    fresh = [small_op()[0](*call) for call in (first, second)]
    for order in ((0, 1), (1, 0)):
        op, engine = small_op()
        for index in order:
            y, top = op(*(first, second)[index])
            assert y.dtype == fresh[index][0].dtype and y.strides == fresh[index][0].strides
            np.testing.assert_array_equal(y, fresh[index][0])
            assert top == fresh[index][1]
        assert len(engine.plans) == 2


def test_a_refused_call_is_not_remembered():
    op, engine = small_op()
    x, w = operands(l=1)
    for _ in range(2):
        with pytest.raises(ValueError, match="width: expected one of 16, 32, got 8"):
            op((x, w), ("n", "float32", "plus", 8))
        with pytest.raises(ValueError, match="sign: expected 'plus' for float16 inputs"):
            op((x.astype(np.float16), w.astype(np.float16)), ("n", "float32", "minus"))
    assert not op._prepared and not engine.plans


def test_missing_and_wrong_operands_are_named():
    x, w = operands(l=1)
    with pytest.raises(TypeError, match="w_tensor: expected a tensor, got 3"):
        toy(x, 3)
    with pytest.raises(TypeError, match="x_tensor: expected a tensor, got 3"):
        toy(3, w)
    with pytest.raises(ValueError, match="w_tensor: expected a tensor, got None"):
        toy(x, None)
    with pytest.raises(ValueError, match="x_tensor: expected a JAX array, got a numpy array"):
        OP.call_jax((x, w), ())


def test_eight_threads():
    op, engine = small_op()
    start, wrong = threading.Barrier(8), []

    def work(seed):
        start.wait()
        for m in range(2, 40):
            x, w = operands(m, 4 * (seed + 1), l=1, seed=seed)
            y, _ = op((x, w), ())
            if not np.array_equal(y, expected(x, w)):
                wrong.append((seed, m))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(op._prepared) == 8 * 38 and len(engine.plans) == 1


def test_the_registry_finds_ops_by_their_torch_spelling():
    assert REGISTRY["cudnn_core_toy::toy"] is OP


def test_plain_attributes_are_what_a_graph_can_carry():
    assert OP.plain_attributes(("m", np.float16)) == ("m", "float16", "plus", 32, "last", "global")


# --- the class door --------------------------------------------------------------------------------------------------


def outputs(m=5, n=4, l=1, prior=-np.inf):
    return np.full((m, n, l), np.nan, np.float32), np.full((1, 1, 1), prior, np.float32)


def test_class_computes_in_place():
    x, w = operands(l=1)
    y, top = outputs(prior=1e6)
    op = Toy(x, w, y, top, sign="minus")
    with pytest.raises(RuntimeError, match=r"Toy: call compile\(\) before execute\(\)"):
        op.execute(x, w, y, top)
    op.compile()
    op.execute(x, w, y, top)
    np.testing.assert_array_equal(y, -expected(x, w))
    assert top.item() == 1e6


def test_class_uses_its_own_options():
    """A non-default option given to the constructor holds in execute, which does not repeat it."""
    x, w = operands(l=1)
    results = []
    for sign in ("plus", "minus"):
        y, top = outputs()
        Toy(x, w, y, top, sign=sign)(x, w, y, top)
        results.append(y)
    np.testing.assert_array_equal(results[0], -results[1])


def test_class_refuses_other_tensors_than_its_samples():
    x, w = operands(l=1)
    y, top = outputs()
    op = Toy(x, w, y, top)
    op.compile()
    for _ in range(2):  # before and after a right call
        with pytest.raises(
            ValueError, match=r"x_tensor: expected shape \(5, 3, 1\).*got shape \(4, 3, 1\)"
        ):
            op.execute(x[:4], w, y, top)
        with pytest.raises(ValueError, match="w_tensor: expected .*float32.*float64"):
            op.execute(x, w.astype(np.float64), y, top)
        with pytest.raises(ValueError, match="y_tensor: expected .*strides"):
            op.execute(x, w, np.asfortranarray(y), top)
        with pytest.raises(ValueError, match="top_tensor"):
            op.execute(x, w, y, np.zeros(2, np.float32))
        op.execute(x, w, y, top)
        op.execute(x, w, y, top.reshape(()))
    np.testing.assert_array_equal(y, expected(x, w))


@pytest.mark.parametrize("index, name", [(0, "x_tensor"), (1, "w_tensor"), (2, "y_tensor")])
def test_class_counts_axes_of_single_elements_too(index, name):
    """Only scalars may leave out unit axes."""
    x, w = operands(m=1, n=1, k=1, l=1)
    tensors = [x, w, np.zeros((1, 1, 1), np.float32), np.zeros(1, np.float32)]
    op = Toy(*tensors)
    op(*tensors)
    np.testing.assert_array_equal(tensors[2], expected(x, w))
    tensors[index] = tensors[index].reshape(())
    with pytest.raises(ValueError, match=rf"{name}: expected shape \(1, 1, 1\).*got shape \(\)"):
        op.execute(*tensors)


def test_class_refuses_outputs_that_it_cannot_write():
    """Read-only ones, and those that share memory with another operand."""
    x, w = operands(m=4, n=4, k=4, l=1)
    y, top = outputs(m=4, n=4)
    op = Toy(x, w, y, top)
    op.compile()
    for _ in range(2):  # before and after a right call
        for name, named in (("y_tensor", {"y": y.copy()}), ("top_tensor", {"top": top.copy()})):
            (fixed,) = named.values()
            fixed.flags.writeable = False
            with pytest.raises(ValueError, match=f"{name}: expected an array to write into"):
                op.execute(x, w, **({"y": y, "top": top} | named))
        with pytest.raises(
            ValueError, match="Toy: y_tensor is written and must not overlap x_tensor"
        ):
            op.execute(x, w, x, top)
        with pytest.raises(ValueError, match="Toy: y_tensor is written .* overlap top_tensor"):
            op.execute(x, w, y, y[:1, :1])
        with pytest.raises(ValueError, match="Toy: top_tensor is written .* overlap w_tensor"):
            op.execute(x, w, y, w[3:, 3:])
        op.execute(x, x, y, top)  # inputs may be one
    np.testing.assert_array_equal(y, expected(x, x))


def test_class_refuses_what_is_no_stream_on_the_host_too():
    x, w = operands(l=1)
    y, top = outputs()
    op = Toy(x, w, y, top)
    op(x, w, y, top, current_stream=0)
    with pytest.raises(TypeError, match=r"stream: expected None, an int.*got builtins.str"):
        op.execute(x, w, y, top, "first")


def test_class_runs_where_its_samples_are():
    x, w = operands(l=1)
    y, top = outputs()
    op = Toy(x, w, y, top)
    op.compile()
    op._problem = replace(op._problem, device=Device("cuda", 1))
    with pytest.raises(ValueError, match=r"x_tensor: expected a tensor on cuda:1 .*got cpu"):
        op.execute(x, w, y, top)
    op._problem = replace(op._problem, device=Device("cpu"))
    op.execute(x, w, y, top)


def test_class_wants_samples():
    with pytest.raises(TypeError, match="Toy: expected a tensor in one of sample_x, sample_w"):
        Toy(None, None, None, None)


def test_class_knows_samples_by_their_own_names():
    x, w = operands(l=1)
    y, top = outputs()
    with pytest.raises(ValueError, match="sample_y: expected M = 5"):
        Toy(x, w, y[:4], top).check_support()
    with pytest.raises(
        ValueError, match="sample_w: expected it on cpu, as sample_x is, got cuda:0"
    ):
        Toy(x, TensorDesc.of("float32", (4, 3, 1), device="cuda:0"), y, top)


class BuildsNothing(ReferenceEngine):
    """An engine of a GPU's kind whose compiler must not be asked."""

    platform = "other"

    def compile(self, plan):
        raise AssertionError("compiled a kernel for a problem that launches none")


@pytest.mark.parametrize("m, n, k", [(0, 4, 3), (5, 0, 3), (5, 4, 0)])
def test_an_empty_problem_compiles_nothing(m, n, k):
    op = Op(CONTRACT, (BuildsNothing(reference),), "cudnn_core_toy", f"empty_{m}_{n}_{k}")
    x, w = np.ones((m, k, 1), np.float32), np.ones((n, k, 1), np.float32)
    y, top = op((x, w), ())
    assert y.shape == (m, n, 1) and not y.any() and top.item() == 0.0

    class Empty(Toy):
        pass

    Empty.op = op
    y, top = np.full((m, n, 1), np.nan, np.float32), np.full((1, 1, 1), -5.0, np.float32)
    Empty(x, w, y, top)(x, w, y, top)
    assert not y.any() and top.item() == 0.0


def test_host_arrays_at_any_address_are_not_blamed_for_another_error():
    shifted = np.zeros(4 * (15 + 4) + 4, np.uint8)
    address = shifted.ctypes.data
    x = shifted[(4 - address) % 16 :][: 4 * 15].view(np.float32).reshape(5, 3, 1)
    assert x.ctypes.data % 16 == 4
    w, y, top = (np.zeros(s, np.float32) for s in ((4, 3, 1), (5, 4, 1), (1, 1, 1)))
    op = Toy(x, w, y, top)
    op.compile()
    with pytest.raises(TypeError, match="stream"):
        op.execute(x, w, y, top, "junk")
