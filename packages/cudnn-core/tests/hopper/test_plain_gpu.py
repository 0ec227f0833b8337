"""The plain body on the device: every format and tile, ragged extents, few blocks for many tiles, stream-K.

May import torch, cudnn_core and the GEMM beside this file. Operands are small integers, so that every order of
summation gives the same FP32 bits, and lie in buffers of NaN.
"""

import functools
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from cudnn_core.hopper.tile import TileConfig

pytestmark = pytest.mark.gpu

E4, E5 = "float8_e4m3fn", "float8_e5m2"
WIDE = TileConfig(bm=128, bn=256, cluster=(2, 1), stages=3)
TURNS = TileConfig(bm=128, bn=192, pingpong=True, cluster=(1, 2), stages=3)
PROMOTED = TileConfig(bm=128, bn=192, cluster=(2, 1), promote_k=128)

KERNELS = {
    "bf16": {"tile": WIDE},
    "bf16 m-major n-major ping-pong": {"a_major": "m", "b_major": "n", "tile": TURNS},
    "bf16 two row blocks": {
        "depth": 1,
        "tile": TileConfig(bm=256, bn=192, stages=3, cluster=(1, 2)),
    },
    "bf16 swapped": {"tile": TileConfig(bm=64, bn=256, orientation="swapped", stages=3)},
    "bf16 swapped ping-pong": {
        "tile": TileConfig(bm=16, bn=128, orientation="swapped", pingpong=True, cluster=(1, 2))
    },
    "bf16 64 rows ping-pong": {
        "tile": TileConfig(bm=64, bn=256, pingpong=True, cluster=(2, 1), stages=3)
    },
    "bf16 one warpgroup": {"tile": TileConfig(bm=64, bn=64, warpgroups=1)},
    "fp16 direct": {"a": "float16", "b": "float16", "c_store": "direct", "tile": WIDE},
    "bf16 glu": {"glu": True, "tile": WIDE},
    "bf16 glu n-major": {"glu": True, "b_major": "n", "tile": TURNS},
    "tf32": {"a": "float32", "b": "float32", "tile": WIDE},
    "fp8": {"a": E4, "b": E4, "tile": TURNS},
    "fp8 promoted": {"a": E4, "b": E5, "tile": PROMOTED},
    "fp8 promoted, two row blocks": {
        "depth": 1,
        "a": E5,
        "b": E4,
        "tile": TileConfig(bm=256, bn=128, cluster=(1, 2), promote_k=128),
    },
    "fp8 promoted, half the columns": {
        "a": E4,
        "b": E4,
        "tile": TileConfig(bm=128, bn=256, promote_k=128, stages=3),
    },
}
# (M, N, K, L, blocks)
PROBLEMS = {
    "whole": (256, 384, 512, 1, 132),
    "one row": (1, 8, 16, 1, 132),
    "ragged": (129, 200, 272, 3, 132),
    "few blocks": (1000, 1000, 1008, 1, 6),
    "many tiles": (2049, 3000, 80, 1, 132),
}


