"""PyTorch and JAX give the bits of the NumPy law, eager and compiled, in every layout."""

import os
import shutil

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cudnn_core.formats import (
    cases,
    dequantize,
    pack_scales,
    quantize,
    unpack_scales,
)

LIBRARIES = ["torch", "jax"]
# PyTorch's CPU tensors go to the law itself; its own operations are what has to be compared.
ENGINE = {"torch": "torch", "jax": None}
NUMPY_DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
# None, computed, ordinary, and two whose reciprocals meet FP32's limits.
PER_TENSOR = [None, True, 0.7, 3e-41, 1e38]


@pytest.fixture(params=LIBRARIES)
def library(request):
    pytest.importorskip(request.param)
    return request.param


def to(library: str, x: np.ndarray):
    """The same bits as an array of another library."""
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x)
    import torch

    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def words(x) -> np.ndarray:
    """The bits of any library's array as unsigned integers, NaN made one pattern."""
    if type(x).__module__.startswith("torch"):
        import torch

        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.dtype.itemsize]
        nan = x.isnan().numpy() if x.is_floating_point() and x.dtype.itemsize > 1 else None
        bits = x.view(integer).numpy().copy()
    else:
        x = np.asarray(x)
        nan = np.isnan(x.astype(np.float32)) if x.dtype.itemsize > 1 else None
        bits = x.view({1: np.uint8, 2: np.int16, 4: np.int32}[x.dtype.itemsize]).copy()
    if nan is not None:
        bits[nan] = -1
    return bits


def narrowed(x: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(NUMPY_DTYPES[dtype])


def assert_equal_results(ours, theirs):
    for key in ("data", "scale", "per_tensor_scale"):
        if theirs[key] is None:
            assert ours[key] is None
        else:
            np.testing.assert_array_equal(words(ours[key]), words(theirs[key]), err_msg=key)


def tensors(name: str) -> list[tuple[np.ndarray, object]]:
    """All cases as few arrays (one batch), each with a per-tensor scale to ask for."""
    every = cases.inputs()
    batch = np.stack(list(every.values()))
    if name != "nvfp4":
        return [(batch, None)]
    asked = [(batch, number) for number in PER_TENSOR]
    return [*asked, *((every[case][None], True) for case in ("tiny", "wild", "huge", "zeros"))]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize(("name", "block"), cases.RECIPES)
def test_every_case(library, name, block, dtype):
    for x, per_tensor_scale in tensors(name):
        x = narrowed(x, dtype)
        options = {"sf_vec_size": block, "scale_layout": "physical"}
        theirs = quantize(x, name, per_tensor_scale=per_tensor_scale, **options)
        ours = quantize(
            to(library, x),
            name,
            per_tensor_scale=per_tensor_scale,
            engine=ENGINE[library],
            **options,
        )
        assert_equal_results(ours, theirs)
        decoded = [
            dequantize(
                q["data"],
                q["scale"],
                name,
                per_tensor_scale=q["per_tensor_scale"],
                dtype=dtype,
                **options,
            )
            for q in (ours, theirs)
        ]
        np.testing.assert_array_equal(*map(words, decoded))


@given(
    x=hnp.arrays(np.uint32, st.tuples(st.just(3), st.just(40))),
    recipe=st.sampled_from(cases.RECIPES),
)
@settings(max_examples=50, deadline=None)
def test_any_bits(x, recipe):
    name, block = recipe
    x = x.view(np.float32)
    theirs = quantize(x, name, sf_vec_size=block)
    for library in LIBRARIES:
        pytest.importorskip(library)
        ours = quantize(
            to(library, x),
            name,
            sf_vec_size=block,
            scale_layout="logical",
            engine=ENGINE[library],
        )
        assert_equal_results(ours, theirs)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((129, 96, 2), {"axis": 1, "scale_layout": "logical"}),
        ((129, 96, 2), {"axis": 1, "scale_layout": "plain"}),
        ((96, 40), {"axis": 0, "scale_layout": "physical"}),
        ((2, 3, 5, 48), {"scale_layout": "plain"}),
        ((2, 64, 5), {"axis": 1, "row_axis": 2, "scale_layout": "logical"}),
        ((33,), {"scale_layout": "physical"}),
        ((0, 32), {"scale_layout": "logical"}),
        ((4, 0), {"scale_layout": "plain"}),
        ((0, 4, 32), {"scale_layout": "physical"}),
    ],
)
def test_axes_and_layouts(library, name, shape, options):
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    theirs = quantize(x, name, per_tensor_scale=True if name == "nvfp4" else None, **options)
    ours = quantize(
        to(library, x),
        name,
        per_tensor_scale=True if name == "nvfp4" else None,
        engine=ENGINE[library],
        **options,
    )
    assert_equal_results(ours, theirs)
    size = shape[options.get("axis", -1)]
    decoded = [
        dequantize(q["data"], q["scale"], name, size=size, **options) for q in (ours, theirs)
    ]
    np.testing.assert_array_equal(*map(words, decoded))


