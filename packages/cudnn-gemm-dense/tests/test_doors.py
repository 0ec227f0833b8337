"""One wrong argument, one sentence: NumPy, torch (eager, fake, compiled) and JAX (eager, jit) refuse it in one way."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from torch._subclasses.fake_tensor import FakeTensorMode

import cudnn_gemm_dense as dense
from cudnn_gemm_dense.testing import column_tensor, make_call, matrix_tensor, placed

OPS = ("amax", "swiglu", "srelu", "dsrelu")
every_op = pytest.mark.parametrize("op", OPS)
FRAMEWORKS = {"numpy": "numpy", "torch": "torch", "fake": "torch", "jax": "jax", "jit": "jax"}


@pytest.fixture(autouse=True)
def on_the_host():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def arguments(op, call, framework):
    """Keyword arguments of a call that is right; scales in the view that every framework has."""
    given = {
        "a_tensor": call.a.tensor(framework),
        "b_tensor": call.b.tensor(framework),
        "sfa_tensor": call.a.scale(framework, "physical"),
        "sfb_tensor": call.b.scale(framework, "physical"),
        "sf_vec_size": call.vec(),
    }
    if op in ("srelu", "dsrelu"):
        given["prob_tensor"] = column_tensor(call.column, framework)
    if op == "dsrelu":
        given["c_tensor"] = matrix_tensor(call.gradient, "float32", "n", framework)
    return given


def array(x, framework):
    """A contiguous array of the framework."""
    return placed(x, x.dtype.name, tuple(range(x.ndim)), framework)


def is_array(x):
    return isinstance(x, np.ndarray | torch.Tensor | jax.Array)


def through(door, op, given):
    """Call the op through a door: arrays as operands, the rest as options."""
    arrays = {name: x for name, x in given.items() if is_array(x)}
    options = {name: x for name, x in given.items() if name not in arrays}
    wrapper, entry = (getattr(dense, f"gemm_{op}_{kind}") for kind in ("wrapper", "jax"))
    if door == "fake":
        with FakeTensorMode() as mode:
            fakes = {name: mode.from_tensor(x) for name, x in arrays.items()}
            return tuple(wrapper(**fakes, **options))
    if door == "compiled":
        torch._dynamo.reset()
        run = lambda arrays: tuple(wrapper(**arrays, **options))  # noqa: E731
        return torch.compile(run, fullgraph=True, backend="aot_eager")(arrays)
    if door in ("jax", "jit"):
        run = lambda arrays: entry(**arrays, **options)  # noqa: E731
        return (jax.jit(run) if door == "jit" else run)(arrays)
    return tuple(wrapper(**given))


def zeros(dtype, *shape):
    return lambda framework: array(np.zeros(shape, dtype), framework)


# (argument, what it becomes, exception, the sentence)
WRONG = [
    ("a_tensor", None, ValueError, "a_tensor: expected a tensor, got None"),
    ("b_tensor", None, ValueError, "b_tensor: expected a tensor, got None"),
    ("a_tensor", "x", TypeError, "a_tensor: expected a tensor, got 'x' (str)"),
    ("b_tensor", 3, TypeError, "b_tensor: expected a tensor, got 3 (int)"),
    ("sfb_tensor", [1.0], TypeError, "sfb_tensor: expected a tensor, got an object of type list"),
    ("sfa_tensor", True, TypeError, "sfa_tensor: expected a tensor, got True (bool)"),
    (
        "b_tensor",
        zeros(np.float32, 64, 64),
        ValueError,
        "b_tensor: expected rank 3 (N, K, L), got shape (64, 64)",
    ),
    (
        "a_tensor",
        zeros(np.int32, 9, 64, 1),
        ValueError,
        "a_tensor: expected dtype one of bfloat16, float16, float32, float4_e2m1fn, float8_e4m3fn, float8_e5m2, "
        "uint8, got int32",
    ),
    (
        "b_tensor",
        zeros(np.float16, 64, 96, 1),
        ValueError,
        "b_tensor: expected K = 64 (from a_tensor), got K = 96",
    ),
    (
        "sfb_tensor",
        zeros(np.uint8, 1, 1, 1, 32, 4, 4),
        ValueError,
        "sfb_tensor: expected dtype one of float8_e4m3fn, float8_e8m0fnu, int8, got uint8",
    ),
    (
        "sfb_tensor",
        zeros(np.int8, 1, 2, 1, 32, 4, 4),
        ValueError,
        "sfb_tensor: expected shape (32, 4, 1, 4, 1, 1) with strides",
    ),
    ("sf_vec_size", (32, 32, 32), ValueError, "sf_vec_size: expected a number or a pair"),
    ("sf_vec_size", True, ValueError, "sf_vec_size: expected one of 16, 32, got True"),
    ("sf_vec_size", 64, ValueError, "sf_vec_size: expected one of 16, 32, got 64"),
    (
        "sf_vec_size",
        16,
        ValueError,
        "sf_vec_size: expected float8_e8m0fnu scales with sf_vec_size 32 for a_tensor float8_e4m3fn",
    ),
    ("mma_tiler_mn", "ab", ValueError, "mma_tiler_mn: expected a pair of integers or None"),
    ("mma_tiler_mn", (128.0, 128), ValueError, "mma_tiler_mn: expected a pair of integers or None"),
    ("cluster_shape_mn", (3, 1), ValueError, "cluster_shape_mn[0]: expected one of"),
]
IDS = [f"{i}-{name}" for i, (name, *_) in enumerate(WRONG)]
# Here torch's compiler gives up before the call is refused: it cannot follow what comes before.
UNTRACED = {"0-a_tensor"}


def changed(op, door, name, value):
    framework = FRAMEWORKS.get(door, "torch")
    given = arguments(op, make_call(9, 64, 64, 1, "mxfp8", "mxfp8"), framework)
    return given | {name: value(framework) if callable(value) else value}


@every_op
@pytest.mark.parametrize("door", FRAMEWORKS)
@pytest.mark.parametrize("name, value, error, sentence", WRONG, ids=IDS)
def test_one_sentence_through_every_door(op, door, name, value, error, sentence):
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        through(door, op, changed(op, door, name, value))
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "name, value, error, sentence",
    [p for p, i in zip(WRONG, IDS, strict=True) if i not in UNTRACED],
    ids=[i for i in IDS if i not in UNTRACED],
)
def test_the_compiler_passes_the_sentence_on(name, value, error, sentence):
    # Also where a call of the same kind came before and is remembered.
    through(
        "torch", "srelu", arguments("srelu", make_call(9, 64, 64, 1, "mxfp8", "mxfp8"), "torch")
    )
    with pytest.raises(Exception, match=re.escape(sentence)):
        through("compiled", "srelu", changed("srelu", "compiled", name, value))


@every_op
@pytest.mark.parametrize("door", [*FRAMEWORKS, "compiled"])
def test_the_unchanged_call_passes(op, door):
    framework = FRAMEWORKS.get(door, "torch")
    call = make_call(9, 64, 64, 1, "mxfp8", "mxfp8")
    assert through(door, op, arguments(op, call, framework))[0].shape[0] == 9


@pytest.mark.parametrize("l", [0, 1, 2])
@pytest.mark.parametrize("m, n, k", [(5, 64, 96), (0, 64, 96), (5, 0, 96), (5, 64, 0), (0, 0, 0)])
@pytest.mark.parametrize("container", ["native", "uint8"])
def test_empty_torch_fp4_of_any_extents(m, n, k, l, container):
    """As torch lays empty tensors out, with strides of 1 along several axes: K is where it always is."""
    dtype = torch.float4_e2m1fn_x2 if container == "native" else torch.uint8

    def matrix(rows):
        if rows * k * l:
            return torch.zeros(l, rows, k // 2, dtype=torch.uint8).permute(1, 2, 0).view(dtype)
        return torch.zeros(rows, k // 2, l, dtype=torch.uint8).view(dtype)

    scales = [
        torch.zeros(l, -(-rows // 128), -(-k // 64), 32, 4, 4, dtype=torch.int8) for rows in (m, n)
    ]
    c, amax = dense.gemm_amax_wrapper(matrix(m), matrix(n), *scales, sf_vec_size=16)
    assert c.shape == (m, n, l) and not c.any() and amax.item() == 0
