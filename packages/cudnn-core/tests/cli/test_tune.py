"""`cudnn bench --tune`: what it lists, measures, shows and refuses. The fit is tested with core's benchmarks."""

import json

import pytest

from cudnn_core.bench import tables
from cudnn_core.bench.fit import Timed
from cudnn_core.bench.tuning import Sweep
from cudnn_core.hopper.rules import Rule
from cudnn_core.hopper.tile import TileConfig
from cudnn_core.testing.tiers import why_no_hopper

# Kernels of the fake family compile, which takes seconds and says nothing here.
UNCACHED = {"CUDNN_CACHE": "0"}
RULES = (
    Rule(TileConfig(bm=128, bn=128), 0.9, 100),
    Rule(TileConfig(bm=256, bn=128), 1.0, 300),
    Rule(TileConfig(bm=64, bn=256, orientation="swapped", warpgroups=4), 0.5, 60, 4, 900, 64),
)


@pytest.fixture
def stored(tmp_path):
    """A file of one table, whose times the rules themselves have made."""
    problems = [(m, n, k) for n, k in ((4096, 4096), (28672, 2048)) for m in (16, 64, 512, 8192)]
    timed = tuple(
        Timed(
            problem,
            tuple(
                None
                if rule.most_rows is not None and problem[0] > rule.most_rows
                else 5e-6 + 1e-11 * rule.cost(*problem, 1, 132)
                for rule in RULES
            ),
            None if problem[0] == 512 else 1,
        )
        for problem in problems
    )
    dropped = {"128x256 s4": "NotImplementedError: the rings [need] more"}
    sweep = Sweep("bf16xbf16", "DIRECT", RULES, 2, timed, 132, 2, dropped)
    facts = {"torch": "2.11.0", "dsl": "4.8.1", "date": "2026-12-02"}
    path = tmp_path / "tune.json"
    tables.write(path, [tables.entry(sweep, "NVIDIA H200", RULES[:1], facts)])
    return path


def words(done):
    return [line.split() for line in done.stdout.splitlines()]


def printed_table(done, name):
    """The table that was printed, as Python has it."""
    names = {"Rule": Rule, "TileConfig": TileConfig}
    text = done.stdout[done.stdout.index(f"{name} = (") :]
    exec(text[: text.index("\n)") + 2], names)
    return names[name]


def test_listing_needs_no_gpu_and_loads_no_framework(command):
    done = command("bench", "fake", "--tune", "--list")
    assert done.returncode == 0, done.stderr
    assert "f32xf32 FAKE 2 3 3".split() in words(done)
    assert "f32xf32 FAKE 2 3 1".split() in words(
        command("bench", "fake", "--tune", "--list", "--quick")
    )
    code = (
        "import sys\nfrom cudnn_core.cli import main\n"
        "try:\n    main(['bench', '--tune', '--list'])\n"
        "except SystemExit as done:\n    assert not done.code\n"
        "print([m for m in ('torch', 'jax', 'cutlass') if m in sys.modules])"
    )
    assert command(code=code).stdout.splitlines()[-1] == "[]"


def test_show_fits_a_stored_sweep_again(command, stored):
    done = command("bench", "--tune", "--show", str(stored))
    assert done.returncode == 0, done.stderr
    lines = words(done)
    assert "DIRECT by bf16xbf16 on NVIDIA H200, 2026-12-02: 3 tiles, 8 problems".split() == lines[0]
    assert "128x128 s4 - 0.9 100 - 0.0 stays".split() in lines
    assert "256x128 s4 - 1 300 - 0.0 goes".split() in lines
    (short,) = (line for line in lines if line[:3] == ["64x256", "w4", "s4/4"])
    assert short[4:6] == ["<=", "64"] and short[-1] == "comes"
    assert any(line[0] == "512,4096,4096" and "not" in line for line in lines if line)
    assert "left out: 128x256 s4: NotImplementedError: the rings [need] more" in done.stdout
    assert "Regret, now: median" in done.stdout and "not measured at 2 of 8 problems" in done.stdout
    assert "Regret, refitted: median 0.0 %, worst" in done.stdout
    table = printed_table(done, "DIRECT")
    assert [rule.tile for rule in table] == [RULES[0].tile, RULES[2].tile]
    assert table[0].speed == pytest.approx(0.9, abs=0.01) and "\x1b" not in done.stdout


@pytest.mark.parametrize("columns", [60, 80])
def test_narrow_terminals_keep_numbers_whole(command, stored, columns):
    done = command("bench", "--tune", "--show", str(stored), COLUMNS=str(columns))
    above = done.stdout[: done.stdout.index("left out")]
    assert max(map(len, above.splitlines())) <= columns
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout
    first = {line[0] for line in words(done) if line}
    assert {"8192,4096,4096", "8192,28672,2048"} <= first
    # Code is to be pasted, so its lines are not folded.
    assert len(printed_table(done, "DIRECT")) == 2


