"""The chart of a file of results: each row's ratio to what it has a target for. May import matplotlib when it draws.

A bar reaches to the ratio (their time over ours: longer is faster), a black tick stands at the target. Blue bars reach
theirs, orange ones do not; the number beside a bar says both.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .results import Comparison, Row, comparisons

MET, MISSED, TICK = "#0b559f", "#d9822b", "#111111"
# The picture's title and the axis' label; a panel's title and its ticks; a row.
_HEAD_INCHES, _PANEL_INCHES, _ROW_INCHES = 0.55, 0.55, 0.24

Line = tuple[Row, Comparison]


def lines(rows: Sequence[Row]) -> dict[str, list[Line]]:
    """Operation -> the comparisons that have a target and were measured, in the order of the rows."""
    found: dict[str, list[Line]] = {}
    for row in rows:
        for comparison in comparisons(row):
            if comparison.met is not None:
                found.setdefault(row["op"], []).append((row, comparison))
    return found


def draw(path: Path, rows: Sequence[Row], title: str) -> None:
    """Write the chart of `rows`. ValueError when none of them has a target that was measured."""
    from matplotlib.figure import Figure

    parts = lines(rows)
    if not parts:
        raise ValueError("no row has a target that was measured; there is nothing to draw")
    # Rows are equally high in all panels: an axis spans its rows and a fifth of one.
    heights = [len(part) + 0.2 for part in parts.values()]
    inches = _HEAD_INCHES + len(parts) * _PANEL_INCHES + _ROW_INCHES * sum(heights)
    figure = Figure(figsize=(10.5, inches), layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    panels = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    longest = max(c.ratio for part in parts.values() for _, c in part)
    furthest = max(longest, *(c.target for part in parts.values() for _, c in part))
    for axes, (op, part) in zip(panels, parts.items(), strict=True):
        _panel(axes, op, part, furthest * 1.22)
    panels[-1].set_xlabel("their time / ours   (bar: measured, tick: target)", fontsize=9)
    figure.savefig(path, dpi=130)


def _panel(axes: Any, op: str, part: Sequence[Line], width: float) -> None:
    places = range(len(part))
    axes.barh(
        places,
        [c.ratio for _, c in part],
        height=0.62,
        color=[MET if c.met else MISSED for _, c in part],
        zorder=2,
    )
    axes.vlines(
        [c.target for _, c in part],
        [place - 0.42 for place in places],
        [place + 0.42 for place in places],
        color=TICK,
        linewidth=2.2,
        zorder=3,
    )
    for place, (_, c) in zip(places, part, strict=True):
        verdict = "" if c.met else "  missed"
        axes.annotate(
            f"{c.ratio:.3f} of {c.target:g}{verdict}",
            (max(c.ratio, c.target), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=TICK if c.met else MISSED,
        )
    axes.set_yticks(places, [_label(row, c) for row, c in part], fontsize=7.5)
    axes.set(xlim=(0, width), ylim=(len(part) - 0.4, -0.6))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3, zorder=0)
    axes.set_title(op, fontsize=9.5, loc="left", fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(row: Row, comparison: Comparison) -> str:
    return f"{row['case']}  {row['dtype']}   vs {comparison.name}"
