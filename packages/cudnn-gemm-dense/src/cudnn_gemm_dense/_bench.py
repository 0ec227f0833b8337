"""The cases of `cudnn bench dense`: every fused GEMM against bare GEMMs, the unfused chain, and other libraries.

Random operands from N(0, 1), quantized where the format says so; alpha = K^-0.5, so that activations see values of the
size they see in a network. Listing imports no framework; what runs is in `_bench_work` and `_bench_peers`.
"""

from collections.abc import Iterator
from functools import partial

from cudnn_core.bench.protocol import Case, Trial
from cudnn_core.bench.tuning import Tuning

LARGE = ((8192, 8192, 8192), (8192, 28672, 4096), (4096, 4096, 4096))
# A few tokens against the weights of a feed-forward block: gate and up together, then down.
DECODE = ((64, 28672, 4096), (16, 4096, 14336))
TINY = (128, 128, 128)

MM, SCALED_MM, W4A16 = "torch.mm", "torch._scaled_mm", "quack.gemm_w4a16"
SHORT = {"bfloat16": "bf16", "float8_e4m3fn": "fp8"}
# Weights -> ratio to BF16 torch.mm that decoding is to reach.
DECODE_TARGETS = {"mxfp8": 1.6, "mxfp4": 2.3, "nvfp4": 2.3}


def chain_name(op: str, a: str, b: str, out: str = "bfloat16") -> str:
    """The unfused chain in PyTorch as the results call it: "torch.compile(dequantize, mm, swiglu)"."""
    plain_fp8 = a == b == "float8_e4m3fn"
    steps = ["_scaled_mm" if plain_fp8 else "mm", op]
    if not plain_fp8 and {a, b} != {"bfloat16"}:
        steps.insert(0, "dequantize")
    if out != "bfloat16":
        steps.append("quantize")
    return f"torch.compile({', '.join(steps)})"


def cases() -> Iterator[Case]:
    """Square and wide problems of each operation and format, decoding, and host time."""
    for shape in LARGE:
        quick = shape == LARGE[0]
        chain = chain_name("swiglu", "bfloat16", "bfloat16")
        yield _case("swiglu", shape, "bfloat16", targets={MM: 0.97, chain: 1.15}, quick=quick)
        yield _case("swiglu", shape, "float8_e4m3fn", targets={SCALED_MM: 0.95}, quick=quick)
        for op in ("amax", "swiglu", "srelu", "dsrelu"):
            yield _case(op, shape, "mxfp8", targets={MM: 0.92}, quick=quick)
        for format in ("mxfp8_e5m2", "nvfp4", "mxfp4"):
            yield _case("amax", shape, format, targets={MM: 0.92}, quick=quick)
        for format in ("mxfp8", "nvfp4", "mxfp4"):
            yield _case("swiglu", shape, "bfloat16", format, targets={MM: 1.0}, quick=quick)
        chain = chain_name("swiglu", "mxfp8", "mxfp8", "mxfp8")
        yield _case("swiglu", shape, "mxfp8", out="mxfp8", targets={chain: 1.35}, quick=quick)
    for shape in DECODE:
        for weights, ratio in DECODE_TARGETS.items():
            yield _case("swiglu", shape, "mxfp8", weights, targets={MM: ratio}, quick=True)
            against = {MM: ratio, W4A16: 1.0}
            yield _case("swiglu", shape, "bfloat16", weights, targets=against, quick=True)
    yield from _host_cases()


def tunings() -> Iterator[Tuning]:
    """The tables of tile rules, for `cudnn bench dense --tune`."""
    from ._bench_tune import tunings

    return tunings()


def _case(
    op: str,
    shape: tuple[int, int, int],
    a: str,
    b: str | None = None,
    out: str = "bfloat16",
    *,
    targets: dict[str, float],
    quick: bool,
) -> Case:
    b = b or a
    names = [SHORT.get(name, name) for name in (a, b, out)]
    return Case(
        op=f"dense/{op}",
        case=",".join(map(str, shape)),
        dtype=f"{names[0]}x{names[1]}->{names[2]}",
        targets=targets,
        prepare=partial(prepare, op, shape, a, b, out),
        quick=quick,
    )


def prepare(op: str, shape: tuple[int, int, int], a: str, b: str, out: str, device: str) -> Trial:
    """The trial of one case, its operands on `device`."""
    from . import _bench_peers as others
    from ._bench_work import Work

    work = Work(op, shape, a, b, out, device)
    return Trial(
        ours=work.ours,
        check=work.check,
        peers=others.peers(work, chain_name(op, a, b, out)),
        bounds=others.bounds(work),
        flops=work.flops,
        nbytes=work.nbytes,
        rate="float8" if a == b == "float8_e4m3fn" else "bfloat16",
        host=lambda: Work(op, TINY, a, b, out, device).ours,
    )


# Design section 7: a class's `execute` against the bare executable; a wrapper's own share, and that of each output.
EXECUTE_RATIO, WRAPPER_US, OUTPUT_US = 1.3, 6.0, 3.5
HOST_RESULTS = {"amax": "float32", "swiglu": "bfloat16", "srelu": "bfloat16", "dsrelu": "bfloat16"}
IN_WORKSPACE = "execute in a given workspace"
BARE, EXECUTE_LIMIT = "bare executable", "1.3 x bare executable"
WRAPPER_LIMIT = "1.3 x bare executable + 6 us + 3.5 us an output"


def _host_cases() -> Iterator[Case]:
    """Host time of both doors of each operation, against what the design allows."""
    doors = (("execute", EXECUTE_LIMIT), (IN_WORKSPACE, EXECUTE_LIMIT), ("wrapper", WRAPPER_LIMIT))
    for op, out in HOST_RESULTS.items():
        for door, limit in doors:
            yield Case(
                op=f"dense/{op}",
                case=f"{','.join(map(str, TINY))} {door}",
                dtype=f"mxfp8xmxfp8->{SHORT.get(out, out)}",
                targets={limit: 1.0},
                prepare=partial(prepare_host, op, out, door),
                clock="host",
                quick=True,
            )


def prepare_host(op: str, out: str, door: str, device: str) -> Trial:
    """The trial of one door, "wrapper", "execute" or IN_WORKSPACE."""
    import torch

    from cudnn_core.bench.protocol import Limit

    from ._bench_work import ClassDoor, Work

    work = Work(op, TINY, "mxfp8", "mxfp8", out, device)
    instance = ClassDoor(work, door == IN_WORKSPACE)
    y = torch.zeros(128, device=device)
    z = torch.empty_like(y)
    wrapper_us = WRAPPER_US + len(instance.outputs) * OUTPUT_US
    return Trial(
        ours=work.ours if door == "wrapper" else instance.call,
        check=work.check if door == "wrapper" else instance.check,
        bounds={
            BARE: instance.bare,
            EXECUTE_LIMIT: Limit(of=BARE, scale=EXECUTE_RATIO),
            WRAPPER_LIMIT: Limit(of=BARE, scale=EXECUTE_RATIO, plus_us=wrapper_us),
            "torch.add(x, 1, out=y)": lambda: lambda: torch.add(y, 1, out=z),
        },
    )
