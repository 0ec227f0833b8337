"""Scratch memory that callers give to the classes: sizes, refusals, and results that do not depend on it.

On the host the engine needs none, but looks at what it gets as a GPU's does; an engine as if on a GPU needs some.
"""

import gc
import weakref

import numpy as np
import pytest

import cudnn_gemm_dense
from cudnn_core import workspace
from cudnn_core.engine import ReferenceEngine, Workspace
from cudnn_gemm_dense import kernels

torch = pytest.importorskip("torch")

M, N, K = 48, 64, 32
# Parameters of each class's execute in order: extents of its tensors, or None where there is none.
CALLS = {
    "amax": [(M, K, 1), (N, K, 1), None, None, (M, N, 1), (1, 1, 1)],
    "swiglu": [(M, K, 1), (N, K, 1), (M, N, 1), (M, N // 2, 1)],
    "srelu": [(M, K, 1), (N, K, 1), (M, N, 1), (M, N, 1), None, None, (M, 1, 1)],
    "dsrelu": [(M, K, 1), (N, K, 1), (M, N, 1), (M, N, 1), (M, 1, 1), None, None, (M, 1, 1)],
}
NAMES = {
    "amax": "a b sfa sfb c amax",
    "swiglu": "a b ab12 c",
    "srelu": "a b c d sfa sfb prob",
    "dsrelu": "a b c d dprob sfa sfb prob",
}
FP32 = ("amax", "prob", "dprob")
OPERANDS = [
    (op, index)
    for op, shapes in CALLS.items()
    for index, shape in enumerate(shapes)
    if shape is not None
]
every_op = pytest.mark.parametrize("op", CALLS)
every_library = pytest.mark.parametrize("library", ["numpy", "torch"])


def kind(op):
    return getattr(cudnn_gemm_dense, f"Gemm{op.capitalize()}")


def aligned(nbytes):
    """Bytes whose address is a multiple of 256."""
    whole = np.full(nbytes + 512, 7, np.uint8)
    return whole[-whole.ctypes.data % 256 :][:nbytes]


class Call:
    """Tensors of one call of a class, in FP16 where they are not FP32 anyway; `at` puts one of them into a buffer."""

    def __init__(self, op, library="torch", m=M):
        rng = np.random.default_rng(0)
        self.op, self.library = op, library
        self.names = NAMES[op].split()
        self.arrays = [
            None
            if shape is None
            else rng.standard_normal(tuple(m if e == M else e for e in shape)).astype(
                "float32" if name in FP32 else "float16"
            )
            for name, shape in zip(self.names, CALLS[op], strict=True)
        ]
        for name, x in zip(self.names, self.arrays, strict=True):
            if name in ("amax", "dprob"):
                x[...] = 0

    def at(self, index, buffer):
        x = self.arrays[index]
        place = buffer[: x.nbytes].view(x.dtype).reshape(x.shape)
        place[...] = x
        self.arrays[index] = place
        return self

    @property
    def tensors(self):
        return [None if x is None else self.own(x) for x in self.arrays]

    def own(self, x):
        return torch.from_numpy(x) if self.library == "torch" else x

    @property
    def instance(self):
        made = kind(self.op)(*self.tensors)
        made.compile()
        return made


@every_library
@every_op
def test_results_do_not_depend_on_it(op, library):
    plain, given = Call(op, library), Call(op, library)
    plain.instance.execute(*plain.tensors)
    run = given.instance
    assert run.workspace_size == 0
    for buffer in (aligned(0), aligned(512), aligned(512)[1:]):
        for name, x in zip(given.names, given.arrays, strict=True):
            if name in ("amax", "dprob"):
                x[...] = 0
        run.execute(*given.tensors, workspace=given.own(buffer))
        for ours, theirs in zip(given.arrays, plain.arrays, strict=True):
            assert ours is theirs or np.array_equal(ours, theirs)


@every_library
@pytest.mark.parametrize(("op", "index"), OPERANDS)
def test_it_is_no_operand_nor_part_of_one(op, index, library):
    call = Call(op, library)
    run = call.instance
    name = f"{call.names[index]}_tensor"
    last = call.arrays[index].reshape(-1)[-1:]
    for x in (call.arrays[index], call.arrays[index].reshape(-1).view(np.uint8), last):
        with pytest.raises(
            ValueError, match=f"workspace: .* with {name}, as it is written, got an"
        ):
            run.execute(*call.tensors, workspace=call.own(x))


@every_library
@pytest.mark.parametrize(("op", "index"), OPERANDS)
def test_operands_of_a_later_call_are_not_inside_it(op, index, library):
    arena = aligned(1 << 16)
    first, second = Call(op, library), Call(op, library).at(index, arena[4096:])
    run = first.instance
    given = first.own(arena)
    run.execute(*first.tensors, workspace=given)
    with pytest.raises(ValueError, match=f"workspace: .* with {first.names[index]}_tensor"):
        run.execute(*second.tensors, workspace=given)


@every_library
@every_op
@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda x: aligned(512)[::2], ValueError, "workspace: expected a contiguous tensor"),
        (lambda x: np.zeros(8, "c8"), ValueError, "workspace dtype: expected a dtype"),
        (lambda x: "mine", TypeError, "workspace: expected a .* tensor, .* got a str"),
        (lambda x: 0, TypeError, "workspace: expected a .* tensor, .* got a int"),
        (lambda x: object(), TypeError, "workspace: expected a .* tensor, .* got a object"),
    ],
)
def test_what_it_must_be(op, library, make, error, said):
    call = Call(op, library)
    given = make(None)
    with pytest.raises(error, match=said):
        call.instance.execute(
            *call.tensors,
            workspace=call.own(given) if isinstance(given, np.ndarray) else given,
        )


