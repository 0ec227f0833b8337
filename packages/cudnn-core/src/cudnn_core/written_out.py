"""A remembered call as one function, its lines written out for its operands. Imports nothing of this package.

Written out, a call of four inputs and three outputs takes 1.6 us less of 16 (beside an H200, 2026-12-02), twice what it
gains where nothing is launched: it seems that a launch leaves little in the host's caches of what a loop touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    makes: one for each output. scratch: so many arrays, the same for all calls, or a function of the stream's handle.
    ready_stream(): that handle, or None where the call has to run inside guard(). check(inputs): before anything is
    made. refused(inputs, outputs): after `call` raised a TypeError or ValueError, to say it better. written(input): of
    each one of `mutated`. keep_alive(inputs, handle): on streams other than the default one.
    """
    given, made, spare = (
        [f"{letter}{i}" for i in range(count)]
        for letter, count in (("x", inputs), ("y", len(makes)), ("s", scratches))
    )
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
        "scratch": scratch,
        **{f"make_{name}": make for name, make in zip(made, makes, strict=True)},
        **{f"c{i}": value for i, value in enumerate(scalars)},
    }
    is_made = callable(scratch)
    if not is_made:
        names.update(zip(spare, scratch, strict=True))
    constants = [f"c{i}" for i in range(len(scalars))]
    ordered = [f"{None if i is None else made[i]}, " for i in order or ()]
    source = LINES.format(
        unpack=f"{', '.join(given)}, = inputs" if given else "",
        check="check(inputs)" if check else "",
        make="; ".join(f"{name} = make_{name}()" for name in made),
        scratch=f"{', '.join(spare)}, = scratch(handle)" if is_made and spare else "",
        arguments=", ".join([*given, *made, *spare, "*numbers", *constants, "handle"]),
        made=", ".join(made),
        written="; ".join(f"written({given[i]})" for i in mutated),
        result=f"[{', '.join(made)}]" if order is None else f"({''.join(ordered)})",
        keep="if handle: keep_alive(inputs, handle)" if keep_alive else "",
    )
    exec(compile(source, f"<{__name__}>", "exec"), names)
    return names["run"]
