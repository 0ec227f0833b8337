"""Whether a picture can be drawn, asked before anything slow has run. May import the standard library only."""

import importlib.util
import os
from pathlib import Path

_SUFFIXES = (".png", ".svg", ".pdf")


class NoPlot(RuntimeError):
    """A picture was asked for and cannot be made; the message says why."""


def check_plot(plot: Path, command: str) -> None:
    """Raises NoPlot when `--plot` of `command` ("demo") could not be done."""
    if plot.suffix.lower() not in _SUFFIXES:
        raise NoPlot(f"--plot: expected a file name ending in {', '.join(_SUFFIXES)}, got {plot}")
    if not os.access(plot.absolute().parent, os.W_OK):
        raise NoPlot(f"--plot: no folder to write to at {plot.absolute().parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise NoPlot(
            "--plot needs matplotlib, which is not installed; pip install matplotlib, "
            f"or from a clone: uv run --extra plot cudnn {command} --plot {plot}"
        )
