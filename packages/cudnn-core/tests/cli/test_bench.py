"""`cudnn bench`: what it selects, shows and refuses. The cases themselves are tested with their families."""

import json
from types import SimpleNamespace

import pytest

from cudnn_core.bench import measure, timing
from cudnn_core.cli import bench
from cudnn_core.testing.tiers import why_no_hopper

ROW = {
    "op": "fake/scale",
    "case": "3,4",
    "dtype": "f32->f32",
    "ours_us": 10.0,
    "host_us": None,
    "peers": {"slow [peer]": 12.0},
    "targets": {"slow [peer]": 1.25},
    "bounds": {"copy": 2.0},
    "tflops": 1.0,
    "tb_s": None,
    "roofline": 0.5,
    "torch": "2.11.0",
    "dsl": "4.8.1",
    "date": "2026-12-01",
}


@pytest.fixture
def rows_file(tmp_path):
    path = tmp_path / "fake.json"
    path.write_text(json.dumps([ROW, {**ROW, "case": "5,6", "ours_us": 8.0}]))
    return path


def words(done):
    return [line.split() for line in done.stdout.splitlines()]


def test_list_needs_no_gpu_and_says_what_is_built(command):
    done = command("bench", "fake", "--list")
    assert done.returncode == 0, done.stderr
    lines = words(done)
    assert "3,4 f32->f32 slow [peer] 0.1 built".split() in lines
    assert "3,4 f32->f32 not built".split() in lines[lines.index(["fake/planned"]) :]
    assert lines[-1][:4] == ["3", "cases,", "1", "of"]


def test_listing_loads_no_framework(command):
    code = (
        "import sys\nfrom cudnn_core.cli import main\n"
        "try:\n    main(['bench', '--list'])\nexcept SystemExit as done:\n    assert not done.code\n"
        "print([m for m in ('torch', 'jax', 'matplotlib', 'cutlass') if m in sys.modules])"
    )
    assert command(code=code).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("options", "cases"),
    [
        (("--case", "5"), {"5,6"}),
        (("--case", "f32"), {"3,4"}),
        (("--case", "5", "--case", "f32"), {"3,4", "5,6"}),
        (("--op", "planned"), {"3,4"}),
        (("--quick",), {"3,4"}),
    ],
)
def test_selection(command, options, cases):
    lines = words(command("bench", "fake", "--list", *options))
    assert {line[0] for line in lines if "->" in "".join(line)} == cases


def test_families_without_a_selected_case_are_left_out_of_a_listing_of_all(command):
    done = command("bench", "--list", "--op", "fake/planned")
    assert done.returncode == 0 and "1 case, 1 of them" in done.stdout
    done = command("bench", "--list", "--op", "nosuch")
    assert done.returncode == 2 and "cudnn: no case is selected" in done.stderr


def test_show_prints_verdicts_plainly(command, rows_file):
    done = command("bench", "--show", str(rows_file))
    assert done.returncode == 0, done.stderr
    lines = words(done)
    assert lines[0] == ["fake/scale"]
    assert "slow [peer] 12.0 1.200 1.25 MISSED".split() == lines[3][-6:]
    assert "slow [peer] 12.0 1.500 1.25 met".split() == lines[5][-6:]
    assert "Targets: 1 met, 1 missed." in done.stdout
    assert "\x1b" not in done.stdout


def test_narrow_tables_fold_names_and_keep_numbers(command, tmp_path):
    path = tmp_path / "rows.json"
    long = {
        "case": "2,8192,16384 channel-last call",
        "dtype": "mxfp8_e5m2xmxfp8_e5m2->bf16",
        "peers": {},
        "bounds": {"an empty autograd.Function + 12 us": 1234.5},
        "targets": {"an empty autograd.Function + 12 us": 0.85},
        "ours_us": 2345.6,
    }
    path.write_text(json.dumps([{**ROW, **long}]))
    done = command("bench", "--show", str(path), COLUMNS="80")
    assert (
        max(map(len, done.stdout.splitlines())) <= 80
        and "\N{HORIZONTAL ELLIPSIS}" not in done.stdout
    )
    assert words(done)[3][-4:] == ["1234", "0.526", "0.85", "MISSED"]
    assert "2346" in words(done)[3]


def test_show_draws(command, rows_file, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "fake.png"
    done = command("bench", "--show", str(rows_file), "--plot", str(picture))
    assert done.returncode == 0 and picture.read_bytes()[:4] == b"\x89PNG"


def test_a_run_checks_measures_writes_and_tells(command, on_the_host, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{**ROW, "case": "old"}, ROW]))
    done = command("bench", "fake", "--json", str(path), code=on_the_host)
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())
    assert [row["case"] for row in rows] == ["old", "3,4", "5,6"]
    assert rows[1]["date"] != "" and rows[1]["ours_us"] != 10.0
    assert "no lost (2 cases): it is not here" in done.stdout
    assert "not built: fake/planned (1 case): it is coming" in done.stdout
    assert "1 not measured" in done.stdout