def test_a_run_checks_measures_fits_and_writes(command, on_the_host, tmp_path):
    path = tmp_path / "tune.json"
    run = ("bench", "fake", "--tune", "--quick", "--json", str(path))
    done = command(*run, code=on_the_host, **UNCACHED)
    assert done.returncode == 0, done.stderr
    assert "FAKE by f32xf32 on NVIDIA H200: 3 tiles, 1 problem\n" in done.stdout
    assert len(printed_table(done, "FAKE")) == 1 and f"Times: {path}" in done.stdout
    (entry,) = tables.read(path)
    assert len(entry["times"]) == 1 and entry["known"] == 2 and entry["times"][0]["now"] == 1
    done = command(*run[:3], *run[4:], code=on_the_host, **UNCACHED)
    (entry,) = json.loads(path.read_text())
    assert [row["problem"][0] for row in entry["times"]] == [128, 1024, 4096]
    again = command("bench", "--tune", "--show", str(path))
    assert printed_table(again, "FAKE") == printed_table(done, "FAKE")


def test_a_wrong_tile_is_left_out_and_fails_the_command(command, on_the_host, tmp_path):
    path = tmp_path / "tune.json"
    run = ("bench", "fake", "--tune", "--quick", "--json", str(path))
    done = command(*run, code=on_the_host, FAKE_WRONG="1", **UNCACHED)
    assert done.returncode == 1 and "left out: 256x128 s4: WRONG: c is off" in done.stdout
    assert [rule["tile"]["bm"] for rule in json.loads(path.read_text())[0]["rules"]] == [128, 128]


def test_check_times_nothing(command, on_the_host, tmp_path):
    path = tmp_path / "tune.json"
    run = ("bench", "fake", "--tune", "--check", "--json", str(path))
    done = command(*run, code=on_the_host, **UNCACHED)
    assert done.returncode == 0
    assert "f32xf32: 3 tiles right; nothing was timed." in done.stdout
    assert not path.exists()
    done = command(*run, code=on_the_host, FAKE_WRONG="1", **UNCACHED)
    assert done.returncode == 1 and "2 tiles right" in done.stdout


def test_what_is_compiled_ahead(fake_family):
    """Each kernel once, whatever tables share it; in the same order everywhere."""
    from cudnn_core.cli import tune

    found = tune.kernels("fake", ("f32xf32",))
    assert [label for label, _ in found] == ["f32xf32 128x128 s4", "f32xf32 128x128 s4 k4"]
    assert tune.kernels("fake", ("other",)) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("bench", "--tune"), "name a family to tune; those with tables of tiles: fake"),
        (
            ("bench", "formats", "--tune"),
            "formats has no table of tiles to tune; families that have: fake",
        ),
        (("bench", "nosuch", "--tune"), "unknown family 'nosuch'"),
        (("bench", "fake", "--tune", "--case", "nosuch"), "fake: no table is selected"),
        (("bench", "fake", "--tune", "--peers", "mm"), "--op, --peers and --plot"),
        (("bench", "fake", "--tune", "--op", "scale"), "--op, --peers and --plot"),
        (("bench", "--tune", "--show", "nosuch.json"), "nosuch.json: No such file or directory"),
        (("bench", "--tune", "--show", __file__), "expected a JSON list of sweeps"),
    ],
)
def test_refusals_say_what_was_wrong(command, arguments, told):
    done = command(*arguments)
    assert done.returncode == 2 and told in done.stderr
    assert "Traceback" not in done.stderr


def test_rows_of_a_benchmark_are_no_sweeps(command, on_the_host, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("[{}]")
    done = command("bench", "fake", "--tune", "--json", str(path), code=on_the_host)
    assert done.returncode == 2 and "as cudnn bench --tune --json writes" in done.stderr
    assert path.read_text() == "[{}]" and done.stdout == ""


def test_show_selects_by_operands_and_table(command, stored):
    for text in ("bf16", "DIRECT"):
        assert command("bench", "--tune", "--show", str(stored), "--case", text).returncode == 0
    done = command("bench", "--tune", "--show", str(stored), "--case", "fp8")
    assert done.returncode == 2 and "no table is selected" in done.stderr


@pytest.mark.skipif(why_no_hopper() is None, reason="a Hopper GPU is here")
def test_without_a_gpu_the_reason_is_told(command):
    done = command("bench", "fake", "--tune")
    assert done.returncode == 2 and "nothing can be measured here: no" in done.stderr
