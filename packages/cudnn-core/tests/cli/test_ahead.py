"""`cudnn compile`: what is compiled, what is said about it, and what stops it."""

import sys
from types import SimpleNamespace

import pytest

from cudnn_core.cli import ahead
from cudnn_core.formats.spec import FORMATS

pytest.importorskip("fcntl")


@pytest.fixture
def compiler(fake_family, tmp_path, monkeypatch):
    """The compiler replaced by a list of what it was given."""
    from cudnn_core import cache

    given = []

    def compile_ahead(source):
        if source.name == "broken":
            source.build()
        state = "present" if source in given else "written"
        given.append(source)
        return SimpleNamespace(state=state, bytes=1024, seconds=0.5)

    monkeypatch.setenv("CUDNN_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(cache, "compile_ahead", compile_ahead)
    monkeypatch.setattr(ahead, "_missing_compiler", lambda: False)
    return given


def test_common_variants_are_written(compiler, capsys):
    assert ahead.run(["fake"], "sm_90a", 1, False) == 0
    assert [source.key.step for source in compiler] == [2.0, 3.0]
    text = capsys.readouterr().out
    assert text.startswith("Wrote 2 kernels (2.0 KiB) in ")
    assert ", 0 already present, in " in text and "failed" not in text


def test_all_asks_for_every_variant(compiler):
    ahead.run(["fake"], "sm_90a", 1, True)
    assert [source.key.step for source in compiler] == [2.0, 3.0, 5.0]


def test_formats_are_compiled_too(compiler):
    assert ahead.run(["formats"], "sm_90a", 1, False) == 0
    common = list(compiler)
    assert {getattr(source.key, "format", None) for source in common} == {None, *FORMATS}
    ahead.run(["formats"], "sm_90a", 1, True)
    every = {source.digest for source in compiler[len(common) :]}
    assert {source.digest for source in common} < every


def test_without_names_everything_installed_is_compiled(compiler, monkeypatch):
    asked = []

    def sources(self, arch, everything):
        asked.append(self.name)
        return ()

    for kind in (ahead.families.Family, ahead.families.Formats):
        monkeypatch.setattr(kind, "sources", sources)
    with pytest.raises(ahead.CannotCompile):
        ahead.run([], "sm_90a", 1, False)
    assert asked[0] == "formats" and "fake" in asked


def test_a_failure_is_reported_and_stops_nothing(compiler, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_BROKEN", "1")
    assert ahead.run(["fake"], "sm_90a", 1, False) == 1
    text = capsys.readouterr().out
    assert "Wrote 2 kernels" in text and ", 1 failed, in " in text
    assert "FAILED fake/scale broken: ValueError: this kernel [is] meant to fail" in text


def test_unknown_architecture_names_the_known(compiler):
    with pytest.raises(ahead.CannotCompile, match="fake .*'sm_42'; known architectures: sm_90a"):
        ahead.run(["fake"], "sm_42", 1, False)


def test_family_without_operations_says_so(compiler, tmp_path, monkeypatch):
    (tmp_path / "cudnn_planned").mkdir()
    (tmp_path / "cudnn_planned" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ahead.CannotCompile, match=r"no operation is built yet.*\(planned\)"):
        ahead.run(["planned"], "sm_90a", 1, False)


def test_other_systems_are_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ahead.CannotCompile, match="Linux only; this is darwin"):
        ahead.run([], "sm_90a", 1, False)


def test_without_compiler_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ahead, "_missing_compiler", lambda: True)
    with pytest.raises(ahead.CannotCompile, match="pip install 'nvidia-cutlass-dsl"):
        ahead.run([], "sm_90a", 1, False)


def test_without_disk_cache_there_is_nothing_to_fill(compiler, monkeypatch):
    monkeypatch.setenv("CUDNN_CACHE", "0")
    with pytest.raises(ahead.CannotCompile, match="cudnn doctor"):
        ahead.run(["fake"], "sm_90a", 1, False)


@pytest.mark.compile
def test_two_workers_fill_the_cache_once(command):
    first = command("compile", "fake", "--jobs", "2")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("Wrote 2 kernels")
    second = command("compile", "fake", "--jobs", "2")
    assert "Wrote 0 kernels" in second.stdout and "2 already present" in second.stdout
    listing = command("cache")
    assert listing.stdout.count("fake_scale") == 2 and "step=3.0" in listing.stdout
    assert "2 kernels" in listing.stdout.splitlines()[-1]
