"""Problems of typical calls, bound without arrays, for `cudnn compile`. May import core's contract."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from cudnn_core.contract import Contract, Problem
from cudnn_core.tensor_desc import TensorDesc

DEVICE = "cuda:0"
B, D, T, SEQUENCES = 2, 4096, 4096, 8
ROWS = 256
# (x, weight and bias): models in a 16-bit type often keep the filter in float32.
PAIRS = (("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float32"))
MIXED = (("bfloat16", "float32"), ("float16", "float32"))
# Extra operands of a call: name -> those given, and whether final states are asked for.
PLAIN = {"": ((), False)}
STATEFUL = {
    "states": (("initial_states",), True),
    "packed": (("cu_seqlens",), False),
    "packed, states": (("cu_seqlens", "initial_states"), True),
    "seq_idx": (("seq_idx",), False),
    "final states": ((), True),
}


def desc(name: str, dtype: str, shape: tuple[int, ...], stride=None) -> TensorDesc:
    """Metadata of an operand on the GPU, row-major unless `stride` says otherwise."""
    return TensorDesc.of(dtype, shape, stride, DEVICE, name)


def tokens(name: str, dtype: str, batch: int, layout: str) -> TensorDesc:
    """A (B, D, T) array; layout "t" or "d" says which axis is contiguous."""
    stride = (D * T, T, 1) if layout == "t" else (D * T, 1, D)
    return desc(name, dtype, (batch, D, T), stride)


def full_sequence(contract: Contract, everything: bool) -> Iterator[tuple[str, Problem]]:
    """(label, problem) of the forward or the backward: dtypes, layouts, and with `everything` widths and options."""
    widths, activations, biases = ((4,), ("silu",), (True,))
    extras = PLAIN
    if everything:
        widths, activations, biases = ((2, 3, 4, 5, 8, 16), ("silu", "identity"), (True, False))
        extras = PLAIN | STATEFUL
    pairs = PAIRS + MIXED if everything else PAIRS
    for (x, weight), layout, width, act, bias, extra in product(
        pairs, "td", widths, activations, biases, extras
    ):
        label = f"{x}, {weight} filter, width {width}, {act}, {layout}-contiguous"
        label += ", bias" * bias + (f", {extra}" if extra else "")
        given, returned = extras[extra]
        yield label, example(contract, x, weight, layout, width, act, bias, given, returned)


def example(
    contract: Contract,
    x: str,
    weight: str,
    layout: str = "t",
    width: int = 4,
    activation: str = "silu",
    bias: bool = True,
    given: tuple[str, ...] = (),
    returned: bool = False,
) -> Problem:
    """One problem of the forward or the backward; `returned`: final states, or their gradient, take part."""
    batch = 1 if "cu_seqlens" in given else B
    states = (SEQUENCES if "cu_seqlens" in given else batch, D, width - 1)
    channel_first = ((width - 1) * D, 1, D)
    made = {
        "x": tokens("x", x, batch, layout),
        "weight": desc("weight", weight, (D, width)),
        "bias": desc("bias", weight, (D,)) if bias else None,
        "seq_idx": desc("seq_idx", "int32", (batch, T)),
        "cu_seqlens": desc("cu_seqlens", "int32", (SEQUENCES + 1,)),
        "initial_states": desc("initial_states", x, states, channel_first),
        "dout": tokens("dout", x, batch, layout),
        "dfinal_states": desc("dfinal_states", x, states, channel_first) if returned else None,
    }
    optional = {"seq_idx", "cu_seqlens", "initial_states"} - set(given)
    descs = [None if o.name in optional else made[o.name] for o in contract.inputs]
    attributes = {"activation": activation, "return_final_states": returned}
    known = {a.name for a in contract.attributes}
    return contract.bind(descs, {n: v for n, v in attributes.items() if n in known})


def decode(contract: Contract, everything: bool) -> Iterator[tuple[str, Problem]]:
    """(label, problem) of the update: dtypes and forms of the state, with `everything` widths and options."""
    pairs = PAIRS + MIXED if everything else PAIRS
    widths, indexed = ((2, 3, 4), (True, False)) if everything else ((4,), (False,))
    lengths = (-1, 0) if everything else (-1,)
    forms = ("compact", "channels") if everything else ("compact",)
    for (x, weight), width, extra, form, indices in product(pairs, widths, lengths, forms, indexed):
        length = width + extra
        stride = (D * length, length, 1) if form == "compact" else (D * length, 1, D)
        descs = [
            desc("x", x, (ROWS, D)),
            desc("conv_state", x, (ROWS, D, length), stride),
            desc("weight", weight, (D, width)),
            desc("bias", weight, (D,)),
            None,
            desc("conv_state_indices", "int32", (ROWS,)) if indices else None,
        ]
        label = f"{x}, {weight} filter, width {width}, state of {length}, {form}"
        yield label + ", indices" * indices, contract.bind(descs, {"activation": "silu"})
