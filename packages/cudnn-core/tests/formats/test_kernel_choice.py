"""Which kernel the host path asks for, told without a GPU: the launch itself is replaced."""

import pytest

from cudnn_core.formats import quantize

torch = pytest.importorskip("torch")


@pytest.fixture
def asked(monkeypatch):
    """The configurations that were asked for, in order."""
    from cudnn_core.formats.kernels import host

    configs = []
    monkeypatch.setattr(host, "_require_hopper", lambda x: None)
    monkeypatch.setattr(host, "executable", lambda config: configs.append(config))
    monkeypatch.setattr(
        type(host.ADAPTER), "launcher", lambda self, call, device: lambda arrays, stream: None
    )
    return configs


@pytest.mark.parametrize(
    ("x", "path"),
    [
        (torch.zeros(48, 64), "vector"),
        (torch.zeros(48, 72)[:, :64], "vector"),
        (torch.zeros(48, 65)[:, :64], "strided"),
        (torch.zeros(48, 60), "strided"),
        (torch.zeros(64, 48).T, "strided"),
        # Copied, because its batches do not merge, and contiguous along K only then.
        (torch.zeros(3, 2, 64, 48).permute(1, 0, 3, 2), "strided"),
        (torch.zeros(3, 2, 48, 64).permute(1, 0, 2, 3), "vector"),
    ],
)
def test_codes_are_contiguous_along_k_on_the_vector_path(asked, x, path):
    data = quantize(x, "mxfp8", engine="hopper")["data"]
    assert [config.path for config in asked] == [path]
    if path == "vector":
        assert data.stride(-1) == 1
