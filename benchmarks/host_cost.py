"""Host time per call of GEMM + amax on torch CUDA tensors: bare executable, class, wrapper, and a small torch op.

Medians over 1,000 asynchronous calls at a tiny size, the queue drained every 100. Run on the GPU machine:

    python benchmarks/host_cost.py
"""

import json
import statistics
import sys
import time

import torch

import cudnn
from cudnn_core.engine import select
from cudnn_gemm_dense.amax import OP

CALLS, DRAIN = 1000, 100
# Design section 7: execute against the bare call; the wrapper's own share and its share per allocated output.
EXECUTE_RATIO, WRAPPER_US, OUTPUT_US = 1.3, 6.0, 3.5


def median_us(call) -> float:
    """Median host time of one call, in microseconds."""
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    times = []
    for i in range(CALLS):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
        if i % DRAIN == DRAIN - 1:
            torch.cuda.synchronize()
    return statistics.median(times) / 1e3


def main() -> int:
    m = n = k = 128
    x, y = (torch.randn(size, k, 1, device="cuda", dtype=torch.bfloat16) for size in (m, n))
    a, sfa, _ = cudnn.quantize(x, "mxfp8", axis=1)
    b, sfb, _ = cudnn.quantize(y, "mxfp8", axis=1)
    c = torch.empty(m, n, 1, device="cuda")
    amax = torch.zeros(1, 1, 1, device="cuda")
    op = cudnn.GemmAmax(a, b, sfa, sfb, c, amax)
    op.compile()
    problem = OP.bind((a, b, sfa, sfb), ())[1]
    engine = select(OP.engines, problem)
    bare, scalars = engine.compile(engine.plan(problem)).call, engine.scalars(problem)
    stream = torch.cuda.current_stream().cuda_stream
    z = torch.empty(128, device="cuda")
    rows = {
        "bare executable": lambda: bare(a, b, sfa, sfb, c, amax, *scalars, stream),
        "GemmAmax.execute": lambda: op.execute(a, b, sfa, sfb, c, amax),
        "gemm_amax_wrapper": lambda: cudnn.gemm_amax_wrapper(a, b, sfa, sfb),
        "torch.add(out=)": lambda: torch.add(z, 1, out=z),
    }
    measured = {name: min(median_us(call) for _ in range(3)) for name, call in rows.items()}
    execute_limit = EXECUTE_RATIO * measured["bare executable"]
    wrapper_limit = execute_limit + WRAPPER_US + 2 * OUTPUT_US
    for name, us in measured.items():
        print(f"{name:<20} {us:7.2f} us")
    print(f"limits: execute {execute_limit:.2f} us, wrapper {wrapper_limit:.2f} us")
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, **measured}))
    within = (
        measured["GemmAmax.execute"] <= execute_limit
        and measured["gemm_amax_wrapper"] <= wrapper_limit
    )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
