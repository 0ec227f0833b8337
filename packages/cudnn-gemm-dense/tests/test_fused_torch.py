"""swiglu, srelu and dsrelu on torch CPU tensors: eager, class, torch.compile, opcheck, dispatch modes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import cudnn_gemm_dense as dense
from cudnn_core.tensor_desc import canonical_stride
from cudnn_core.testing.gemm import bits, host
from cudnn_gemm_dense.testing import (
    batch_first,
    dsrelu,
    make_call,
    operands,
    scale_memory,
    srelu,
    swiglu,
    values,
)

OPS = ("swiglu", "srelu", "dsrelu")
every_op = pytest.mark.parametrize("op", OPS)
ULP = 2.0**-23


def tensors(op, call, container="native"):
    """Positional operands of `wrapper`, in the order of the op's contract."""
    return tuple(operands(op, call, "torch", container=container))


def wrapper(op):
    """The wrapper with its operands first and everything else by keyword."""
    function = getattr(dense, f"gemm_{op}_wrapper")
    if op != "swiglu":
        return function
    return lambda a, b, sfa, sfb, **options: function(
        a, b, sfa_tensor=sfa, sfb_tensor=sfb, **options
    )


def main_output(op, call):
    """The float64 model of C or D."""
    if op == "swiglu":
        return swiglu(call.preactivation())
    return srelu(call) if op == "srelu" else dsrelu(call)[0]


def key_of(op):
    return "c_tensor" if op == "swiglu" else "d_tensor"


def dtype_of(op, dtype):
    return {"c_dtype" if op == "swiglu" else "d_dtype": dtype}


def assert_same(first, second):
    assert list(first.keys()) == list(second.keys())
    for x, y in zip(first, second, strict=True):
        if y is None:
            assert x is None
            continue
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        np.testing.assert_array_equal(bits(x), bits(y))


# --- eager -----------------------------------------------------------------------------------------------------------


@every_op
@pytest.mark.parametrize("container", ["native", "uint8"])
@pytest.mark.parametrize("a, b", [("bfloat16", "nvfp4"), ("mxfp8", "mxfp8"), ("mxfp4", "mxfp4_16")])
def test_values(op, a, b, container):
    call = make_call(33, 128, 352, 2, a, b)
    options = dtype_of(op, torch.float32) | {"sf_vec_size": call.vec(), "alpha": 0.5}
    result = wrapper(op)(*tensors(op, call, container), **options)
    call.alpha = 0.5
    np.testing.assert_allclose(
        values(result[key_of(op)]), main_output(op, call), rtol=4 * ULP, atol=1e-44
    )


@every_op
@pytest.mark.parametrize("format", ["mxfp8", "mxfp4", "nvfp4"])
def test_quantized_outputs_equal_numpys(op, format):
    call = make_call(33, 192, 72, 2)
    got = wrapper(op)(*tensors(op, call), out_format=format)
    there = [x if x is None else host(x) for x in tensors(op, call)]
    want = wrapper(op)(*there, out_format=format)
    np.testing.assert_array_equal(bits(got[key_of(op)]), bits(want[key_of(op)]))
    scales = "sfc_tensor" if op == "swiglu" else "sfd_tensor"
    np.testing.assert_array_equal(scale_memory(got[scales]), scale_memory(want[scales]))
    packed = got[key_of(op)].dtype
    assert packed is (torch.float8_e4m3fn if format == "mxfp8" else torch.float4_e2m1fn_x2)
    assert got[scales].stride()[:4] == (16, 4, 512 * got[scales].shape[4], 1)


@every_op
@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize(
    "dtype, container",
    [
        (torch.uint8, torch.uint8),
        ("uint8", torch.uint8),
        ("float4_e2m1fn", torch.float4_e2m1fn_x2),
        (torch.float16, torch.float4_e2m1fn_x2),
    ],
    ids=str,
)
def test_the_container_of_fp4_is_the_callers_choice(op, format, dtype, container):
    call = make_call(33, 128, 72, 2)
    want = wrapper(op)(*tensors(op, call), out_format=format)
    got = wrapper(op)(*tensors(op, call), out_format=format, **dtype_of(op, dtype))
    assert got[key_of(op)].dtype is container
    np.testing.assert_array_equal(bits(got[key_of(op)]), bits(want[key_of(op)]))


@every_op
@pytest.mark.parametrize("alpha", [2, 2.0, np.float32(2), torch.tensor(2.0), torch.tensor([2])])
def test_alpha_of_any_kind_of_number(op, alpha):
    call = make_call(9, 64, 64)
    call.alpha = 2.0
    result = wrapper(op)(*tensors(op, call), alpha=alpha, **dtype_of(op, torch.float32))
    np.testing.assert_allclose(
        values(result[key_of(op)]), main_output(op, call), rtol=4 * ULP, atol=1e-44
    )


@every_op
def test_alpha_on_another_device_is_refused(op):
    call = make_call(9, 64, 64)
    with pytest.raises(ValueError, match="alpha: expected a number on the host"):
        wrapper(op)(*tensors(op, call), alpha=torch.tensor(2.0, device="meta"))


