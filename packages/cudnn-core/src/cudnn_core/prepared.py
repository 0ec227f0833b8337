"""Prepared calls: from a bound problem on one adapter to the executable, the shortest way. No op's contract is checked.

May import contract types, engine, adapters, overlap and workspace; `op` makes them, remembers them and holds the class
door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .adapters import common
from .adapters.base import Adapter
from .contract import Column, Matrix, Problem, ScalarTensor
from .engine import Engine, select
from .errors import mismatch
from .overlap import overlap_check
from .tuple_dict import TupleDict
from .workspace import Known, launcher_in, workspaces_of
from .written_out import written_out, written_out_into

if TYPE_CHECKING:
    from .op import Op


class Prepared:
    """A bound problem on one adapter: allocates its outputs and launches. Holds no tensor.

    run(inputs, stream=None, numbers=()) gives the outputs that apply, a new list, from the inputs that are present:
    between it and the executable stands nothing that a problem could have settled beforehand. runner(order=...) makes
    another that gives them in another order (`written_out`).
    """

    __slots__ = (
        "absent",
        "adapter",
        "device",
        "gradient",
        "made",
        "names",
        "op",
        "places",
        "present",
        "problem",
        "run",
        "runner",
    )

    def __init__(self, op: Op, adapter: Adapter, problem: Problem) -> None:
        engine = select(op.engines, problem)
        self.op = op
        self.adapter = adapter
        self.problem = problem
        self.device = problem.device
        self.names = op.output_names
        operands, count = op.contract.operands, len(op.contract.inputs)
        present = [i for i, desc in enumerate(problem.descs[:count]) if desc is not None]
        self.present = picker(present, count)
        self.absent = tuple(i for i in range(count) if i not in present)
        mutated = tuple(at for at, i in enumerate(present) if operands[i].mutated)
        made = [
            (i, operand, desc)
            for i, (operand, desc) in enumerate(
                zip(op.contract.outputs, problem.outputs, strict=True)
            )
            if desc is not None
        ]
        self.made = tuple(desc for _, _, desc in made)
        makes = [
            adapter.allocator(desc, getattr(operand, "initial", None), guarded=True)
            for _, operand, desc in made
        ]
        self.runner = self._open_runner(engine, inputs=len(present), makes=makes, mutated=mutated)
        self.run = self.runner()
        self.places = tuple(i for i, _, _ in made) if len(made) < len(self.names) else None
        self.gradient = None

    def __call__(
        self, inputs: Sequence[Any], stream: Any, numbers: tuple[float, ...] = ()
    ) -> TupleDict:
        if stream is not None:
            # Inside, so that the outputs belong to the stream and their fill comes before the kernel.
            with self.adapter.on_stream(stream, self.device):
                outputs = self.outputs(inputs, stream, numbers)
            # The caller may drop its tensors before the stream has read them.
            self.adapter.keep_alive(inputs, self.adapter.stream_handle(stream, self.device))
        else:
            outputs = self.outputs(inputs, None, numbers)
        return TupleDict.of(self.names, outputs)

    def outputs(
        self, inputs: Sequence[Any], stream: Any = None, numbers: tuple[float, ...] = ()
    ) -> list[Any]:
        """The outputs in contract order, None where one does not apply; mutated inputs are written."""
        made = self.run(self.present(inputs), stream, numbers)
        return made if self.places is None else self.placed(made)

    def placed(self, made: Sequence[Any]) -> list[Any]:
        """The outputs that apply, each in its place, None in the others."""
        outputs = [None] * len(self.names)
        for at, x in zip(self.places or range(len(outputs)), made, strict=True):
            outputs[at] = x
        return outputs

    def _open_runner(
        self, engine: Engine, **known: Any
    ) -> Callable[..., Callable[..., Sequence[Any]]]:
        """`written_out` of this problem, of which only the order of the results is left open."""
        op, adapter, problem, device = self.op, self.adapter, self.problem, self.device

        def refused(inputs: Sequence[Any], made: Sequence[Any]) -> None:
            present = iter((*inputs, *made))
            explain(op, [None if d is None else next(present) for d in problem.descs])

        return partial(
            written_out,
            callable_of(op, adapter, problem, engine, executable_of(engine, problem)),
            numbers=len(op.contract.numbers),
            scratch=scratch_of(adapter, problem, engine),
            scratches=len(workspaces_of(problem, engine)),
            scalars=engine.scalars(problem),
            ready_stream=adapter.ready_stream(device),
            guard=partial(adapter.guard, device),
            stream_handle=lambda stream: adapter.stream_handle(stream, device),
            refused=refused,
            check=overlap_check(op.contract, adapter, problem) if known["mutated"] else None,
            written=adapter.written,
            keep_alive=(
                adapter.keep_alive if op.keeps_operands and device.type == "cuda" else None
            ),
            **known,
        )


class Latest:
    """The latest of many calls, known again by one look at its tensors. Holds no tensor.

    `call` is (same, ..., tracks): the recognizer of its tensors, what was remembered of it, and their tracker; one
    object, so that threads see it whole. After `left` changes it stays as it is: calls that keep changing gain nothing
    by a look.
    """

    __slots__ = ("call", "left")

    def __init__(self, left: int) -> None:
        self.call: tuple[Any, ...] | None = None
        self.left = left

    def remember(self, adapter: Adapter, tensors: Sequence[Any], *what: Any) -> None:
        """Make this the latest call, where its tensors can be known again."""
        # Threads that count at once may step over 0.
        if self.left <= 0:
            return
        self.left -= 1
        same = adapter.recognizer(tensors)
        if same is not None:
            self.call = (same, *what, adapter.tracker(tensors))


def picker(present: Sequence[int], count: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that gives the entries `present` of a sequence of `count`."""
    if len(present) == count:
        return lambda sequence: sequence
    if not present:
        return lambda sequence: ()
    if len(present) == 1:
        return lambda sequence: (sequence[present[0]],)
    return itemgetter(*present)


