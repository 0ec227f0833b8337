"""What planning says of stream-K, beside the schedule itself, run on the host.

May import numpy, pytest, the project's planning and, in functions, the CuTe DSL; needs no GPU.
"""

import numpy as np
import pytest

from cudnn_gemm_dense.config import Product, Side
from cudnn_gemm_dense.kernels import FEW_ROWS, LONGEST_PLAIN_K, longest_sum

pytestmark = pytest.mark.compile

MULTIPROCESSORS = 132
FORMATS = {
    "mxfp8": Side("float8_e4m3fn", "float8_e8m0fnu"),
    "mxfp4": Side("float4_e2m1fn", "float8_e8m0fnu"),
}


def longest_parts(schedule, problems):
    """K elements of the longest item that the schedule makes of each problem (m, n, k, batches)."""
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import from_dlpack

    @cute.jit
    def walk(problems: cute.Tensor, out: cute.Tensor):
        limit = Int32(MULTIPROCESSORS)
        for p in cutlass.range(problems.shape[0]):
            args = schedule.prepare(*(problems[p, i] for i in range(4)), out, out, limit)
            longest = Int32(0)
            for walker in cutlass.range(schedule.walkers(args, limit)):
                for index in cutlass.range(schedule.items(args, walker)):
                    item = schedule.item_of(args, walker, index)
                    longest = cutlass.max(longest, item.k_count)
            out[p] = longest

    out = np.full(len(problems), -1, np.int32)
    walk(from_dlpack(np.array(problems, np.int32)), from_dlpack(out))
    return out.tolist()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("number", range(len(FEW_ROWS)))
def test_the_longest_sum_that_planning_expects_is_the_schedules(format, number):
    """Sums of more than LONGEST_PLAIN_K that planning takes for shorter would not be promoted."""
    from cudnn_gemm_dense.product import schedule_of

    tile, split = FEW_ROWS[number]
    product = Product(Side("bfloat16"), FORMATS[format], tile=tile, split=split)
    schedule = schedule_of(product)
    random = np.random.default_rng(number)
    problems = [
        (tile.bm, tile.bn * int(tiles), int(k), int(batches))
        for tiles, k, batches in zip(
            random.integers(1, MULTIPROCESSORS + 1, 300),
            random.integers(1, 6 * LONGEST_PLAIN_K, 300) // 32 * 32 + 32,
            random.integers(1, 3, 300),
            strict=True,
        )
    ]
    expected = [longest_sum(tile, split, *problem, product.b.bits) for problem in problems]
    assert longest_parts(schedule, problems) == expected
