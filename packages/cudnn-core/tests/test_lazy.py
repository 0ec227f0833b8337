"""Lazy name tables: resolution, caching, and every message that replaces a bare import error."""

import sys
from importlib import metadata

import pytest

from cudnn_core import lazy


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `lazy_sample` whose table holds one name of each kind."""
    root = tmp_path / "lazy_sample"
    root.mkdir()
    (root / "__init__.py").write_text(
        "from cudnn_core.lazy import attach\n"
        "NAMES = {'good': 'lazy_sample.home', 'renamed': 'lazy_sample.home:good',\n"
        "         'absent': 'lazy_sample.needs_absent', 'old': 'lazy_sample.needs_dsl',\n"
        "         'broken': 'lazy_sample.broken', 'typo': 'lazy_sample.home'}\n"
        "__getattr__, __dir__ = attach(__name__, NAMES, submodules=('home', 'other'),\n"
        "                              needs={'other': 'absent_module'},\n"
        "                              coming={'later': 'it is coming to lazy-sample'})\n"
    )
    (root / "home.py").write_text("good = object()\n")
    (root / "needs_absent.py").write_text("import absent_module.part\n")
    (root / "needs_dsl.py").write_text("raise ModuleNotFoundError('no', name='cutlass.cute')\n")
    (root / "broken.py").write_text("raise ZeroDivisionError('boom')\n")
    monkeypatch.syspath_prepend(tmp_path)
    import lazy_sample

    yield lazy_sample
    for name in [n for n in sys.modules if n.partition(".")[0] == "lazy_sample"]:
        del sys.modules[name]


def pretend_dsl(monkeypatch, version):
    def fake(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", fake)


def test_name_is_loaded_once_and_kept(package):
    assert "good" not in vars(package)
    assert package.good is package.home.good
    assert vars(package)["good"] is package.good
    assert package.renamed is package.good


def test_submodule_is_an_attribute(package):
    assert package.home is sys.modules["lazy_sample.home"]


def test_unknown_name(package):
    assert not hasattr(package, "no_such")
    with pytest.raises(AttributeError, match="module 'lazy_sample' has no attribute 'no_such'"):
        _ = package.no_such
    with pytest.raises(ImportError, match="cannot import name 'no_such'"):
        from lazy_sample import no_such  # noqa: F401


def test_coming_name_says_so_through_both_doors(package):
    text = "lazy_sample.later is not built yet: it is coming to lazy-sample"
    with pytest.raises(NotImplementedError, match=text):
        _ = package.later
    with pytest.raises(NotImplementedError, match=text):
        from lazy_sample import later  # noqa: F401


def test_dir_lists_what_can_be_used(package):
    names = dir(package)
    assert {"good", "renamed", "home"} <= set(names)
    assert not {"later", "other", "NAMES", "attach"} & set(names)


def test_missing_module_is_named_with_a_hint(package):
    with pytest.raises(ImportError) as caught:
        _ = package.absent
    text = str(caught.value)
    assert "lazy_sample.absent needs the module 'absent_module'" in text
    assert "pip install absent-module" in text
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_failure_is_not_kept(package, tmp_path):
    with pytest.raises(ImportError):
        _ = package.absent
    (tmp_path / "absent_module").mkdir()
    (tmp_path / "absent_module" / "__init__.py").write_text("")
    (tmp_path / "absent_module" / "part.py").write_text("")
    (tmp_path / "lazy_sample" / "needs_absent.py").write_text("import absent_module\nabsent = 3\n")
    try:
        assert package.absent == 3
    finally:
        sys.modules.pop("absent_module", None)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ("4.6.1", "needs nvidia-cutlass-dsl 4.6.2 or newer, and 4.6.1 is installed"),
        ("4.5.10.dev3", "needs nvidia-cutlass-dsl 4.6.2 or newer, and 4.5.10.dev3 is installed"),
        ("4.8.1", "requires optional dependencies that failed to load|optional dependencies"),
        (None, "requires optional dependencies; install the compiler"),
    ],
)
def test_missing_compiler(package, monkeypatch, installed, expected):
    pretend_dsl(monkeypatch, installed)
    with pytest.raises(ImportError, match=expected) as caught:
        _ = package.old
    assert "lazy_sample.old" in str(caught.value)
    assert "is not installed" not in str(caught.value)


def test_any_other_failure_is_an_import_error(package, monkeypatch):
    pretend_dsl(monkeypatch, "4.8.1")
    with pytest.raises(ImportError, match=r"failed to load \(boom\)") as caught:
        _ = package.broken
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_table_that_names_an_absent_attribute_is_not_an_unknown_name(package, monkeypatch):
    pretend_dsl(monkeypatch, "4.8.1")
    with pytest.raises(ImportError, match="lazy_sample.typo"):
        _ = package.typo


def test_require():
    lazy.require("some.module", "sys", "pytest")
    with pytest.raises(ImportError, match="some.module needs the module 'no_such_framework'"):
        lazy.require("some.module", "pytest", "no_such_framework")


def test_foreign_package_is_recognised(tmp_path, monkeypatch):
    (tmp_path / "cudnn").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cudnn", raising=False)
    (tmp_path / "cudnn" / "__init__.py").write_text("from .graph import handle\n")
    assert "belongs to another distribution" in lazy.foreign_cudnn()
    (tmp_path / "cudnn" / "__init__.py").write_text("from cudnn_core.lazy import attach\n")
    assert lazy.foreign_cudnn() is None
