"""causal_conv1d on NumPy arrays: values against an independent law, equalities bit for bit, hostile inputs."""

import inspect
import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_causal_conv import causal_conv1d
from cudnn_causal_conv.conv1d import CONTRACT, OP
from cudnn_causal_conv.reference import fma
from cudnn_causal_conv.testing import (
    DTYPES,
    Case,
    assert_near,
    laid_out,
    law,
    make,
    same_bits,
    spans,
)

KINDS = {
    "plain": Case(),
    "identity, no bias": Case(activation=None, bias=False),
    "states": Case(initial=True, final=True),
    "packed": Case(lengths=(3, 1, 0, 9, 2)),
    "packed states": Case(lengths=(3, 1, 0, 9, 2), initial=True, final=True),
    "ids": Case(ids=True),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def run(data, **options):
    return causal_conv1d(*data.positional(), **(data.keywords() | options))


# --- values ----------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(kind, dtype):
    data = make(replace(KINDS[kind], x=dtype))
    y = run(data)
    assert y.dtype == DTYPES[dtype]
    assert_near(y, law(data)[0], dtype)


@kinds
@pytest.mark.parametrize("width", [2, 3, 5, 8, 9, 33])
@pytest.mark.parametrize("t", [1, 2, 3, 8, 31, 32, 65])
def test_widths_and_lengths(kind, width, t):
    case = KINDS[kind]
    case = replace(case, t=t, width=width, lengths=(t, 1, t) if case.lengths else ())
    data = make(replace(case, x="float64"))
    assert_near(run(data), law(data)[0], "float64", sums=4 * width)


@pytest.mark.parametrize("weight", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("x", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bias_of", ["weight", "x"])
def test_dtypes_are_independent(x, weight, bias_of):
    data = make(Case(x=x, weight=weight))
    if bias_of == "x":
        data.bias = data.bias.astype(DTYPES[x])
    assert_near(run(data), law(data)[0], x)


def test_the_filter_keeps_its_precision():
    data = make(Case(x="bfloat16", weight="float32", bias=False))
    rounded = replace(data, weight=data.weight.astype(DTYPES["bfloat16"]))
    assert (run(data) != run(rounded)).any()


class Text(str):
    """A string of another type, as a member of an enumeration is."""


@pytest.mark.parametrize(
    "spelling, name",
    [(None, None), ("identity", None), ("swish", "silu"), (Text("silu"), "silu")],
)
def test_spellings_of_activations(spelling, name):
    same_bits(run(make(Case(activation=spelling))), run(make(Case(activation=name))))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("z", [-np.inf, -1e30, -200.0, -89.0, 0.0, 90.0, 1e30, np.inf])
def test_silu_of_extremes(z):
    x = np.full((1, 1, 1), z, np.float32)
    y = causal_conv1d(x, np.ones((1, 2), np.float32), None, "silu")
    expected = np.nan if z == -np.inf else z / (1 + np.exp(np.float64(-z)))
    np.testing.assert_allclose(y[0, 0, 0], np.float32(expected), rtol=1e-6, atol=1e-37)


floats = st.floats(width=32, min_value=-(2.0**40), max_value=2.0**40)


@given(floats, floats, floats)
@settings(max_examples=400, deadline=None)
def test_fma_rounds_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    got = float(fma(*(np.array([v], np.float32) for v in (a, b, c)))[0])
    nearest = np.float32(got)
    below, above = (
        np.nextafter(nearest, -np.float32(np.inf)),
        np.nextafter(nearest, np.float32(np.inf)),
    )
    miss = abs(exact - Fraction(got))
    assert miss <= abs(exact - Fraction(float(below))) and miss <= abs(
        exact - Fraction(float(above))
    )


def test_fma_where_two_roundings_would_differ():
    """FP64 rounds the sum onto a tie of FP32, which then goes the wrong way."""
    a, b = np.float32(1 + 2**-12), np.float32(1 + 2**-12)
    c = np.float32(2.0**-60)
    # a * b = 1 + 2^-11 + 2^-24: a tie of FP32, which c breaks upwards.
    got = fma(*(np.array([v]) for v in (a, b, c)))[0]
    assert got == np.float32(1 + 2**-11 + 2**-23)


# --- equalities, bit for bit -----------------------------------------------------------------------------------------

low_precision = pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])


@low_precision
@pytest.mark.parametrize("chunks", [(1, 2, 3, 4, 7), (3, 3, 3, 3, 5), (16, 1), (1,) * 17])
@pytest.mark.parametrize("width", [2, 4, 7])
def test_chunks_through_the_state_equal_one_call(dtype, chunks, width):
    data = make(Case(x=dtype, width=width, initial=True))
    whole, final = run(data, return_final_states=True)
    state, parts = data.initial_states, []
    for span in spans(chunks):
        y, state = causal_conv1d(
            data.x[:, :, span],
            *data.positional()[1:],
            initial_states=state,
            return_final_states=True,
        )
        parts.append(y)
    same_bits(np.concatenate(parts, axis=2), whole)
    same_bits(state, final)


@low_precision
@pytest.mark.parametrize("initial", [False, True])
def test_packed_sequences_equal_separate_ones(dtype, initial):
    data = make(Case(x=dtype, lengths=(3, 0, 5, 1, 2, 17), initial=initial))
    y, final = run(data, return_final_states=True)
    for i, span in enumerate(spans(data.case.lengths)):
        own = data.initial_states[i : i + 1] if initial else None
        alone, state = causal_conv1d(
            data.x[:, :, span],
            *data.positional()[1:],
            initial_states=own,
            return_final_states=True,
        )
        same_bits(y[:, :, span], alone)
        same_bits(final[i], state[0])


@kinds
@pytest.mark.parametrize("layout", ["d", "padded", "shifted", "any"])
def test_layouts_do_not_matter(kind, layout):
    data = make(replace(KINDS[kind], x="bfloat16"))
    same_bits(run(replace(data, x=laid_out(data.x, layout))), run(data))


def test_ids_in_runs_are_packed_sequences():
    data = make(Case(lengths=(4, 2, 9)))
    ids = np.repeat([7, 0, 3], data.case.lengths).astype(np.int32)[None]
    same_bits(run(data), run(replace(data, cu_seqlens=None, seq_idx=ids)))


@kinds
def test_repeats_and_inputs_untouched(kind):
    data = make(KINDS[kind])
    before = {name: x.copy() for name, x in data.differentiable().items()}
    same_bits(run(data), run(data))
    for name, x in before.items():
        same_bits(getattr(data, name), x)


# --- final states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("initial", [False, True])
def test_final_states(t, initial):
    data = make(Case(t=t, initial=initial, x="bfloat16"))
    y, final = run(data, return_final_states=True)
    assert type(final) is np.ndarray and final.base is not data.x and y.shape == data.x.shape
    assert [s // final.itemsize for s in final.strides] == [3 * 5, 1, 5]
    history = data.initial_states if initial else np.zeros((2, 5, 3), data.x.dtype)
    same_bits(final, np.concatenate([history, data.x], axis=2)[:, :, t:])


def test_final_states_are_copies_of_bits():
    x = np.array([0x7FC1, 0xFFA5, 0x8000, 0x0001], np.uint16).view(DTYPES["bfloat16"])[None, None]
    _, final = causal_conv1d(x, np.ones((1, 5), x.dtype), return_final_states=True)
    same_bits(final, x)


@kinds
def test_states_are_the_laws(kind):
    data = make(KINDS[kind])
    if data.seq_idx is None:
        _, final = run(data, return_final_states=True)
        np.testing.assert_array_equal(final, law(data)[1].astype(np.float32))


@pytest.mark.parametrize("layout", ["t", "d", "any"])
def test_final_states_out(layout):
    data = make(Case(initial=True))
    given = laid_out(np.full((2, 5, 3), np.nan, np.float32), layout)
    y, final = run(data, return_final_states=True)
    result, returned = run(data, return_final_states=True, final_states_out=given)
    assert returned is given
    same_bits(given, final)
    same_bits(result, y)


# --- hostile contents ------------------------------------------------------------------------------------------------


def test_padding_is_zero_and_does_not_leak():
    data = make(Case(ids=True, t=40))
    data.seq_idx[:, 30:] = -1
    data.seq_idx[0, :5] = -3
    y = run(data)
    poisoned = data.x.copy()
    poisoned[np.broadcast_to(data.seq_idx[:, None] < 0, poisoned.shape)] = np.nan
    again = run(replace(data, x=poisoned))
    same_bits(again, y)
    assert not y[:, :, 30:].any() and not y[0, :, :5].any()


def test_nan_stays_in_its_sequence():
    data = make(Case(lengths=(4, 5, 3), initial=True))
    y = run(data)
    data.x[0, :, 5] = np.nan
    poisoned = run(data)
    assert np.isnan(poisoned[:, :, 5:9]).all()
    same_bits(poisoned[:, :, :5], y[:, :, :5])
    same_bits(poisoned[:, :, 9:], y[:, :, 9:])


@pytest.mark.parametrize(
    "cu, legal",
    [
        ([-5, 6, 100], [0, 6, 12]),
        ([0, 6, 2**31 - 1], [0, 6, 12]),
        ([-(2**31), 6, 12], [0, 6, 12]),
        ([0, 8, 5], [0, 8, 8]),
        ([4, 8, 8], [4, 8, 8]),
        ([20, 20, 20], [12, 12, 12]),
    ],
)
def test_boundaries_are_clamped(cu, legal):
    """Tokens that lie in no sequence give 0."""
    data = make(Case(lengths=(6, 6), final=True))
    y, final = run(replace(data, cu_seqlens=np.array(cu, np.int32)), return_final_states=True)
    expected = np.zeros_like(data.x)
    for i, (a, b) in enumerate(itertools.pairwise(legal)):
        part, state = causal_conv1d(
            data.x[:, :, a:b], *data.positional()[1:], return_final_states=True
        )
        expected[:, :, a:b] = part
        same_bits(final[i], state[0])
    same_bits(y, expected)


def test_no_sequence_at_all():
    data = make(Case(b=1))
    cu = np.zeros(1, np.int32)
    y, final = causal_conv1d(*data.positional(), cu_seqlens=cu, return_final_states=True)
    assert not y.any() and final.shape == (0, 5, 3)


@pytest.mark.parametrize("b, d, t", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0)])
@pytest.mark.parametrize("initial", [False, True])
def test_empty(b, d, t, initial):
    data = make(Case(b=b, d=d, t=t, initial=initial))
    y, final = run(data, return_final_states=True)
    assert y.shape == (b, d, t) and final.shape == (b, d, 3)
    if initial and not t:
        same_bits(final, data.initial_states)


