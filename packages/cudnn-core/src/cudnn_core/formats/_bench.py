"""The cases of `cudnn bench formats`: quantize against a copy of as many bytes.

Bytes are those read and written once (x twice with a computed per-tensor scale). Imports torch late.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from cudnn_core.bench.parts import COPY, copy_of, nbytes
from cudnn_core.bench.protocol import Case, Trial, WrongResult

from .api import quantize

# (format, block length, per_tensor_scale)
VARIANTS = (
    ("mxfp8", 32, None),
    ("mxfp8_e5m2", 32, None),
    ("mxfp4", 32, None),
    ("mxfp4", 16, None),
    ("nvfp4", 16, None),
    ("nvfp4", 16, True),
)
SHAPE = (8192, 8192)
TINY = (64, 256)
# Share of the copy's bandwidth to reach.
SHARE = 0.70
PLAIN = "the same by PyTorch operations"


def cases() -> Iterator[Case]:
    """quantize of a BF16 matrix, each format."""
    for name, block, per_tensor in VARIANTS:
        yield Case(
            op=f"quantize {name}" + (" per tensor" if per_tensor else ""),
            case=",".join(map(str, SHAPE)),
            dtype=f"bfloat16->{name}x{block}",
            targets={COPY: SHARE},
            prepare=partial(prepare, name, block, per_tensor, SHAPE),
            quick=block == 32 or bool(per_tensor),
        )


def prepare(
    name: str, block: int, per_tensor: bool | None, shape: tuple[int, int], device: str
) -> Trial:
    """The trial of one variant on N(0, 1)."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(shape, device=device, generator=generator).to(torch.bfloat16)
    options: dict[str, Any] = {"sf_vec_size": block, "per_tensor_scale": per_tensor}
    result = quantize(x, name, **options)
    count = nbytes(x) * (2 if per_tensor else 1) + nbytes(result["data"], result["scale"])
    tiny = x[: TINY[0], : TINY[1]].contiguous()
    return Trial(
        ours=lambda: quantize(x, name, **options),
        check=lambda: check(x, name, options),
        peers={PLAIN: lambda: lambda: quantize(x, name, engine="torch", **options)},
        bounds={COPY: copy_of(count, device)},
        nbytes=count,
        host=lambda: lambda: quantize(tiny, name, **options),
    )


def check(x: Any, name: str, options: dict[str, Any]) -> None:
    """Raise WrongResult unless the kernel gives the bits of PyTorch operations."""
    import torch

    ours = quantize(x, name, **options)
    theirs = quantize(x, name, engine="torch", **options)
    for key in ("data", "scale"):
        if not torch.equal(ours[key].view(torch.uint8), theirs[key].view(torch.uint8)):
            raise WrongResult(f"{key} differs from that of PyTorch operations")