@pytest.mark.parametrize("op", ["srelu", "dsrelu"])
def test_prob_off_a_16_byte_boundary(op):
    call = make_call(33, 64, 64)
    *rest, prob = tensors(op, call)
    flat = torch.zeros(34)
    flat[1:] = prob.flatten()
    moved = flat[1:].view(33, 1, 1)
    assert moved.data_ptr() % 16
    first, second = wrapper(op)(*rest, prob), wrapper(op)(*rest, moved)
    assert_same(first, second)


def test_class_with_views():
    call = make_call(17, 128, 64, 3, "mxfp8", "bfloat16")
    a, b, sfa, _ = tensors("swiglu", call)
    ab12, c = torch.empty(17, 128, 3).permute(0, 1, 2), torch.full((3, 17, 80), torch.nan)
    ab12 = torch.full((3, 17, 130), torch.nan)[..., 1:129].permute(1, 2, 0)
    out = c[..., 8:72].permute(1, 2, 0)
    op = dense.GemmSwiglu(a, b, ab12, out, sample_sfa=sfa, sf_vec_size=32)
    op(a, b, ab12, out, sfa, alpha=-0.5)
    call.alpha = -0.5
    np.testing.assert_array_equal(values(ab12), call.preactivation())
    np.testing.assert_allclose(values(out), swiglu(call.preactivation()), rtol=ULP, atol=1e-44)
    assert c[..., :8].isnan().all() and c[..., 72:].isnan().all()


# --- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.fixture
def counter():
    torch._dynamo.reset()
    return CompileCounterWithBackend("aot_eager")


@every_op
@pytest.mark.parametrize("formats", [("bfloat16", "bfloat16"), ("mxfp8", "nvfp4")])
def test_compile_with_dynamic_m(op, counter, formats):
    """The bits of eager calls for M down to 0, without a compile for each."""
    function = wrapper(op)
    make = torch.compile(
        lambda *args, **options: dict(function(*args, **options).items()),
        fullgraph=True,
        backend=counter,
        dynamic=True,
    )
    for m in (17, 129, 24, 100, 33, 200, 1, 0, 57):
        call = make_call(m, 128, 96, 2, *formats, seed=m)
        given, options = tensors(op, call), {"sf_vec_size": call.vec()}
        compiled = make(*given, **options)
        eager = function(*given, **options)
        for name, x in eager.items():
            if x is None:
                assert compiled[name] is None
            else:
                assert (compiled[name].shape, compiled[name].stride()) == (x.shape, x.stride())
                np.testing.assert_array_equal(bits(compiled[name]), bits(x))
    assert counter.frame_count <= 5


@every_op
@pytest.mark.parametrize("format", ["mxfp8", "nvfp4"])
def test_compile_with_quantized_outputs(op, counter, format):
    call = make_call(17, 128, 96, 2)
    function = wrapper(op)
    make = torch.compile(
        lambda *args: tuple(function(*args, out_format=format)), fullgraph=True, backend=counter
    )
    given = tensors(op, call)
    for x, y in zip(make(*given), function(*given, out_format=format), strict=True):
        assert (x is None) == (y is None)
        if y is not None:
            assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
            np.testing.assert_array_equal(bits(x), bits(y))
    assert counter.frame_count == 1


@every_op
def test_compile_with_changing_alpha(op):
    """Tracing reads no number, so dynamo keeps it symbolic. (AOT backends specialize what goes to no pointwise op.)"""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    call = make_call(9, 64, 64)
    function, given = wrapper(op), tensors(op, call)
    wide = dtype_of(op, torch.float32)
    make = torch.compile(
        lambda alpha: tuple(function(*given, alpha=alpha, **wide)), fullgraph=True, backend=counter
    )
    for alpha in (1.0, 0.5, -2.0, 0.25, 3.0, 0.0):
        eager = function(*given, alpha=alpha, **wide)
        for x, y in zip(make(alpha), eager, strict=True):
            assert (x is None) == (y is None)
            if y is not None:
                np.testing.assert_array_equal(bits(x), bits(y))
    assert counter.frame_count <= 3


def test_compile_without_ab12(counter):
    call = make_call(9, 64, 64)
    given = tensors("swiglu", call)
    make = torch.compile(
        lambda a, b: tuple(dense.gemm_swiglu_wrapper(a, b, ab12_dtype=None)),
        fullgraph=True,
        backend=counter,
    )
    ab12, c, sfc, amax = make(*given[:2])
    assert ab12 is None and sfc is None and amax is None
    np.testing.assert_array_equal(bits(c), bits(dense.gemm_swiglu_wrapper(*given[:2])["c_tensor"]))


@every_op
def test_compile_refuses_as_eager_does(op, counter):
    call = make_call(9, 64, 64, 1, "mxfp8", "mxfp8")
    given = list(tensors(op, call))
    function = wrapper(op)
    make = torch.compile(lambda *args: tuple(function(*args)), fullgraph=True, backend=counter)
    with pytest.raises(Exception, match="sf_vec_size: expected"):
        make(*given)


