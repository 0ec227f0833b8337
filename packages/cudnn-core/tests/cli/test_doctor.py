"""`cudnn doctor`: what it finds, what it calls broken, and what it leaves alone."""

import os

import pytest

from cudnn_core.cli import doctor
from cudnn_core.cli.doctor import State
from cudnn_core.testing.imports import HEAVY

SECTIONS = (
    "Packages",
    "Import name",
    "Frameworks",
    "Compiler",
    "Devices",
    "Kernel cache",
    "Environment",
    "Engines",
)


def test_every_section_is_there_and_nothing_is_broken(command):
    done = command("doctor")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    assert lines[-1] == "Nothing is broken."
    assert any(line.split() == ["reference", "runs", "on", "cpu"] for line in lines)
    assert any("cudnn-fake" in line and "1 operation built" in line for line in lines)
    assert "\x1b" not in done.stdout and "Traceback" not in done.stderr


def test_nothing_heavy_is_imported(command):
    heavy = tuple(set(HEAVY) - {"numpy", "ml_dtypes", "rich"})
    code = (
        "import sys\nfrom cudnn_core.cli import main\n"
        "try:\n    main(['doctor'])\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    assert command(code=code).stdout.splitlines()[-1] == "[]"


@pytest.mark.gpu
def test_no_context_is_created(command):
    code = (
        "import ctypes\nfrom cudnn_core.cli import main\n"
        "try:\n    main(['doctor'])\nexcept SystemExit:\n    pass\n"
        "flags, active = ctypes.c_uint(), ctypes.c_int(1)\n"
        "state = ctypes.CDLL('libcuda.so.1').cuDevicePrimaryCtxGetState\n"
        "assert state(0, ctypes.byref(flags), ctypes.byref(active)) == 0\n"
        "print(active.value)"
    )
    done = command(code=code)
    assert done.stdout.splitlines()[-1] == "0", done.stderr


def test_another_package_named_cudnn_is_broken(command, tmp_path):
    package = tmp_path / "elsewhere" / "cudnn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    done = command("doctor", path=(package.parent,))
    assert done.returncode == 1
    assert "BROKEN" in done.stdout and str(package) in done.stdout
    assert done.stdout.splitlines()[-1] == "Broken: cudnn"


def test_a_variable_that_means_nothing_is_broken(command):
    done = command("doctor", CUDNNFE_CLUSTER_OVERLAP_MARGIN="many")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "Broken: CUDNNFE_CLUSTER_OVERLAP_MARGIN"


def test_variables_that_are_set_are_shown(command, tmp_path):
    done = command("doctor", CUTE_DSL_KEEP_IR="1", CUDNN_CACHE="0")
    assert "CUTE_DSL_KEEP_IR" in done.stdout and "turned off by CUDNN_CACHE=0" in done.stdout
    assert done.returncode == 0


def test_a_folder_that_others_can_write_is_broken(command, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    done = command("doctor", CUDNN_CACHE_DIR=str(shared))
    assert done.returncode == 1 and "other users can write to it" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_read_only_folder_is_no_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDNN_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o755)
    # Permissions bind not every user that runs tests, so the answer to the question is replaced.
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    folder, _ = doctor.look_at_cache()
    assert folder.found == f"{tmp_path} (read-only)" and folder.state is State.FINE


def test_siblings_of_another_version_are_broken():
    wrong = doctor._sibling("cudnn-gemm-dense", "0.2.0", "0.1.0", 1)
    assert wrong.state is State.BROKEN and "cudnn-core is 0.1.0" in wrong.found
    assert doctor._sibling("cudnn-gemm-dense", "0.1.0", "0.1.0", 0).state is State.FINE


def test_an_old_compiler_is_broken(monkeypatch):
    monkeypatch.setattr(doctor.families, "version_of", lambda name: "4.5.9")
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    dsl, _ = doctor.look_at_compiler()
    assert dsl.state is State.BROKEN and "4.6.2 or newer is needed" in dsl.found


def test_an_error_in_a_section_does_not_hide_the_others():
    def look():
        yield doctor.Finding("first", "seen")
        raise OSError("no such thing")

    first, second = doctor._guarded("Title", look)
    assert first.found == "seen"
    assert (second.name, second.state) == ("Title", State.BROKEN)
    assert second.found == "OSError: no such thing"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda = '12.8'", "12.8"),
        ("cuda: Optional[str] = None", None),
    ],
)
def test_cuda_build_of_torch_is_read_from_its_file(tmp_path, monkeypatch, line, found):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    (package / "version.py").write_text(f"__version__ = '2.11.0'\n{line}\nhip = None\n")
    monkeypatch.setattr(
        doctor.importlib.util,
        "find_spec",
        lambda name: doctor.importlib.machinery.PathFinder.find_spec(name, [str(tmp_path)]),
    )
    assert doctor._torch_cuda() == found