def test_unwanted_peers_stay_out(command, on_the_host, tmp_path):
    path = tmp_path / "rows.json"
    done = command("bench", "fake", "--peers", "none", "--json", str(path), code=on_the_host)
    assert done.returncode == 0 and "not here" not in done.stdout
    assert [row["peers"] for row in json.loads(path.read_text())] == [{}, {}]


def test_only_what_has_a_target(command, on_the_host, tmp_path):
    path = tmp_path / "rows.json"
    done = command("bench", "fake", "--peers", "targets", "--json", str(path), code=on_the_host)
    assert done.returncode == 0 and "no lost (1 case): it is not here" in done.stdout
    assert [list(row["peers"]) for row in json.loads(path.read_text())] == [["slow [peer]"], []]


def test_a_wrong_kernel_fails_the_command_and_leaves_no_row(command, on_the_host, tmp_path):
    path = tmp_path / "rows.json"
    done = command("bench", "fake", "--json", str(path), code=on_the_host, FAKE_WRONG="1")
    assert done.returncode == 1
    assert "WRONG fake/scale 3,4 f32->f32: y is off; not timed" in done.stdout
    assert not path.exists()


def test_check_times_nothing(command, on_the_host, tmp_path):
    path = tmp_path / "rows.json"
    done = command("bench", "fake", "--check", "--json", str(path), code=on_the_host)
    assert done.returncode == 0 and "2 cases are right; nothing was timed." in done.stdout
    assert not path.exists()
    done = command("bench", "fake", "--check", code=on_the_host, FAKE_WRONG="1")
    assert done.returncode == 1


def test_a_clone_keeps_rows_by_gpu_and_family(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    long, short = bench.Selection(), bench.Selection(quick=True)
    assert bench._default_file("h200", "gemm-dense", long) is None
    (tmp_path / bench.RESULTS).mkdir(parents=True)
    found = bench._default_file("h200", "gemm-dense", long)
    assert found.as_posix() == "benchmarks/results/h200/gemm-dense.json"
    assert bench._default_file("h200", "gemm-dense", short) is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("bench",), "name a family to measure; known here: formats"),
        (("bench", "nosuch"), "unknown family 'nosuch'"),
        (("bench", "fake", "--case", "nosuch"), "fake: no case is selected"),
        (("bench", "--list", "--case", "nosuch"), "no case is selected"),
        (("bench", "--show", "nosuch.json"), "cudnn: nosuch.json: No such file or directory\n"),
        (("bench", "--show", __file__), "expected a JSON list of rows"),
        (("bench", "--show", "x.json", "--plot", "x.txt"), "expected a file name ending in .png"),
        (("bench", "fake", "formats", "--json", "x.json"), "one family at a time"),
    ],
)
def test_refusals_say_what_was_wrong(command, arguments, told):
    done = command(*arguments)
    assert done.returncode == 2 and told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(why_no_hopper() is None, reason="a Hopper GPU is here")
def test_without_a_gpu_the_reason_is_told(command):
    done = command("bench", "fake")
    assert done.returncode == 2
    assert "nothing can be measured here: no" in done.stderr and "--list" in done.stderr


def test_rows_are_kept_as_they_come(fake_family, tmp_path):
    """A run that ends early has written what it found."""

    class Runner:
        clock = SimpleNamespace(free=lambda: None)

        def run(self, case):
            if case.case == "5,6":
                raise KeyboardInterrupt
            return measure.Outcome(case, measure.MEASURED, row=ROW)

    (_, cases) = next(bench._selected(["fake"], bench.Selection()))
    path = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        bench.run_cases(Runner(), "fake", cases, path)
    assert json.loads(path.read_text()) == [ROW]


def test_a_file_that_is_no_results_is_refused_before_anything_runs(command, on_the_host, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("[{}]")
    done = command("bench", "fake", "--json", str(path), code=on_the_host)
    assert done.returncode == 2 and "expected the keys" in done.stderr
    assert path.read_text() == "[{}]" and done.stdout == ""


def test_each_case_is_run_and_its_memory_given_back(fake_family):
    class Clock:
        freed = 0

        def free(self):
            self.freed += 1

    clock = Clock()
    effort = timing.QUICK
    (_, cases) = next(bench._selected(["fake"], bench.Selection()))
    runner = measure.Bench(clock, "cpu", dict, effort, {}, check_only=True)
    found = bench.run_cases(runner, "fake", cases)
    assert [o.state for o in found] == ["right", "right", "not built"] and clock.freed == 3
