"""The cases of `cudnn bench causal-conv`: forward, backward and the decode step.

BF16, width 4, bias, SiLU, on N(0, 1); "channel-last" is the (B, L, D) storage passed as its transpose. What memory
limits is measured on the device, against a copy of as many bytes. What the host limits ("call") is measured there,
beside an empty autograd function: the backward in the calling thread, and once more ("own thread call") in the thread
that PyTorch has for the device, where it has no limit. Peers are PyTorch's own and the Dao-AILab package's. Listing
imports no framework; what runs is in `_bench_work`.
"""

from collections.abc import Iterator
from functools import partial

from cudnn_core.bench.parts import COPY
from cudnn_core.bench.protocol import Case, Trial

WIDTH = 4
# Slots hold as many tokens as the filter, as Mamba allocates them.
STATE = WIDTH
DTYPE = "bf16->bf16"
FORWARD, BACKWARD = "causal-conv/conv1d", "causal-conv/conv1d_backward"
UPDATE = "causal-conv/conv1d_update"
LAYOUTS = ("", " channel-last")

EMPTY = "empty autograd.Function"
FORWARD_LIMIT, BACKWARD_LIMIT, UPDATE_LIMIT = 12.0, 15.0, 14.0
OWN_THREAD = " own thread"

# (B, D, L) -> (forward, backward) shares of the copy's bandwidth, for rows and for channel-last.
SHARES = {
    (8, 4096, 4096): ((0.93, 0.90), (0.90, 0.85)),
    (2, 8192, 16384): ((0.93, 0.90), (0.90, 0.85)),
    (64, 5120, 128): ((0.80, 0.70), (0.80, 0.70)),
}
HOST_BOUND = (1, 2048, 2048)
UPDATES, UPDATE_SHARE = (256, 8192), 0.80
HOST_BOUND_UPDATES = (16, 4096)


def cases() -> Iterator[Case]:
    """What memory limits, in both layouts and directions; then what the host limits."""
    for shape, shares in SHARES.items():
        for layout, (forward, backward) in zip(LAYOUTS, shares, strict=True):
            for op, share in ((FORWARD, forward), (BACKWARD, backward)):
                yield _case(op, shape, layout, {COPY: share}, quick=shape[0] == 8)
    yield _case(UPDATE, UPDATES, " graph", {COPY: UPDATE_SHARE}, quick=True)
    for layout in LAYOUTS:
        for op, limit in ((FORWARD, FORWARD_LIMIT), (BACKWARD, BACKWARD_LIMIT)):
            targets = {over_empty(limit): 1.0}
            yield _case(op, HOST_BOUND, f"{layout} call", targets, quick=True)
        yield _case(BACKWARD, HOST_BOUND, f"{layout}{OWN_THREAD} call", {}, quick=True)
    targets = {at_most(UPDATE_LIMIT): 1.0}
    yield _case(UPDATE, HOST_BOUND_UPDATES, " call", targets, quick=True)


def over_empty(microseconds: float) -> str:
    """The name of a limit that lies so far above an empty autograd function."""
    return f"{EMPTY} + {microseconds:g} us"


def at_most(microseconds: float) -> str:
    """The name of an absolute limit."""
    return f"{microseconds:g} us"


def _case(
    op: str, shape: tuple[int, ...], how: str, targets: dict[str, float], *, quick: bool
) -> Case:
    return Case(
        op=op,
        case=",".join(map(str, shape)) + how,
        dtype=DTYPE,
        targets=targets,
        prepare=partial(prepare, op, shape, how),
        clock="host" if how.endswith("call") else "device",
        quick=quick,
    )


def prepare(op: str, shape: tuple[int, ...], how: str, device: str) -> Trial:
    """The trial of one case."""
    from . import _bench_work as work

    if op == UPDATE:
        return work.update_trial(shape, device, graph="graph" in how)
    layout = "channel-last" if "channel-last" in how else "rows"
    return work.sequence_trial(
        shape,
        device,
        layout,
        backward=op == BACKWARD,
        host_bound="call" in how,
        own_thread=OWN_THREAD in how or "call" not in how,
    )