@functools.cache
def module():
    """The module of the GEMM without any operation."""
    path = Path(__file__).with_name("plain_gemm.py")
    spec = importlib.util.spec_from_file_location("plain_gemm", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def compiled(config):
    from cudnn_core import cache

    return cache.get(module().source(config)).call


def config_of(**options):
    return module().PlainGemm(c="float32", batched=True, **options)


def operand(rows, k, batches, dtype, k_major):
    """(values (L, rows, K), the operand (rows, K, L) in the middle of NaN)."""
    import torch

    values = torch.randint(-2, 3, (batches, rows, k), device="cuda").float()
    outer, inner = (rows, k) if k_major else (k, rows)
    buffer = torch.full((batches, outer + 3, inner + 16), float("nan"), device="cuda")
    buffer = buffer.to(getattr(torch, dtype))
    view = buffer[:, :outer, :inner]
    view.copy_((values if k_major else values.transpose(1, 2)).to(buffer.dtype))
    return values, (view if k_major else view.transpose(1, 2)).permute(1, 2, 0)


def multiply(config, a, b, c, blocks=132, workspace=None):
    """Runs the kernel; workspace: (partials, flags)."""
    import torch

    partials, flags = workspace or (torch.empty(16, dtype=torch.uint8, device="cuda"),) * 2
    stream = torch.cuda.current_stream().cuda_stream
    compiled(config)(a, b, c, c, partials, flags, blocks, stream)


def workspace_of(config, walkers=132):
    """Partial tiles of NaN, and flags of anything."""
    import torch

    from cudnn_core.hopper import workspace

    partials = torch.full((workspace.partial_bytes(config.tile, walkers),), 255, dtype=torch.uint8)
    flags = torch.full((workspace.flag_bytes(config.tile, walkers),), 0x6E, dtype=torch.uint8)
    return partials.cuda(), flags.cuda()


def glu_rows(n):
    """The operand's row that is row j of the tile."""
    import torch

    j = torch.arange(n, device="cuda")
    return j // 64 * 32 + j % 32 + torch.where(j % 64 < 32, 0, n // 2)


def assert_multiplies(config, m, n, k, batches, blocks=132, a_batches=None, workspace=None):
    import torch

    m = m if config.a_major == "k" else -(-m // 8) * 8
    n = max(64, n // 64 * 64) if config.glu else n
    va, a = operand(m, k, a_batches or batches, config.a, config.a_major == "k")
    vb, b = operand(n, k, batches, config.b, config.b_major == "k")
    want = va.double().expand(batches, -1, -1) @ vb.double().transpose(1, 2)
    want = want[:, :, glu_rows(n)] if config.glu else want
    buffer = torch.full((batches, m + 2, n + 16), float("nan"), device="cuda")
    c = buffer[:, :m, :n]
    multiply(config, a, b, c.permute(1, 2, 0), blocks, workspace)
    torch.testing.assert_close(c, want.float(), rtol=0, atol=0)
    assert buffer[:, m:].isnan().all()
    assert buffer[:, :, n:].isnan().all()


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", KERNELS)
def test_exact(name, problem):
    assert_multiplies(config_of(**KERNELS[name]), *PROBLEMS[problem])


@pytest.mark.parametrize("name", KERNELS)
def test_one_batch_serves_all(name):
    assert_multiplies(config_of(**KERNELS[name]), 77, 120, 48, 5, a_batches=1)


@pytest.mark.parametrize("name", ["bf16", "bf16 m-major n-major ping-pong", "fp8 promoted"])
@pytest.mark.parametrize("stream", [None, 1])
def test_an_empty_k_gives_zeros(name, stream):
    import torch

    config = config_of(no_k=True, stream=stream, **KERNELS[name])
    _, a = operand(520, 64, 1, config.a, config.a_major == "k")
    _, b = operand(1000, 64, 1, config.b, config.b_major == "k")
    c = torch.full((1, 520, 1000), float("nan"), device="cuda")
    multiply(config, a, b, c.permute(1, 2, 0), 4, workspace_of(config))
    assert (c == 0).all()


def test_repeats_are_bit_equal():
    import torch

    config = replace(config_of(tile=TURNS), batched=False)
    a, b = (torch.randn(rows, 1528, 1, device="cuda").bfloat16() for rows in (2000, 4000))
    results = []
    for _ in range(50):
        c = torch.full((2000, 4000, 1), float("nan"), device="cuda")
        multiply(config, a, b, c)
        results.append(c)
    assert all(torch.equal(results[0], c) for c in results)


STREAMED = {
    "bf16": {"tile": TileConfig(bm=64, bn=128, warpgroups=1, stages=6)},
    "bf16 two warpgroups": {"tile": TileConfig(bm=128, bn=128)},
    "bf16 ping-pong": {"tile": TileConfig(bm=64, bn=128, pingpong=True)},
    "bf16 swapped": {"tile": TileConfig(bm=32, bn=128, orientation="swapped")},
    "bf16 clusters": {"tile": TileConfig(bm=128, bn=192, pingpong=True, cluster=(2, 1), stages=3)},
    "fp8 promoted": {"a": E4, "b": E4, "tile": TileConfig(bm=128, bn=128, promote_k=128)},
}


@pytest.mark.parametrize(
    "problem",
    [
        (64, 512, 4096, 1),
        (16, 4096, 1600, 1),
        (7, 8, 16, 1),
        (129, 200, 2000, 3),
        (64, 64, 8192, 1),
    ],
)
@pytest.mark.parametrize("blocks", [1, 5, 132])
@pytest.mark.parametrize("name", STREAMED)
def test_stream_k(name, blocks, problem):
    """Twice with one workspace: no flag may be raised afterwards."""
    import torch

    from cudnn_core.hopper.stream import RAISED

    config = config_of(stream=1, **STREAMED[name])
    workspace = workspace_of(config)
    for _ in range(2):
        assert_multiplies(config, *problem, blocks=blocks, workspace=workspace)
    assert not (workspace[1].view(torch.int64) == RAISED).any()


def test_stream_k_sums_in_fixed_order():
    import torch

    config = replace(config_of(stream=1, **STREAMED["bf16"]), batched=False)
    workspace = workspace_of(config)
    a, b = (torch.randn(rows, 8192, 1, device="cuda").bfloat16() for rows in (64, 1000))
    results = []
    for _ in range(50):
        c = torch.full((64, 1000, 1), float("nan"), device="cuda")
        multiply(config, a, b, c, 132, workspace)
        results.append(c)
    assert all(torch.equal(results[0], c) for c in results)


def test_promoted_sums_keep_what_the_tensor_core_drops():
    """All-positive FP8 data at K = 16384: the tensor core alone is wrong by a fifth."""
    import torch

    a, b = (
        torch.randn(rows, 16384, 1, device="cuda").abs().to(torch.float8_e4m3fn)
        for rows in (256, 384)
    )
    want = a[:, :, 0].double() @ b[:, :, 0].double().T
    errors = {}
    for promoted in (None, 128):
        tile = TileConfig(bm=128, bn=192, promote_k=promoted)
        config = replace(config_of(a=E4, b=E4, tile=tile), batched=False)
        c = torch.empty(256, 384, 1, device="cuda")
        multiply(config, a, b, c)
        errors[promoted] = ((c[:, :, 0].double() - want).abs() / want).max().item()
    # Within 128 elements of K the tensor core still truncates: 7e-4 is what it leaves.
    assert errors[128] < 1e-3
    assert errors[None] > 50 * errors[128]


def every_config():
    """The kernels of this file."""
    plain = ("bf16", "bf16 m-major n-major ping-pong", "fp8 promoted")
    found = [config_of(**options) for options in KERNELS.values()]
    found += [config_of(stream=1, **options) for options in STREAMED.values()]
    found += [config_of(no_k=True, stream=s, **KERNELS[k]) for k in plain for s in (None, 1)]
    found.append(replace(config_of(tile=TURNS), batched=False))
    found.append(replace(config_of(stream=1, **STREAMED["bf16"]), batched=False))
    for promote_k in (None, 128):
        tile = TileConfig(bm=128, bn=192, promote_k=promote_k)
        found.append(replace(config_of(a=E4, b=E4, tile=tile), batched=False))
    return found


if __name__ == "__main__":
    # Fills the disk cache, where there need not be a GPU.
    from cudnn_core import cache

    for made in every_config():
        cache.compile_ahead(module().source(made))
