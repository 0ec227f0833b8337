"""causal_conv1d_backward on NumPy arrays: against finite differences and the documented formula, bit-exact corners."""

from dataclasses import replace

import numpy as np
import pytest

from cudnn_causal_conv import causal_conv1d, causal_conv1d_backward
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

NAMES = ("x", "weight", "bias", "initial_states")
KINDS = {
    "plain": Case(),
    "identity, no bias": Case(activation=None, bias=False),
    "states": Case(initial=True, final=True),
    "packed": Case(lengths=(3, 1, 0, 9, 2)),
    "packed states": Case(lengths=(3, 1, 0, 9, 2), initial=True, final=True),
    "short": Case(t=2, initial=True, final=True),
    "one token": Case(t=1, initial=True, final=True),
    "ids": Case(ids=True),
    "wide": Case(width=11, initial=True, final=True),
    "two taps": Case(width=2, initial=True, final=True),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def run(data, **options):
    keywords = data.keywords() | {"dfinal_states": data.dfinal_states} | options
    return causal_conv1d_backward(data.dout, *data.positional(), **keywords)


def loss(data):
    y, final = law(data)
    total = (y * data.dout).sum()
    return total if data.dfinal_states is None else total + (final * data.dfinal_states).sum()


@kinds
@pytest.mark.parametrize("seed", range(3))
def test_finite_differences(kind, seed):
    """Along random directions, through the independent law."""
    data = make(replace(KINDS[kind], x="float64"), seed)
    gradients = run(data)
    random = np.random.default_rng(seed)
    for name in NAMES:
        x = getattr(data, name)
        if x is None:
            assert gradients[f"d{name}"] is None
            continue
        direction, step = random.standard_normal(x.shape), 1e-5
        ahead, behind = (loss(replace(data, **{name: x + s * direction})) for s in (step, -step))
        np.testing.assert_allclose(
            (gradients[f"d{name}"] * direction).sum(), (ahead - behind) / (2 * step), rtol=1e-7
        )


@kinds
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_dtypes_are_near_float64(kind, dtype):
    data = make(replace(KINDS[kind], x=dtype))
    wide = {
        name: x.astype(np.float64)
        for name, x in vars(data).items()
        if isinstance(x, np.ndarray) and x.dtype.kind not in "iu"
    }
    exact = run(replace(data, **wide))
    for name, got in run(data).items():
        if got is not None:
            assert got.dtype == DTYPES[dtype]
            assert_near(got, exact[name], dtype, sums=64)


@pytest.mark.parametrize("weight", ["float32", "bfloat16"])
def test_gradients_have_the_dtype_of_their_operand(weight):
    data = make(Case(x="bfloat16", weight=weight, initial=True))
    data.bias = data.bias.astype(DTYPES["bfloat16"])
    made = run(data)
    assert [str(g.dtype) for g in made] == ["bfloat16", weight, "bfloat16", "bfloat16"]
    assert list(made.keys()) == ["dx", "dweight", "dbias", "dinitial_states"]


def test_one_rounding_of_dx():
    """Contract, section 2.4: the gradient of the final state joins the sum before it is rounded."""
    bf16 = DTYPES["bfloat16"]
    x, w = np.zeros((1, 1, 1), bf16), np.array([[0, 0, 0, 96]], bf16)
    dout, dfinal = np.full((1, 1, 1), 1.359375, bf16), np.array([[[0, 0, -65]]], bf16)
    made = causal_conv1d_backward(dout, x, w, None, "silu", dfinal_states=dfinal)
    assert made["dx"].item() == 0.25


def test_exact_cancellation():
    bf16 = DTYPES["bfloat16"]
    x, w = np.ones((1, 1, 16), bf16), np.array([[96, -96, 64, -64]], bf16)
    made = causal_conv1d_backward(np.full_like(x, 1.375), x, w, None, "silu")
    assert not made["dx"][0, 0, 3:12].any()


def test_extreme_sums_have_finite_gradients():
    x = np.array([32, -32, 16, -16, 8, -8, 0], np.float32)[None, None]
    w = np.array([[0, 0, 0, 1]], np.float32)
    for x_scale in (1, 10, 1e4):
        made = causal_conv1d_backward(np.ones_like(x), x_scale * x, w, None, "silu")
        assert np.isfinite(made["dx"]).all() and np.isfinite(made["dweight"]).all()


@kinds
@pytest.mark.parametrize("layout", ["d", "padded", "shifted", "any"])
def test_layouts_do_not_matter(kind, layout):
    """Neither x's nor that of the gradient that comes in."""
    data = make(replace(KINDS[kind], x="bfloat16"))
    expected = run(data)
    for name in ("x", "dout"):
        made = run(replace(data, **{name: laid_out(getattr(data, name), layout)}))
        for first, second in zip(made, expected, strict=True):
            if first is not None:
                same_bits(first, second)


@pytest.mark.parametrize("layout, strides", [("t", (85, 17, 1)), ("d", (85, 1, 5))])
def test_memory_order_is_kept(layout, strides):
    data = make(Case(layout=layout, initial=True))
    data.weight = np.asfortranarray(data.weight)
    made = run(data)
    assert tuple(s // 4 for s in made["dx"].strides) == strides
    assert made["dweight"].strides == data.weight.strides
    assert made["dinitial_states"].strides == data.initial_states.strides


def test_expanded_gradient():
    data = make(KINDS["plain"])
    one = np.broadcast_to(np.float32(0.5), data.dout.shape)
    for first, second in zip(
        run(replace(data, dout=one)), run(replace(data, dout=one.copy())), strict=True
    ):
        if first is not None:
            same_bits(first, second)


def test_packed_sequences_equal_separate_ones():
    data = make(Case(lengths=(3, 0, 5, 1, 2, 17), initial=True, final=True))
    made = run(data)
    sums = {"dweight": 0.0, "dbias": 0.0}
    for i, span in enumerate(spans(data.case.lengths)):
        alone = causal_conv1d_backward(
            data.dout[:, :, span],
            data.x[:, :, span],
            *data.positional()[1:],
            initial_states=data.initial_states[i : i + 1],
            dfinal_states=data.dfinal_states[i : i + 1],
        )
        same_bits(made["dx"][:, :, span], alone["dx"])
        same_bits(made["dinitial_states"][i], alone["dinitial_states"][0])
        sums = {name: total + alone[name].astype(np.float64) for name, total in sums.items()}
    for name, total in sums.items():
        np.testing.assert_allclose(made[name], total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunks", [(1, 2, 3, 11), (3, 3, 3, 8), (16, 1), (2,) * 8 + (1,)])
def test_chunks_with_the_gradient_of_the_state_equal_one_call(chunks):
    """Backwards through the chunks, each handing its dinitial_states to the one before."""
    data = make(Case(x="float64", initial=True, final=True))
    made = run(data)
    states, pieces = [data.initial_states], spans(chunks)
    for span in pieces:
        _, state = causal_conv1d(
            data.x[:, :, span],
            *data.positional()[1:],
            initial_states=states[-1],
            return_final_states=True,
        )
        states.append(state)
    gradient, dx = data.dfinal_states, []
    dweight, dbias = np.zeros_like(data.weight), np.zeros_like(data.bias)
    for span, state in reversed(list(zip(pieces, states, strict=False))):
        part = causal_conv1d_backward(
            data.dout[:, :, span],
            data.x[:, :, span],
            *data.positional()[1:],
            initial_states=state,
            dfinal_states=gradient,
        )
        gradient = part["dinitial_states"]
        dx.append(part["dx"])
        dweight += part["dweight"]
        dbias += part["dbias"]
    expected = {
        "dx": np.concatenate(dx[::-1], axis=2),
        "dweight": dweight,
        "dbias": dbias,
        "dinitial_states": gradient,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(made[name], value, rtol=1e-12, atol=1e-12)


def test_padding_contributes_nothing():
    """NaN in tokens that are padding, and in their gradient, reaches no result."""
    data = make(Case(ids=True, t=40))
    data.seq_idx[:, 30:] = -1
    made = run(data)
    padding = np.broadcast_to(data.seq_idx[:, None] < 0, data.x.shape)
    x, dout = data.x.copy(), data.dout.copy()
    x[padding], dout[padding] = np.nan, np.nan
    for first, second in zip(run(replace(data, x=x, dout=dout)), made, strict=True):
        if first is not None:
            same_bits(first, second)
    assert not made["dx"][padding].any()


def test_tokens_in_no_sequence_contribute_nothing():
    data = make(Case(lengths=(6, 6), final=True))
    outside = replace(data, cu_seqlens=np.array([3, 6, 9], np.int32))
    made = run(outside)
    inner = replace(
        data,
        x=data.x[:, :, 3:9],
        dout=data.dout[:, :, 3:9],
        cu_seqlens=np.array([0, 3, 6], np.int32),
    )
    alone = run(inner)
    same_bits(made["dx"][:, :, 3:9], alone["dx"])
    assert not made["dx"][:, :, :3].any() and not made["dx"][:, :, 9:].any()
    for name in ("dweight", "dbias"):
        np.testing.assert_allclose(made[name], alone[name], rtol=1e-6)


@pytest.mark.parametrize("b, d, t", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_empty(b, d, t):
    data = make(Case(b=b, d=d, t=t, initial=True, final=True))
    made = run(data)
    assert made["dx"].shape == (b, d, t)
    assert not made["dweight"].any() and not made["dbias"].any()
    if not t:
        same_bits(made["dinitial_states"], data.dfinal_states)


def test_repeats_are_equal():
    data = make(Case(x="bfloat16", t=300, initial=True, final=True))
    for first, second in zip(run(data), run(data), strict=True):
        same_bits(first, second)


REFUSALS = {
    "shape": (
        {"dout": np.zeros((2, 5, 16), np.float32)},
        ValueError,
        r"dout: expected shape \(B, D, T\)",
    ),
    "dtype": (
        {"dout": np.zeros((2, 5, 17), np.float16)},
        TypeError,
        r"dout: expected dtype float32 \(x's\)",
    ),
    "missing": ({"dout": None}, ValueError, "dout: expected a tensor, got None"),
    "states": (
        {"dfinal_states": np.zeros((2, 5, 4), np.float32)},
        ValueError,
        r"dfinal_states: expected shape \(B, D, W-1\) = \(2, 5, 3\)",
    ),
    "ids": (
        {"seq_idx": np.zeros((2, 17), np.int32), "dfinal_states": np.zeros((2, 5, 3), np.float32)},
        ValueError,
        "seq_idx and dfinal_states are mutually exclusive",
    ),
    "activation": ({"activation": "gelu"}, NotImplementedError, "activation"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    changes, error, message = REFUSALS[name]
    data = make(KINDS["plain"])
    arguments = {"dout": data.dout, "x": data.x, "weight": data.weight} | changes
    with pytest.raises(error, match=message):
        causal_conv1d_backward(**arguments)
