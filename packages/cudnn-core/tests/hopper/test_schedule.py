"""Schedules, run on the host: every tile and every unit of K is someone's, once.

May import numpy, pytest, cudnn_core and, in functions, the CuTe DSL.
"""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from cudnn_core.hopper.tile import TileConfig

pytestmark = pytest.mark.compile

LARGEST = 2**31 - 1
TILE = TileConfig(bm=128, bn=192, raster=4)


def pairs_to_divide():
    """(divisors, numbers): the extremes, random ones, and numbers just below multiples."""
    random = np.random.default_rng(0)
    divisors = [1, 1, 2, 3, 7, LARGEST, LARGEST, 2**30, 2**30 + 1]
    numbers = [0, LARGEST, LARGEST, LARGEST, LARGEST, LARGEST, LARGEST - 1, LARGEST, LARGEST]
    small = random.integers(1, 5000, 2000)
    below = small * (LARGEST // 5000 - random.integers(0, 1000, 2000)) - 1
    large = random.integers(1, LARGEST, 2000)
    pairs = [(divisors, numbers), (small, below), (large, random.integers(0, LARGEST, 2000))]
    return tuple(np.concatenate(side).astype(np.int32) for side in zip(*pairs, strict=True))


def test_divisor():
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import from_dlpack

    from cudnn_core.hopper.schedule import Divisor

    @cute.jit
    def divide(divisors: cute.Tensor, numbers: cute.Tensor, out: cute.Tensor):
        for i in cutlass.range(cute.size(divisors)):
            out[i] = Divisor.of(divisors[i]).divide(numbers[i])

    divisors, numbers = pairs_to_divide()
    quotients = np.full_like(numbers, -1)
    divide(*map(from_dlpack, (divisors, numbers, quotients)))
    np.testing.assert_array_equal(quotients, numbers // divisors)


def places(tile, m, n, batches):
    """(m0, n0, batch) of every tile of DenseSchedule, in order."""
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import from_dlpack

    from cudnn_core.hopper.schedule import DenseSchedule

    schedule = DenseSchedule(tile)

    @cute.jit
    def walk(m: Int32, n: Int32, batches: Int32, out: cute.Tensor):
        args = schedule.prepare(m, n, Int32(64), batches)
        for i in cutlass.range(schedule.count(args)):
            item = schedule.item(args, i)
            out[i, 0], out[i, 1], out[i, 2] = item.m0, item.n0, item.batch

    count = -(-m // tile.bm) * -(-n // tile.bn) * batches
    out = np.full((count, 3), -1, np.int32)
    walk(m, n, batches, from_dlpack(out))
    return list(map(tuple, out.tolist()))


@pytest.mark.parametrize("problem", [(1, 1, 1), (1000, 2000, 1), (129, 8192, 3), (512, 100, 2)])
def test_dense_tiles_are_walked_once_each(problem):
    m, n, batches = problem
    found = places(TILE, m, n, batches)
    assert Counter(found) == Counter(
        (i, j, b)
        for i in range(0, m, TILE.bm)
        for j in range(0, n, TILE.bn)
        for b in range(batches)
    )


def parts(problem, limit, least):
    """(walker, m0, n0, batch, k0, k_count, is_first, is_last) of every item of StreamSchedule."""
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import from_dlpack

    from cudnn_core.hopper.stream import StreamSchedule

    schedule = StreamSchedule(TILE, least=least)

    @cute.jit
    def walk(problem: cute.Tensor, limit: Int32, out: cute.Tensor, count: cute.Tensor):
        scratch = (out, count)
        args = schedule.prepare(*(problem[i] for i in range(4)), *scratch, limit)
        found = Int32(0)
        for walker in cutlass.range(schedule.walkers(args, limit)):
            for index in cutlass.range(schedule.items(args, walker)):
                item = schedule.item_of(args, walker, index)
                row = (walker, item.m0, item.n0, item.batch, item.k0, item.k_count)
                for i in cutlass.range_constexpr(6):
                    out[found, i] = row[i]
                out[found, 6] = Int32(item.is_first)
                out[found, 7] = Int32(item.is_last)
                found += 1
        count[0] = found

    m, n, _, batches = problem
    most = -(-m // TILE.bm) * -(-n // TILE.bn) * batches + 2 * limit
    out, count = np.full((most, 8), -1, np.int32), np.zeros(1, np.int32)
    walk(from_dlpack(np.array(problem, np.int32)), limit, *map(from_dlpack, (out, count)))
    assert count[0] <= most
    return [tuple(row) for row in out[: count[0]].tolist()]


@pytest.mark.parametrize("limit", [1, 5, 132])
@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize(
    "problem", [(64, 512, 4096, 1), (7, 8, 16, 1), (300, 700, 2000, 3), (2049, 3000, 1040, 1)]
)
def test_stream_k_shares_all_work_out(problem, least, limit):
    """Parts of a tile follow each other in K and in walkers; whoever has the end comes last."""
    m, n, k, batches = problem
    tiles = {}
    for walker, *place, k0, k_count, is_first, is_last in parts(problem, limit, least):
        assert is_first == (k0 == 0)
        assert is_last == (k0 + k_count == k)
        tiles.setdefault(tuple(place), []).append((k0, k_count, walker))
    assert len(tiles) == -(-m // TILE.bm) * -(-n // TILE.bn) * batches
    for found in tiles.values():
        found.sort()
        assert found[0][0] == 0
        assert sum(count for _, count, _ in found) == k
        for (k0, count, walker), (after, _, follower) in pairwise(found):
            assert (after, follower) == (k0 + count, walker + 1)


def test_stream_k_leaves_at_most_one_partial_tile_a_walker():
    for limit in (3, 132):
        found = parts((2049, 3000, 1040, 1), limit, 1)
        unfinished = Counter(walker for walker, *_, is_last in found if not is_last)
        assert set(unfinished.values()) <= {1}
        # It comes first, so that nobody waits for a walker that waits.
        seen = set()
        for walker, *_, is_last in found:
            assert is_last or walker not in seen
            seen.add(walker)


@pytest.mark.parametrize(
    ("tiles", "k", "limit", "count"),
    [(16, 14336, 132, 14), (32, 8192, 132, 16), (4, 4096, 33, 4), (1, 1280, 10, 1)],
)
def test_stream_k_gives_equal_parts_of_one_tile_where_few_walkers_are_lost(tiles, k, limit, count):
    found = parts((TILE.bm * tiles, TILE.bn, k, 1), limit, 1)
    assert {k_count for *_, k_count, _, _ in found} == {128 * count}
    assert len({walker for walker, *_ in found}) == len(found) == tiles * k // (128 * count)


@pytest.mark.parametrize(
    ("tiles", "k", "limit"),
    [(112, 4096, 132), (16, 14208, 132), (5, 4096, 9)],
)
def test_stream_k_uses_all_walkers_where_many_would_be_lost_or_parts_are_unequal(tiles, k, limit):
    found = parts((TILE.bm * tiles, TILE.bn, k, 1), limit, 1)
    assert {walker for walker, *_ in found} == set(range(limit))
