"""`cudnn demo`: the frame that families fill. The families' own demos are tested with them."""

import numpy as np
import pytest

from cudnn_core.cli import demo, pictures, places
from cudnn_core.cli.protocol import Case, FeedForward, Trial, feed_forward
from cudnn_core.testing.tiers import why_no_hopper

# Any family that is installed beside the fake one stays out of these tests.
ONLY_FAKE = """
from cudnn_core.cli import families, main
found = families.installed
families.installed = lambda: tuple(f for f in found() if f.name == "fake")
main()
"""


@pytest.fixture
def run_demo(command):
    def run(*arguments, code=ONLY_FAKE, **environment):
        return command("demo", "--engine", "reference", *arguments, code=code, **environment)

    return run


def test_tables_notes_and_status(run_demo):
    done = run_demo()
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    row = next(line for line in lines if line[:1] == ["fake/scale"])
    assert row[:8] == "fake/scale reference N(0, 1) 3x4 good 1.0e-4 amax".split()
    assert ["Study", "[of]", "nothing"] in lines and ["b", "2"] in lines
    assert "A note." in done.stdout and "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("error", ["0.5", "nan"])
def test_a_miss_fails(run_demo, error):
    done = run_demo(FAKE_MISS=error)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("MISS fake/scale bad 3x4: y is ")
    assert "1.0e-3 is allowed" in done.stdout


def test_without_operations_the_demo_says_so(run_demo):
    code = "from cudnn_core.cli import families, main\nfamilies.installed = lambda: ()\nmain()"
    done = run_demo(code=code)
    assert done.returncode == 1 and "has an operation that is built" in done.stdout


def test_picture(run_demo, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "demo.png"
    done = run_demo("--plot", str(path))
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == f"Picture: {path}"
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib_the_demo_does_not_start(monkeypatch, tmp_path):
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(pictures.NoPlot, match="needs matplotlib"):
        demo.run("reference", 1, tmp_path / "demo.png")


@pytest.mark.parametrize(
    ("name", "told"), [("demo.jpg", "ending in .png"), ("nosuch/demo.png", "no folder")]
)
def test_pictures_that_could_not_be_written(monkeypatch, tmp_path, name, told):
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(pictures.NoPlot, match=told):
        demo.run("reference", 1, tmp_path / name)


def test_each_case_is_prepared_checked_and_timed():
    calls = []

    def prepare():
        calls.append("prepare")
        return Trial("reference", lambda: calls.append("call"), lambda outputs: {"y": 0.0})

    case = Case("fake/op", "none", "1", "f", 2e12, {"y": 0.0}, prepare)
    (measured,) = demo.measure_all(places.Host(), [case], 3, "fake")
    assert calls == ["prepare"] + ["call"] * 5  # judged once, warmed up once, timed three times
    assert measured.misses == () and measured.seconds >= 0


@pytest.mark.skipif(why_no_hopper() is None, reason="a Hopper GPU is here")
@pytest.mark.parametrize("flop, rate", [(0.0, "-"), (2e12, "1.00")])
def test_a_rate_only_where_it_says_something(flop, rate):
    case = Case("fake/op", "N(0, 1)", "3x4", "f", flop, {"y": 1.0}, pytest.fail)
    assert demo._cells(demo.Measured(case, "reference", {"y": 0.0}, 2.0))[-1] == rate


def test_hopper_is_refused_with_the_reason():
    with pytest.raises(places.NoPlace, match="the engine hopper cannot run here: "):
        places.choose("hopper")
    assert places.choose("auto").engine == "reference"


def test_gelu_is_the_exact_one():
    x = np.array([-3.0, -0.5, 0.0, 1.0, 2.5])
    # From tables of the normal distribution function, to their last digit.
    below = [0.001349898, 0.308537539, 0.5, 0.841344746, 0.993790335]
    np.testing.assert_allclose(places.gelu(x), x * below, rtol=1e-6, atol=0)
    assert places.gelu(x.astype(np.float32)).dtype == np.float32


def test_host_errors_are_relative_and_in_float64():
    host, exact = places.Host(), np.full((2, 2), 4.0)
    assert host.error(np.float32(exact * 1.25), exact) == 0.25
    assert host.largest(np.array([-3.0, 2.0])) == 3.0
    product = host.product64(np.float16([[1, 2]]), np.float16([[3, 4]]))
    assert product.dtype == np.float64 and product[0, 0] == 11.0


def test_input_is_found_without_importing_the_package(monkeypatch, tmp_path):
    package = tmp_path / "cudnn"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: __import__("importlib.machinery").machinery.PathFinder.find_spec(
            name, [str(tmp_path)]
        ),
    )
    assert feed_forward() is None
    arrays = {name: np.full(2, i) for i, name in enumerate(FeedForward.__annotations__)}
    np.savez(package / "data" / "minilm_ffn.npz", **arrays)
    assert feed_forward().w_out[0] == 3
