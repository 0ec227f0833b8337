"""An independent implementation: torchao's MX formats in their round-up mode, and its NVFP4."""

import pytest

from cudnn_core.formats import quantize

torch = pytest.importorskip("torch")
mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor", reason="torchao is not there")
nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")


def spread(rows, k):
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-20, 20, (rows, 1), generator=generator).float()
    return torch.randn(rows, k, generator=generator) * torch.exp2(exponents)


def assert_same_bytes(ours, theirs):
    torch.testing.assert_close(
        ours.view(torch.uint8).flatten(), theirs.view(torch.uint8).flatten(), rtol=0, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("mxfp8", torch.float8_e4m3fn),
        ("mxfp8_e5m2", torch.float8_e5m2),
        ("mxfp4", getattr(torch, "float4_e2m1fn_x2", None)),
    ],
)
def test_mx(name, element, dtype):
    x = spread(128, 512).to(dtype)
    scale, data = mx.to_mx(x, element, 32, scaling_mode=mx.ScaleCalculationMode.RCEIL)
    ours = quantize(x, name, scale_layout="plain")
    assert_same_bytes(ours["scale"], scale)
    assert_same_bytes(ours["data"], data)


@pytest.mark.parametrize("two_level", [False, True])
def test_nvfp4(two_level):
    x = torch.randn(128, 512, generator=torch.Generator().manual_seed(1))
    given = nvfp4.per_tensor_amax_to_scale(x.abs().max()) if two_level else None
    scale, data = nvfp4.nvfp4_quantize(x, 16, given)[:2]
    ours = quantize(x, "nvfp4", scale_layout="plain", per_tensor_scale=two_level)
    if two_level:
        assert ours["per_tensor_scale"] == given
    assert_same_bytes(ours["scale"], scale)
    assert_same_bytes(ours["data"], data)