@pytest.mark.parametrize("layout", ["t", "d", "padded", "shifted"])
def test_memory_order_is_kept(layout):
    data = make(Case(layout=layout))
    y = run(data)
    dense = {"t": (85, 17, 1), "d": (85, 1, 5), "padded": (85, 1, 5), "shifted": (85, 17, 1)}
    assert tuple(s // 4 for s in y.strides) == dense[layout]


@pytest.mark.parametrize("step", [0, 4, 4 * 10**9])
def test_the_stride_of_one_row_says_nothing(step):
    data = make(Case(b=1))
    row = np.lib.stride_tricks.as_strided(data.x, strides=(step, *data.x.strides[1:]))
    y = run(replace(data, x=row))
    same_bits(y, run(data))


def test_reversed_and_repeated_tokens():
    data = make(Case(b=1))
    for view in (data.x[:, :, ::-1], data.x[:, ::-1], np.broadcast_to(data.x, (3, 5, 17))):
        same_bits(run(replace(data, x=view)), run(replace(data, x=view.copy())))


# --- signature and refusals ------------------------------------------------------------------------------------------


def test_signature():
    parameters = inspect.signature(causal_conv1d).parameters
    assert list(parameters) == [
        *("x", "weight", "bias", "activation", "seq_idx", "cu_seqlens"),
        *("initial_states", "return_final_states", "final_states_out"),
    ]
    either, only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    assert [p.kind for p in parameters.values()] == [either] * 4 + [only] * 5
    defaults = [p.default for p in parameters.values()]
    assert defaults == [inspect.Parameter.empty] * 2 + [None] * 5 + [False, None]


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


INT = np.int32
PACKED = {"x": zeros(1, 5, 17), "cu_seqlens": np.array([0, 4, 17], INT)}
REFUSALS = {
    "activation": ({"activation": "relu"}, NotImplementedError, "activation: expected None"),
    "activation first": ({"activation": 3, "x": None}, NotImplementedError, "activation"),
    "both kinds": (
        {**PACKED, "seq_idx": zeros(1, 17, dtype=INT)},
        ValueError,
        "seq_idx and cu_seqlens are mutually exclusive",
    ),
    "flag": ({"return_final_states": 1}, TypeError, "return_final_states: expected True or False"),
    "flag of NumPy": ({"return_final_states": np.True_}, TypeError, "return_final_states"),
    "out alone": (
        {"final_states_out": zeros(2, 5, 3)},
        ValueError,
        "final_states_out: expected None",
    ),
    "ids and final": (
        {"seq_idx": zeros(2, 17, dtype=INT), "return_final_states": True},
        ValueError,
        "return_final_states: expected no final states together with seq_idx",
    ),
    "ids and initial": (
        {"seq_idx": zeros(2, 17, dtype=INT), "initial_states": zeros(2, 5, 3)},
        ValueError,
        "seq_idx and initial_states",
    ),
    "x": ({"x": [1.0]}, TypeError, "x: expected a tensor"),
    "weight": ({"weight": None}, ValueError, "weight: expected a tensor, got None"),
    "bias": ({"bias": 1.0}, TypeError, "bias: expected a tensor"),
    "rank": ({"x": zeros(5, 17)}, ValueError, r"x: expected rank 3 \(B, D, T\)"),
    "weight rank": ({"weight": zeros(5, 1, 4)}, ValueError, r"weight: expected rank 2 \(D, W\)"),
    "channels": (
        {"weight": zeros(6, 4)},
        ValueError,
        r"weight: expected shape \(D, W\) = \(5, any\)",
    ),
    "bias shape": ({"bias": zeros(4)}, ValueError, r"bias: expected shape \(D,\) = \(5,\)"),
    "ids shape": (
        {"seq_idx": zeros(2, 16, dtype=INT)},
        ValueError,
        r"seq_idx: expected shape \(B, T\) = \(2, 17\)",
    ),
    "packed rows": (
        {"cu_seqlens": PACKED["cu_seqlens"]},
        ValueError,
        "x: expected batch extent B = 1",
    ),
    "boundaries rank": (
        {**PACKED, "cu_seqlens": zeros(1, 3, dtype=INT)},
        ValueError,
        "cu_seqlens: expected rank 1",
    ),
    "no boundaries": ({**PACKED, "cu_seqlens": zeros(0, dtype=INT)}, ValueError, "cu_seqlens"),
    "boundaries dtype": (
        {**PACKED, "cu_seqlens": np.array([0, 17])},
        TypeError,
        "cu_seqlens: expected dtype one of int32, got int64",
    ),
    "boundaries strided": (
        {**PACKED, "cu_seqlens": zeros(6, dtype=INT)[::2]},
        ValueError,
        "cu_seqlens: expected a contiguous array",
    ),
    "ids dtype": ({"seq_idx": zeros(2, 17, dtype=np.int64)}, TypeError, "seq_idx: expected dtype"),
    "state of full width": (
        {"initial_states": zeros(2, 5, 4)},
        ValueError,
        r"initial_states: expected shape \(B, D, W-1\) = \(2, 5, 3\), got \(2, 5, 4\)",
    ),
    "state for each row": (
        {**PACKED, "initial_states": zeros(1, 5, 3)},
        ValueError,
        r"initial_states: expected shape \(N, D, W-1\) = \(2, 5, 3\), got \(1, 5, 3\)",
    ),
    "state dtype": (
        {"initial_states": zeros(2, 5, 3, dtype=np.float16)},
        TypeError,
        r"initial_states: expected dtype float32 \(x's\)",
    ),
    "one tap": (
        {"weight": zeros(5, 1)},
        ValueError,
        "kernel_size must be between 2 and 256, inclusive; got 1",
    ),
    "too wide": ({"weight": zeros(5, 257)}, ValueError, "between 2 and 256, inclusive; got 257"),
    "dtype": (
        {"x": zeros(2, 5, 17, dtype=np.int8)},
        ValueError,
        "x: expected dtype one of bfloat16",
    ),
    "half float64": (
        {"x": zeros(2, 5, 17, dtype=np.float64)},
        TypeError,
        "weight: expected dtype float64",
    ),
    "bias dtype": (
        {"bias": zeros(5, dtype=np.float16)},
        TypeError,
        r"bias: expected dtype float32 \(weight's\) or float32",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    changes, error, message = REFUSALS[name]
    arguments = {"x": zeros(2, 5, 17), "weight": zeros(5, 4), "activation": "silu"} | changes
    with pytest.raises(error, match=message):
        causal_conv1d(**arguments)


def overlapping():
    whole = zeros(200)
    x, w = whole[:170].reshape(2, 5, 17), whole[170:190].reshape(5, 4)
    return whole, x, w


@pytest.mark.parametrize(
    "name, shape, dtype, error, message",
    [
        (
            "shape",
            (2, 5, 4),
            np.float32,
            ValueError,
            r"final_states_out: expected shape \(R, D, W-1\)",
        ),
        ("dtype", (2, 5, 3), np.float16, TypeError, "final_states_out: expected dtype float32"),
    ],
)
def test_refusals_of_final_states_out(name, shape, dtype, error, message):
    _, x, w = overlapping()
    with pytest.raises(error, match=message):
        causal_conv1d(x, w, return_final_states=True, final_states_out=zeros(*shape, dtype=dtype))
    with pytest.raises(TypeError, match="final_states_out: expected a numpy array"):
        causal_conv1d(x, w, return_final_states=True, final_states_out=[0.0])


def test_final_states_out_must_not_share_memory():
    whole, x, w = overlapping()
    for first, name in ((140, "x"), (169, "x"), (160, "x"), (170, "weight")):
        out = whole[first : first + 30].reshape(2, 5, 3)
        with pytest.raises(ValueError, match=f"final_states_out must not share memory with {name}"):
            causal_conv1d(x, w, return_final_states=True, final_states_out=out)
    buffer = zeros(230)
    x = buffer[:170].reshape(2, 5, 17)
    beside = buffer[170:200].reshape(2, 5, 3)
    assert causal_conv1d(x, w, return_final_states=True, final_states_out=beside)[1] is beside


def test_final_states_out_must_be_writable():
    _, x, w = overlapping()
    out = zeros(2, 5, 3)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="final_states_out: expected an array to write into"):
        causal_conv1d(x, w, return_final_states=True, final_states_out=out)


def test_final_states_out_must_not_repeat_memory():
    _, x, w = overlapping()
    out = np.lib.stride_tricks.as_strided(zeros(20), (2, 5, 3), (0, 12, 4))
    with pytest.raises(ValueError, match="final_states_out: expected strides that address each"):
        causal_conv1d(x, w, return_final_states=True, final_states_out=out)


def test_a_matrix_is_an_array():
    data = make(Case(x="float32"))
    same_bits(
        causal_conv1d(data.x, np.asmatrix(data.weight), data.bias),
        causal_conv1d(data.x, data.weight, data.bias),
    )


def test_a_refused_call_is_not_remembered():
    OP.forget()
    with pytest.raises(ValueError):
        causal_conv1d(zeros(2, 5, 17), zeros(6, 4))
    assert not OP._prepared


def test_extents_are_no_part_of_the_key():
    signatures = set()
    for b, d, t in ((1, 8, 8), (3, 16, 1024), (2, 7, 63)):
        descs = OP.bind((zeros(b, d, t), zeros(d, 4), None, None, None, None), ("silu",))[1]
        signatures.add(descs.signature)
    assert len(signatures) == 1 and CONTRACT.name == "conv/conv1d"
