"""The backward kernels without a GPU: what selects them, their workspaces, and their machine code for sm_90a."""

import re
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from cudnn_causal_conv.kernels.config import BackwardConv
from cudnn_causal_conv.kernels.host_backward import (
    configure_backward,
    partials_bytes,
    source_backward,
    splits_of,
    workspaces_backward,
)
from cudnn_core.contract import OperandPlan, Problem, Signature
from cudnn_core.plan import Plan
from cudnn_core.tensor_desc import Device, TensorDesc, contiguous_stride
from cudnn_core.testing import machine_code

B, H, F = "bfloat16", "float16", "float32"
STATES = {"has_initial": True, "has_dfinal": True, "has_dinitial": True}
CONFIGS = [
    BackwardConv(B, B, B, 4, "silu", "t"),
    BackwardConv(B, B, B, 4, "silu", "d"),
    BackwardConv(B, F, F, 4, "identity", "any"),
    BackwardConv(H, H, None, 2, "silu", "t", **STATES),
    BackwardConv(H, F, F, 3, "identity", "d", has_seq_idx=True),
    BackwardConv(F, F, F, 8, "silu", "t", has_cu_seqlens=True, **STATES),
    BackwardConv(F, B, H, 8, "identity", "d", has_cu_seqlens=True, **STATES),
    BackwardConv(B, B, None, 7, "silu", "t", has_seq_idx=True),
    BackwardConv(B, H, B, 9, "silu", "t", has_cu_seqlens=True, has_dfinal=True),
    BackwardConv(F, F, None, 256, "identity", "d", **STATES),
]


def source_of(config):
    return source_backward(Plan("conv/backward", "hopper", "sm_90a", config))


def kernels_of(sass):
    """Kernel's class -> its listings."""
    found = {}
    pattern = "TokenRows|ChannelColumns|WideRows|WideInitialStates|InitialStates|Names|Sums"
    for part in re.split(r"\n\s*\.section\s+\.text\.", sass)[1:]:
        found.setdefault(re.search(pattern, part).group(0), []).append(part)
    return found


@pytest.mark.compile
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_machine_code(config):
    if machine_code.find_disassembler() is None:
        pytest.skip("no nvdisasm here")
    sass = machine_code.disassemble(machine_code.object_code(source_of(config).build))
    assert machine_code.spills(sass) == 0
    # Subnormals live through sums and products; only the two approximate instructions of SiLU flush.
    assert not re.findall(r"\b(?:FMUL|FFMA|FADD|F2F|F2FP)\S*FTZ", sass)
    assert not re.findall(r"\b(?:RED|ATOM|ATOMG|ATOMS)\b", sass), "sums in an order of chance"
    kernels = kernels_of(sass)
    wide = config.width > 8
    main = "WideRows" if wide else "ChannelColumns" if config.layout == "d" else "TokenRows"
    expected = {main: 1 if wide or config.layout == "any" else 2, "Sums": 1}
    if config.has_cu_seqlens:
        expected["Names"] = 1
    if config.has_dinitial:
        expected["WideInitialStates" if wide else "InitialStates"] = 1
    assert {name: len(texts) for name, texts in kernels.items()} == expected
    assert all(("MUFU.EX2" in t) == (config.activation == "silu") for t in kernels[main])
    if expected[main] == 2:
        check_widths(config, kernels[main])


def check_widths(config, kernels):
    """One of the two kernels copies ahead: 16 bytes of tokens, or the channels of a thread at once."""
    width = "" if config.layout == "d" else r"\S*\.128"
    found = [len(re.findall(rf"LDGSTS\.E{width}", text)) for text in kernels]
    assert min(found) == 0 and max(found) >= 2


# --- what selects a kernel: no compiler needed -----------------------------------------------------------------------


def problem(shape=(2, 64, 100), stride=None, activation="silu", **changes):
    """A bound problem; arrays are (dtype, shape, stride) by name, None for the absent."""
    _, d, _ = shape
    stride = stride or contiguous_stride(shape)
    arrays = {
        "x": (B, shape, stride),
        "weight": (B, (d, 4)),
        "bias": (B, (d,)),
        "seq_idx": None,
        "cu_seqlens": None,
        "initial_states": None,
        "dout": (B, shape),
        "dfinal_states": None,
        "dx": (B, shape, stride),
        "dweight": (B, (d, 4)),
        "dbias": (B, (d,)),
        "dinitial_states": None,
    }
    descs, plans = [], []
    for name, array in (arrays | changes).items():
        if array is None:
            descs.append(None)
            continue
        dtype, extents, *steps = array
        steps = steps[0] if steps else contiguous_stride(extents)
        descs.append(TensorDesc.of(dtype, extents, steps, "cuda:0", name))
        plans.append(OperandPlan(name, dtype, "native"))
    signature = Signature("causal-conv/test", tuple(plans), (("activation", activation),))
    return Problem(signature, {}, Device("cuda", 0), tuple(descs), ())


