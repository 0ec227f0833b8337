"""Rows: their schema, files and verdicts. The committed files are read too, where the repository is at hand."""

import json
from pathlib import Path

import pytest

from cudnn_core.bench import results

ROOT = Path(__file__).resolve().parents[4]
COMMITTED = sorted((ROOT / "benchmarks" / "results").glob("*/*.json"))


def row(**changes):
    return {
        "op": "dense/amax",
        "case": "8,8,8",
        "dtype": "bf16xnvfp4->bf16",
        "ours_us": 10.0,
        "host_us": None,
        "peers": {"chain": 18.0},
        "targets": {"torch.mm": 0.92, "chain": 1.9, "gone": 1.0},
        "bounds": {"torch.mm": 9.2, "copy": 1.0},
        "tflops": 500.0,
        "tb_s": None,
        "roofline": 0.9,
        "torch": "2.11.0",
        "dsl": "4.8.1",
        "date": "2026-12-01",
        **changes,
    }


def test_comparisons_judge_what_was_measured():
    found = {c.name: (c.us, c.ratio, c.target, c.met) for c in results.comparisons(row())}
    assert found == {
        "torch.mm": (9.2, 0.92, 0.92, True),
        "chain": (18.0, 1.8, 1.9, False),
        "gone": (None, None, 1.0, None),
        "copy": (1.0, 0.1, None, None),
    }
    assert list(found) == ["torch.mm", "chain", "gone", "copy"]


@pytest.mark.parametrize(("us", "met"), [(9.196, True), (9.194, False)])
def test_the_verdict_is_that_of_the_digits_shown(us, met):
    first = results.comparisons(row(bounds={"torch.mm": us}))[0]
    assert first.met is met and f"{first.ratio:.3f}" == ("0.920" if met else "0.919")


def test_rows_survive_a_file(tmp_path):
    path = tmp_path / "h200" / "dense.json"
    results.write(path, [row(), row(case="9,9,9")])
    assert results.read(path) == [row(), row(case="9,9,9")]
    assert path.read_text().endswith("]\n")


def test_new_rows_replace_their_own_kind_only():
    old = [row(case="1"), row(case="2"), row(case="2", dtype="other")]
    new = [row(case="2", ours_us=5.0), row(case="3")]
    merged = results.merge(old, new)
    assert [(r["case"], r["dtype"], r["ours_us"]) for r in merged] == [
        ("1", "bf16xnvfp4->bf16", 10.0),
        ("2", "bf16xnvfp4->bf16", 5.0),
        ("2", "other", 10.0),
        ("3", "bf16xnvfp4->bf16", 10.0),
    ]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ({}, "expected a list of rows, got dict"),
        ([[]], "row 0: expected the keys op, case, .*; got list"),
        ([row(), {**row(), "error": 1e-6}], "row 1: expected the keys .*date; got .*error"),
        ([{k: v for k, v in row().items() if k != "dsl"}], "row 0: expected the keys"),
        ([dict(reversed(row().items()))], "row 0: expected the keys"),
        ([row(ours_us=None)], "row 0: a value is of the wrong kind"),
        ([row(ours_us=float("nan"))], "row 0: a value is of the wrong kind"),
        ([row(host_us="3")], "row 0: a value is of the wrong kind"),
        ([row(peers={"torch.mm": None})], "row 0: a value is of the wrong kind"),
        ([row(op=3)], "row 0: a value is of the wrong kind"),
    ],
)
def test_what_is_no_row_is_refused_with_its_place(tmp_path, rows, told):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(results.BadRows, match=f"{path}: {told}"):
        results.read(path)
    with pytest.raises(results.BadRows):
        results.write(tmp_path / "never.json", rows)
    assert not (tmp_path / "never.json").exists()


@pytest.mark.parametrize("text", [None, "[1,"])
def test_files_that_cannot_be_read(tmp_path, text):
    path = tmp_path / "rows.json"
    if text:
        path.write_text(text)
    with pytest.raises(results.BadRows, match="rows.json"):
        results.read(path)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_committed_results_follow_the_schema(path):
    rows = results.read(path)
    assert len({results.identity(row) for row in rows}) == len(rows)


def test_versions_name_what_is_installed():
    found = results.versions()
    assert list(found) == ["torch", "dsl", "date"] and len(found["date"]) == 10


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    path.write_text("[]")

    def full(self, target):
        raise OSError("no space")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match="no space"):
        results.write(path, [])
    assert path.read_text() == "[]"
