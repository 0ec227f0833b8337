"""Files of sweeps, and rules written as Python."""

import json

import pytest

from cudnn_core.bench import tables
from cudnn_core.bench.fit import Timed
from cudnn_core.bench.results import BadRows
from cudnn_core.bench.tuning import Sweep
from cudnn_core.hopper.rules import DIRECT, PROMOTED, Rule
from cudnn_core.hopper.tile import TileConfig

FACTS = {"torch": "2.11.0", "dsl": "4.8.1", "date": "2026-12-02"}
SWAPPED = TileConfig(
    bm=64, bn=256, orientation="swapped", warpgroups=4, stages=8, raw_stages=7, promote_k=4096
)
RULES = (*DIRECT, Rule(SWAPPED, 0.123, 45, 4, 1500, most_rows=64))
SWEEP = Sweep(
    "a x b",
    "TABLE",
    RULES,
    4,
    (
        Timed((64, 4096, 4096), (1e-5, 2e-5, 3e-5, 4e-5, None), 0),
        Timed((8192, 4096, 4096), (1e-3, None, 3e-3, 4e-3, 2e-3), None),
    ),
    132,
    6,
    {"256x128 s4": "NotImplementedError: no room"},
)


def an_entry(**changes):
    return tables.entry(SWEEP, "NVIDIA H200", RULES[:1], FACTS) | changes


def test_a_sweep_survives_its_file(tmp_path):
    path = tmp_path / "new" / "tune.json"
    tables.write(path, [an_entry()])
    (found,) = tables.read(path)
    assert tables.sweep_of(found) == SWEEP
    assert found["refitted"] == [tables._plain(RULES[0])]
    assert (found["gpu"], found["date"]) == ("NVIDIA H200", "2026-12-02")
    assert list(tmp_path.rglob("*.new")) == []


def test_a_table_measured_again_replaces_itself():
    old = [an_entry(), an_entry(name="c x d")]
    merged = tables.merge(old, [an_entry(date="2027-01-01"), an_entry(table="OTHER")])
    assert [(one["name"], one["table"], one["date"]) for one in merged] == [
        ("a x b", "TABLE", "2027-01-01"),
        ("c x d", "TABLE", "2026-12-02"),
        ("a x b", "OTHER", "2026-12-02"),
    ]


def times(us, now=0):
    return [{"problem": [64, 64, 64], "us": us, "now": now}]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {**an_entry(), "more": 1},
        an_entry(times=times([1.0])),
        an_entry(times=times([0.0, 1.0, 1.0, 1.0, 1.0])),
        an_entry(times=times(["1", 1.0, 1.0, 1.0, 1.0])),
        an_entry(times=times([None] * 5)),
        an_entry(times=times([1.0] * 5, now=5)),
        an_entry(times=[{"problem": [64, 64]}]),
        an_entry(rules=[{"tile": {"height": 8}, "speed": 1, "lag": 1}]),
    ],
    ids=range(9),
)
def test_other_files_are_refused(tmp_path, entry):
    path = tmp_path / "tune.json"
    path.write_text(json.dumps([entry]))
    with pytest.raises(BadRows, match="expected a list of sweeps, as cudnn bench --tune --json"):
        tables.read(path)


@pytest.mark.parametrize(("text", "told"), [("{", "expected a JSON list"), (None, "No such file")])
def test_files_that_cannot_be_read(tmp_path, text, told):
    path = tmp_path / "tune.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadRows, match=told):
        tables.read(path)


@pytest.mark.parametrize("rules", [RULES, *PROMOTED.values()])
def test_what_is_printed_is_the_table(rules):
    names = {"Rule": Rule, "TileConfig": TileConfig}
    text = tables.python("TABLE", rules)
    exec(text, names)
    assert names["TABLE"] == rules
    assert max(map(len, text.splitlines())) <= tables.LINE


def test_rules_are_laid_out_as_the_formatter_would():
    text = tables.python("TABLE", (Rule(TileConfig(), 1.0, 64), RULES[-1]))
    assert text == (
        "TABLE = (\n"
        "    Rule(TileConfig(bm=256, bn=128), 1.0, 64),\n"
        "    Rule(\n"
        "        TileConfig(\n"
        "            bm=64,\n"
        "            bn=256,\n"
        "            warpgroups=4,\n"
        '            orientation="swapped",\n'
        "            stages=8,\n"
        "            raw_stages=7,\n"
        "            promote_k=4096,\n"
        "        ),\n"
        "        0.123,\n"
        "        45,\n"
        "        split=4,\n"
        "        join=1500,\n"
        "        most_rows=64,\n"
        "    ),\n"
        ")"
    )
