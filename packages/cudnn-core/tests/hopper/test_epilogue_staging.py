"""Where staging puts values, and in how many steps: the device's Python code run with numbers for registers.

May import pytest and cudnn_core.hopper; needs the DSL, no GPU. Instructions are recorded, and a model
of shared memory - 32 banks of 4 bytes, the copy engine's swizzle - says what they do.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

pytest.importorskip("cutlass")

from cudnn_core.hopper.epilogue import Fragments, TileLoad, TileStore, load, store
from cudnn_core.hopper.epilogue.frame import Frame
from cudnn_core.hopper.storage import StorageFormat
from cudnn_core.hopper.tile import TileConfig

NORMAL = TileConfig(bm=128, bn=128)
SWAPPED = TileConfig(bm=128, bn=128, orientation="swapped")
BITS = {
    "float32": 32,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float4_e2m1fn": 4,
}


class Units(tuple):
    """Labels of the elements in a register, the lowest first."""

    def __rshift__(self, bits):
        return Units(self[1 if len(self) == 2 else bits // 4 :])


@dataclass
class Machine:
    """Shared memory as labels by 4-bit position, and what each phase of each instruction costs."""

    bits: int
    held: dict = field(default_factory=dict)
    threads: list = field(default_factory=list)

    def start_thread(self):
        self.threads.append([])

    def record(self, kind, address, labels, size):
        self.threads[-1].append((kind, address, labels, size))

    def put(self, address, labels):
        """Elements from a byte address on."""
        for i, label in enumerate(labels):
            at = address * 8 // 4 + i * self.bits // 4
            assert at not in self.held, f"{label} and {self.held[at]} in one place"
            self.held[at] = label

    def run(self):
        """Carry the recorded stores out; returns the wavefronts of the costliest phase."""
        worst = 0
        for first in range(0, len(self.threads), 32):
            for lanes in zip(*self.threads[first : first + 32], strict=True):
                assert len({(kind, size) for kind, _, _, size in lanes}) == 1
                phases = self.matrices(lanes) if lanes[0][0] == "matrices" else self.words(lanes)
                worst = max(worst, *(wavefronts(p) for p in phases))
        return worst

    def words(self, lanes):
        size = lanes[0][3]
        for _, address, labels, _ in lanes:
            self.put(address, labels)
        at_once = 32 // max(1, size // 4)
        return [
            [(address, size) for _, address, _, _ in lanes[i : i + at_once]]
            for i in range(0, 32, at_once)
        ]

    def matrices(self, lanes):
        """Lane l holds elements 2*(l%4) and the next of row l//4; lane 8*k + r addresses line r of matrix k."""
        transposed = lanes[0][3]
        phases = []
        for k in range(len(lanes[0][2])):
            addresses = [lanes[8 * k + r][1] for r in range(8)]
            for lane in range(32):
                for i0, label in enumerate(lanes[lane][2][k]):
                    row, column = lane // 4, 2 * (lane % 4) + i0
                    line, place = (column, row) if transposed else (row, column)
                    self.put(addresses[line] + 2 * place, [label])
            phases.append([(a, 16) for a in addresses])
        return phases


