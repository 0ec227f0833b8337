"""Quantize and RowSum, thread by thread: the device's Python code run by 128 threads with numbers for registers.

May import numpy, pytest, cudnn_core.hopper and the NumPy law of the formats; needs the DSL, no GPU.
Shuffles and barriers are meeting points of Python threads, shared memory is a dictionary.
"""

import threading
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("cutlass")

import cutlass
import cutlass.cute as cute

from cudnn_core.formats import reference
from cudnn_core.formats.spec import FORMATS, resolve
from cudnn_core.hopper.epilogue import (
    Fragments,
    Quantize,
    RowSum,
    TileStore,
    lanes,
    quantize,
    row_sum,
)
from cudnn_core.hopper.epilogue import frame as frame_module
from cudnn_core.hopper.epilogue.frame import Live
from cudnn_core.hopper.epilogue.quantize import ScaleArgs
from cudnn_core.hopper.tile import TileConfig

NORMAL = TileConfig(bm=64, bn=64, warpgroups=1)
SWAPPED = TileConfig(bm=64, bn=64, warpgroups=1, orientation="swapped")


class Item(NamedTuple):
    m0: int
    m_valid: int
    n0: int
    n_valid: int
    batch: int = 0


class Machine:
    """One warpgroup."""

    def __init__(self):
        self.here = threading.local()
        self.all = threading.Barrier(128)
        self.warps = [threading.Barrier(32) for _ in range(4)]
        self.slots = [None] * 128
        self.memory = {}
        self.errors = []

    def run(self, work):
        """work(thread) by 128 threads."""

        def one(thread):
            self.here.thread = thread
            try:
                work(thread)
            except BaseException as error:
                self.errors.append(error)
                for barrier in (self.all, *self.warps):
                    barrier.abort()

        threads = [threading.Thread(target=one, args=(t,)) for t in range(128)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        real = [e for e in self.errors if not isinstance(e, threading.BrokenBarrierError)]
        if real or self.errors:
            raise (real or self.errors)[0]

    def shuffle(self, value, distance):
        thread = self.here.thread
        barrier = self.warps[thread // 32]
        self.slots[thread] = value
        barrier.wait()
        found = self.slots[thread ^ distance]
        barrier.wait()
        return found

    def meet(self, **_):
        self.all.wait()

    def meet_warp(self):
        self.warps[self.here.thread // 32].wait()

    def store(self, address, words, offset):
        for i, word in enumerate(words):
            self.memory[address + offset + 4 * i] = word

    def load(self, address, count, offset):
        return [self.memory[address + offset + 4 * i] for i in range(count)]


def scale_of(amax, fmt, constant):
    """As convert.e8m0_scale and e4m3_scale, by the NumPy law."""
    with np.errstate(all="ignore"):
        r = np.uint32(fmt.element.reciprocal_bits).view(np.float32)
        constant = np.float32(1 if constant is None else constant)
        code = reference.scale_encode(np.float32(np.float32(amax * r) * constant), fmt.scale)
        inverse = np.float32(1) / reference.scale_values(fmt.scale)[code]
        gain = np.minimum(constant * inverse, np.float32(reference.FLOAT_MAX))
    return int(code), np.float32(gain), bool(np.isnan(gain))


def magnitudes(x, y):
    return np.maximum(np.abs(x), np.abs(y))


def product(x, y):
    with np.errstate(all="ignore"):
        return np.float32(x * y)


def bits(x):
    return int(np.float32(x).view(np.uint32))


def number(word):
    return np.uint32(word & 0xFFFFFFFF).view(np.float32)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(cute.arch, "shuffle_sync_bfly", made.shuffle)
    monkeypatch.setattr(cute.arch, "barrier", made.meet)
    monkeypatch.setattr(cute.arch, "sync_warp", made.meet_warp)
    monkeypatch.setattr(cute.arch, "make_warp_uniform", lambda x: x)
    monkeypatch.setattr(cutlass, "range_constexpr", range)
    monkeypatch.setattr(cutlass, "const_expr", lambda x: x)
    monkeypatch.setattr(cutlass, "range", lambda *a, unroll=1: range(*a))
    laws = SimpleNamespace(
        max_magnitude=magnitudes,
        multiply=product,
        e8m0_scale=scale_of,
        e4m3_scale=scale_of,
        keep_word=lambda word, exists: word if exists else 0,
    )
    monkeypatch.setattr(quantize, "convert", laws)
    for module in (lanes, quantize, row_sum, frame_module):
        for name, value in {
            "select_": lambda c, x, y: x if c else y,
            "Int32": int,
            "Int64": int,
            "Uint32": int,
            "Float32": np.float32,
            "float_bits": bits,
            "bits_float": number,
            "store_words": made.store,
            "load_words": made.load,
        }.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    for kind in (Quantize, RowSum):
        for name, member in list(vars(kind).items()):
            if hasattr(member, "__wrapped__"):
                monkeypatch.setattr(kind, name, member.__wrapped__)
    return made


def special_values(shape):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    x[3::5] = 0
    x[1, 5], x[2, 7], x[-1, -1] = np.nan, np.inf, -np.inf
    return x


@pytest.mark.parametrize("half", [False, True], ids=["whole", "half"])
@pytest.mark.parametrize("tile", [NORMAL, SWAPPED], ids=["normal", "swapped"])
@pytest.mark.parametrize(
    ("recipe", "block", "constant"), [("mxfp8", 32, None), ("mxfp4", 16, None), ("nvfp4", 16, 0.3)]
)
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
def test_quantize(machine, monkeypatch, tile, recipe, block, constant, half, ragged):
    """Gains, scale bytes and where they go, padding of the atoms included."""
    fmt = resolve(FORMATS[recipe], block)
    fragments = Fragments(tile, glu="interleaved" if half else None)
    resource = Quantize(TileStore(fragments, fmt.element.name, "n", half=half), fmt)
    columns = 32 if half else 64
    rows, valid = (40, columns - 16) if ragged else (64, columns)
    item = Item(0, rows, 0, (2 if half else 1) * valid)
    x = special_values((64, columns))
    x[rows:], x[:, valid:] = 0, 0
    scaled, codes = np.full(x.shape, np.nan, np.float32), {}
    blocks = -(-valid // block)
    args = ScaleArgs(None, (0, 0, 0), rows, blocks, 128, -(-blocks // 4) * 4)
    live = Live((None, args), (None, SimpleNamespace(toint=lambda: 4096)), None)

    def take(store, live, frame, values, products):
        for i, value in enumerate(values):
            m, n = frame.piece.place(i)
            scaled[frame.thread_m + m, frame.thread_n + n] = value

    def write(self, address, word, count):
        row, column = address
        for k in range(count):
            assert codes.setdefault((row, column + k), word >> 8 * k & 255) == word >> 8 * k & 255

    monkeypatch.setattr(TileStore, "put", take)
    monkeypatch.setattr(Quantize, "write", write)
    monkeypatch.setattr(Quantize, "address", lambda self, args, batch, row, block: (row, block))

    def work(thread):
        frame = fragments.frame(item, thread // 32, thread, 0)
        frame = frame.half() if half else frame
        values = []
        for i in range(frame.piece.count):
            m, n = frame.piece.place(i)
            values.append(x[frame.thread_m + m, frame.thread_n + n])
        resource.put(live, frame, values, constant)
        resource.end_tile(live, item, thread)

    machine.run(work)
    _, want = reference.quantize_blocks(
        x[:rows, :valid], fmt, 1.0 if constant is None else constant
    )
    found = np.full((128, args.atom_blocks), -1)
    for (row, column), code in codes.items():
        found[row, column] = code
    padded = np.zeros_like(found)
    padded[:rows, :blocks] = want
    np.testing.assert_array_equal(found, padded)
    gains = np.array(
        [[scale_of(a, fmt, constant)[1] for a in row] for row in maxima(x[:rows], block)]
    )
    exact = product(x[:rows], gains.repeat(block, axis=1))
    np.testing.assert_array_equal(scaled[:rows], exact)


def maxima(x, block):
    return np.abs(x.reshape(x.shape[0], -1, block)).max(axis=-1)


@pytest.mark.parametrize("width", [8, 16, 64])
@pytest.mark.parametrize("tile", [NORMAL, SWAPPED], ids=["normal", "swapped"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_row_sum(machine, monkeypatch, tile, width, blocks):
    """Two tiles in turn, so that registers and shared memory are used again; two 64-row blocks of a warpgroup."""
    extents = {"bm": 64 * blocks} if tile is NORMAL else {"bn": 64 * blocks}
    tile = TileConfig(**{**vars(tile), **extents})
    fragments = Fragments(tile, width)
    resource = RowSum(fragments)
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 8, (2, tile.bm, tile.bn)).astype(np.float32)
    left = {}

    def leave(self, live, item, m, part, total):
        left.setdefault((item.m0 + m, part), []).append(total)

    monkeypatch.setattr(RowSum, "leave", leave)

    def work(thread):
        live = Live(None, SimpleNamespace(toint=lambda: 4096), [np.float32(0)] * 2 * blocks)
        for t in range(2):
            item = Item(tile.bm * t, tile.bm - 1, tile.bn * t, tile.bn)
            for index in range(fragments.count):
                frame = fragments.frame(item, thread // 32, thread, index)
                values = []
                for i in range(frame.piece.count):
                    m, n = frame.piece.place(i)
                    values.append(x[t, frame.m + frame.thread_m + m, frame.n + frame.thread_n + n])
                machine.all.wait()
                resource.add(live, frame, values)
            resource.end_tile(live, item, thread)

    machine.run(work)
    want = {(tile.bm * t + m, t): [x[t, m].sum()] for t in range(2) for m in range(tile.bm - 1)}
    assert left == want