def test_extents_select_nothing():
    configs = {
        configure_backward(problem((b, d, t))) for b in (1, 3) for d in (2, 64) for t in (2, 77)
    }
    assert configs == {BackwardConv(B, B, B, 4, "silu", "t")}


def test_strides_of_the_gradient_select_nothing():
    strided = problem(dout=(B, (2, 64, 100), (6400, 1, 64)))
    assert configure_backward(strided) == configure_backward(problem())


@pytest.mark.parametrize(
    ("stride", "layout"),
    [((6400, 100, 1), "t"), ((6400, 1, 64), "d"), ((12800, 200, 2), "any")],
)
def test_layout_of_the_input_selects(stride, layout):
    assert configure_backward(problem(stride=stride)).layout == layout


def test_optional_operands_and_dtypes_select():
    full = problem(
        (1, 64, 100),
        weight=(F, (64, 5)),
        bias=None,
        dbias=None,
        dweight=(F, (64, 5)),
        cu_seqlens=("int32", (4,)),
        initial_states=(B, (3, 64, 4)),
        dfinal_states=(B, (3, 64, 4)),
        dinitial_states=(B, (3, 64, 4)),
    )
    got = configure_backward(full)
    assert got == BackwardConv(B, F, None, 5, "silu", "t", has_cu_seqlens=True, **STATES)
    assert got.names == (
        "x",
        "weight",
        "cu_seqlens",
        "initial_states",
        "dout",
        "dfinal_states",
        "dx",
        "dweight",
        "dinitial_states",
        "partials",
        "sequences",
    )


@pytest.mark.parametrize("layout", ["t", "d", "any"])
@pytest.mark.parametrize("width", [4, 9])
def test_workspaces_hold_whole_splits(layout, width):
    config = BackwardConv(B, B, B, width, "silu", layout)
    for b in (0, 1, 3, 64):
        for d in (0, 1, 63, 5120):
            for t in (0, 1, 130, 16384):
                splits = splits_of(config, b, d, t)
                assert splits >= 1
                nbytes = partials_bytes(config, splits, d)
                flags = 8 * (d // 32 + 2) if config.has_flags else 0
                assert nbytes == (4 * (width + 1) * d + flags) * splits < 2**27


def test_flags_are_for_the_kernel_that_adds():
    found = {(y, w): BackwardConv(B, B, B, w, "silu", y).has_flags for y in "td" for w in (4, 9)}
    assert found == {("t", 4): False, ("t", 9): False, ("d", 4): True, ("d", 9): False}


def test_rows_are_split_where_channels_are_few():
    config = BackwardConv(B, B, B, 4, "silu", "t")
    assert splits_of(config, 8, 4096, 4096) == splits_of(config, 64, 5120, 128) == 1
    assert splits_of(config, 1, 64, 2**20) == 4
    assert splits_of(config, 1, 1, 4096) == 1


def test_packed_sequences_have_a_workspace_of_their_own():
    packed = problem((1, 64, 100), cu_seqlens=("int32", (4,)))
    assert [w.nbytes for w in workspaces_backward(packed)][1:] == [400]
    assert not any(w.zeroed for w in workspaces_backward(packed))
    assert len(workspaces_backward(problem())) == 1


@pytest.mark.parametrize("shape, nbytes", [((1, 2048, 2048), 0), ((64, 64, 130), 4 * 5 * 64)])
def test_a_single_split_has_no_workspace(shape, nbytes):
    (made,) = workspaces_backward(problem(shape))
    splits = splits_of(configure_backward(problem(shape)), *shape)
    assert made.nbytes == (splits > 1) * splits * nbytes
    assert (splits == 1) == (nbytes == 0)


def test_every_field_is_in_the_key():
    """Two configurations that differ in one field have different digests."""
    config = CONFIGS[0]
    digests = {source_of(config).digest}
    for field in fields(config):
        value = getattr(config, field.name)
        other = (not value) if isinstance(value, bool) else value * 2
        digests.add(source_of(replace(config, **{field.name: other})).digest)
    assert len(digests) == 1 + len(fields(config))


def test_planning_loads_neither_compiler_nor_framework():
    code = (
        "import sys; from cudnn_causal_conv.kernels import host_backward;"
        "assert not {'torch', 'cutlass', 'tvm_ffi', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