def test_scale_layouts(library):
    plain = np.random.default_rng(2).integers(0, 256, (2, 130, 6), dtype=np.uint8)
    plain = plain.view(ml_dtypes.float8_e8m0fnu)
    own = to(library, plain.view(np.uint8))
    if library == "jax":
        import jax.numpy as jnp

        own = jnp.asarray(plain)
    for layout in ("logical", "physical"):
        packed = pack_scales(own, scale_layout=layout)
        np.testing.assert_array_equal(words(packed), words(pack_scales(plain, scale_layout=layout)))
        np.testing.assert_array_equal(words(unpack_scales(packed, plain.shape)), words(plain))


# --- PyTorch -----------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_dtypes_and_strides(torch):
    x = torch.randn(129, 96, 2)
    for name, extent, dtype in (
        ("mxfp8", 96, torch.float8_e4m3fn),
        ("nvfp4", 48, torch.float4_e2m1fn_x2),
    ):
        q = quantize(x, name, axis=1)
        assert q["data"].dtype == dtype
        assert q["data"].shape == (129, extent, 2)
        assert q["data"].stride() == (extent, 1, 129 * extent)
        assert q["scale"].shape[0:2] == (32, 4)
        atoms = q["scale"].shape[2] * q["scale"].shape[4]
        assert q["scale"].stride() == (16, 4, 512 * q["scale"].shape[4], 1, 512, 512 * atoms)
    assert quantize(x, "mxfp8", axis=1)["scale"].dtype == torch.float8_e8m0fnu
    assert quantize(x, "nvfp4", axis=1)["scale"].dtype == torch.float8_e4m3fn
    turned = quantize(x[:, :, 0].t().contiguous().t(), "mxfp8")["data"]
    assert turned.stride() == (1, 129)


def test_torch_strided_views_and_offsets(torch):
    big = torch.randn(200, 300)
    for view in (
        big[:, :97],
        big[1::3, 16:80],
        big.flatten()[17:].as_strided((20, 64), (129, 2)),
        big[:1].expand(5, 300),
        big.t()[5:69],
    ):
        ours, theirs = quantize(view, "nvfp4"), quantize(view.contiguous(), "nvfp4")
        for key in ("data", "scale"):
            np.testing.assert_array_equal(words(ours[key]), words(theirs[key]))


@pytest.mark.parametrize("engine", [None, "torch"])
def test_torch_pieces_do_not_show(torch, engine):
    from cudnn_core.formats import torch_impl

    x = torch.randn(3, 700, 192)
    assert x.numel() > torch_impl._PIECE
    assert_equal_results(quantize(x, "nvfp4", engine=engine), quantize(x.numpy(), "nvfp4"))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_torch_on_the_cpu_takes_the_law(torch, dtype):
    for case in ("special", "wild", "subnormal"):
        x = narrowed(cases.inputs()[case], dtype)
        for per_tensor_scale in (None, True, 0.7):
            ours = quantize(to("torch", x), "nvfp4", per_tensor_scale=per_tensor_scale)
            assert_equal_results(ours, quantize(x, "nvfp4", per_tensor_scale=per_tensor_scale))


