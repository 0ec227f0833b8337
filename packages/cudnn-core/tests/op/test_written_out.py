"""Written-out calls: what reaches the executable, in which order, on which stream, and what is told of it."""

import contextlib
from types import SimpleNamespace

import pytest

from cudnn_core.written_out import written_out, written_out_into


class Log(list):
    """What was done, in order; each part of a call adds a line."""

    def part(self, name, result=None):
        def do(*arguments):
            self.append((name, *arguments))
            return result

        return do


@pytest.fixture
def log():
    return Log()


def build(
    log,
    *,
    inputs=2,
    outputs=1,
    numbers=0,
    scratch=(),
    scratches=0,
    scalars=(),
    ready=lambda: 0,
    made=(),
    **parts,
):
    """made: what makes an output, by number, where that is to be seen."""
    made = dict(made)
    makes = [made.get(i) or (lambda i=i: f"y{i}") for i in range(outputs)]
    parts = {
        "call": log.part("call"),
        "guard": contextlib.nullcontext,
        "stream_handle": int,
        "refused": log.part("refused"),
        **parts,
    }
    call = parts.pop("call")
    return written_out(
        call, inputs, makes, numbers, scratch, scratches, scalars, ready_stream=ready, **parts
    )


@pytest.mark.parametrize("inputs", [0, 1, 5])
@pytest.mark.parametrize("outputs", [0, 1, 3])
@pytest.mark.parametrize("scratches", [0, 1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("numbers", [(), (1.5, 2.5)])
def test_all_arguments_in_order(log, inputs, outputs, scratches, shared, numbers):
    xs, spare = list(range(inputs)), tuple(f"s{i}" for i in range(scratches))
    ys = [f"y{i}" for i in range(outputs)]
    scratch = spare if shared else (lambda handle: (log.append(("scratch", handle)), spare)[1])
    run = build(
        log,
        inputs=inputs,
        outputs=outputs,
        numbers=len(numbers),
        scratch=scratch,
        scratches=scratches,
        scalars=(132, "c"),
    )
    assert run(xs, None, numbers) == ys
    asked = [] if shared or not scratches else [("scratch", 0)]
    assert log == [*asked, ("call", *xs, *ys, *spare, *numbers, 132, "c", 0)]


def test_a_list_of_its_own_for_each_call(log):
    run = build(log)
    first = run((1, 2))
    first.append(None)
    assert run((1, 2)) == ["y0"]


@pytest.mark.parametrize("order", [(), (0,), (None, 1, 0), (2, None, None, 2)])
def test_the_outputs_in_another_order(log, order):
    made = build(log, outputs=3, order=order)((1, 2))
    assert made == tuple(None if i is None else f"y{i}" for i in order)
    assert log == [("call", 1, 2, "y0", "y1", "y2", 0)]


def test_a_given_stream_counts_for_the_scratch_memory_too(log):
    run = build(log, scratch=lambda handle: (f"s at {handle}",), scratches=1)
    run((1, 2), "96")
    run((1, 2))
    assert log == [("call", 1, 2, "y0", "s at 96", 96), ("call", 1, 2, "y0", "s at 0", 0)]


def test_everything_happens_inside_the_guard(log):
    inside = []

    @contextlib.contextmanager
    def guard():
        inside.append(1)
        log.append("enter")
        yield
        log.append("leave")
        inside.pop()

    run = build(
        log,
        numbers=1,
        ready=lambda: 7 if inside else None,
        guard=guard,
        check=log.part("check"),
    )
    for stream, handle in ((None, 7), ("96", 96)):
        log.clear()
        run((1, 2), stream, (0.5,))
        assert log == ["enter", ("check", (1, 2)), ("call", 1, 2, "y0", 0.5, handle), "leave"]


def test_a_refusal_of_operands_comes_before_anything_is_made(log):
    def check(inputs):
        raise ValueError("an overlap")

    run = build(
        log,
        check=check,
        made={0: log.part("make")},
        scratch=log.part("scratch", ("s0",)),
        scratches=1,
    )
    with pytest.raises(ValueError, match="an overlap"):
        run((1, 2))
    assert not log


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_a_refusal_by_the_executable_is_told_again_or_stays(log, error):
    def call(*arguments):
        raise error("words of its own")

    with pytest.raises(error, match="words of its own"):
        build(log, call=call)((1, 2))
    assert log == [("refused", (1, 2), ["y0"])]

    def refused(inputs, made):
        raise ValueError("the contract's words")

    with pytest.raises(ValueError, match="the contract's words"):
        build(log, call=call, refused=refused)((1, 2))


def test_other_errors_are_not_explained(log):
    def call(*arguments):
        raise RuntimeError("no launch")

    with pytest.raises(RuntimeError, match="no launch"):
        build(log, call=call, written=log.part("written"), mutated=(0,))((1, 2))
    assert not log


def test_mutated_inputs_are_told_after_the_call(log):
    build(log, written=log.part("written"), mutated=(0, 1))((1, 2))
    assert log == [("call", 1, 2, "y0", 0), ("written", 1), ("written", 2)]


@pytest.mark.parametrize(
    "current, given, handle", [(0, None, 0), (96, None, 96), (0, 96, 96), (96, 0, 0)]
)
def test_operands_are_kept_alive_on_other_streams_than_the_default(log, current, given, handle):
    build(log, ready=lambda: current, keep_alive=log.part("keep"))((1, 2), given)
    kept = [("keep", (1, 2), handle)] if handle else []
    assert log == [("call", 1, 2, "y0", handle), *kept]


def test_as_many_inputs_as_the_problem_has(log):
    with pytest.raises(ValueError, match="unpack"):
        build(log)((1, 2, 3))
    assert not log


def build_into(log, *, operands=2, present=None, numbers=0, scratch=(), scratches=0, **parts):
    """The call of a class; without `present` all operands are."""
    parts = {
        "scalars": (),
        "shapes": {},
        "refused": log.part("refused"),
        "ready_stream": lambda: 0,
        "general": log.part("general"),
        **parts,
    }
    there = range(operands) if present is None else present
    scalars = parts.pop("scalars")
    return written_out_into(
        log.part("call"), operands, there, numbers, scratch, scratches, scalars, **parts
    )


@pytest.mark.parametrize("operands, present", [(0, []), (1, [0]), (3, [0, 2]), (4, [1, 2])])
@pytest.mark.parametrize("scratches", [0, 1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("numbers", [(), (1.5,), (1.5, 2.5)])
def test_all_arguments_of_a_class_in_order(log, operands, present, scratches, shared, numbers):
    spare = tuple(f"s{i}" for i in range(scratches))
    run = build_into(
        log,
        operands=operands,
        present=present,
        numbers=len(numbers),
        scratch=spare if shared else (lambda handle: spare if handle == 7 else None),
        scratches=scratches,
        scalars=(132, "c"),
        ready_stream=lambda: 7,
    )
    tensors = [f"x{i}" if i in present else None for i in range(operands)]
    assert run(tensors, None, numbers) is None
    given = [f"x{i}" for i in present]
    assert log == [("call", *given, *spare, *numbers, 132, "c", 7)]


@pytest.mark.parametrize(
    "tensors, stream, ready",
    [
        ((1, None), 0, 0),
        ((1, None), "96", 0),
        ((1, 2), None, 0),
        ((1, 0), None, 0),
        ((1, None), None, None),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_unusual_calls_go_the_general_way(log, tensors, stream, ready, given):
    """With a stream, with an operand that should be absent, on another device; nothing is done before."""
    memory = SimpleNamespace(nbytes=512)
    known = SimpleNamespace(latest=(lambda: memory, 256, 512, True, None))
    run = build_into(
        log,
        present=[0],
        numbers=1,
        scratch=log.part("scratch"),
        scratches=1,
        ready_stream=lambda: ready,
        **({"known": known, "pointer": lambda w: 256} if given else {}),
    )
    workspace = (memory,) if given else ()
    run(tensors, stream, (0.5,), *workspace)
    assert log == [("general", tensors, stream, (0.5,), *workspace)]


def test_shapes_that_nothing_else_compares(log):
    x, y = SimpleNamespace(shape=(2, 3)), SimpleNamespace(shape=(4,))
    for shapes, right in (({0: (2, 3), 1: (4,)}, True), ({1: (5,)}, False), ({0: (3, 2)}, False)):
        log.clear()
        build_into(log, shapes=shapes)((x, y), None)
        assert log == [*([] if right else [("refused", (x, y))]), ("call", x, y, 0)]


@pytest.mark.parametrize("changed", [None, "same", "address", "size", "plain", "at"])
def test_a_workspace_is_taken_only_as_it_was_last(log, changed):
    """Another one, another address or size, one to be cut, one in which operands may lie: the general way looks."""
    memory = SimpleNamespace(nbytes=512)
    latest = {"same": lambda: memory, "address": 256, "size": 512, "plain": True, "at": None}
    others = {"same": lambda: None, "address": 0, "size": 8, "plain": False, "at": []}
    if changed is not None:
        latest[changed] = others[changed]
    known = SimpleNamespace(latest=tuple(latest.values()))
    run = build_into(log, numbers=1, known=known, pointer=lambda w: 256 if w is memory else None)
    run((1, 2), None, (0.5,), memory)
    usual, other = ("call", 1, 2, memory, 0.5, 0), ("general", (1, 2), None, (0.5,), memory)
    assert log == [usual if changed is None else other]


def test_as_many_numbers_as_the_operation_has(log):
    for run in (build(log, numbers=2), build_into(log, numbers=2)):
        with pytest.raises(ValueError, match="unpack"):
            run((1, 2), None, (0.5,))
    assert not log