def executable_of(engine: Engine, problem: Problem) -> Callable[..., None] | None:
    """The executable of a problem; None where `launcher` needs none, so that no kernel is compiled for nothing."""
    if problem.is_empty and engine.platform != "cpu":
        return None
    return engine.compile(engine.plan(problem))


def launcher(
    op: Op,
    adapter: Adapter,
    problem: Problem,
    engine: Engine,
    executable: Callable[..., None] | None,
) -> Callable[..., None]:
    """launch(tensors, stream, numbers=()): the way from tensors of this adapter to the executable.

    tensors: the operands that are present, in contract order. Each call has scratch memory of its own.
    """
    call = callable_of(op, adapter, problem, engine, executable)
    scratch = per_call(scratch_of(adapter, problem, engine))
    return adapter.launcher(call, problem.device, engine.scalars(problem), scratch)


def launcher_into(
    op: Op,
    adapter: Adapter,
    problem: Problem,
    engine: Engine,
    executable: Callable[..., None] | None,
    given: bool,
    shapes: Mapping[int, tuple[int, ...]],
    refused: Callable[[Sequence[Any]], None],
) -> Callable[..., None]:
    """launch(tensors, stream, numbers=()): the shortest way from all operands, absent ones too, to the executable.

    given: it is launch(tensors, stream, numbers, workspace) instead, with the caller's scratch memory. shapes: of
    operands whose extents nothing else compares, by number. refused(tensors): where they differ.
    """
    call = callable_of(op, adapter, problem, engine, executable)
    scalars = engine.scalars(problem)
    if given:
        known, scratch = Known(), ()
        launch = adapter.launcher(call, problem.device, scalars)
        launch = launcher_in(launch, op.contract, adapter, problem, engine, known)
    else:
        known, scratch = None, scratch_of(adapter, problem, engine)
        launch = adapter.launcher(call, problem.device, scalars, per_call(scratch))
    return written_out_into(
        call,
        len(problem.descs),
        [index for index, desc in enumerate(problem.descs) if desc is not None],
        len(op.contract.numbers),
        scratch,
        len(workspaces_of(problem, engine)),
        scalars,
        shapes=shapes,
        refused=refused,
        ready_stream=adapter.ready_stream(problem.device),
        general=without_absent(op, problem, launch),
        known=known,
        pointer=adapter.data_pointer,
    )


def scratch_of(
    adapter: Adapter, problem: Problem, engine: Engine
) -> tuple[Any, ...] | Callable[[int], tuple[Any, ...]]:
    """Scratch memory: what all calls share where they have no bytes, else what gives a call on a stream its own."""
    workspaces = workspaces_of(problem, engine)
    descs = [workspace.describe(problem.device) for workspace in workspaces]
    if not any(workspace.nbytes for workspace in workspaces):
        return tuple(map(adapter.empty, descs))
    initial = [0.0 if workspace.zeroed else None for workspace in workspaces]
    return adapter.scratch(descs, initial)


def per_call(
    scratch: tuple[Any, ...] | Callable[[int], tuple[Any, ...]],
) -> Callable[[int], tuple[Any, ...]] | None:
    """`scratch_of` as a function of the stream's handle; None where there is nothing to take."""
    if callable(scratch):
        return scratch
    return (lambda handle: scratch) if scratch else None


def callable_of(
    op: Op,
    adapter: Adapter,
    problem: Problem,
    engine: Engine,
    executable: Callable[..., None] | None,
) -> Callable[..., None]:
    """call(*tensors, *numbers, *scalars, handle): the executable, for tensors of this adapter as they come.

    tensors: the operands that are present, in contract order, then scratch memory.
    """
    count = sum(desc is not None for desc in problem.descs)
    if engine.platform == "cpu":
        arrays = count + len(engine.workspaces(problem))

        def call(*arguments: Any) -> None:
            executable(*map(adapter.to_numpy, arguments[:arrays]), *arguments[arrays:])

        return call
    if problem.is_empty:

        def call(*arguments: Any) -> None:
            with adapter.on_stream(arguments[-1], problem.device):
                fill_empty(op, adapter, problem, arguments[:count])

        return call
    plain = getattr(executable, "call", executable)
    restrided, reshaped = odd_strides(op, problem), odd_ranks(op, problem)
    if not restrided and not reshaped:
        return plain

    def call(*arguments: Any) -> None:
        seen = list(arguments)
        for index, stride in restrided.items():
            seen[index] = adapter.restride(seen[index], stride)
        for index, shape in reshaped.items():
            seen[index] = seen[index].reshape(shape)
        plain(*seen)

    return call


