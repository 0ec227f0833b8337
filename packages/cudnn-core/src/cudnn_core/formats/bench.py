"""Times quantize on a Hopper GPU against a copy in the same run: python -m cudnn_core.formats.bench

Refuses to time a kernel whose bits differ from PyTorch operations' on the same tensor. A row's
bytes are those read and written once (x twice with a computed per-tensor scale); `of copy` is its
rate over that of `y.copy_(x)` of the same x. Imports torch, formats.*.
"""

import argparse
import datetime
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from statistics import median

import torch

from .api import quantize

CASES = [
    ("mxfp8", 32, None),
    ("mxfp8_e5m2", 32, None),
    ("mxfp4", 32, None),
    ("mxfp4", 16, None),
    ("nvfp4", 16, None),
    ("nvfp4", 16, True),
]


@dataclass(frozen=True)
class Row:
    """One measurement; times in microseconds, rates in TB/s."""

    op: str
    case: str
    dtype: str
    ours_us: float
    host_us: float
    copy_us: float
    tb_s: float
    copy_tb_s: float
    of_copy: float


def device_microseconds(calls: dict, repeats: int) -> dict[str, float]:
    """Median device time of each call; the calls take turns, so that clocks are shared."""
    events = {name: [] for name in calls}
    for round_ in range(repeats + 3):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # Work before the start event keeps the queue full while the host prepares the call.
            torch.cuda._sleep(200_000)
            start.record()
            call()
            end.record()
            if round_ >= 3:
                events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: median(start.elapsed_time(end) for start, end in pairs) * 1e3
        for name, pairs in events.items()
    }


def host_microseconds(call) -> float:
    """Median time until an asynchronous call returns."""
    from time import perf_counter

    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        for _ in range(100):
            start = perf_counter()
            call()
            times.append(perf_counter() - start)
    torch.cuda.synchronize()
    return median(times) * 1e6


def check(x, name: str, block: int, per_tensor_scale):
    """Raises AssertionError unless the kernel gives PyTorch operations' bits."""
    options = {"sf_vec_size": block, "per_tensor_scale": per_tensor_scale}
    ours = quantize(x, name, **options)
    theirs = quantize(x, name, engine="torch", **options)
    for key in ("data", "scale"):
        same = torch.equal(ours[key].view(torch.uint8), theirs[key].view(torch.uint8))
        assert same, f"{name}, block {block}: {key} is wrong; not timed"


def measure(x, name: str, block: int, per_tensor_scale, repeats: int) -> Row:
    check(x, name, block, per_tensor_scale)
    options = {"sf_vec_size": block, "per_tensor_scale": per_tensor_scale}
    target = torch.empty_like(x)
    calls = {
        "copy": lambda: target.copy_(x),
        "ours": lambda: quantize(x, name, **options),
    }
    times = device_microseconds(calls, repeats)
    tiny = x[:64, :256].contiguous()
    result = quantize(x, name, **options)
    written = sum(result[key].numel() * result[key].itemsize for key in ("data", "scale"))
    read = x.numel() * x.itemsize * (2 if per_tensor_scale is True else 1)
    rate = (read + written) / times["ours"] / 1e6
    copy_rate = 2 * x.numel() * x.itemsize / times["copy"] / 1e6
    return Row(
        op=f"quantize {name}" + (" per tensor" if per_tensor_scale else ""),
        case=",".join(map(str, x.shape)),
        dtype=f"{str(x.dtype).removeprefix('torch.')}->{name}x{block}",
        ours_us=round(times["ours"], 2),
        host_us=round(host_microseconds(lambda: quantize(tiny, name, **options)), 2),
        copy_us=round(times["copy"], 2),
        tb_s=round(rate, 3),
        copy_tb_s=round(copy_rate, 3),
        of_copy=round(rate / copy_rate, 3),
    )


# The bound: a copy that moves as many bytes, at the rate measured in the same run; and the share of it to reach.
COPY, SHARE = "copy of as many bytes", 0.70


def as_result(row: Row) -> dict:
    """A row of benchmarks/results, in the form that all families share."""
    return {
        "op": row.op,
        "case": row.case,
        "dtype": row.dtype,
        "ours_us": row.ours_us,
        "host_us": row.host_us,
        "peers": {},
        "targets": {COPY: SHARE},
        "bounds": {COPY: round(row.ours_us * row.of_copy, 2)},
        "tflops": None,
        "tb_s": row.tb_s,
        "roofline": row.of_copy,
        "torch": torch.__version__,
        "dsl": version("nvidia-cutlass-dsl"),
        "date": datetime.date.today().isoformat(),
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--k", type=int, default=8192)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args(arguments)
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(options.rows, options.k, device="cuda", generator=generator)
    x = x.to(getattr(torch, options.dtype))
    print(torch.cuda.get_device_name())
    print(f"{'op':24}{'dtype':26}{'us':>9}{'TB/s':>8}{'copy us':>9}{'of copy':>9}{'host us':>9}")
    rows = []
    for case in CASES:
        row = measure(x, *case, repeats=options.repeats)
        rows.append(asdict(row))
        print(
            f"{row.op:24}{row.dtype:26}{row.ours_us:9.1f}{row.tb_s:8.2f}{row.copy_us:9.1f}"
            f"{row.of_copy:9.1%}{row.host_us:9.1f}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump([as_result(row) for row in rows], file, indent=1)
    return rows


if __name__ == "__main__":
    main()
