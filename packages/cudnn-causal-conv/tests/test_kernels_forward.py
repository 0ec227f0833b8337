"""The forward and update kernels without a GPU: what selects them, and their machine code for sm_90a."""

import re
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from cudnn_causal_conv.kernels.config import ForwardConv, UpdateConv, layout_of
from cudnn_causal_conv.kernels.host import (
    configure_forward,
    configure_update,
    source_forward,
    source_update,
)
from cudnn_core.contract import OperandPlan, Problem, Signature
from cudnn_core.plan import Plan
from cudnn_core.tensor_desc import Device, TensorDesc, contiguous_stride
from cudnn_core.testing import machine_code

B, H, F = "bfloat16", "float16", "float32"
FORWARD = [
    ForwardConv(B, B, B, 4, "silu", "t"),
    ForwardConv(B, B, B, 4, "silu", "d"),
    ForwardConv(B, F, F, 4, "identity", "any"),
    ForwardConv(H, H, None, 2, "silu", "t", has_initial=True, has_final=True),
    ForwardConv(H, F, F, 3, "identity", "d", has_seq_idx=True),
    ForwardConv(F, F, F, 8, "silu", "t", has_cu_seqlens=True, has_initial=True, has_final=True),
    ForwardConv(F, B, H, 8, "identity", "d", has_cu_seqlens=True, has_initial=True, has_final=True),
    ForwardConv(B, B, None, 7, "silu", "t", has_seq_idx=True),
    ForwardConv(B, B, B, 8, "silu", "d", has_seq_idx=True),
    ForwardConv(B, H, B, 9, "silu", "t", has_cu_seqlens=True, has_final=True),
    ForwardConv(F, F, None, 256, "identity", "d", has_seq_idx=True),
]
UPDATE = [
    UpdateConv(B, B, B, 4, "silu", "compact", 3),
    UpdateConv(B, F, F, 4, "silu", "d", 4, has_indices=True),
    UpdateConv(F, F, None, 8, "identity", "compact", 7, has_indices=True),
    UpdateConv(H, B, H, 2, "silu", "any", has_cache_seqlens=True),
    UpdateConv(F, H, B, 33, "identity", "any"),
]


def source_of(config):
    make = source_forward if isinstance(config, ForwardConv) else source_update
    return make(Plan("causal-conv", "hopper", "sm_90a", config))


def kernels_of(sass):
    """Kernel's class -> its listings."""
    found = {}
    for part in re.split(r"\n\s*\.section\s+\.text\.", sass)[1:]:
        name = re.search(r"(Rows|Columns|Strided|Vectors?|Channels)K?", part.split('"')[0])
        found.setdefault(name.group(1), []).append(part)
    return found


@pytest.fixture(scope="module")
def disassembler():
    if machine_code.find_disassembler() is None:
        pytest.skip("no nvdisasm here")


def check(config):
    sass = machine_code.disassemble(machine_code.object_code(source_of(config).build))
    assert machine_code.spills(sass) == 0
    # Subnormals live through sums and products; only the two approximate instructions of SiLU flush.
    assert not re.findall(r"\b(?:FMUL|FFMA|FADD|F2F|F2FP)\S*FTZ", sass)
    return kernels_of(sass)


def loads(text):
    """How many 16-byte loads."""
    return len(re.findall(r"LDG\.E\S*\.128", text))


@pytest.mark.compile
@pytest.mark.parametrize("config", FORWARD, ids=str)
def test_machine_code_of_forward(config, disassembler):
    kernels = check(config)
    assert "Strided" in kernels
    fast = {"t": "Rows", "d": "Columns"}.get(config.layout) if config.width <= 8 else None
    assert set(kernels) == {"Strided", fast} - {None}
    if fast == "Rows":
        assert len(kernels["Rows"]) == 2, "short rows and long ones"
        vectors = 2 if config.x == F else 1
        counts = sorted(loads(text) for text in kernels["Rows"])
        assert counts[0] >= config.tile.short_steps * vectors
        few = config.has_seq_idx or config.has_cu_seqlens
        assert counts[1] >= (config.tile.short_steps if few else config.tile.steps) * vectors
    if fast == "Columns":
        (text,) = kernels["Columns"]
        wide = "128" if config.tile.vector == 16 else "64"
        assert len(re.findall(rf"LDG\.E\S*\.{wide}", text)) >= config.tile.walk // 2
    for texts in kernels.values():
        for text in texts:
            assert len(re.findall(r"STG\.E", text)) > 0
            assert ("MUFU.EX2" in text) == (config.activation == "silu")


@pytest.mark.compile
@pytest.mark.parametrize("config", UPDATE, ids=str)
def test_machine_code_of_update(config, disassembler):
    kernels = check(config)
    assert ("Vector" in str(kernels.keys())) == (config.state_length > 0)
    for name, texts in kernels.items():
        if name.startswith("Vector"):
            per_row = 1 + config.state_length
            rows = config.tile.compact_rows if config.state == "compact" else config.tile.rows
            assert loads(texts[0]) >= rows * per_row
            assert len(re.findall(r"STG\.E\S*\.128", texts[0])) == rows * per_row


