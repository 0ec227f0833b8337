"""Run-time numbers through every door, and the operand kinds of fused ops, on a small operation of its own.

y[m,n,l] = factor * x[m,l] * w[n,l] (x a column of M numbers, w a matrix of K = 1), its halves' sum `half` of N/2
columns if asked for, and scales beside an FP8 y.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from cudnn_core.contract import (
    Column,
    Contract,
    Derived,
    Matrix,
    Number,
    OutputScale,
    ScalarTensor,
    block_sizes,
    choice,
)
from cudnn_core.dtypes import FLOAT8_E4M3FN, FLOAT8_E8M0FNU, FLOAT32
from cudnn_core.engine import Engine, ReferenceEngine, Workspace
from cudnn_core.op import REGISTRY, Op, OpClass
from cudnn_core.plan import Plan
from cudnn_core.prepared import launcher
from cudnn_core.tensor_desc import Device, TensorDesc

FORMATS = {"block": (FLOAT8_E8M0FNU, 32), "small": (FLOAT8_E4M3FN, 16)}
MAJORS = {"n": "N", "m": "M"}


def asked(attributes, dtypes):
    return attributes["half"] == "yes"


def scaled(attributes, dtypes):
    return attributes["out"] != "plain"


CONTRACT = Contract(
    "core/numbers",
    operands=(
        Matrix("w_tensor", ("N", "K", "L"), dtypes=(FLOAT32,), majors={"k": "K", "n": "N"}),
        Column("x_tensor", ("M", "1", "L")),
        ScalarTensor("shift_tensor", (), rank=1, optional=True),
        Matrix(
            "y_tensor",
            ("M", "N", "L"),
            output=True,
            dtypes=(FLOAT32,),
            majors=MAJORS,
            dtype_from="y_dtype",
        ),
        Matrix(
            "half_tensor",
            ("M", "N/2", "L"),
            output=True,
            optional=True,
            dtypes=(FLOAT32,),
            majors={"n": "N/2"},
            dtype_from="y_dtype",
            by_default=asked,
        ),
        Column("sum_tensor", ("M", "1", "L"), output=True, initial=0.0),
        OutputScale(
            "sf_tensor", ("M", "N", "L"), output=True, vec_from="out", formats=FORMATS, when=scaled
        ),
    ),
    attributes=(
        choice("half", "no", ("no", "yes"), of_output=True),
        choice("out", "plain", ("plain", *FORMATS)),
        replace(
            choice("y_dtype", FLOAT32, (FLOAT32,), of_output=True),
            parse=lambda value, name: FLOAT32,
        ),
        choice("batch", "last", ("last", "outer")),
        choice("scale_view", "logical", ("logical", "physical"), of_output=True),
    ),
    numbers=(Number("factor", 1.0), Number("offset", 0.0)),
    derived=(Derived("N/2", "N", lambda n: n // 2),),
)


def reference(signature, *arguments):
    named = signature.named(arguments)
    x, w = named["x_tensor"], named["w_tensor"][:, 0]
    y = np.float32(named["factor"]) * x * w[None] + np.float32(named["offset"])
    if "shift_tensor" in named:
        y = y + named["shift_tensor"].reshape(())
    named["y_tensor"][...] = y
    if "half_tensor" in named:
        half = y.shape[1] // 2
        named["half_tensor"][...] = y[:, :half] + y[:, half:]
    named["sum_tensor"][...] += y.sum(axis=1, keepdims=True)
    if "sf_tensor" in named:
        named["sf_tensor"].view(np.uint8)[...] = 7


OP = Op(CONTRACT, (ReferenceEngine(reference),), "cudnn_core_numbers", "numbers")


class Numbers(OpClass):
    op = OP

    def __init__(self, w, x, shift, y, half, sums, sf, **options):
        samples = {"sample_w": w, "sample_x": x, "sample_shift": shift, "sample_y": y}
        super().__init__(
            samples | {"sample_half": half, "sample_sum": sums, "sample_sf": sf}, options
        )

    def execute(self, *tensors, numbers=(), current_stream=None):
        self._run(tensors, current_stream, CONTRACT.parse_numbers(numbers))


@pytest.fixture(autouse=True)
def fresh():
    before = dict(REGISTRY)
    OP.forget()
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def inputs(m=5, n=4, l=1):
    rng = np.random.default_rng(0)
    return tuple(rng.integers(-4, 5, s).astype(np.float32) for s in ((n, 1, l), (m, 1, l)))


def expected(w, x, factor=1.0, offset=0.0):
    return factor * x * w[:, 0][None] + offset


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), np.array([2])]
)
def test_any_number_on_the_host(value):
    parsed = Number("factor", 1.0).parse(value)
    assert type(parsed) is float and parsed == 2.0


@pytest.mark.parametrize(
    "value",
    [
        *("2", b"2", bytearray(b"2"), memoryview(b"2"), 2j, None, [2], object()),
        *(np.zeros(2), np.zeros(0), np.array("2"), np.array(b"2"), np.array("2", object)),
        *(np.complex64(2), np.array(2j), np.datetime64("2026-01-01"), np.timedelta64(2, "s")),
    ],
    # Not repr, in which there are addresses: processes that share the tests out compare names.
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number(value):
    with pytest.raises(TypeError, match="factor: expected a number known on the host"):
        Number("factor", 1.0).parse(value)


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["large", "small"])
def test_an_integer_beyond_doubles(value):
    with pytest.raises(ValueError, match="factor: expected a number that a double holds, got more"):
        Number("factor", 1.0).parse(value)


@pytest.mark.parametrize("called", ["type", "platform"])
def test_numbers_on_a_device_are_not_read(called):
    """Whatever the framework calls the kind of a device."""

    class Elsewhere:
        device = type("device", (), {called: "gpu", "__str__": lambda self: "gpu:0"})()

        def item(self):
            raise AssertionError("read from the device")

    with pytest.raises(ValueError, match="factor: expected a number on the host.*gpu:0"):
        Number("factor", 1.0).parse(Elsewhere())


def test_one_nan_stands_for_all():
    """Equal keys for equal calls, where numbers are static."""
    number = Number("factor", 1.0)
    assert number.parse(np.float32("nan")) is number.parse(np.array(math.nan)) is math.nan


def test_wrapper_takes_them_at_run_time():
    w, x = inputs()
    for factor, offset in ((2.0, 0.0), (-1.0, 3.0), (0.5, -1.0)):
        y = OP((w, x, None), (), None, (factor, offset))["y_tensor"]
        np.testing.assert_array_equal(y, expected(w, x, factor, offset))
    np.testing.assert_array_equal(OP((w, x, None), (), None, (3,))["y_tensor"], expected(w, x, 3))
    np.testing.assert_array_equal(OP((w, x, None), ())["y_tensor"], expected(w, x))
    assert len(OP._prepared) == 1, "a number made a call another one"


def test_class_takes_them_at_run_time():
    w, x = inputs()
    y, sums = np.zeros((5, 4, 1), np.float32), np.ones((5, 1, 1), np.float32)
    tensors = (w, x, None, y, None, sums, None)
    op = Numbers(*tensors)
    op(*tensors, numbers=(2.0,))
    np.testing.assert_array_equal(y, expected(w, x, 2))
    np.testing.assert_array_equal(sums[:, 0], 1 + y.sum(axis=1))
    op.execute(*tensors, numbers=(-1.0, 5.0))
    np.testing.assert_array_equal(y, expected(w, x, -1, 5))


class DeviceEngine(Engine):
    """As on a GPU: keeps what its executable is called with."""

    name, platform = "device", "cuda"

    def __init__(self):
        self.calls = []

    def why_not(self, problem):
        return None

    def why_not_device(self, device):
        return None

    def plan(self, problem):
        return Plan("core/numbers", "device", "", problem.signature)

    def workspaces(self, problem):
        return (Workspace(16),)

    def scalars(self, problem):
        return (132,)

    def compile(self, plan):
        return lambda *arguments: self.calls.append(arguments)


def test_executables_take_arrays_workspaces_numbers_scalars_stream():
    engine = DeviceEngine()
    op = Op(CONTRACT, (engine,), "cudnn_core_numbers", "device")
    w, x = inputs()
    op((w, x, np.ones((1, 1, 1), np.float32)), (), None, (0.5, 7))
    *arrays, scratch, factor, offset, blocks, _stream = engine.calls[0]
    assert (factor, offset, blocks, scratch.nbytes) == (0.5, 7.0, 132, 16)
    assert [a.shape for a in arrays] == [(4, 1, 1), (5, 1, 1), (1,), (5, 4, 1), (5, 1, 1)]


def test_torch_op():
    torch = pytest.importorskip("torch")
    w, x = map(torch.from_numpy, inputs())
    make = torch.compile(
        lambda w, x: tuple(OP((w, x, None), ("yes",), None, (2.0,))),
        fullgraph=True,
        backend="aot_eager",
    )
    for got, want in zip(make(w, x), OP((w, x, None), ("yes",), None, (2.0,)), strict=True):
        assert (got is None) == (want is None)
        assert got is None or torch.equal(got, want)
    assert "Scalar factor=1., Scalar offset=0." in str(
        torch.ops.cudnn_core_numbers.numbers.default._schema
    )


def test_jax():
    jax = pytest.importorskip("jax")
    w, x = map(jax.numpy.asarray, inputs())
    for transform in (lambda f: f, jax.jit):
        y, half, sums, sf = transform(
            lambda w, x: OP.call_jax((w, x, None), ("yes", "block"), (2.0,))
        )(w, x)
        np.testing.assert_array_equal(y, expected(*inputs(), 2))
        np.testing.assert_array_equal(half, y[:, :2] + y[:, 2:])
        np.testing.assert_array_equal(sums[:, 0], y.sum(axis=1))
        assert sf.shape == (1, 1, 1, 32, 4, 4) and sf.dtype == "float8_e8m0fnu"
    nan = [OP.call_jax((w, x, None), (), (n,))[0] for n in (np.float32("nan"), math.nan)]
    assert all(np.isnan(y).all() for y in nan)
    with pytest.raises(TypeError, match="factor: expected a number known on the host"):
        jax.jit(lambda f: OP.call_jax((w, x, None), (), (f,)))(2.0)


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_jax_tells_zeros_by_their_sign(first):
    """They are equal, and so one key wherever numbers are static."""
    jax = pytest.importorskip("jax")
    w, x = (jax.numpy.ones((rows, 1, 1)) for rows in (2, 3))
    for factor in (first, -first):
        y = OP.call_jax((w, x, None), (), (factor, -0.0))[0]
        assert (np.signbit(y) == np.signbit(factor)).all()


def test_jax_batches_leave_shared_scalars_alone():
    jax = pytest.importorskip("jax")
    w, x = inputs(l=3)
    ws, xs = (jax.numpy.asarray(np.moveaxis(a, -1, 0)[..., None]) for a in (w, x))
    shift = jax.numpy.full((1,), 4.0)
    run = jax.vmap(lambda w, x: OP.call_jax((w, x, shift), (), (2.0,)))
    y, _, sums, _ = jax.jit(run)(ws, xs)
    np.testing.assert_array_equal(np.moveaxis(np.asarray(y)[..., 0], 0, -1), expected(w, x, 2, 4))
    np.testing.assert_array_equal(sums[..., 0], np.asarray(y).sum(axis=2)[..., 0][..., None])


def test_jax_repeats_what_executables_do_not_share():
    """The column of an unmapped operand comes with as many batches as the call has, nested maps included."""
    jax = pytest.importorskip("jax")
    w, x = inputs(l=3)
    ws = jax.numpy.asarray(np.moveaxis(w, -1, 0)[..., None])
    alone = jax.numpy.asarray(x[..., :1])

    def run(w):
        return OP.call_jax((w, alone, None), (), (2.0,))[0]

    want = np.moveaxis(expected(w, x[..., :1], 2), -1, 0)
    np.testing.assert_array_equal(jax.vmap(run)(ws)[..., 0], want)
    nested = jax.vmap(jax.vmap(run))(ws[None])
    np.testing.assert_array_equal(nested[0, ..., 0], want)
    nested = jax.vmap(jax.vmap(run))(ws[:, None])
    np.testing.assert_array_equal(nested[:, 0, ..., 0], want)
    text = str(jax.make_jaxpr(jax.vmap(run))(ws))
    assert "f32[3,5,1]" in text


def test_jax_on_a_device_starts_sums_from_zero(monkeypatch):
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from cudnn_core.doors import jax_ffi, jax_primitive

    calls = []

    def ffi_call(executable, operands, results, initial, scalars, shared):
        calls.append(([tuple(r.shape) for r in results], sorted(initial), scalars))
        return [jnp.zeros(r.shape, r.dtype) for r in results]

    monkeypatch.setattr(jax_ffi, "cuda_call", ffi_call)
    op = Op(CONTRACT, (DeviceEngine(),), "cudnn_core_numbers", "on_cuda")
    w, x = map(jnp.asarray, inputs())
    static = tuple(op.contract.parse_attributes({}).items())
    present = (True, True, False, True, False, True, False)
    numbers = ((2.0).hex(), (0.0).hex())
    params = {"attributes": static, "batched": False, "present": present, "numbers": numbers}
    jax_primitive._on_cuda(op)(w, x, **params)
    assert calls == [([(5, 4, 1), (5, 1, 1), (16,)], [1], (2.0, 0.0, 132))]


# --- operands --------------------------------------------------------------------------------------------------------


def test_derived_extents_are_named():
    w, x = inputs()
    y, sums = np.zeros((5, 4, 1), np.float32), np.zeros((5, 1, 1), np.float32)
    with pytest.raises(
        ValueError, match=r"sample_half: expected N/2 = 2 \(from sample_w\), got N/2 = 4"
    ):
        Numbers(w, x, None, y, y.copy(), sums, None).check_support()


def test_outputs_by_default_and_by_class():
    """By default only when asked for; a class may give it at any time, or leave it out."""
    w, x = inputs()
    assert OP((w, x, None), ())["half_tensor"] is None
    assert OP((w, x, None), ("yes",))["half_tensor"].shape == (5, 2, 1)
    y, half, sums = (np.zeros((5, c, 1), np.float32) for c in (4, 2, 1))
    tensors = (w, x, None, y, half, sums, None)
    Numbers(*tensors)(*tensors)
    np.testing.assert_array_equal(half, y[:, :2] + y[:, 2:])


@pytest.mark.parametrize(
    "out, dtype, q", [("block", "float8_e8m0fnu", 3), ("small", "float8_e4m3fn", 5)]
)
def test_output_scales(out, dtype, q):
    w, x = inputs(130, 290, 2)
    sf = OP((w, x, None), ("no", out))["sf_tensor"]
    assert sf.shape == (32, 4, 2, 4, q, 2) and sf.dtype == dtype
    assert sf.strides == (16, 4, 512 * q, 1, 512, 1024 * q)
    problem = OP.bind((w, x, None), ("no", out, FLOAT32, "last", "physical"))[1]
    desc = problem.outputs[-1]
    assert (
        desc.shape == (2, 2, q, 32, 4, 4)
        and problem.signature.operand("sf_tensor").major == "physical"
    )
    other = "small" if out == "block" else "block"
    wrong = OP((w, x, None), ("no", other))["sf_tensor"].view(sf.dtype)
    y, _, sums, _ = OP((w, x, None), ())
    hint = f"these look like scales for the block length = {16 if out == 'block' else 32}"
    with pytest.raises(ValueError, match=f"sample_sf: expected shape .*{hint}"):
        Numbers(w, x, None, y, None, sums, wrong, out=out).check_support()


@pytest.mark.parametrize("stride", [(3, 1, 1), (1, 7, 5), (2, 0, 0), (-1, 1, 1), (0, 0, 0)])
def test_columns_of_any_strides(stride):
    desc = TensorDesc(FLOAT32, (5, 1, 1), stride, None, Device("cpu"), name="x")
    assert CONTRACT.operands[1].bind(desc, _dims(), {}).dtype == "float32"
    output = CONTRACT.operands[5]
    if stride[0] == 0:
        with pytest.raises(
            ValueError, match="x: expected an output whose elements share no memory"
        ):
            output.bind(desc, _dims(), {})
    else:
        output.bind(desc, _dims(), {})


def test_columns_that_run_backwards():
    w, x = inputs()
    sums = np.zeros((5, 1, 1), np.float32)
    y = np.zeros((5, 4, 1), np.float32)
    tensors = (w, x[::-1], None, y, None, sums[::-1], None)
    Numbers(*tensors)(*tensors)
    np.testing.assert_array_equal(y, expected(w, x[::-1]))
    np.testing.assert_array_equal(sums[::-1, 0], y.sum(axis=1))


def _dims():
    from cudnn_core.contract import Dims

    return Dims()


@pytest.mark.parametrize(
    "shape, text",
    [((5, 1), r"rank 3 \(M, 1, L\)"), ((5, 2, 1), r"shape \(M, 1, L\), got shape \(5, 2, 1\)")],
)
def test_what_is_no_column(shape, text):
    with pytest.raises(ValueError, match=f"x: expected {text}"):
        CONTRACT.operands[1].bind(TensorDesc.of("float32", shape, name="x"), _dims(), {})


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1, 1)])
def test_scalars_of_another_rank_reach_the_executable_in_its_own(shape):
    engine = DeviceEngine()
    op = Op(CONTRACT, (engine,), "cudnn_core_numbers", "ranks")
    w, x = inputs()
    op((w, x, np.ones(shape, np.float32)), ())
    assert engine.calls[0][2].shape == (1,)


@pytest.mark.parametrize(
    "value, want", [(32, 32), ((32, 32), 32), ([16, 32], (16, 32)), (np.int64(16), 16)]
)
def test_block_lengths(value, want):
    assert block_sizes("vec", 16, (16, 32)).parse(value, "vec") == want


@pytest.mark.parametrize(
    "value",
    [
        *(8, (16, 8), (16,), (16, 16, 16), "16", None, 16.0, (True, 16), {16: 1}),
        *(np.array([16, 16]), np.True_, np.float32(16)),
    ],
    ids=repr,
)
def test_what_is_no_block_length(value):
    with pytest.raises(ValueError, match=r"vec(\[\d\])?: expected"):
        block_sizes("vec", 16, (16, 32)).parse(value, "vec")


def test_an_empty_problem_keeps_sums():
    """On a GPU nothing is launched; here the same through the executable-free launcher."""
    from cudnn_core.adapters import adapter_of

    w, x = inputs(n=0)
    engine = DeviceEngine()
    op = Op(CONTRACT, (engine,), "cudnn_core_numbers", "empty")
    adapter, problem = op.bind((w, x, None), ())
    sums = np.full((5, 1, 1), 3.0, np.float32)
    launch = launcher(op, adapter_of(w), problem, engine, None)
    launch((w, x, np.zeros((5, 0, 1), np.float32), sums), None, (1.0, 0.0))
    assert (sums == 3.0).all() and engine.calls == []
    assert adapter.name == "numpy"
