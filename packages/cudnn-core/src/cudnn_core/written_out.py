"""Remembered calls as functions whose lines are written out for their operands. Imports nothing of this package.

Written out, a call of four inputs and three outputs takes 1.6 us less of 16 (beside an H200, 2026-12-02), twice what it
gains where nothing is launched: it seems that a launch leaves little in the host's caches of what a loop touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

# What a problem has no use for leaves an empty line.
LINES = """
def run(inputs, stream=None, numbers=()):
    handle = ready_stream()
    if handle is None:
        with guard():
            return run(inputs, stream, numbers)
    if stream is not None:
        handle = stream_handle(stream)
    {unpack}
    {check}
    {numbers}
    {make}
    {scratch}
    try:
        call({arguments})
    except (TypeError, ValueError):
        refused(inputs, [{made}])
        raise
    {written}
    {keep}
    return {result}
"""


def written_out(
    call: Callable[..., None],
    inputs: int,
    makes: Sequence[Callable[[], Any]],
    numbers: int,
    scratch: Callable[[int], tuple[Any, ...]] | tuple[Any, ...],
    scratches: int,
    scalars: Sequence[Any],
    *,
    ready_stream: Callable[[], int | None],
    guard: Callable[[], AbstractContextManager],
    stream_handle: Callable[[Any], int],
    refused: Callable[[Sequence[Any], Sequence[Any]], None],
    check: Callable[[Sequence[Any]], None] | None = None,
    written: Callable[[Any], None] | None = None,
    mutated: Sequence[int] = (),
    keep_alive: Callable[[Sequence[Any], int], None] | None = None,
    order: Sequence[int | None] | None = None,
) -> Callable[..., Sequence[Any]]:
    """run(inputs, stream=None, numbers=()): makes the outputs and calls
    call(*inputs, *outputs, *scratch, *numbers, *scalars, handle).

    The outputs come in a new list; with `order` in a tuple, each number standing for one of them, and None for None.

    makes: one for each output. numbers: how many. scratch: so many arrays, the same for all calls, or a function of
    the stream's handle. ready_stream(): that handle, or None where the call has to run inside guard(). check(inputs):
    before anything is made. refused(inputs, outputs): after `call` raised a TypeError or ValueError, to say it better.
    written(input): of each one of `mutated`. keep_alive(inputs, handle): on streams other than the default one.
    """
    given, made, values = numbered("x", inputs), numbered("y", len(makes)), numbered("n", numbers)
    names = {
        "__name__": __name__,
        "call": call,
        "ready_stream": ready_stream,
        "guard": guard,
        "stream_handle": stream_handle,
        "refused": refused,
        "check": check,
        "written": written,
        "keep_alive": keep_alive,
        **{f"make_{name}": make for name, make in zip(made, makes, strict=True)},
    }
    take, spare = scratch_lines(scratch, scratches, names)
    constants = constant_names(scalars, names)
    ordered = [f"{None if i is None else made[i]}, " for i in order or ()]
    source = LINES.format(
        unpack=unpacking(given, "inputs"),
        check="check(inputs)" if check else "",
        numbers=unpacking(values, "numbers"),
        make="; ".join(f"{name} = make_{name}()" for name in made),
        scratch=take,
        arguments=", ".join([*given, *made, *spare, *values, *constants, "handle"]),
        made=", ".join(made),
        written="; ".join(f"written({given[i]})" for i in mutated),
        result=f"[{', '.join(made)}]" if order is None else f"({''.join(ordered)})",
        keep="if handle: keep_alive(inputs, handle)" if keep_alive else "",
    )
    return compiled(source, names)


# A call of a class: what cannot be settled beforehand, at a look.
INTO_LINES = """
def run(tensors, stream, numbers=(){workspace}):
    {unpack}
    {shapes}
    if stream is not None{absent}:
        return general(tensors, stream, numbers{given})
    {known}
    handle = ready_stream()
    if handle is None:
        return general(tensors, stream, numbers{given})
    {numbers}
    {scratch}
    call({arguments})
