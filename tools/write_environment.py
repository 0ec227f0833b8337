"""Writes docs/environment.md from the table in cudnn_core/env.py.

Run `uv run python tools/write_environment.py` after changing the table. May import the standard
library and `cudnn_core.env`.
"""

from pathlib import Path

from cudnn_core.env import VARIABLES

TARGET = Path(__file__).resolve().parents[1] / "docs/environment.md"

PAGE = """# Environment variables

Each is read when the table says, so setting one in a running process takes effect from the next such moment. A value
that means nothing is a `ValueError` that names the variable.

| variable | default | read | effect |
|---|---|---|---|
{rows}

The compile cache also follows `XDG_CACHE_HOME` and `HOME`, as [Compiling and caching](concepts/caching.md) tells.
"""


def spelled(default):
    """A default as the table shows it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    return "unset" if default is None else str(default)


def page():
    """The page as Markdown."""
    rows = (
        f"| `{variable.name}` | {spelled(variable.default)} | {variable.read} | {variable.effect} |"
        for variable in VARIABLES.values()
    )
    return PAGE.format(rows="\n".join(rows))


if __name__ == "__main__":
    TARGET.write_text(page())