def without_absent(op: Op, problem: Problem, launch: Callable[..., None]) -> Callable[..., None]:
    """`launch` for all operands, of which it gets the present ones. ValueError if an absent one comes after all."""
    if all(desc is not None for desc in problem.descs):
        return launch
    present = [index for index, desc in enumerate(problem.descs) if desc is not None]
    absent = [index for index, desc in enumerate(problem.descs) if desc is None]
    pick = picker(present, len(problem.descs))

    def launch_present(
        tensors: Sequence[Any], stream: Any, numbers: Sequence[float] = (), workspace: Any = None
    ) -> None:
        for index in absent:
            if tensors[index] is not None:
                name = op.contract.operands[index].name
                raise ValueError(mismatch(name, UNDECLARED, "a tensor"))
        # Without a star, which costs a tenth of the call.
        if workspace is None:
            launch(pick(tensors), stream, numbers)
        else:
            launch(pick(tensors), stream, numbers, workspace)

    return launch_present


def present_operands(op: Op, problem: Problem) -> list[tuple[Any, Any]]:
    """(operand, its metadata) of those that the executable takes."""
    operands = zip(op.contract.operands, problem.descs, strict=True)
    return [(operand, desc) for operand, desc in operands if desc is not None]


def fill_empty(op: Op, adapter: Adapter, problem: Problem, tensors: Sequence[Any]) -> None:
    """Outputs of a problem with an extent of 0: arrays are zero, maxima keep prior content, at least 0, sums it."""
    named = {}
    for (operand, _), x in zip(present_operands(op, problem), tensors, strict=True):
        named[operand.name] = x
        if not operand.output or isinstance(operand, Column):
            continue
        source = named.get(getattr(operand, "empty_from", ""))
        if source is not None:
            adapter.assign(x, source)
            continue
        if isinstance(operand, ScalarTensor):
            adapter.clamp_min(x, 0.0)
        else:
            adapter.zero(x)


def explain(op: Op, tensors: Sequence[Any]) -> None:
    """After an executable refused its arguments: the same refusal in the contract's words, where it has them."""
    names = [operand.name for operand in op.contract.operands]
    adapter, device = common(dict(zip(names, tensors, strict=True)), op.short_name)
    if device.type == "cpu":
        return  # the reference engine takes any address
    for operand, x in zip(op.contract.operands, tensors, strict=True):
        pointer = 0 if x is None else adapter.data_pointer(x)
        if pointer % 16 and operand.aligned_base:
            expected = "a base address aligned to 16 bytes"
            raise ValueError(mismatch(operand.name, expected, f"address {pointer:#x}"))


def full_shape(operand: Any, desc: Any) -> tuple[int, ...]:
    """The extents that the executable sees: scalars get their trailing unit axes."""
    shape = tuple(desc.shape)
    return operand.seen(shape) if isinstance(operand, ScalarTensor) else shape


UNDECLARED = "no tensor (none was declared)"

# The batch comes last in a matrix of the contract.
BATCH_AXIS = 2
# Elements between lines of an axis that has only one: a multiple of 16 bytes in every dtype.
SOLE_LINE = 128


def odd_strides(op: Op, problem: Problem) -> dict[int, tuple[int, ...]]:
    """Index among the present operands -> strides to pass it with, for matrices whose extent-1 axes have unusual ones.

    Such a stride addresses nothing, but the executable's own checks would refuse it.
    """
    restrided = {}
    for index, (operand, desc) in enumerate(present_operands(op, problem)):
        if not isinstance(operand, Matrix):
            continue
        contiguous = operand.contiguous_axis(problem.signature.operand(operand.name).major)
        wanted = tuple(
            1
            if axis == contiguous
            else (SOLE_LINE if extent == 1 and axis != BATCH_AXIS else stride)
            for axis, (extent, stride) in enumerate(zip(desc.shape, desc.stride, strict=True))
        )
        quantum = 128 // desc.dtype.bits
        if any(
            got != want and (axis == contiguous or got % quantum)
            for axis, (got, want) in enumerate(zip(desc.stride, wanted, strict=True))
        ):
            packed = 2 if desc.dtype.is_fp4 else 1
            restrided[index] = tuple(
                s if axis == contiguous else s // packed for axis, s in enumerate(wanted)
            )
    return restrided


def odd_ranks(op: Op, problem: Problem) -> dict[int, tuple[int, ...]]:
    """Index among the present operands -> shape to pass it in, for scalars of another rank than the executable's."""
    present = present_operands(op, problem)
    wanted = [full_shape(operand, desc) for operand, desc in present]
    return {
        index: shape
        for index, ((_, desc), shape) in enumerate(zip(present, wanted, strict=True))
        if shape != tuple(desc.shape)
    }