def test_torch_records_no_gradient(torch):
    x = torch.randn(4, 32, requires_grad=True)
    q = quantize(x, "nvfp4", per_tensor_scale=True)
    assert not q["per_tensor_scale"].requires_grad
    assert not dequantize(q["data"], q["scale"], "nvfp4").requires_grad


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_flush_mode_of_the_thread_changes_nothing(torch, library, name):
    """Not even in tables made while it is on, which later calls use."""
    from cudnn_core.formats import reference, torch_impl

    def round_trip():
        own = x if library == "numpy" else to(library, x)
        p = 0.7 if name == "nvfp4" else None
        q = quantize(own, name, per_tensor_scale=p, scale_layout="plain")
        back = dequantize(q["data"], q["scale"], name, scale_layout="plain", per_tensor_scale=p)
        return q, back

    def forget():
        for table in (reference._boundaries, reference.values, reference.e8m0_values):
            table.cache_clear()
        torch_impl._table.cache_clear()

    # Codes of "subnormal" are zeros; "tiny" has numbers that a flush could lose again in decoding.
    x = np.concatenate([cases.inputs()[kind] for kind in ("subnormal", "tiny")])
    if library == "jax":
        import jax

        jax.clear_caches()
    else:
        forget()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush mode")
    try:
        ours = round_trip()
    finally:
        torch.set_flush_denormal(False)
    kept = round_trip()
    forget()
    if library == "jax":
        jax.clear_caches()
    for seen in (ours, kept):
        assert_equal_results(seen[0], (theirs := round_trip())[0])
        np.testing.assert_array_equal(words(seen[1]), words(theirs[1]))


