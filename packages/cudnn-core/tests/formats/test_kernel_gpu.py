"""The Hopper kernels give the bits of the NumPy law."""

import numpy as np
import pytest

from cudnn_core.formats import cases, dequantize, quantize

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
recipes = pytest.mark.parametrize(("name", "block"), cases.RECIPES)


def nan_filled_allocations(monkeypatch):
    """Every buffer the kernel is to fill starts as 0xFF bytes."""
    empty = torch.Tensor.new_empty

    def poisoned(self, *args, **kwargs):
        fresh = empty(self, *args, **kwargs)
        fresh.view(torch.uint8).fill_(0xFF)
        return fresh

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    nan_filled_allocations(monkeypatch)


def to_numpy(x):
    if x.dtype == torch.bfloat16:
        import ml_dtypes

        return x.cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.cpu().numpy()


def raw(x):
    return x.cpu().view(torch.uint8).numpy() if isinstance(x, torch.Tensor) else x.view(np.uint8)


def assert_is_the_law(x, name, block, **options):
    ours = quantize(x, name, sf_vec_size=block, **options)
    theirs = quantize(to_numpy(x), name, sf_vec_size=block, **options)
    for key in ("data", "scale"):
        assert ours[key].device == x.device
        np.testing.assert_array_equal(raw(ours[key]), raw(theirs[key]), err_msg=f"{name} {key}")
    if theirs["per_tensor_scale"] is None:
        assert ours["per_tensor_scale"] is None
    else:
        number = ours["per_tensor_scale"].cpu().numpy()
        np.testing.assert_array_equal(number, theirs["per_tensor_scale"])
    return ours


@recipes
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [256, 250])
def test_every_case(name, block, dtype, k):
    """K of 256 takes the vector path, K of 250 the strided one."""
    for case in cases.inputs(67, k).values():
        x = torch.from_numpy(case).to(dtype).cuda()
        for per_tensor_scale in (None, True, 0.7, 3e-41, 1e38) if name == "nvfp4" else (None,):
            assert_is_the_law(x, name, block, per_tensor_scale=per_tensor_scale)


@recipes
@pytest.mark.parametrize(
    "shape",
    [
        (1, 16),
        (1, 32),
        (7, 16),
        (7, 40),
        (17, 48),
        (100, 8),
        (127, 584),
        (128, 512),
        (129, 528),
        (1752, 1040),
        (300, 4096),
        (3, 129, 96),
        (2, 3, 17, 160),
        (33,),
        (1, 1),
        (5, 7),
        (130, 33),
        (0, 32),
        (4, 0),
        (0, 4, 32),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["logical", "plain"])
def test_shapes(name, block, shape, layout):
    x = torch.randn(shape, device="cuda").to(torch.bfloat16)
    assert_is_the_law(x, name, block, scale_layout=layout)
    if name == "nvfp4":
        assert_is_the_law(x, name, block, scale_layout=layout, per_tensor_scale=True)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_offsets_and_alignment(name, dtype):
    big = torch.randn(200, 2064, device="cuda").to(dtype)
    flat = big.flatten()
    views = [
        big[:, :64],
        big[:, 1:65],
        big[3:, 16:528],
        big[:1].expand(9, 2064),
        big.t()[16:80],
        flat[1 : 1 + 128 * 128].view(128, 128),
        flat.as_strided((128, 64), (65, 1)),
        flat.as_strided((1, 64), (1, 1)),
        flat.as_strided((20, 64), (130, 2)),
        flat.as_strided((4, 64, 3), (64, 1, 300)).permute(2, 0, 1),
    ]
    for view in views:
        assert_is_the_law(view, name, None)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize("batch", [1, 2])
def test_operands_of_a_gemm(name, batch):
    x = torch.randn(batch, 129, 96, device="cuda", dtype=torch.bfloat16).permute(1, 2, 0)
    q = assert_is_the_law(x, name, None, axis=1)
    extent = q["data"].shape[1]
    assert q["data"].stride()[:2] == (extent, 1)
    turned = torch.randn(batch, 96, 129, device="cuda", dtype=torch.bfloat16).permute(2, 1, 0)
    q = assert_is_the_law(turned, name, None, axis=1)
    assert q["data"].stride()[:2] == ((1, 129) if name == "mxfp8" else (48, 1))


@recipes
def test_guard_bytes_stay(name, block, monkeypatch):
    """Nothing is written outside the outputs."""
    guards = []

    def guarded(self, shape, dtype):
        size = int(np.prod(shape))
        room = torch.full((size + 1024,), 0xA5, dtype=torch.uint8, device=self.device)
        guards.append((room, size))
        return room[512 : 512 + size].view(shape)

    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda self, shape, dtype: guarded(self, shape, dtype)
    )
    for k in (96, 97, 1040):
        quantize(torch.randn(131, k, device="cuda", dtype=torch.bfloat16), name, sf_vec_size=block)
    assert len(guards) == 6
    for room, size in guards:
        assert (room[:512] == 0xA5).all()
        assert (room[512 + size :] == 0xA5).all()


