"""`cudnn cache`: what it lists, what it removes, and that it asks first."""

import json
import sys

import pytest

from cudnn_core.cli import stored

pytest.importorskip("fcntl")

PLAN = (
    "cudnn_core.plan.Plan(op='dense/amax', engine='hopper', arch='sm_90a', "
    "config=cudnn_gemm_dense.kernels.Config(a=cudnn_core.hopper.Side.MXFP8, tile=(128, 256,)))"
)


def write(tmp_path, digest, plan):
    """An entry in the folder that `command` uses."""
    from cudnn_core.cache.disk import Folder

    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = tmp_path / "kernel.so"
    made.write_bytes(b"x" * 2048)
    meta = {
        "name": "gemm_amax",
        "digest": digest,
        "arch": "sm_90a",
        "symbol": "s",
        "seconds": 3.25,
        "description": {"plan": plan},
    }
    return Folder(folder).write(f"gemm_amax-{digest}", made, meta)


@pytest.fixture
def entry(tmp_path):
    return write(tmp_path, "0" * 64, PLAN)


def test_an_empty_cache_is_said_to_be_empty(command, tmp_path):
    assert command("cache").stdout == f"No kernel in {tmp_path / 'kernels'}\n"


@pytest.mark.parametrize("arguments", [("cache",), ("cache", "show")])
def test_entries_and_totals(command, entry, arguments):
    done = command(*arguments, COLUMNS="200")
    head, _, row, _, totals = done.stdout.splitlines()
    assert head.split() == ["kernel", "arch", "size", "compiled", "in", "age", "configuration"]
    assert row.split()[:4] == ["gemm_amax", "sm_90a", "2.0", "KiB"]
    assert row.endswith("  a=MXFP8 tile=(128, 256)")
    assert totals.startswith("1 kernel, 2.0 KiB, compiled in 3.25 s, in ")


def test_what_all_kernels_share_is_said_once(command, entry, tmp_path):
    write(tmp_path, "1" * 64, PLAN.replace("MXFP8", "NVFP4"))
    _, _, first, second, _, common, _, totals = command("cache", COLUMNS="200").stdout.splitlines()
    assert first.split()[-1] == "a=MXFP8" and second.split()[-1] == "a=NVFP4"
    assert common == "All of gemm_amax: tile=(128, 256)"
    assert totals.startswith("2 kernels, 4.0 KiB, compiled in 6.50 s")


def test_kernels_that_share_nothing_are_shown_whole(command, tmp_path):
    for digit, plan in (("0", "m.Key(a=1)"), ("1", "m.Key(b=1)")):
        write(tmp_path, digit * 64, plan)
    text = command("cache").stdout
    assert "a=1" in text and "b=1" in text and "All of" not in text


@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        (PLAN, {"a": "MXFP8", "tile": "(128, 256)"}),
        (
            "m.Key(a='x', b=m.n.Tile(bm=1, bn=None), c=0.5)",
            {"a": "x", "b.bm": "1", "b.bn": "None", "c": "0.5"},
        ),
        ("('dense', 1,)", {"": "('dense', 1)"}),
        ("m.Key()", {"": "Key()"}),
    ],
)
def test_plans_are_read(plan, settings):
    assert stored.read_settings(plan) == settings


def test_damaged_entries_are_counted(command, entry):
    entry.path.write_bytes(b"y")
    (entry.path.parent / "other.json").write_text(json.dumps({}))
    done = command("cache")
    assert "2 entries do not verify" in done.stdout


def test_narrow_terminals_fold_the_configuration(command, entry):
    lines = command("cache", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    start = lines[0].index("configuration")
    folded = "".join(line[start:] for line in lines[2:-2])
    assert folded.split() == ["a=MXFP8", "tile=(128,", "256)"]


def test_clear_asks_and_takes_no_for_an_answer(command, entry):
    done = command("cache", "clear", stdin="n\n")
    assert "Remove 1 kernel (2.0 KiB)" in done.stdout and "Nothing removed." in done.stdout
    assert entry.path.exists()


def test_clear_removes_nothing_when_nobody_answers(command, entry):
    assert command("cache", "clear").returncode != 0
    assert entry.path.exists()


def test_clear_removes_when_agreed(command, entry):
    done = command("cache", "clear", stdin="y\n")
    assert "Removed 1 kernel" in done.stdout and not entry.path.exists()


def test_yes_does_not_ask(command, entry):
    done = command("cache", "clear", "--yes")
    assert done.stdout.startswith("Removed 1 kernel") and not entry.path.exists()
    assert command("cache", "clear", "--yes").stdout.startswith("Nothing to remove")


def test_a_cache_that_is_off_is_no_error_without_words(command):
    done = command("cache", CUDNN_CACHE="0")
    assert done.returncode == 2 and "cudnn doctor says more" in done.stderr


def test_other_systems_are_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(stored.NoCache, match="Linux only; this is win32"):
        stored.show()