# --- what selects a kernel: no compiler needed -----------------------------------------------------------------------


def problem(attributes, arrays):
    """A bound problem of (dtype, shape, stride) by name, None for the absent."""
    device = Device("cuda", 0)
    descs, plans = [], []
    for name, array in arrays.items():
        if array is None:
            descs.append(None)
            continue
        dtype, shape, *stride = array
        stride = stride[0] if stride else contiguous_stride(shape)
        descs.append(TensorDesc.of(dtype, shape, stride, "cuda:0", name))
        plans.append(OperandPlan(name, dtype, "native"))
    signature = Signature("causal-conv/test", tuple(plans), tuple(attributes.items()))
    return Problem(signature, {}, device, tuple(descs), ())


def forward_problem(shape=(2, 64, 100), stride=None, **changes):
    _, d, _ = shape
    stride = stride or contiguous_stride(shape)
    arrays = {
        "x": (B, shape, stride),
        "weight": (B, (d, 4)),
        "bias": (B, (d,)),
        "seq_idx": None,
        "cu_seqlens": None,
        "initial_states": None,
        "out": (B, shape, stride),
        "final_states": None,
    }
    return problem({"activation": "silu", "return_final_states": False}, arrays | changes)


def test_extents_select_nothing():
    configs = {
        configure_forward(forward_problem((b, d, t)))
        for b in (1, 3)
        for d in (2, 64)
        for t in (2, 77)
    }
    assert configs == {ForwardConv(B, B, B, 4, "silu", "t")}


@pytest.mark.parametrize(
    ("shape", "stride", "layout"),
    [
        ((2, 64, 100), (6400, 100, 1), "t"),
        ((2, 64, 100), (6400, 1, 64), "d"),
        ((2, 64, 100), (12800, 200, 2), "any"),
        ((2, 64, 100), (9999, 103, 1), "t"),
        ((2, 64, 1), (64, 1, 10**9), "t"),
        ((2, 1, 100), (100, 7, 1), "t"),
        ((2, 1, 100), (200, 7, 2), "d"),
        ((2, 64, 100), (1, 200, 2), "any"),
    ],
)
def test_layout(shape, stride, layout):
    assert configure_forward(forward_problem(shape, stride)).layout == layout
    assert layout_of((shape, stride)) == layout


def test_layout_needs_both_arrays():
    mixed = forward_problem(out=(B, (2, 64, 100), (6400, 1, 64)))
    assert configure_forward(mixed).layout == "any"


def test_optional_operands_and_dtypes_select():
    full = forward_problem(
        (1, 64, 100),
        weight=(F, (64, 5)),
        bias=None,
        cu_seqlens=("int32", (4,)),
        initial_states=(B, (3, 64, 4)),
        final_states=(B, (3, 64, 4)),
    )
    expected = ForwardConv(
        B, F, None, 5, "silu", "t", has_cu_seqlens=True, has_initial=True, has_final=True
    )
    got = configure_forward(full)
    assert got == expected
    assert got.names == (
        "x",
        "weight",
        "cu_seqlens",
        "initial_states",
        "out",
        "final_states",
    )


def update_problem(state, width=4, **changes):
    n, d = 3, 64
    arrays = {
        "x": (B, (n, d, 1)),
        "conv_state": state,
        "weight": (B, (d, width)),
        "bias": None,
        "cache_seqlens": None,
        "conv_state_indices": None,
        "out": (B, (n, d, 1)),
    }
    return problem({"activation": "identity"}, arrays | changes)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ((B, (8, 64, 3)), ("compact", 3)),
        ((B, (8, 64, 4)), ("compact", 4)),
        ((B, (8, 64, 3), (64 * 3 + 8, 3, 1)), ("compact", 3)),
        ((B, (8, 64, 3), (192, 1, 64)), ("d", 3)),
        ((B, (8, 64, 5)), ("any", 0)),
        ((B, (8, 64, 3), (512, 8, 2)), ("any", 0)),
    ],
)
def test_form_of_the_state(state, expected):
    config = configure_update(update_problem(state))
    assert (config.state, config.state_length) == expected


def test_wide_filters_have_one_kernel_for_all_states():
    assert configure_update(update_problem((B, (8, 64, 30)), width=31)).state == "any"


@pytest.mark.parametrize("config", [FORWARD[0], UPDATE[0]])
def test_every_field_is_in_the_key(config):
    """Two configurations that differ in one field have different digests."""
    digests = {source_of(config).digest}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "tile":
            other = replace(value, threads=256)
        else:
            other = (not value) if isinstance(value, bool) else (value or 0) * 2 or "other"
        digests.add(source_of(replace(config, **{field.name: other})).digest)
    assert len(digests) == 1 + len(fields(config))


def test_planning_loads_neither_compiler_nor_framework():
    code = (
        "import sys; from cudnn_causal_conv.kernels import config, host;"
        "assert not {'torch', 'cutlass', 'tvm_ffi', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