def wavefronts(accesses):
    """Rounds of one phase: banks serve one word each at a time."""
    words = defaultdict(set)
    for address, size in accesses:
        for word in range(address // 4, (address + size + 3) // 4):
            words[word % 32].add(word)
    return max(map(len, words.values()))


def expected_place(tile_store, row, column):
    """4-bit position of fragment (row, column), from the definition of the copy engine's layout."""
    lines = tile_store.lines
    position, line = (row, column) if lines.along_rows else (column, row)
    box, inside = divmod(position, lines.span)
    byte = line * lines.line_bytes + inside * lines.bits // 8
    # Bits 4 and up of an address take bits 7 and up by exclusive or, as many as a line has chunks.
    byte ^= (byte >> 7 & (lines.line_bytes // 16 - 1)) << 4
    return (box * lines.box_bytes + byte) * 2 + inside * lines.bits // 4 % 2


def patch(monkeypatch, machine):
    size = {1: 1, 2: 2}
    monkeypatch.setattr(
        store,
        "store_words",
        lambda a, words, add: machine.record(
            "words", a + add, [x for w in words for x in w], 4 * len(words)
        ),
    )
    monkeypatch.setattr(
        store,
        "store_narrow",
        lambda a, word, n, add: machine.record(
            "words", a + add, list(word)[: n * 8 // machine.bits], size[n]
        ),
    )
    monkeypatch.setattr(
        store,
        "store_matrices",
        lambda a, words, transposed, add: machine.record(
            "matrices", a + add, [list(w) for w in words], transposed
        ),
    )
    monkeypatch.setattr(store, "float_bits", lambda x: x)
    monkeypatch.setattr(store, "choose", lambda c, x, y: x if c else y)
    monkeypatch.setattr(store, "Int32", lambda x: x)
    monkeypatch.setattr(store, "Float32", lambda x: Units([None]))
    monkeypatch.setattr(
        store, "e2m1_word", lambda eight, products: Units(x for v in eight for x in v)
    )
    monkeypatch.setattr(store, "pair_rows", exchange)
    monkeypatch.setattr(StorageFormat, "pack", lambda self, a, b: Units([*a, *b]))


def exchange(units, lane):
    """What store.pair_rows gives: the lane's column of its row and of the neighbouring one."""
    odd, found = lane // 4 % 2, []
    for pair in zip(units[::2], units[1::2], strict=True):
        if pair[0] is None:
            continue
        row, column = pair[0]
        found += [(row - odd, column + odd), (row - odd + 1, column + odd)]
    return Units(found)


def frames(fragments, piece):
    for thread in range(128):
        yield Frame(fragments, piece, None, 0, thread // 32, thread % 32, 0, 0, 0)


def label(frame, i):
    i0, i1, j = frame.piece.parts(i)
    return frame.row + frame.piece.half_rows * i1, frame.column + 8 * j + i0


def shapes():
    for tile in (NORMAL, SWAPPED):
        for dtype in BITS:
            for contiguous in "nm" if dtype != "float4_e2m1fn" else "n":
                yield tile, dtype, contiguous, None, False, 0
                yield tile, dtype, contiguous, "interleaved", True, 0
                yield tile, dtype, contiguous, "concatenated", False, 0
            yield tile, dtype, "n", None, False, 128
    for columns in (8, 16, 32):
        narrow = TileConfig(bm=columns, bn=128, orientation="swapped")
        for dtype in BITS:
            yield narrow, dtype, "n", None, False, 0
            yield narrow, dtype, "n", "interleaved", True, 0


@pytest.mark.parametrize("shape", list(shapes()), ids=str)
def test_stores(shape, monkeypatch):
    """Every element lands where the copy engine looks for it, once, and no bank is asked twice."""
    tile, dtype, contiguous, glu, half, width = shape
    fragments = Fragments(tile, width, glu=glu)
    tile_store = TileStore(fragments, dtype, contiguous, half=half)
    piece, machine = tile_store.piece, Machine(BITS[dtype])
    patch(monkeypatch, machine)
    for frame in frames(fragments, piece):
        machine.start_thread()
        values = [Units([label(frame, i)]) for i in range(piece.count)]
        if machine.bits == 16:
            tile_store.stage_matrices(frame, values, 0)
        elif machine.bits == 32 and not tile_store.lines.along_rows:
            tile_store.stage_word_pairs(frame, values, 0)
        else:
            tile_store.stage_elements(frame, values, 0)
    worst = machine.run()
    assert len(machine.held) == piece.rows * piece.columns
    for place, (row, column) in machine.held.items():
        assert place == expected_place(tile_store, row, column)
    assert worst <= conflicts_allowed(tile_store)


def conflicts_allowed(tile_store):
    """1, but where lines are too short for the swizzle to spread them over all banks."""
    return 1 if tile_store.lines.line_bytes >= 64 else 128 // tile_store.lines.line_bytes // 2


@pytest.mark.parametrize("tile", [NORMAL, SWAPPED], ids=["normal", "swapped"])
@pytest.mark.parametrize("contiguous", ["n", "m"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loads_mirror_stores(tile, contiguous, dtype, monkeypatch):
    """TileLoad asks for the addresses that TileStore writes, in the same instructions."""
    fragments = Fragments(tile)
    tile_store = TileStore(fragments, dtype, contiguous)
    tile_load = TileLoad(fragments, dtype, contiguous)
    asked, machine = [], Machine(BITS[dtype])
    patch(monkeypatch, machine)
    monkeypatch.setattr(load, "bits_float", lambda x: x)
    monkeypatch.setattr(load, "Uint32", lambda x: x)
    monkeypatch.setattr(load, "widen", lambda word, half, dtype: word)
    monkeypatch.setattr(load, "choose", lambda c, x, y: x if c else y)

    def loaded(address, count, *rest):
        asked.append((address + rest[-1], count))
        return [None] * count

    monkeypatch.setattr(load, "load_words", loaded)
    monkeypatch.setattr(load, "load_matrices", loaded)
    for frame in frames(fragments, tile_load.piece):
        machine.start_thread()
        values = [Units([label(frame, i)]) for i in range(frame.piece.count)]
        asked.clear()
        if dtype == "bfloat16":
            tile_load.get_matrices(frame, 0)
            tile_store.stage_matrices(frame, values, 0)
        elif tile_load.lines.along_rows:
            tile_load.get_words(frame, 0)
            tile_store.stage_elements(frame, values, 0)
        else:
            tile_load.get_word_pairs(frame, 0)
            tile_store.stage_word_pairs(frame, values, 0)
        assert sorted(a for a, _ in asked) == sorted(a for _, a, _, _ in machine.threads[-1])


class Item(NamedTuple):
    n0: int = 0
    n_valid: int = 1 << 20


@pytest.mark.parametrize("tile", [NORMAL, SWAPPED], ids=["normal", "swapped"])
def test_glu_pairs(tile):
    """Value i of the half is C's column 32b + c of the product's 64b + c and 64b + 32 + c; each once."""
    fragments = Fragments(tile, 64, glu="interleaved")
    seen = set()
    for frame in frames(fragments, fragments.whole):
        frame = frame._replace(item=Item(n0=512), n=64)
        half = frame.half()
        assert half.item.n0 == 256 and half.n == 32
        assert len(frame.pairs()) == half.piece.count
        for i, (up, gate) in enumerate(frame.pairs()):
            m, n = place(half, i)
            block, c = divmod(n, 32)
            assert place(frame, up) == (m, 64 * block + c)
            assert place(frame, gate) == (m, 64 * block + 32 + c)
            seen.add((m, n))
    assert len(seen) == fragments.half.m * fragments.half.n


def place(frame, i):
    m, n = frame.piece.place(i)
    return frame.thread_m + m, frame.thread_n + n


def test_depth_divides_the_subtiles_of_a_tile():
    """Else a buffer would be filled again while the store of its last content may still read it."""
    for tile in (NORMAL, SWAPPED, TileConfig(bm=64, bn=192, warpgroups=1)):
        for depth in (1, 2, 3, 4):
            fragments = Fragments(tile, depth=depth)
            assert fragments.depth <= depth and fragments.count % fragments.depth == 0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Fragments(NORMAL, 48), "48 columns"),
        (lambda: Fragments(NORMAL, 32, glu="interleaved"), "GLU"),
        (lambda: TileStore(Fragments(NORMAL), "float4_e2m1fn", "m"), "N-major"),
        (lambda: TileStore(Fragments(NORMAL, 16), "float4_e2m1fn", "n"), "16 are needed"),
        (lambda: TileLoad(Fragments(NORMAL), "float8_e4m3fn"), "cannot be loaded"),
        (lambda: quantize("mxfp8", "float8_e5m2"), "elements of float8_e4m3fn"),
        (lambda: quantize("mxfp8", "float8_e4m3fn", 16), "blocks of 32"),
    ],
)
def test_refusals(make, word):
    assert word in make().why_not()


def quantize(recipe, dtype, width=0):
    from cudnn_core.formats.spec import FORMATS
    from cudnn_core.hopper.epilogue import Quantize

    return Quantize(TileStore(Fragments(NORMAL, width), dtype), FORMATS[recipe])