@every_op
def test_it_comes_from_the_operands_framework(op):
    jnp = pytest.importorskip("jax.numpy")
    for library, other in (("torch", np.zeros(8)), ("numpy", torch.zeros(8))):
        call = Call(op, library)
        for given in (other, jnp.zeros(8)):
            with pytest.raises(TypeError, match=f"workspace: expected a {library} tensor"):
                call.instance.execute(*call.tensors, workspace=given)
    arrays = [None if x is None else jnp.asarray(x) for x in Call(op).arrays]
    run = kind(op)(*arrays)
    run.compile()
    with pytest.raises(NotImplementedError, match="JAX arrays are immutable"):
        run.execute(*arrays, workspace=jnp.zeros(8))


@every_library
@every_op
def test_an_empty_problem_takes_one(op, library):
    call = Call(op, library, m=0)
    assert call.instance.workspace_size == 0
    call.instance.execute(*call.tensors, workspace=call.own(aligned(64)))


@every_op
def test_under_torch_compile_the_class_says_what_serves(op):
    call = Call(op)
    run, given = call.instance, call.own(aligned(64))
    run.execute(*call.tensors, workspace=given)
    compiled = torch.compile(lambda *x: run.execute(*x, workspace=given), backend="eager")
    with pytest.raises(NotImplementedError, match=rf"use gemm_{op}_wrapper there"):
        compiled(*call.tensors)


class AsOnGpu(ReferenceEngine):
    """Needs scratch memory, spoils it, and is launched without another look at the tensors."""

    platform = "launch"

    def __init__(self, reference):
        super().__init__(reference)
        self.given = []

    def workspaces(self, problem):
        return (Workspace(3000),)

    def compile(self, plan):
        run = super().compile(plan)
        count = len(plan.config.operands)

        def launch(*arguments):
            tensors, (scratch, *rest) = arguments[:count], arguments[count:]
            self.given.append(scratch.data_ptr())
            scratch.fill_(255)
            run(*(x.numpy() for x in tensors), *rest)

        return launch


@pytest.fixture
def as_on_gpu(monkeypatch):
    def pretend(op):
        operation = kind(op).op
        engine = AsOnGpu(operation.engines[0]._function)
        monkeypatch.setattr(operation, "engines", (engine,))
        return engine

    return pretend


@every_op
def test_it_reaches_the_kernel(op, as_on_gpu):
    plain = Call(op)
    plain.instance.execute(*plain.tensors)
    engine = as_on_gpu(op)
    call = Call(op)
    run = call.instance
    assert run.workspace_size == 3000
    arena = call.own(aligned(8192))
    for given in (arena[:3000], arena[4096:], arena[4096:].view(torch.float8_e4m3fn)):
        for name, x in zip(call.names, call.arrays, strict=True):
            if name in ("amax", "dprob"):
                x[...] = 0
        run.execute(*call.tensors, workspace=given)
        assert engine.given[-1] == given.data_ptr()
        for ours, theirs in zip(call.arrays, plain.arrays, strict=True):
            assert ours is theirs or np.array_equal(ours, theirs)
    with pytest.raises(ValueError, match="workspace: expected at least 3000 bytes, got 2999"):
        run.execute(*call.tensors, workspace=arena[:2999])
    with pytest.raises(ValueError, match="workspace: expected 256-byte alignment, got address"):
        run.execute(*call.tensors, workspace=arena[1:])


@pytest.mark.parametrize(("op", "index"), OPERANDS)
def test_operands_of_a_later_launch_are_not_inside_it(op, index, as_on_gpu):
    engine = as_on_gpu(op)
    first = Call(op)
    arena = first.own(aligned(1 << 16))
    given = arena[4096:]
    run = first.instance
    for _ in range(2):
        run.execute(*first.tensors, workspace=given)
    tensors = first.tensors
    x = tensors[index]
    tensors[index] = arena[8192 : 8192 + x.nbytes].view(x.dtype).view(x.shape)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"workspace: .* with {first.names[index]}_tensor"):
            run.execute(*tensors, workspace=given)
    assert len(engine.given) == 2


@every_op
def test_the_class_keeps_none(op, as_on_gpu):
    as_on_gpu(op)
    call = Call(op)
    run, given = call.instance, call.own(aligned(3000))
    run.execute(*call.tensors, workspace=given)
    watch = weakref.ref(given)
    del given
    gc.collect()
    assert watch() is None
    run.execute(*call.tensors, workspace=call.own(aligned(3000)))


def test_regions_begin_where_a_given_one_is_aligned():
    """What sizes are rounded up to is what a caller's buffer must be a multiple of."""
    assert kernels.following(1) == workspace.ALIGNMENT