"""
KNOWN_LINES = """
    same, address, size, plain, at = known.latest
    if (
        at is not None
        or not plain
        or same() is not workspace
        or pointer(workspace) != address
        or workspace.nbytes != size
    ):
        return general(tensors, stream, numbers, workspace)
"""


def written_out_into(
    call: Callable[..., None],
    operands: int,
    present: Sequence[int],
    numbers: int,
    scratch: Callable[[int], tuple[Any, ...]] | tuple[Any, ...],
    scratches: int,
    scalars: Sequence[Any],
    *,
    shapes: Mapping[int, tuple[int, ...]],
    refused: Callable[[Sequence[Any]], None],
    ready_stream: Callable[[], int | None],
    general: Callable[..., None],
    known: Any = None,
    pointer: Callable[[Any], int] | None = None,
) -> Callable[..., None]:
    """run(tensors, stream, numbers=()) of all operands: call(*those present, *scratch, *numbers, *scalars, handle).

    present: those of the operands that the executable takes. numbers: how many. refused(tensors): what to do where the
    shape of an operand is not that of `shapes`.
    general(tensors, stream, numbers): what serves every call; used for those with a stream, with an operand that should
    be absent, and while ready_stream() gives None.
    known: None, or what `general` knows of workspaces (`workspace.Known`): then run and general take a workspace too,
    the scratch memory if it is the latest one, good as it is wherever operands lie. pointer(workspace): its address.
    """
    given, values = numbered("x", operands), numbered("n", numbers)
    names = {
        "__name__": __name__,
        "call": call,
        "ready_stream": ready_stream,
        "general": general,
        "refused": refused,
        "known": known,
        "pointer": pointer,
        **{f"shape_{given[i]}": shape for i, shape in shapes.items()},
    }
    take, spare = "", ["workspace"]
    if known is None:
        take, spare = scratch_lines(scratch, scratches, names)
    differ = " or ".join(f"{given[i]}.shape != shape_{given[i]}" for i in shapes)
    absent = [f" or {given[i]} is not None" for i in range(operands) if i not in present]
    source = INTO_LINES.format(
        workspace=", workspace=None" if known else "",
        given=", workspace" if known else "",
        unpack=unpacking(given, "tensors"),
        shapes=f"if {differ}: refused(tensors)" if shapes else "",
        absent="".join(absent),
        known=KNOWN_LINES.strip() if known else "",
        numbers=unpacking(values, "numbers"),
        scratch=take,
        arguments=", ".join(
            [
                *(given[i] for i in present),
                *spare,
                *values,
                *constant_names(scalars, names),
                "handle",
            ]
        ),
    )
    return compiled(source, names)


def numbered(letter: str, count: int) -> list[str]:
    """Names of so many values."""
    return [f"{letter}{i}" for i in range(count)]


def unpacking(names: Sequence[str], source: str) -> str:
    """The line that gives the values of a sequence their names: a star in a call takes 0.17 us more (CPython 3.11)."""
    return f"{', '.join(names)}, = {source}" if names else ""


def scratch_lines(
    scratch: Callable[[int], tuple[Any, ...]] | tuple[Any, ...], count: int, names: dict[str, Any]
) -> tuple[str, list[str]]:
    """(the line that takes a call's scratch memory, the names of its arrays); puts what the line needs into `names`."""
    spare = numbered("s", count)
    if callable(scratch):
        names["scratch"] = scratch
        return unpacking(spare, "scratch(handle)"), spare
    names.update(zip(spare, scratch, strict=True))
    return "", spare


def constant_names(scalars: Sequence[Any], names: dict[str, Any]) -> list[str]:
    """Names of numbers that all calls share, which are put into `names`."""
    made = numbered("c", len(scalars))
    names.update(zip(made, scalars, strict=True))
    return made


def compiled(source: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function `run` of a source that sees `names`."""
    exec(compile(source, f"<{__name__}>", "exec"), names)
    return names["run"]