# --- torch.func ------------------------------------------------------------------------------------------------------


def stacked(calls, op, index):
    """The operands `index` of several problems along a new first axis, each as it lies in memory."""
    every = [tensors(op, call)[index] for call in calls]
    first = every[0]
    made = torch.empty_strided(
        (len(every), *first.shape), (first.numel(), *first.stride()), dtype=first.dtype
    )
    for into, x in zip(made, every, strict=True):
        into.copy_(x)
    return made


@every_op
@pytest.mark.parametrize("format", [None, "mxfp8", "nvfp4"])
@pytest.mark.parametrize("compiled", [False, True])
def test_vmap_is_one_call_after_the_other(op, format, compiled):
    """Of one operand alone; results in the memory order that each has."""
    torch._dynamo.reset()
    calls = [make_call(9, 64, 64, 2, "bfloat16", "nvfp4", seed=i) for i in range(3)]
    options = {"sf_vec_size": calls[0].vec(), "out_format": format}
    shared = tensors(op, calls[0])[1:]

    def run(a):
        return {k: x for k, x in wrapper(op)(a, *shared, **options).items() if x is not None}

    mapped = torch.func.vmap(run)
    if compiled:
        mapped = torch.compile(mapped, fullgraph=True, backend="aot_eager")
    got = mapped(stacked(calls, op, 0))
    for i, call in enumerate(calls):
        for name, want in run(tensors(op, call)[0]).items():
            one = got[name][i]
            assert one.dtype is want.dtype
            assert canonical_stride(one.shape, one.stride()) == canonical_stride(
                want.shape, want.stride()
            )
            np.testing.assert_array_equal(bits(one), bits(want))


@every_op
def test_vmap_over_other_axes_and_levels(op):
    calls = [make_call(9, 64, 64, seed=i) for i in range(2)]
    _, *shared = tensors(op, calls[0])
    run = lambda a: wrapper(op)(a, *shared)[key_of(op)]  # noqa: E731
    every = stacked(calls, op, 0)
    want = torch.stack([run(a) for a in every])
    assert torch.equal(
        torch.func.vmap(run, in_dims=1, out_dims=2)(every.movedim(0, 1)), want.movedim(0, 2)
    )
    nested = torch.func.vmap(torch.func.vmap(run))(every[None])
    assert torch.equal(nested, want[None])
    with pytest.raises(ValueError, match=f"gemm_{op}: expected a mapped axis that is not empty"):
        torch.func.vmap(run)(every[:0])


# --- the op under torch's own tools ----------------------------------------------------------------------------------


def registered(op):
    doors = pytest.importorskip("cudnn_core.doors.torch_op")
    doors.register(f"cudnn_gemm_dense::gemm_{op}")
    return getattr(torch.ops.cudnn_gemm_dense, f"gemm_{op}").default


@every_op
@pytest.mark.parametrize("m", [17, 129])
def test_opcheck(op, m):
    call = make_call(m, 128, 96, 2)
    given = tensors(op, call)
    norm_const = torch.ones(1)
    torch.library.opcheck(registered(op), (*given, None), {"alpha": 0.5})
    options = {"out_format": "mxfp4", "alpha": 2.0}
    options["c_dtype" if op == "swiglu" else "d_dtype"] = "uint8"
    torch.library.opcheck(registered(op), (*given, norm_const), options)


@every_op
def test_the_schema_carries_everything(op):
    text = str(registered(op)._schema)
    for part in ("Tensor? sfa_tensor", "Tensor? norm_const_tensor", "int[2] sf_vec_size=16"):
        assert part in text
    assert "str? out_format=None" in text and "Scalar alpha=1." in text
    assert text.endswith("-> Tensor[]")


@every_op
def test_fake_tensors_get_shapes_only(op):
    call = make_call(17, 128, 96, 2, "nvfp4", "nvfp4")
    mode = FakeTensorMode()
    given = tensors(op, call, "uint8")
    want = wrapper(op)(*given, **dtype_of(op, torch.bfloat16))
    fakes = [None if x is None else mode.from_tensor(x) for x in given]
    with mode:
        got = wrapper(op)(*fakes, **dtype_of(op, torch.bfloat16))
    for x, y in zip(got, want, strict=True):
        assert (x is None) == (y is None)
        if y is not None:
            assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())


@every_op
def test_functionalize(op):
    call = make_call(17, 128, 96, 2)
    given = tensors(op, call)
    present = [x for x in given if x is not None]

    def run(*args):
        left = iter(args)
        made = wrapper(op)(*(None if x is None else next(left) for x in given), alpha=2.0)
        return made[key_of(op)]

    got = torch.func.functionalize(run)(*present)
    np.testing.assert_array_equal(bits(got), bits(run(*present)))
    assert batch_first(got).shape[1] == 17