def test_engines_agree_at_size():
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for name, block in cases.RECIPES:
        for per_tensor_scale in (None, True) if name == "nvfp4" else (None,):
            options = {"sf_vec_size": block, "per_tensor_scale": per_tensor_scale}
            ours = quantize(x, name, **options)
            theirs = quantize(x, name, engine="torch", **options)
            for key in ("data", "scale"):
                assert torch.equal(ours[key].view(torch.uint8), theirs[key].view(torch.uint8))
            again = quantize(x, name, **options)
            assert torch.equal(ours["data"].view(torch.uint8), again["data"].view(torch.uint8))


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4"])
def test_rows_contiguous_with_batches_that_do_not_merge(name):
    """x is copied into the kernel's order; FP8 codes still follow x, contiguous along the rows."""
    x = torch.randn(3, 2, 64, 48, device="cuda").permute(1, 0, 3, 2)
    block = 16 if name == "nvfp4" else 32
    data = assert_is_the_law(x, name, block)["data"]
    assert data.stride(-2 if name.startswith("mxfp8") else -1) == 1


def test_more_than_two_to_the_31_elements():
    rows, k = 33000, 65536
    x = torch.zeros(rows, k, device="cuda", dtype=torch.bfloat16)
    x[-1] = torch.randn(k, device="cuda").to(torch.bfloat16)
    q = quantize(x, "mxfp8", scale_layout="plain")
    last = quantize(x[-1:], "mxfp8", scale_layout="plain")
    for key in ("data", "scale"):
        assert torch.equal(q[key][-1:].view(torch.uint8), last[key].view(torch.uint8))


def test_dequantize_round_trip():
    x = torch.randn(130, 96, device="cuda")
    for name, block in cases.RECIPES:
        q = quantize(x, name, sf_vec_size=block)
        ours = dequantize(q["data"], q["scale"], name, sf_vec_size=block)
        theirs = quantize(x.cpu().numpy(), name, sf_vec_size=block)
        theirs = dequantize(theirs["data"], theirs["scale"], name, sf_vec_size=block)
        np.testing.assert_array_equal(ours.cpu().numpy(), theirs)


def test_current_stream_without_a_sync_and_in_a_graph():
    x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    for name, per_tensor_scale in (("mxfp8", None), ("nvfp4", True)):
        quantize(x, name, per_tensor_scale=per_tensor_scale)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                ours = quantize(x, name, per_tensor_scale=per_tensor_scale)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = quantize(x, name, per_tensor_scale=per_tensor_scale)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        expected = quantize(to_numpy(x), name, per_tensor_scale=per_tensor_scale)
        np.testing.assert_array_equal(raw(ours["data"]), raw(expected["data"]))
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        expected = quantize(to_numpy(x), name, per_tensor_scale=per_tensor_scale)
        np.testing.assert_array_equal(raw(captured["data"]), raw(expected["data"]))
        np.testing.assert_array_equal(raw(captured["scale"]), raw(expected["scale"]))


def test_shapes_and_values_share_one_kernel():
    from cudnn_core.formats.kernels import executable

    quantize(torch.randn(4, 64, device="cuda"), "mxfp8")
    before = executable.cache_info().currsize
    for rows in range(1, 40):
        quantize(torch.randn(rows, 64 * rows, device="cuda"), "mxfp8")
    assert executable.cache_info().currsize == before
