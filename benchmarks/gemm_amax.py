"""GEMM + amax against BF16 `torch.mm`, interleaved in one process, after a correctness check.

Medians of CUDA events on random data. Run on the GPU machine:

    python benchmarks/gemm_amax.py [--sizes 8192,8192,8192 4096,4096,4096] [--json FILE]
"""

import argparse
import datetime
import json
import statistics
from importlib.metadata import version
from pathlib import Path

import torch

import cudnn

FORMATS = {"mxfp8": 32, "mxfp8_e5m2": 32, "mxfp4": 32, "nvfp4": 16}
# BF16 tensor-core rate and copy bandwidth that an H200 reaches in practice, for the roofline.
PEAK_TFLOPS, PEAK_TB_S = 775.0, 4.2


def operands(fmt: str, m: int, n: int, k: int):
    """Quantized N(0, 1) operands in K-major (rows, K, 1)."""
    made = []
    for rows in (m, n):
        x = torch.randn(rows, k, 1, device="cuda", dtype=torch.bfloat16)
        made.append(cudnn.quantize(x, fmt, axis=1))
    (a, sfa, _), (b, sfb, _) = made
    return a, b, sfa, sfb


def error(fmt: str, inputs, c: torch.Tensor, rows: int = 256) -> float:
    """Relative Frobenius error of the first and last rows of C against float64."""
    a, b, sfa, sfb = inputs
    k = a.shape[1] * (2 if "fp4" in fmt else 1)
    wide = [cudnn.dequantize(x, s, fmt, axis=1, size=k)[..., 0] for x, s in ((a, sfa), (b, sfb))]
    picked = torch.cat(
        [torch.arange(min(rows, c.shape[0])), torch.arange(max(0, c.shape[0] - rows), c.shape[0])]
    )
    picked = picked.unique().cuda()
    exact = wide[0][picked].double() @ wide[1].double().T
    return ((c[picked, :, 0].double() - exact).norm() / exact.norm()).item()


def timed(calls: dict, rounds: int) -> dict:
    """Median microseconds of each call, the calls taking turns."""
    times = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # Work ahead of the first event, so that the host's launch gap is not timed.
            torch.cuda._sleep(200_000)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(m: int, n: int, k: int, rounds: int) -> list[dict]:
    """One row for each format at one size."""
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    calls = {"torch.mm": lambda: torch.mm(x, w.T, out=out)}
    errors = {}
    for fmt, vec in FORMATS.items():
        inputs = operands(fmt, m, n, k)
        c = torch.full((m, n, 1), torch.nan, device="cuda", dtype=torch.float32)
        amax = torch.zeros(1, 1, 1, device="cuda")
        op = cudnn.GemmAmax(*inputs, c, amax, sf_vec_size=vec)
        op(*inputs, c, amax)
        errors[fmt] = error(fmt, inputs, c)
        if not errors[fmt] < 2e-5:
            raise SystemExit(f"{fmt} at {m},{n},{k} is wrong: relative error {errors[fmt]:.2e}")
        d = torch.empty(m, n, 1, device="cuda", dtype=torch.bfloat16)
        op16 = cudnn.GemmAmax(*inputs, d, amax, sf_vec_size=vec)
        op16.compile()
        calls[fmt] = lambda op=op16, inputs=inputs, d=d, amax=amax: op.execute(*inputs, d, amax)
    medians = timed(calls, rounds)
    flop, rows = 2.0 * m * n * k, []
    for fmt in FORMATS:
        us = medians[fmt]
        bits = 8.25 if "fp8" in fmt else (4.25 if fmt == "mxfp4" else 4.5)
        moved = (m + n) * k * bits / 8 + m * n * 2
        floor = max(flop / PEAK_TFLOPS / 1e6, moved / PEAK_TB_S / 1e6)
        rows.append(
            {
                "op": "dense/amax",
                "case": f"{m},{n},{k}",
                "dtype": f"{fmt}x{fmt}->bf16",
                "ours_us": round(us, 2),
                "host_us": None,
                "peers": {"torch.mm": round(medians["torch.mm"], 2)},
                "targets": {"torch.mm": 0.60},
                "bounds": {},
                "tflops": round(flop / us / 1e6, 1),
                "tb_s": round(moved / us / 1e6, 3),
                "roofline": round(floor / us, 3),
                "error": float(f"{errors[fmt]:.3g}"),
                "torch": torch.__version__,
                "dsl": version("nvidia-cutlass-dsl"),
                "date": datetime.date.today().isoformat(),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["8192,8192,8192", "4096,4096,4096"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        rows += measure(*map(int, size.split(",")), options.rounds)
    print(f"{'case':<18} {'formats':<26} {'us':>9} {'TFLOP/s':>8} {'mm/ours':>8} {'error':>9}")
    for row in rows:
        ratio = row["peers"]["torch.mm"] / row["ours_us"]
        print(
            f"{row['case']:<18} {row['dtype']:<26} {row['ours_us']:9.1f} {row['tflops']:8.1f} "
            f"{ratio:8.3f} {row['error']:9.2e}"
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
