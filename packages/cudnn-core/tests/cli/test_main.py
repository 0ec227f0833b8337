"""The command itself: version, help, refusals, and what it does without typer and rich."""

import importlib.util
import sys

import pytest

from cudnn_core import __version__
from cudnn_core.cli import main


def test_version(command):
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"cudnn {__version__}\n")


def test_help_names_every_command(command):
    text = command("--help").stdout
    assert all(name in text for name in ("demo", "doctor", "compile", "cache", "bench"))


def test_no_arguments_show_help(command):
    assert "Usage" in command().stdout


@pytest.mark.parametrize("missing", [("typer",), ("rich",), ("typer", "rich")])
def test_missing_libraries_are_one_sentence(monkeypatch, missing):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in missing else real(name, *a)
    )
    for name in missing:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    text = stopped.value.code
    assert text.startswith(f"The command cudnn needs {' and '.join(missing)}, which ")
    assert text.endswith(f"pip install {' '.join(missing)}") and "\n" not in text


def test_version_and_help_load_nothing_heavy(command):
    code = (
        "import sys\nfrom cudnn_core.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'torch', 'jax', 'cutlass', 'tvm_ffi') if m in sys.modules])"
    )
    assert command(code=code).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compile", "nosuch"), "unknown family 'nosuch'; known here: "),
        (("demo", "--engine", "nosuch"), "nosuch"),
        (("demo", "--repeat", "0"), "--repeat"),
        (("nosuch",), "nosuch"),
    ],
)
def test_refusals_say_what_was_wrong(command, arguments, told):
    done = command(*arguments)
    assert done.returncode == 2 and told in done.stderr
    assert "Traceback (most recent" not in done.stderr
