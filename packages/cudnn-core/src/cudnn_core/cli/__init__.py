"""The command line: `cudnn`, and `python -m cudnn`.

May import the standard library; typer and rich inside `main` only, for core installs without them.
"""

import sys

# What each sub-command stands on beyond core's own requirements: the extra `cli`.
_NEEDED = ("typer", "rich")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line on `arguments` (default: those of this process) and exit."""
    from importlib.util import find_spec

    missing = [name for name in _NEEDED if name not in sys.modules and find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        sys.exit(
            f"The command cudnn needs {' and '.join(missing)}, which {verb} not installed; "
            f"pip install {' '.join(missing)}"
        )
    from cudnn_core.cli.app import app

    app(args=arguments, prog_name="cudnn")
