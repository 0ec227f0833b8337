"""`cudnn demo` as a newcomer runs it: the real input, every built operation, on the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cudnn
from cudnn_core.cli import families, places, protocol

pytest.importorskip("typer")
pytest.importorskip("rich")

FORMATS = ("mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4")


@pytest.fixture(scope="module")
def block():
    return protocol.feed_forward()


@pytest.fixture(scope="module")
def demos():
    found = {family.name: family.demo() for family in families.installed()}
    return {name: module for name, module in found.items() if module is not None}


@pytest.fixture(scope="module")
def costs(demos, block):
    (study,) = demos["gemm-dense"].studies(places.Host(), block)
    rows = list(study.rows())
    assert len(rows) == study.steps
    return study, {cost.name: (cells, cost) for cells, cost in rows}


def run(*arguments, columns):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        [sys.executable, "-c", CODE, "demo", "--engine=reference", "--repeat=1", *arguments],
        env=environment | {"COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        timeout=600,
    )


# `python -m cudnn`, and then which of the modules that a CPU user need not have were loaded.
CODE = """
import runpy, sys
try:
    runpy.run_module("cudnn", run_name="__main__")
except SystemExit as stopped:
    found = [m for m in ("torch", "jax", "tvm_ffi", "cutlass") if m in sys.modules]
    print("loaded:", *found)
    sys.exit(stopped.code)
"""


def test_demo_runs_on_numpy_alone_in_a_narrow_terminal():
    done = run(columns=80)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, loaded = done.stdout.splitlines()
    assert loaded == "loaded:"
    assert max(map(len, lines)) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f…]", done.stdout), "cut cells or control codes"
    rows = [line.split() for line in lines if line.startswith("dense/amax")]
    assert [row[1] for row in rows] == ["reference"] * 8
    assert [row[2] for row in rows] == ["306x1536x384"] * 4 + ["512x512x512"] * 4
    assert [row[3] for row in rows] == [*FORMATS, *FORMATS]
    assert all(float(row[4]) <= 2e-5 and float(row[6]) <= 1e-5 for row in rows)
    assert all(re.match(r"\[\d+/\d+\] ", line) for line in done.stderr.splitlines()), done.stderr


def test_every_built_operation_is_in_the_demo(demos, block):
    shown = {case.op for module in demos.values() for case in module.cases(places.Host(), block)}
    built = {op.contract.name for family in families.installed() for op in family.ops()}
    assert built and shown == built


def test_without_the_real_input_random_numbers_remain(demos):
    for module in demos.values():
        assert {case.source for case in module.cases(places.Host(), None)} == {"N(0, 1)"}
        if hasattr(module, "studies"):
            assert list(module.studies(places.Host(), None)) == []


def test_a_case_reports_a_wrong_result(demos, block):
    case = next(iter(demos["gemm-dense"].cases(places.Host(), block)))
    trial = case.prepare()
    outputs = trial.call()
    good = trial.judge(outputs)
    outputs["c_tensor"][3, 5, 0] += 1.0
    outputs["amax_tensor"] *= 1.001
    bad = trial.judge(outputs)
    for name, allowed in case.tolerance.items():
        assert good[name] <= allowed < bad[name]


def test_input_and_its_attribution_are_carried(block):
    assert block.x.shape == (306, 384) and block.x.dtype == np.float16
    assert block.w_in.shape == (1536, 384) and block.w_out.shape == (384, 1536)
    assert block.b_in.dtype == np.float32 and block.b_out.shape == (384,)
    text = (Path(cudnn.__file__).parent / "data" / "README.md").read_text()
    assert "all-MiniLM-L6-v2" in text and "Apache" in text


def test_costs_of_the_formats(costs):
    _, rows = costs
    assert list(rows) == ["float32", "bfloat16", *FORMATS, "nvfp4+"]
    output = {name: cost.output for name, (_, cost) in rows.items()}
    order = ("float32", "bfloat16", "mxfp8", "mxfp8_e5m2", "nvfp4", "mxfp4")
    assert sorted(order, key=output.get) == list(order)
    assert output["float32"] < 1e-6 and output["mxfp8"] < 0.06 and output["mxfp4"] < 0.25
    for name in (*FORMATS, "nvfp4+"):
        cells, cost = rows[name]
        assert cost.kernel <= 2e-5 < cost.up < cost.output < cost.tokens.max()
        assert cells[0] == name and cells[2] != "-"


def test_torch_tensors_give_the_same_costs(demos, block, costs):
    pytest.importorskip("torch")
    place = places.TorchCuda("cpu")
    (study,) = demos["gemm-dense"].studies(place, block)
    for _, cost in study.rows():
        on_numpy = costs[1][cost.name][1]
        assert cost.output == pytest.approx(on_numpy.output, rel=1e-4)
        assert cost.tokens == pytest.approx(on_numpy.tokens, rel=1e-2)
    place.side = 128
    for case in demos["gemm-dense"].cases(place, None):
        trial = case.prepare()
        errors = trial.judge(trial.call())
        assert trial.engine == "reference" and all(e <= 1e-6 for e in errors.values())


def test_cost_of_mxfp8_is_that_of_an_independent_quantizer(costs, block):
    import ml_dtypes

    def rounded(matrix):
        blocks = matrix.astype(np.float64).reshape(len(matrix), -1, 32)
        amax = np.abs(blocks).max(axis=-1, keepdims=True)
        scale = np.exp2(np.ceil(np.log2(np.maximum(amax, 1e-30) / 448.0)))
        elements = (blocks / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
        return (elements.astype(np.float64) * scale).reshape(matrix.shape)

    exact = block.x.astype(np.float64) @ block.w_in.astype(np.float64).T
    got = rounded(block.x) @ rounded(block.w_in).T
    expected = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    assert costs[1]["mxfp8"][1].up == pytest.approx(expected, rel=1e-3)


def test_picture(costs, tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    study, rows = costs
    study.draw(figure, [cost for _, cost in rows.values()])
    left, right = figure.axes
    assert len(left.get_yticks()) == len(rows) and len(right.lines) == len(rows) - 1
    figure.savefig(tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.gpu
def test_hopper_runs_every_row():
    pytest.importorskip("torch")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-m", "cudnn", "demo"],
        env=environment | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("dense/")]
    assert len(rows) == 14 and {row[1] for row in rows} == {"hopper"}
