"""Runs an epilogue alone: fragments come from memory, not from a main loop.

May import: the CuTe DSL, cudnn_core.hopper, cudnn_core.jit, cudnn_core.cache.

A test file has kinds of cases: `<kind>_cases()`, a list, and `<kind>_harness(case)`, which returns a
Harness and its slots. `precompile` builds the kernels of many of them side by side.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from .. import cache
from ..cache import KernelSource
from ..hopper import arguments
from ..hopper.epilogue import Epilogue
from ..hopper.gemm import SmemAllocator
from ..hopper.schedule import DenseSchedule
from . import machine_code
from .precompile import in_parallel

SLOTS = 7
# What a harness is traced from, beside core's own device code and the file with its cases.
SOURCES = ("cudnn_core.testing.epilogue",)


class Harness:
    """One kernel: every tile of x (M, N, L) is loaded as fragments and given to the epilogue.

    Elements that do not exist are NaN. takes: for each resource, in order, the numbers of the
    arguments that its `prepare` takes; 7 is the number `scalar`, 8 is N. made: instead of x, numbers that
    cost next to nothing, for timing and for looking at the machine code. sources: other modules that
    the epilogue's function comes from.
    """

    def __init__(
        self,
        epilogue: Epilogue,
        takes: list[tuple[int, ...]],
        made: bool = False,
        sources: tuple[str, ...] = (),
    ):
        self.epilogue = epilogue
        self.tile = epilogue.fragments.tile
        self.schedule = DenseSchedule(self.tile)
        self.takes = takes
        self.made = made
        self.sources = sources

    @cute.jit
    def launch(
        self,
        x: cute.Tensor,
        t0: cute.Tensor,
        t1: cute.Tensor,
        t2: cute.Tensor,
        t3: cute.Tensor,
        t4: cute.Tensor,
        t5: cute.Tensor,
        t6: cute.Tensor,
        scalar: Float32,
        limit: Int32,
        repeats: Int32,
        stream: cuda.CUstream,
    ):
        """x, seven arguments of resources, a number, how many blocks, how often all tiles, the stream."""
        slots = (t0, t1, t2, t3, t4, t5, t6, scalar, Int32(x.shape[1]))
        args = tuple(
            resource.prepare(*(slots[i] for i in takes))
            for (_, resource), takes in zip(self.epilogue.resources, self.takes, strict=True)
        )
        schedule = self.schedule.prepare(x.shape[0], x.shape[1], Int32(1), x.shape[2])
        blocks = self.schedule.walkers(schedule, limit)
        self.kernel(x, schedule, args, scalar, repeats).launch(
            grid=[blocks, 1, 1],
            block=[128 * self.tile.warpgroups, 1, 1],
            min_blocks_per_mp=1,
            stream=stream,
        )
        self.epilogue.conclude(args, stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, schedule, args, scalar: Float32, repeats: Int32):
        thread, _, _ = cute.arch.thread_idx()
        staging = self.epilogue.allocate(SmemAllocator())
        if thread == 0:
            self.epilogue.initialize(staging)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        lives = self.epilogue.begin(args, staging)
        accumulators = [
            cute.make_rmem_tensor(self.tile.columns // 2, Float32)
            for _ in range(self.tile.m_blocks)
        ]
        warp = cute.arch.make_warp_uniform(thread // 32)
        first, end, step = self.schedule.walk(schedule)
        if cutlass.const_expr(self.tile.pingpong):
            first += warp // 4 * step
            step *= 2
        for index in cutlass.range(first, end * repeats, step, unroll=1):
            item = self.schedule.item(schedule, index % end)
            self.epilogue.start_tile(lives, item, thread)
            if cutlass.const_expr(self.made):
                # Other numbers for every tile, or the compiler would do a tile's arithmetic once for all.
                base = scalar * Float32(index + thread)
                for block in cutlass.range_constexpr(self.tile.m_blocks):
                    for i in cutlass.range(self.tile.columns // 2, unroll_full=True):
                        accumulators[block][i] = base + Float32(i)
            else:
                self.fill(x, item, accumulators, warp, thread)
            if (item.m_valid > 0) & (item.n_valid > 0):
                self.epilogue.run(lives, item, accumulators, thread)
        self.epilogue.finish(lives, thread)

    @cute.jit
    def fill(self, x, item: cutlass.Constexpr, accumulators, warp, thread):
        fragments = self.epilogue.fragments
        count = cutlass.const_expr(fragments.width // 2)
        plane = x[None, None, item.batch]
        for index in cutlass.range_constexpr(fragments.count):
            block, part = divmod(index, fragments.per_block)
            frame = fragments.frame(item, warp, thread, index)
            for i in cutlass.range_constexpr(count):
                m, n = frame.piece.place(i)
                value = Float32(float("nan"))
                if frame.exists(i):
                    value = plane[
                        item.m0 + frame.m + frame.thread_m + m,
                        item.n0 + frame.n + frame.thread_n + n,
                    ]
                accumulators[block][part * count + i] = value

    def fake_args(self, slots: list) -> list:
        """Symbolic arguments; slots: fake tensors, or None."""
        nothing = cute.runtime.make_fake_tensor(Float32, (1,), (1,), assumed_align=4)
        x = arguments.matrix(
            cute.sym_int32(),
            cute.sym_int32(),
            "float32",
            "native",
            "second",
            batched=True,
            aligned=False,
        )
        given = [nothing if slot is None else slot for slot in slots]
        given += [nothing] * (SLOTS - len(given))
        return [
            x,
            *given,
            Float32(1),
            Int32(1),
            Int32(1),
            cute.runtime.make_fake_stream(),
        ]

    def source(self, slots: list, case, path: str) -> KernelSource:
        """The kernel as the compile cache knows it; path: of the file that makes the harness of a case."""
        return KernelSource(
            "epilogue",
            key=(type(case).__name__, repr(case)),
            build=lambda: (self.launch, self.fake_args(slots), ""),
            sources=(Path(path), *SOURCES, *self.sources),
        )

    def compile(self, slots: list, case, path: str):
        """The kernel, from the cache or compiled, as a callable (x, slots, scalar, blocks, repeats, stream)."""
        kernel = cache.get(self.source(slots, case, path)).call

        def call(x, tensors, scalar=1.0, blocks=132, repeats=1, stream=0):
            nothing = x.flatten()[:1]
            given = [nothing if t is None else t for t in tensors]
            given += [nothing] * (SLOTS - len(given))
            kernel(x, *given, scalar, blocks, repeats, stream)

        return call

    def object_code(self, slots: list) -> bytes:
        """The kernel's object file."""
        return machine_code.object_code(lambda: (self.launch, self.fake_args(slots), ""))


