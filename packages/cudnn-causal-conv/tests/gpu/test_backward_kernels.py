"""The backward kernels on the device: against float64, and against each other bit for bit."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


from cudnn_core.testing.precompile import compile_plans
from cudnn_core.testing.tiers import why_no_hopper


def _helper(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


cases, backward = _helper("forward_cases"), _helper("backward_cases")
Case = cases.Case

pytestmark = pytest.mark.gpu

SHAPES = cases.SHAPES
# With no token there is no gradient to launch for.
LENGTHS = {name: lengths for name, lengths in cases.LENGTHS.items() if sum(lengths)}
DENSE = [
    Case(shape, layout=layout, initial=states, final=states)
    for shape in SHAPES
    for layout in cases.LAYOUTS
    for states in (False, True)
]
WIDTHS = [
    Case((2, 24, 300), width, x, weight, bias, activation, layout, initial=True, final=True)
    for width, x, weight, bias, activation in [
        (2, "float16", "float16", "float16", "silu"),
        (3, "float32", "float32", None, "identity"),
        (5, "bfloat16", "float32", "float32", "silu"),
        (6, "float16", "float32", None, "silu"),
        (7, "bfloat16", "bfloat16", "bfloat16", "identity"),
        (8, "float32", "float32", "float32", "silu"),
        (9, "bfloat16", "bfloat16", "bfloat16", "silu"),
        (20, "float32", "float32", "float32", "identity"),
        (256, "float16", "float16", None, "silu"),
    ]
    for layout in ("t", "t odd", "d", "any")
]
# Four-byte elements whose taps reach over two 16-byte pieces.
LONG_REACH = next(case for case in WIDTHS if (case.x, case.width) == ("float32", 8))
SEQUENCES = [
    Case((1, 24, sum(LENGTHS[name])), width, layout=layout, sequences=LENGTHS[name])
    for name in LENGTHS
    for layout in ("t", "t odd", "d", "d odd")
    for width in (4, 7, 20)
]
IDS = [
    Case(shape, width, layout=layout, sequences="ids")
    for shape in [(2, 24, 300), (3, 40, 64), (1, 8, 2049), (2, 8, 3)]
    for layout in ("t", "t odd", "d", "any")
    for width in (3, 4, 12)
]

ALL = [*DENSE, *WIDTHS, *SEQUENCES, *IDS]
STATES = Case((1, 8, 8), initial=True, final=True)
PACKED = replace(STATES, sequences=(8,))
# What the tests without a `case` launch.
OTHERS = [
    *(replace(STATES, width=w, layout=y) for w in (2, 4, 8, 9, 17) for y in ("t", "d", "any")),
    *(replace(PACKED, width=w, layout=y) for w in (4, 8, 20) for y in ("t", "d", "any")),
    *(Case((1, 8, 8), layout=y, weight="float32", bias="float32") for y in ("t", "d", "any")),
    *(replace(STATES, bias=None, layout=y) for y in ("t", "d")),
    Case((1, 8, 8), bias=None),
]


def config_of(case):
    """The kernel of a case, unless extents of 1 say another."""
    letter = case.layout[0] if case.layout[0] in "td" else "any"
    return backward.BackwardConv(
        case.x,
        case.weight,
        case.bias,
        case.width,
        case.activation,
        letter,
        has_seq_idx=case.sequences == "ids",
        has_cu_seqlens=case.packed,
        has_initial=case.initial,
        has_dfinal=case.final,
        has_dinitial=case.initial,
    )


@pytest.fixture(scope="module", autouse=True)
def kernels(request):
    """Compiles what the selected cases need, many at once."""
    if why_no_hopper():
        return
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    selected = [spec.params.get("case") for spec in parameters if spec]
    selected = [case for case in selected if isinstance(case, Case)]
    if len(selected) == len(ALL):
        selected += OTHERS
    compile_plans(backward.source_backward, map(backward.plan_of, map(config_of, selected)))


def operands(case, seed=0):
    """(named inputs, a view for dx, the buffer around it)."""
    named = cases.tensors(case, seed)
    g = torch.Generator("cuda").manual_seed(seed + 1)
    dout = cases.random(case.shape, case.x, g)
    named["dout"] = cases.laid_out(dout, case.layout)[0]
    named["dout"].copy_(dout)
    if case.final:
        rows = len(case.sequences) if case.packed else case.shape[0]
        shape = (rows, case.shape[1], case.width - 1)
        named["dfinal_states"] = cases.random(shape, case.x, g)
    return named, *cases.laid_out(dout, case.layout)


def gradients(case, seed=0, **changes):
    named, dx, around = operands(case, seed)
    return backward.run({**named, **changes}, dx, around, case.activation)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_against_float64(case):
    named, dx, around = operands(case)
    got = backward.run(named, dx, around, case.activation)
    backward.check(got, backward.law(named, case.activation), cases.ROUNDOFF)


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("layout", ["t", "t odd", "d", "any"])
@pytest.mark.parametrize("width", [4, 8, 20])
def test_packed_sequences_with_states(name, layout, width):
    lengths = LENGTHS[name]
    case = Case((1, 24, sum(lengths)), width, layout=layout, sequences=lengths)
    case = replace(case, initial=True, final=True)
    named, dx, around = operands(case)
    got = backward.run(named, dx, around)
    backward.check(got, backward.law(named), cases.ROUNDOFF)


@pytest.mark.parametrize("layout", ["t", "t odd", "d", "d odd"])
@pytest.mark.parametrize("width", [4, 9])
def test_any_strides_of_the_gradient_give_the_same_bits(layout, width):
    case = Case((2, 40, 333), width, layout=layout, initial=True, final=True)
    named, dx, around = operands(case)
    got = backward.run(named, dx, around)
    for other in ("t", "t shifted", "d", "any", "batch inner"):
        strided = cases.laid_out(named["dout"], other)[0].copy_(named["dout"])
        assert backward.same(got, gradients(case, dout=strided)), other
    one = torch.ones((), dtype=torch.bfloat16, device="cuda")
    expanded = gradients(case, dout=one.expand(case.shape))
    assert backward.same(expanded, gradients(case, dout=torch.ones_like(named["dout"])))


@pytest.mark.parametrize("width", [2, 4, 8, 17])
@pytest.mark.parametrize("shape", [(2, 24, 130), (3, 8, 1000)])
def test_layouts_give_the_same_bits_of_dx(shape, width):
    case = Case(shape, width, initial=True, final=True)
    expected = gradients(case)
    for layout in cases.LAYOUTS:
        got = gradients(replace(case, layout=layout))
        assert backward.same(got, expected, ("dx", "dinitial_states")), layout


@pytest.mark.parametrize("layout", ["t", "d"])
def test_packed_sequences_give_the_bits_of_separate_ones(layout):
    lengths = (3, 200, 1, 64, 4)
    case = Case((1, 24, sum(lengths)), layout=layout, sequences=lengths, initial=True, final=True)
    named, dx, around = operands(case)
    whole = backward.run(named, dx, around)
    first = 0
    for r, length in enumerate(lengths):
        part = {k: v for k, v in named.items() if k != "cu_seqlens"}
        for name in ("x", "dout"):
            part[name] = named[name][:, :, first : first + length]
        for name in ("initial_states", "dfinal_states"):
            part[name] = named[name][r : r + 1]
        alone = backward.run(part, *cases.laid_out(part["x"], layout))
        assert torch.equal(alone["dx"], whole["dx"][:, :, first : first + length])
        assert torch.equal(alone["dinitial_states"][0], whole["dinitial_states"][r])
        first += length


@pytest.mark.parametrize("layout", ["t", "d", "any"])
def test_repeats_are_bit_equal(layout):
    case = Case((4, 96, 2048), layout=layout, weight="float32", bias="float32")
    expected = gradients(case)
    assert all(backward.same(gradients(case), expected) for _ in range(5))


@pytest.mark.parametrize("layout", ["t", "d"])
@pytest.mark.parametrize("splits", [1, 2, 3, 7, 32, 33, 64])
def test_any_number_of_splits_is_right(layout, splits):
    case = Case((3, 40, 1100), layout=layout)
    named, dx, around = operands(case)
    got = backward.run(named, dx, around, splits=splits)
    backward.check(got, backward.law(named), cases.ROUNDOFF)


@pytest.mark.parametrize("layout", ["t", "t odd", "any"])
@pytest.mark.parametrize("form", [Case((1, 1, 1)), LONG_REACH], ids=["short", "long"])
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_rows_of_every_length(layout, form, splits):
    """Around the ends of runs and chunks, for all numbers of lanes that share a row."""
    for end in (16, 32, 64, 128, 256, 512, 1024):
        for tokens in (end - 7, end, end + 1):
            case = replace(form, shape=(3, 19, tokens), layout=layout)
            named, dx, around = operands(case)
            got = backward.run(named, dx, around, case.activation, splits)
            backward.check(got, backward.law(named, case.activation), cases.ROUNDOFF)


@pytest.mark.parametrize("layout", ["t", "t odd", "any"])
@pytest.mark.parametrize(
    "shape", [(1, 1100, 1500), (3, 1061, 600), (2, 1100, 1500), (6, 530, 700), (9, 1057, 40)]
)
@pytest.mark.parametrize("splits", [1, 3])
def test_warps_share_channels_or_not(layout, shape, splits):
    """With so many channels, one, two or four warps walk over the rows of each."""
    case = Case(shape, layout=layout)
    named, dx, around = operands(case)
    got = backward.run(named, dx, around, splits=splits)
    backward.check(got, backward.law(named), cases.ROUNDOFF)


@pytest.mark.parametrize("layout", ["t", "d", "any"])
def test_padding_does_not_leak(layout):
    """NaN at padding tokens, in inputs and gradients, reaches no gradient; theirs are exactly 0."""
    case = Case((2, 24, 300), layout=layout, sequences="ids")
    named, dx, around = operands(case)
    padding = (named["seq_idx"] < 0)[:, None].expand(case.shape)
    clean = backward.run(named, dx, around)
    for name in ("x", "dout"):
        named[name].masked_fill_(padding, float("nan"))
    got = backward.run(named, dx, around)
    assert (got["dx"][padding] == 0).all()
    assert backward.same(got, clean)


@pytest.mark.parametrize("layout", ["t", "d"])
def test_one_rounding_with_the_gradient_of_the_states(layout):
    """x = 0, w3 = 96, dout = 1.359375, dfinal = -65: dx = 0.5 * 1.359375 * 96 - 65 = 0.25 exactly."""
    case = Case((1, 8, 1), bias=None, layout=layout, initial=True, final=True)
    named, dx, around = operands(case)
    for name, value in (("x", 0), ("initial_states", 0), ("weight", 0), ("dfinal_states", 0)):
        named[name].fill_(value)
    named["weight"][:, 3] = 96
    named["dout"].fill_(1.359375)
    named["dfinal_states"][:, :, 2] = -65
    assert (backward.run(named, dx, around)["dx"] == 0.25).all()


def test_extreme_inputs_have_finite_gradients():
    case = Case((1, 8, 13), bias=None)
    named, dx, around = operands(case)
    named["weight"].copy_(torch.tensor([0.0, 0, 0, 1]))
    powers = torch.tensor([0.0, *(s * 2.0**k for k in range(6) for s in (1, -1))])
    named["x"].copy_(powers)
    got = backward.run(named, dx, around)
    backward.check(got, backward.law(named), cases.ROUNDOFF)


@pytest.mark.parametrize("layout", ["t", "d"])
@pytest.mark.parametrize("bounds", [(0, 40, 20, 60), (5, 30, 60), (0, 30, 50), (-9, 30, 99)])
def test_illegal_boundaries_do_no_harm(layout, bounds):
    """Not in order, not from 0, not to the end, outside: clamped; tokens in no sequence have no gradient."""
    case = Case((1, 24, 60), layout=layout, sequences=(60,))
    named, dx, around = operands(case)
    ends = torch.tensor(bounds, dtype=torch.int32, device="cuda")
    got = backward.run({**named, "cu_seqlens": ends}, dx, around)
    assert not any(y.isnan().any() for y in got.values())
    if sorted(bounds) == list(bounds):
        want = backward.law({**named, "cu_seqlens": ends.clamp(0, 60)})
        backward.check(got, want, cases.ROUNDOFF)


@pytest.mark.parametrize("layout", ["t", "d"])
@pytest.mark.parametrize("shape", [(0, 8, 5), (2, 8, 0), (2, 0, 5)])
def test_empty_problems(layout, shape):
    case = Case(shape, layout=layout, initial=True, final=True)
    named, dx, around = operands(case)
    got = backward.run(named, dx, around)
    backward.check(got, backward.law(named), cases.ROUNDOFF)


def test_offsets_past_two_to_the_31():
    """A view of few elements whose strides pass 2^31 elements."""
    step = 2**30 + 8
    buffer = torch.zeros(2 * step + 4096, dtype=torch.bfloat16, device="cuda")
    case = Case((3, 8, 64))
    named, dx, around = operands(case)
    got = backward.run(named, dx, around)
    named["x"] = buffer.as_strided(case.shape, (step, 64, 1)).copy_(named["x"])
    assert backward.same(backward.run(named, dx, around), got)
