"""The forward kernels on the device: against float64, and against each other bit for bit."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from cudnn_core.testing.precompile import compile_plans
from cudnn_core.testing.tiers import why_no_hopper

_spec = importlib.util.spec_from_file_location(
    "forward_cases", Path(__file__).with_name("forward_cases.py")
)
cases = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = cases
_spec.loader.exec_module(cases)
Case = cases.Case

pytestmark = pytest.mark.gpu

SHAPES, LENGTHS = cases.SHAPES, cases.LENGTHS
BASE = Case((2, 8, 3), initial=True, final=True)
PACKED = Case((1, 24, 1), initial=True, final=True)


def packed(name, **options):
    lengths = LENGTHS[name]
    return replace(PACKED, shape=(1, 24, sum(lengths)), sequences=lengths, **options)


DENSE = [
    replace(BASE, shape=shape, layout=layout, initial=states, final=states)
    for shape in SHAPES
    for layout in cases.LAYOUTS
    for states in (False, True)
]
WIDTHS = [
    replace(BASE, shape=shape, width=width, layout=layout, x=x, weight=weight, bias=bias)
    for width, x, weight, bias in [
        (2, "float16", "float16", "float16"),
        (3, "float32", "float32", None),
        (5, "bfloat16", "float32", "float32"),
        (6, "float16", "float32", None),
        (7, "bfloat16", "bfloat16", "bfloat16"),
        (8, "float32", "float32", "float32"),
        (9, "bfloat16", "bfloat16", "bfloat16"),
        (20, "float32", "float32", "float32"),
        (256, "float16", "float16", None),
    ]
    for layout in ("t", "t odd", "d", "any")
    for shape in [(2, 16, 5), (2, 24, 300)]
]
SEQUENCES = [
    packed(name, layout=layout, width=width)
    for name in LENGTHS
    for layout in ("t", "t odd", "d", "d odd", "any")
    for width in (4,)
] + [
    packed("tiny", layout="t", width=7),
    packed("tiny", layout="d", width=7),
    packed("tiny", layout="t", width=12),
    packed("boundaries", layout="t", initial=False, final=False, activation="identity"),
    packed("boundaries", layout="d", initial=False, final=False, activation="identity"),
]
IDS = [
    replace(
        BASE, shape=shape, layout=layout, sequences="ids", initial=False, final=False, width=width
    )
    for shape in [(3, 16, 5), (3, 24, 130), (2, 8, 2049)]
    for layout in ("t", "t odd", "d", "d odd", "any")
    for width in (4, 10)
]
ALL = [*DENSE, *WIDTHS, *SEQUENCES, *IDS]


def configs(selected=tuple(ALL)):
    """The kernels that cases need, once each; BASE's and PACKED's own are what the other tests use."""
    return list(dict.fromkeys(case.config() for case in selected))


@pytest.fixture(scope="module", autouse=True)
def kernels(request):
    """Compiles what the selected cases need, many at once."""
    if why_no_hopper():
        return
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    selected = [spec.params.get("case") for spec in parameters if spec]
    needed = configs(case for case in selected if isinstance(case, Case))
    compile_plans(cases.source_forward, map(cases.plan_of, needed))


def name_of(case):
    parts = [
        "x".join(map(str, case.shape)),
        f"w{case.width}",
        case.x,
        case.layout.replace(" ", "-"),
    ]
    if case.sequences:
        parts.append("ids" if case.sequences == "ids" else f"{len(case.sequences)}seq")
    return "-".join([*parts, "states" if case.initial else "plain"])


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_is_the_law(case):
    named = cases.tensors(case)
    cases.check(case, cases.run(case, named), cases.law(case, named))


@pytest.mark.parametrize("sequences", [None, "ids", LENGTHS["boundaries"]], ids=str)
def test_every_layout_gives_the_same_bits(sequences):
    """The vector kernels, their ragged ends, and the kernel for any strides."""
    shape = (1, 24, sum(LENGTHS["boundaries"]))
    states = sequences != "ids"
    case = replace(PACKED, shape=shape, sequences=sequences, initial=states, final=states)
    named = cases.tensors(case)
    first = cases.run(case, named)
    for layout in cases.LAYOUTS[1:]:
        other = replace(case, layout=layout)
        moved = {**named, "x": cases.laid_out(named["x"], layout)[0]}
        moved["x"].copy_(named["x"])
        got = cases.run(other, moved)
        for key in got:
            assert torch.equal(cases.bits(got[key]), cases.bits(first[key])), (layout, key)
    # An output whose rows begin elsewhere within 16 bytes than x's.
    got = cases.run(case, named, out_layout="t odd")
    assert torch.equal(cases.bits(got["out"]), cases.bits(first["out"]))


@pytest.mark.parametrize("layout", ["t", "d", "any"])
def test_packed_equals_one_by_one(layout):
    case = packed("tiny", layout=layout)
    named = cases.tensors(case)
    whole, first = cases.run(case, named), 0
    for r, length in enumerate(case.sequences):
        single = replace(case, shape=(1, 24, length), sequences=None)
        part = {**named, "x": named["x"][:, :, first : first + length]}
        part["initial_states"] = named["initial_states"][r : r + 1]
        part.pop("cu_seqlens")
        out = torch.full_like(part["x"], float("nan"))
        states = torch.full_like(part["initial_states"], float("nan"))
        cases.launch(single.config(), {**part, "out": out, "final_states": states})
        here = whole["out"][:, :, first : first + length]
        assert torch.equal(cases.bits(out), cases.bits(here))
        assert torch.equal(cases.bits(states[0]), cases.bits(whole["final_states"][r]))
        first += length


@pytest.mark.parametrize("layout", ["t", "d", "any"])
def test_chunks_carry_the_state(layout):
    """Chunks shorter than the width too, each starting at another address, equal one long call."""
    case = replace(BASE, shape=(2, 24, 150), layout=layout)
    named = cases.tensors(case)
    whole, state, first = cases.run(case, named), named["initial_states"], 0
    for length in (1, 2, 3, 1, 64, 1, 7, 71):
        x = named["x"][:, :, first : first + length]
        out = torch.full_like(named["x"], float("nan"))[:, :, first : first + length]
        after = torch.full_like(state, float("nan"))
        arrays = {**named, "x": x, "initial_states": state, "out": out, "final_states": after}
        cases.launch(case.config(), arrays)
        assert torch.equal(cases.bits(out), cases.bits(whole["out"][:, :, first : first + length]))
        state, first = after, first + length
    assert torch.equal(cases.bits(state), cases.bits(whole["final_states"]))


def test_states_are_bitwise_copies():
    """-0 and the payloads of NaNs survive, from x and from the initial state."""
    for layout in ("t", "d", "any"):
        case = replace(BASE, shape=(2, 16, 2), layout=layout)
        named = cases.tensors(case)
        payloads = torch.tensor([0x7F81, -32768, 0x7FC5, -61], dtype=torch.int16, device="cuda")
        for name in ("x", "initial_states"):
            named[name].view(torch.int16)[0, :4, 1] = payloads
        got = cases.run_states(case, named)
        want = torch.cat([named["initial_states"], named["x"]], 2)[:, :, 2:]
        assert torch.equal(cases.bits(got), cases.bits(want))


def test_repeats_are_bit_equal_and_inputs_unwritten():
    for case in (replace(BASE, shape=(2, 136, 4100)), packed("boundaries", layout="d")):
        named = cases.tensors(case)
        copies = {name: x.clone() for name, x in named.items()}
        first = cases.run(case, named)["out"].clone()
        for _ in range(20):
            assert torch.equal(cases.bits(cases.run(case, named)["out"]), cases.bits(first))
        for name, x in named.items():
            assert torch.equal(x, copies[name])


def test_boundaries_out_of_order_stay_in_bounds():
    """Illegal boundaries give some finite result, and nothing outside is touched."""
    for layout in ("t", "d", "any"):
        case = replace(
            packed("one", layout=layout), sequences=(100, 100, 100), initial=True, final=True
        )
        named = cases.tensors(case)
        for ends in ([0, 900, -5, 300], [-7, 2**31 - 1, 20, 10], [50, 40, 30, 20], [9, 9, 9, 9]):
            named["cu_seqlens"] = torch.tensor(ends, dtype=torch.int32, device="cuda")
            got = cases.run(case, named)
            assert not got["out"].isnan().any() and not got["final_states"].isnan().any()


@pytest.mark.parametrize("layout", ["t", "t odd", "d", "d odd", "any"])
def test_nan_stays_in_its_sequence(layout):
    """A packed neighbour, padding, other rows and channels, and a state of another sequence."""
    case = packed("tiny", layout=layout)
    named = cases.tensors(case)
    ends = named["cu_seqlens"].tolist()
    named["x"][:, :, ends[4] : ends[5]] = float("nan")
    named["initial_states"][7] = float("nan")
    out = cases.run(case, named)["out"].isnan()
    # Sequence 4 is one token long; sequence 7 is empty.
    want = torch.zeros_like(out)
    want[:, :, ends[4] : ends[5]] = True
    assert torch.equal(out, want)
    case = replace(BASE, shape=(3, 24, 130), layout=layout, sequences="ids")
    case = replace(case, initial=False, final=False)
    named = cases.tensors(case)
    named["x"].masked_fill_((named["seq_idx"] < 0)[:, None], float("nan"))
    named["x"][1, 3] = float("nan")
    out = cases.run(case, named)["out"].isnan()
    want = torch.zeros_like(out)
    want[1, 3] = named["seq_idx"][1] >= 0
    assert torch.equal(out, want)


@pytest.mark.parametrize("layout", ["t", "d", "any"])
def test_silu_far_out(layout):
    """Of the current token alone: finite wherever it is, and right to 2^-16."""
    points = [-1e4, -300.0, -104.0, -88.0, -87.0, -60.0, -16.0, -1e-3, -0.0, 1e-30, 2.0, 88.0, 1e30]
    case = Case((1, 8, len(points)), x="float32", weight="float32", bias=None, width=3)
    case = replace(case, layout=layout)
    named = cases.tensors(case)
    named["x"].copy_(torch.tensor(points, device="cuda").expand(case.shape))
    named["weight"].copy_(torch.tensor([0.0, 0.0, 1.0], device="cuda").expand(8, 3))
    out = cases.run(case, named)["out"].double()
    want = torch.nn.functional.silu(named["x"].double())
    assert ((out - want).abs() <= 2.0**-16 * want.abs() + 1e-35).all()


@pytest.mark.parametrize("layout", ["t", "d"])
@pytest.mark.parametrize("shape", [(2, 24, 16), (2, 24, 2048)])
def test_taps_and_biases_at_any_address(layout, shape):
    """Views into one flat buffer of parameters, as optimizers make them, and a weight that is a transpose."""
    case = replace(BASE, shape=shape, layout=layout)
    named = cases.tensors(case)
    want = cases.run(case, named)["out"]
    weight, bias = named["weight"], named["bias"]
    for first in (1, 2, 4):
        flat = torch.full((first + weight.numel() + 1 + bias.numel(),), 9.0, device="cuda")
        flat = flat.to(weight.dtype)
        named["weight"] = flat[first : first + weight.numel()].view(weight.shape)
        named["bias"] = flat[first + weight.numel() + 1 :]
        named["weight"].copy_(weight)
        named["bias"].copy_(bias)
        assert torch.equal(cases.bits(cases.run(case, named)["out"]), cases.bits(want))
    named["weight"] = weight.t().contiguous().t()
    named["bias"] = torch.stack([bias, bias], 1)[:, 0]
    assert torch.equal(cases.bits(cases.run(case, named)["out"]), cases.bits(want))


@pytest.mark.parametrize("layout", ["t", "t odd", "d", "any"])
def test_tokens_of_no_sequence_give_zeros(layout):
    """Before the first boundary and after the last; the others are as if nothing stood around them."""
    case = packed("one", layout=layout)
    named = cases.tensors(case)
    named["x"][:, :, :13] = 7.0
    inner = {**named, "x": named["x"][:, :, 13:250]}
    inner["cu_seqlens"] = torch.tensor([0, 237], dtype=torch.int32, device="cuda")
    alone = replace(case, shape=(1, 24, 237), sequences=(237,))
    want = torch.zeros_like(named["x"])
    states = torch.full_like(named["initial_states"], float("nan"))
    out = torch.full_like(named["x"], float("nan"))[:, :, 13:250]
    cases.launch(alone.config(), {**inner, "out": out, "final_states": states})
    want[:, :, 13:250] = out
    named["cu_seqlens"] = torch.tensor([13, 250], dtype=torch.int32, device="cuda")
    got = cases.run(case, named)
    assert torch.equal(cases.bits(got["out"]), cases.bits(want))
    assert torch.equal(cases.bits(got["final_states"]), cases.bits(states))


def test_more_than_two_to_the_31_elements_away():
    """Offsets of rows, channels and tokens each pass 2^31 elements, on views of a few elements."""
    far = 2**31 + 64
    pool = torch.zeros(far + 2**16, dtype=torch.bfloat16, device="cuda")
    for layout, shape, stride in (
        ("t", (2, 8, 3), (far, 64, 1)),
        ("t", (2, 2, 8), (64, far, 1)),
        ("d", (2, 8, 2), (64, 1, far)),
        ("any", (2, 2, 8), (2, far, 64)),
    ):
        case = replace(BASE, shape=shape, layout=layout, initial=False, final=False)
        named = cases.tensors(case)
        x = pool.as_strided(shape, stride)
        x.copy_(named["x"])
        order = (0, 2, 1) if layout == "d" else (0, 1, 2)
        out = torch.full_like(named["x"].permute(order).contiguous(), float("nan")).permute(order)
        moved = {**named, "x": x}
        cases.launch(case.config(), {**moved, "out": out})
        cases.check(case, {"out": out}, cases.law(case, moved))
