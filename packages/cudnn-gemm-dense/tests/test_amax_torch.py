"""GEMM + amax on torch CPU tensors: eager, class, torch.compile, dispatch modes, subclasses, parameters."""

import gc
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from cudnn_core.dtypes import as_dtype
from cudnn_core.testing.gemm import (
    RECIPES,
    Case,
    Guarded,
    amax_tensor,
    any_codes,
    assert_matches,
    bits,
    exact,
)
from cudnn_gemm_dense import GemmAmax, gemm_amax_wrapper

OUTPUTS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float4_e2m1fn": torch.float4_e2m1fn_x2,
    "uint8": torch.uint8,
}


def run(data, **changes):
    return gemm_amax_wrapper(*data.inputs("torch"), **(data.case.options() | changes))


def assert_same_bits(first, second):
    assert (first.dtype, first.shape, first.stride()) == (
        second.dtype,
        second.shape,
        second.stride(),
    )
    np.testing.assert_array_equal(bits(first), bits(second))


# --- eager -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["native", "uint8"])
@pytest.mark.parametrize("view", ["logical", "physical"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_operand_pairs_and_containers(recipe, view, container):
    if not RECIPES[recipe].fp4 and container == "uint8":
        container = "native"
    case = Case(130, 24, 160, 2, recipe, scale_view=view, container=container)
    a = exact(case).inputs("torch")[0]
    packed = torch.float4_e2m1fn_x2 if container == "native" else torch.uint8
    assert a.dtype is (packed if case.format.fp4 else getattr(torch, case.format.element))
    assert_matches(run(exact(case)), exact(case))


@pytest.mark.parametrize("c_major", "nm")
@pytest.mark.parametrize("c_dtype", OUTPUTS)
def test_outputs(c_dtype, c_major):
    packed = c_dtype in ("float4_e2m1fn", "uint8")
    c_major = "n" if packed else c_major
    data = any_codes(Case(33, 24, 96, 2, "nvfp4", c_dtype=c_dtype, c_major=c_major))
    c, amax = run(data)
    columns = 12 if packed else 24
    inner = (columns, 1) if c_major == "n" else (1, 33)
    assert (c.dtype, c.shape) == (OUTPUTS[c_dtype], (33, columns, 2))
    assert c.stride() == (*inner, 33 * columns)
    assert (amax.dtype, amax.shape, amax.stride()) == (torch.float32, (1, 1, 1), (1, 1, 1))
    assert_matches((c, amax), data)


@pytest.mark.parametrize("spelling", [torch.bfloat16, "bfloat16", "torch.bfloat16"])
def test_torch_dtypes_are_accepted(spelling):
    data = exact(Case(8, 8, 32, c_dtype="bfloat16"))
    assert_matches(run(data, c_dtype=spelling, acc_dtype=torch.float32), data)


@pytest.mark.parametrize("majors", ["kk", "mn"])
@pytest.mark.parametrize("pad, offset", [(16, 0), (0, 16), (32, 48)])
def test_views(majors, pad, offset):
    data = exact(Case(48, 32, 64, 3, "mxfp8", *majors))
    inputs = data.inputs("torch", pad=pad, offset=offset)
    assert inputs[0].storage_offset() == offset
    assert_matches(gemm_amax_wrapper(*inputs), data)


@pytest.mark.parametrize("step", [0, 1, 10**9])
def test_stride_of_a_single_batch_says_nothing(step):
    data = exact(Case(17, 24, 64))
    inputs = [x.as_strided(x.shape, (*x.stride()[:-1], step)) for x in data.inputs("torch")]
    assert_matches(gemm_amax_wrapper(*inputs), data)


@pytest.mark.parametrize("m, n, k", [(0, 8, 64), (8, 0, 64), (8, 8, 0)])
@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
def test_empty(recipe, m, n, k):
    data = exact(Case(m, n, k, 2, recipe))
    assert_matches(run(data), data)


@pytest.mark.parametrize(
    "make", [torch.nn.Parameter, lambda x: torch.nn.Parameter(x, requires_grad=False)]
)
def test_parameters(make):
    data = exact(Case(17, 24, 64))
    a, b, *scales = data.inputs("torch")
    assert_matches(gemm_amax_wrapper(a, make(b), *scales), data)


def test_inference_mode():
    data = exact(Case(17, 24, 64))
    with torch.inference_mode():
        assert_matches(run(data), data)


@pytest.mark.parametrize("c_dtype", ["float32", "bfloat16", "float4_e2m1fn", "uint8"])
@pytest.mark.parametrize("pad", [0, 16])
def test_class_writes_only_the_output(c_dtype, pad):
    case = Case(17, 24, 64, 3, "nvfp4", c_dtype=c_dtype)
    data, out, amax = exact(case), Guarded(case, "torch", pad), amax_tensor("torch", -5.0)
    inputs = data.inputs("torch")
    op = GemmAmax(*inputs, out.tensor, amax, sf_vec_size=16)
    op.compile()
    for _ in range(2):
        out.poison()
        op.execute(*inputs, out.tensor, amax)
        assert_matches((out.tensor, amax), data)
        out.assert_guards()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_class_takes_an_amax_of_any_rank(shape):
    data = exact(Case(17, 24, 64))
    inputs, c = data.inputs("torch"), Guarded(data.case, "torch").tensor
    amax = torch.full(shape, -torch.inf)
    GemmAmax(*inputs, c, amax)(*inputs, c, amax)
    assert amax.shape == shape and amax.item() == data.amax()


def test_numpy_samples_torch_arrays():
    """Samples are metadata only, so any framework may give them."""
    data = exact(Case(17, 24, 64))
    samples = (*data.inputs(), Guarded(data.case, "numpy").tensor, amax_tensor("numpy"))
    out, amax = Guarded(data.case, "torch"), amax_tensor("torch")
    op = GemmAmax(*samples)
    op(*data.inputs("torch"), out.tensor, amax)
    assert_matches((out.tensor, amax), data)


# --- refusals that need torch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index, name", list(enumerate(["a_tensor", "b_tensor", "sfa_tensor", "sfb_tensor"]))
)
def test_mixed_devices(index, name):
    inputs = list(exact(Case(8, 8, 32)).inputs("torch"))
    inputs[index] = inputs[index].to("meta")
    with pytest.raises(ValueError, match=r"_tensor: expected it on \w+, as \w+ is, got"):
        gemm_amax_wrapper(*inputs)


def test_meta_tensors_have_no_engine():
    inputs = [x.to("meta") for x in exact(Case(8, 8, 32)).inputs("torch")]
    with pytest.raises(RuntimeError, match="no engine runs this on meta"):
        gemm_amax_wrapper(*inputs)


def test_mixed_frameworks():
    data = exact(Case(8, 8, 32))
    inputs = (*data.inputs("torch")[:3], data.inputs()[3])
    with pytest.raises(
        ValueError, match="sfb_tensor: expected a torch array, as a_tensor is, got a numpy"
    ):
        gemm_amax_wrapper(*inputs)


def test_float64_and_wrong_scales():
    a, b, sfa, sfb = exact(Case(8, 8, 256)).inputs("torch")
    with pytest.raises(ValueError, match="a_tensor: expected dtype .*got float64"):
        gemm_amax_wrapper(a.double(), b, sfa, sfb)
    with pytest.raises(ValueError, match="sfa_tensor: expected shape"):
        gemm_amax_wrapper(a, b, sfa[..., 0], sfb)
    with pytest.raises(ValueError, match="sfb_tensor: .*strides"):
        gemm_amax_wrapper(a, b, sfa, sfb.contiguous())
    with pytest.raises(TypeError, match="sfb_tensor: expected a tensor, got 3"):
        gemm_amax_wrapper(a, b, sfa, 3)


# --- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.fixture
def counter():
    torch._dynamo.reset()
    return CompileCounterWithBackend("aot_eager")


def compiled(counter, dynamic=None, **options):
    """c and amax of the compiled wrapper, as a tuple, and the result type seen inside."""

    def call(a, b, sfa, sfb):
        result = gemm_amax_wrapper(a, b, sfa, sfb, **options)
        c, amax = result
        return c, result["amax_tensor"], result[0] is c and amax is result[1]

    return torch.compile(call, fullgraph=True, backend=counter, dynamic=dynamic)


@pytest.mark.parametrize(
    "recipe, container", [("mxfp8", "native"), ("nvfp4", "native"), ("mxfp4", "uint8")]
)
def test_compile_with_dynamic_m(counter, recipe, container):
    """Extents from 129 down to 0 give the bits of eager calls, without a compile for each."""
    make = compiled(counter, dynamic=True, sf_vec_size=RECIPES[recipe].vec)
    sizes = (17, 129, 24, 100, 33, 200, 1, 0, 57, 99)
    for m in sizes:
        data = any_codes(Case(m, 24, 96, 2, recipe, container=container), seed=m)
        inputs = data.inputs("torch")
        c, amax, same = make(*inputs)
        eager = gemm_amax_wrapper(*inputs, sf_vec_size=RECIPES[recipe].vec)
        assert same is True
        assert_same_bits(c, eager[0])
        assert_same_bits(amax, eager[1])
    # 0, 1, and R = 1 are special to torch; no other size may cost a compile.
    assert counter.frame_count <= 5


@pytest.mark.parametrize("spell", [str, OUTPUTS.get], ids=["name", "torch"])
@pytest.mark.parametrize("c_dtype", OUTPUTS)
def test_compile_with_output_options(counter, c_dtype, spell):
    """Names and torch dtypes alike, although NumPy's spellings of them were met before."""
    as_dtype(np.float32), as_dtype(ml_dtypes.float8_e4m3fn)
    packed = c_dtype in ("float4_e2m1fn", "uint8")
    data = any_codes(Case(33, 24, 96, 2, "nvfp4", c_dtype=c_dtype, c_major="n" if packed else "m"))
    inputs = data.inputs("torch")
    options = data.case.options() | {"c_dtype": spell(c_dtype)}
    c, amax, _ = compiled(counter, **options)(*inputs)
    eager = gemm_amax_wrapper(*inputs, **data.case.options())
    assert_same_bits(c, eager[0])
    assert_same_bits(amax, eager[1])
    assert counter.frame_count == 1


def test_compile_around_other_operations(counter):
    data = exact(Case(17, 24, 64))

    def call(a, b, sfa, sfb):
        c, amax = gemm_amax_wrapper(a, b, sfa, sfb)
        return (c.squeeze(-1) / amax.view(())).relu()

    inputs = data.inputs("torch")
    got = torch.compile(call, fullgraph=True, backend=counter)(*inputs)
    torch.testing.assert_close(got, call(*inputs), rtol=0, atol=0)


def test_compile_refuses_as_eager_does(counter):
    a, b, sfa, sfb = exact(Case(8, 8, 32)).inputs("torch")
    with pytest.raises(Exception, match="sfa_tensor: expected shape"):
        compiled(counter)(a, b, sfa[..., 0], sfb)
    with pytest.raises(Exception, match="stream: expected None"):
        compiled(counter, stream=0)(a, b, sfa, sfb)


# --- the op under torch's own tools ----------------------------------------------------------------------------------


def registered():
    gemm_dense = pytest.importorskip("cudnn_core.doors.torch_op")
    gemm_dense.register("cudnn_gemm_dense::gemm_amax")
    return torch.ops.cudnn_gemm_dense.gemm_amax.default


@pytest.mark.parametrize("m", [17, 129])
def test_opcheck(m):
    """uint8 and int8 containers, whose equality torch can test; the whole of opcheck."""
    case = Case(m, 24, 96, 2, "mxfp4", container="uint8", scale_container="int8")
    inputs = exact(case).inputs("torch")
    torch.library.opcheck(registered(), inputs, {"c_dtype": "bfloat16"})


def test_opcheck_of_fp8():
    """torch's test_schema compares inputs with allclose, which float8 lacks; the other three run."""
    utils = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    inputs = exact(Case(17, 24, 64, 2)).inputs("torch")
    torch.library.opcheck(registered(), inputs, {}, test_utils=utils)


class Recorder(TorchDispatchMode):
    """Writes down every operation."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_dispatch_modes_see_one_op():
    data = exact(Case(17, 24, 64))
    inputs = data.inputs("torch")
    with Recorder() as recorder:
        result = gemm_amax_wrapper(*inputs)
    assert_matches(result, data)
    ours = [op for op in recorder.seen if op.namespace == "cudnn_gemm_dense"]
    assert ours == [registered()]


class Watched(torch.Tensor):
    """A subclass that counts the operations on it."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.cudnn_gemm_dense.gemm_amax:
            cls.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_see_the_op():
    data = exact(Case(17, 24, 64))
    a, *rest = data.inputs("torch")
    before = Watched.seen
    c, amax = gemm_amax_wrapper(a.as_subclass(Watched), *rest)
    assert Watched.seen == before + 1 and type(c) is Watched
    assert_matches((c.as_subclass(torch.Tensor), amax.as_subclass(torch.Tensor)), data)


def test_fake_tensors_get_shapes_only():
    data = exact(Case(17, 24, 64, 2, c_dtype="float16", c_major="m"))
    mode = FakeTensorMode()
    inputs = [mode.from_tensor(x) for x in data.inputs("torch")]
    with mode:
        c, amax = gemm_amax_wrapper(*inputs, **data.case.options())
    assert (c.dtype, c.shape, c.stride()) == (torch.float16, (17, 24, 2), (1, 17, 408))
    assert amax.shape == (1, 1, 1)


@pytest.mark.parametrize("c_dtype, c_major", [("bfloat16", "n"), ("float16", "m"), ("uint8", "n")])
def test_vmap_is_one_call_after_the_other(c_dtype, c_major):
    """Slices lie in memory as the results of single calls do."""
    a, b, *scales = exact(Case(17, 24, 64, 2, "nvfp4", container="uint8")).inputs("torch")
    options = {"sf_vec_size": 16, "c_dtype": c_dtype, "c_major": c_major}
    run = lambda a: tuple(gemm_amax_wrapper(a, b, *scales, **options))  # noqa: E731
    many = torch.empty_strided((3, *a.shape), (a.numel(), *a.stride()), dtype=a.dtype)
    for i, into in enumerate(many):
        into.copy_(a ^ i)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = torch.func.vmap(run)(many)
    for i, one in enumerate(many):
        for x, want in zip(got, run(one), strict=True):
            assert (x[i].stride(), x[i].dtype) == (want.stride(), want.dtype)
            np.testing.assert_array_equal(bits(x[i]), bits(want))


def test_functionalize_and_make_fx():
    data = exact(Case(17, 24, 64))
    inputs = data.inputs("torch")

    def call(*args):
        return tuple(gemm_amax_wrapper(*args))

    assert_matches(torch.func.functionalize(call)(*inputs), data)
    graph = make_fx(call)(*inputs)
    assert registered() in [node.target for node in graph.graph.nodes]
    assert_matches(graph(*inputs), data)


def test_the_schema_carries_every_attribute():
    text = str(registered()._schema)
    for part in (
        "Tensor b_tensor",
        'str c_major="n"',
        "Tensor? sfa_tensor",
        "int[2] sf_vec_size=32",
        "int[]? mma_tiler_mn=None",
    ):
        assert part in text
    assert text.endswith("-> (Tensor, Tensor)")


# --- memory ----------------------------------------------------------------------------------------------------------


def test_no_tensor_is_kept_alive():
    data = exact(Case(17, 24, 64))
    inputs, out, amax = (
        data.inputs("torch"),
        Guarded(data.case, "torch").tensor,
        amax_tensor("torch"),
    )
    op = GemmAmax(*inputs, out, amax)
    op(*inputs, out, amax)
    results = tuple(gemm_amax_wrapper(*inputs))
    watched = [weakref.ref(x) for x in (*inputs, out, amax, *results)]
    del inputs, out, amax, results
    gc.collect()
    assert [ref() for ref in watched] == [None] * 8
    assert op._is_compiled  # alive itself
