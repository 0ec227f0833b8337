"""The chart, from rows made up here."""

import struct

import pytest

from cudnn_core.bench import chart

pytest.importorskip("matplotlib")

VERSIONS = {"torch": "2.11.0", "dsl": "4.8.1", "date": "2026-12-01"}


def row(op, case, ours, times, targets):
    return {
        "op": op,
        "case": case,
        "dtype": "bf16xnvfp4->bf16",
        "ours_us": ours,
        "host_us": None,
        "peers": {},
        "targets": targets,
        "bounds": times,
        "tflops": None,
        "tb_s": None,
        "roofline": None,
        **VERSIONS,
    }


ROWS = [
    row("dense/amax", "1,1,1", 10.0, {"torch.mm": 9.5}, {"torch.mm": 0.92}),
    row("dense/amax", "2,2,2", 10.0, {"torch.mm": 8.0, "copy": 1.0}, {"torch.mm": 0.92}),
    row("dense/swiglu", "3,3,3", 10.0, {"torch.mm": 24.0}, {"torch.mm": 2.3, "gone": 1.0}),
]


def test_only_what_has_a_target_and_a_time_is_drawn():
    found = chart.lines(ROWS)
    assert {op: [(r["case"], c.name) for r, c in part] for op, part in found.items()} == {
        "dense/amax": [("1,1,1", "torch.mm"), ("2,2,2", "torch.mm")],
        "dense/swiglu": [("3,3,3", "torch.mm")],
    }


def test_bars_ticks_and_verdicts_say_what_the_rows_say(monkeypatch, tmp_path):
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1]
    )
    path = tmp_path / "chart.png"
    chart.draw(path, ROWS, "dense on H200")
    amax, swiglu = figures[0].axes
    assert [bar.get_width() for bar in amax.patches] == [0.95, 0.8]
    assert [bar.get_width() for bar in swiglu.patches] == [2.4]
    colours = [matplotlib_hex(bar) for bar in amax.patches]
    assert colours == [chart.MET, chart.MISSED]
    ticks = amax.collections[0].get_segments()
    assert [line[0][0] for line in ticks] == [0.92, 0.92]
    assert [t.get_text() for t in amax.texts] == ["0.950 of 0.92", "0.800 of 0.92  missed"]
    assert amax.get_xlim() == swiglu.get_xlim()
    labels = [t.get_text() for t in amax.get_yticklabels()]
    assert labels[0].startswith("1,1,1  bf16xnvfp4->bf16") and "vs torch.mm" in labels[0]
    # Rows are equally high, so that panels compare.
    first, second = (
        axes.get_position().height / (axes.get_ylim()[0] - axes.get_ylim()[1])
        for axes in (amax, swiglu)
    )
    assert first == pytest.approx(second, rel=0.02)
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    assert width > 1000 and height > 300


def matplotlib_hex(bar):
    from matplotlib.colors import to_hex

    return to_hex(bar.get_facecolor())


def test_rows_without_targets_make_no_chart(tmp_path):
    path = tmp_path / "chart.png"
    with pytest.raises(ValueError, match="nothing to draw"):
        chart.draw(path, [row("a", "1", 1.0, {"copy": 1.0}, {})], "title")
    assert not path.exists()