def test_lazily_negated_views_keep_their_sign(torch):
    pair = torch.randn(2, 4, 64)
    lazy = torch.complex(pair[0], pair[1]).conj().imag
    assert lazy.is_neg()
    for engine in (None, "torch"):
        assert_equal_results(
            quantize(lazy, "mxfp8", engine=engine), quantize(-pair[1], "mxfp8", engine=engine)
        )


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_has_no_break_and_the_same_bits(torch, name, backend):
    def round_trip(x):
        q = quantize(x, name, per_tensor_scale=True if name == "nvfp4" else None)
        decoded = dequantize(q["data"], q["scale"], name, per_tensor_scale=q["per_tensor_scale"])
        return q["data"], q["scale"], decoded

    if backend == "inductor" and shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler for inductor")
    torch._dynamo.reset()
    compiled = torch.compile(round_trip, fullgraph=True, backend=backend, dynamic=True)
    x = torch.from_numpy(cases.inputs(20, 96)["special"])
    for rows in (20, 12, 1, 0):
        for ours, theirs in zip(compiled(x[:rows]), round_trip(x[:rows]), strict=True):
            assert ours.stride() == theirs.stride()
            np.testing.assert_array_equal(words(ours), words(theirs))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_torch_fake_tensors_have_the_metadata_of_real_ones(torch, device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = quantize(torch.ones(40, 96), "nvfp4", per_tensor_scale=True)
    with FakeTensorMode():
        fake = quantize(torch.empty(40, 96, device=device), "nvfp4", per_tensor_scale=True)
        decoded = dequantize(fake["data"], fake["scale"], "nvfp4", dtype="float16")
    for ours, theirs in zip(fake, real, strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (
            theirs.shape,
            theirs.stride(),
            theirs.dtype,
        )
        assert ours.device.type == device
    assert (decoded.shape, decoded.dtype) == ((40, 96), torch.float16)


@pytest.mark.parametrize(
    ("recipe", "computed", "layout"),
    [
        (("mxfp8", 32), False, "atom"),
        (("mxfp4", 16), False, "plain"),
        (("nvfp4", 16), True, "atom"),
    ],
)
def test_torch_operators_pass_opcheck(torch, recipe, computed, layout):
    from cudnn_core.formats import torch_op  # noqa: F401 - registers the operators

    ops = torch.ops.cudnn_core
    # test_schema copies and compares operands, which torch lacks for FP4 and E8M0.
    utils = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for x, order in (
        (torch.randn(129, 96), (0, 1)),
        (torch.randn(96, 40).t(), (0, 1)),
        (torch.randn(129, 96, 2), (2, 0, 1)),
        (torch.randn(0, 32), (0, 1)),
    ):
        arguments = (x, None, computed, *recipe, order, layout, None)
        torch.library.opcheck(ops.quantize.default, arguments, test_utils=utils)
        data, scale, *number = ops.quantize(*arguments)
        torch.library.opcheck(
            ops.dequantize.default,
            (
                data,
                scale,
                *(number or [None]),
                *recipe,
                order,
                x.shape[order[-1]],
                layout,
                "bfloat16",
            ),
            test_utils=utils,
        )


def test_torch_refuses_other_devices_and_libraries(torch):
    x = torch.ones(4, 32)
    with pytest.raises(RuntimeError, match="engine 'hopper' cannot run: it needs a CUDA device"):
        quantize(x, "mxfp8", engine="hopper")
    with pytest.raises(RuntimeError, match="engine 'reference': expected a CPU tensor"):
        quantize(x.to("meta"), "mxfp8", engine="reference")
    with pytest.raises(ValueError, match="per_tensor_scale: expected device cpu, got meta"):
        quantize(x, "nvfp4", per_tensor_scale=torch.ones((), device="meta"))
    with pytest.raises(TypeError, match="per_tensor_scale: expected a torch array"):
        quantize(x, "nvfp4", per_tensor_scale=np.ones(1, np.float32))
    with pytest.raises(ValueError, match="x: .*got float64"):
        quantize(x.double(), "mxfp8")
    q = quantize(x, "mxfp8")
    with pytest.raises(ValueError, match="scale: expected device cpu"):
        dequantize(q["data"], q["scale"].to("meta"), "mxfp8")
    with pytest.raises(TypeError, match="scale: expected a torch array like data, got numpy"):
        dequantize(q["data"], np.ones(4, np.uint8), "mxfp8")


# --- JAX ---------------------------------------------------------------------------------------


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def test_jax_jit_returns_the_same(jax):
    x = cases.inputs()["special"]
    ours = jax.jit(lambda x: quantize(x, "nvfp4", per_tensor_scale=True))(x * 1)
    assert list(ours.keys()) == ["data", "scale", "per_tensor_scale"]
    assert_equal_results(ours, quantize(x, "nvfp4", per_tensor_scale=True, scale_layout="physical"))


def test_jax_vmap(jax):
    x = np.random.default_rng(0).standard_normal((3, 5, 64)).astype(np.float32)
    ours = jax.vmap(lambda x: quantize(x, "mxfp8")["data"])(x)
    np.testing.assert_array_equal(words(ours), words(quantize(x, "mxfp8")["data"]))


def test_jax_atoms_are_physical(jax):
    assert quantize(jax.numpy.ones((4, 32)), "mxfp8")["scale"].shape == (1, 1, 1, 32, 4, 4)


def test_jax_with_x64(jax):
    x = cases.inputs(12, 40)["wild"]
    theirs = quantize(x, "nvfp4", per_tensor_scale=True)
    with jax.enable_x64(True):
        ours = quantize(
            jax.numpy.asarray(x), "nvfp4", per_tensor_scale=True, scale_layout="logical"
        )
        with pytest.raises(ValueError, match="x: .*got float64"):
            quantize(jax.numpy.ones((4, 32), jax.numpy.float64), "mxfp8")
    assert_equal_results(ours, theirs)


def test_jax_reciprocal_and_quotient_are_ieee(jax):
    from cudnn_core.formats import jax_impl

    rng = np.random.default_rng(9)
    edges = np.uint32([0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000])
    a = np.concatenate([rng.integers(0, 2**31, 4000, dtype=np.uint32), np.repeat(edges, 8)])
    b = np.concatenate([rng.integers(0, 2**31, 4000, dtype=np.uint32), np.tile(edges, 8)])
    # 0/0 and Inf/Inf do not occur: the numerator is 1 or a finite amax over a constant.
    keep = ~((a == b) & ((a == 0) | (a == 0x7F800000)))
    a, b = a[keep], b[keep]
    with np.errstate(all="ignore"):
        theirs = a.view(np.float32) / b.view(np.float32)
    ours = np.asarray(jax_impl._divide(a.view(np.int32), b.view(np.int32)))
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(ours[~nan], theirs[~nan].view(np.int32))
    assert (ours[nan] > 0x7F800000).all()