def load(path: str):
    """The module of a test file, wherever it lies."""
    name = f"epilogue_cases_{Path(path).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def precompile(wanted: Iterable[tuple[str, str, int]], workers: int | None = None) -> list[str]:
    """Kernels of cases (test file, kind, number) into the disk cache. The texts of errors."""
    errors = in_parallel(_precompile, wanted, workers or os.cpu_count() or 1)
    return [error for error in errors if error is not None]


def _precompile(path: str, kind: str, number: int) -> str | None:
    module = load(path)
    case = getattr(module, f"{kind}_cases")()[number]
    try:
        harness, slots = getattr(module, f"{kind}_harness")(case)
        cache.compile_ahead(harness.source(slots, case, path))
    # The test that needs this kernel will meet the same error and report it; the others must go on.
    except Exception as error:
        return f"{case}: {error!r}"
    return None


def precompile_items(items) -> None:
    """The kernels of collected tests whose parameter `case` comes from `<kind>_cases()`, kind by the test's name."""
    wanted = []
    for item in items:
        case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
        kind = item.originalname.removeprefix("test_")
        make = getattr(item.module, f"{kind}_cases", None)
        if case is not None and make is not None and item.get_closest_marker("gpu"):
            wanted.append((str(item.path), kind, [*map(repr, make())].index(repr(case))))
    for error in precompile(wanted) if wanted else ():
        print(error)


def all_cases(path: str) -> list[tuple[str, str, int]]:
    """What `precompile` wants for every case of a test file."""
    module = load(path)
    kinds = [name.removesuffix("_cases") for name in vars(module) if name.endswith("_cases")]
    return [
        (path, kind, i) for kind in kinds for i in range(len(getattr(module, f"{kind}_cases")()))
    ]


if __name__ == "__main__":
    # python -m cudnn_core.testing.epilogue FILE...: the kernels of test files into the disk cache.
    built = [wanted for path in sys.argv[1:] for wanted in all_cases(path)]
    print(*precompile(built), f"{len(built)} kernels", sep="\n")
