"""Compile keys: every difference counts, nothing unknown gets in, location does not matter."""

import dataclasses
import enum
import importlib.util
import itertools
import shutil
from pathlib import Path

import pytest
from tiny_source import TinyPlan, tiny

from cudnn_core.cache import canonical, keys

HERE = Path(__file__).parent
needs_dsl = pytest.mark.skipif(
    importlib.util.find_spec("nvidia_cutlass_dsl") is None,
    reason="the toolchain is part of the key",
)


class Major(enum.Enum):
    K = "k"
    M = "m"


class Level(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass(frozen=True)
class Tile:
    m: object = 128
    n: object = 128


@dataclasses.dataclass(frozen=True)
class Other:
    m: object = 128
    n: object = 128


@dataclasses.dataclass
class Thawed:
    m: int = 128


class Dtype:
    def __init__(self, name):
        self.name = name

    def __cache_key__(self):
        return self.name


DIFFERENT = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "1",
    "None",
    b"1",
    (),
    (1,),
    ((1,),),
    (1, 2),
    (2, 1),
    ("a", "b"),
    ("a, b",),
    ("a', 'b",),
    frozenset(),
    frozenset({1, 2}),
    Major.K,
    Major.M,
    Level.ONE,
    Tile(),
    Tile(m=64),
    Tile(m=True),
    Tile(m=1),
    Tile(m=1.0),
    Other(),
    Tile(n=Tile()),
    Dtype("float8_e4m3fn"),
    Dtype("float8_e5m2"),
]


def test_different_keys_have_different_texts():
    for (i, a), (j, b) in itertools.combinations(enumerate(DIFFERENT), 2):
        assert canonical(a) != canonical(b), (i, j, a, b)


def test_equal_keys_have_equal_texts():
    assert canonical(frozenset("abcdef")) == canonical(frozenset("fedcba"))
    assert canonical(Tile(m=Dtype("x"))) == canonical(Tile(m=Dtype("x")))


@pytest.mark.parametrize(
    "value",
    [
        [1],
        {"a": 1},
        {1},
        object(),
        len,
        lambda: 0,
        int,
        Tile,
        Thawed(),
        Tile(m=[1]),
        (object(),),
        1j,
    ],
    ids=repr,
)
def test_anything_unknown_is_refused(value):
    with pytest.raises(TypeError, match="compile key"):
        canonical(value)


def test_numpy_scalars_are_refused():
    numpy = pytest.importorskip("numpy")
    # numpy.float64 is a float, but its repr belongs to numpy.
    for value in (numpy.float64(1), numpy.float32(1), numpy.int64(1), numpy.dtype("f4")):
        with pytest.raises(TypeError, match="compile key"):
            canonical(value)


def test_kernel_name_is_checked():
    with pytest.raises(ValueError, match="name"):
        tiny(name="../tiny")


@needs_dsl
def test_digest_changes_with_every_part(tmp_path, monkeypatch):
    changed = tmp_path / "tiny_kernel.py"
    changed.write_text((HERE / "tiny_kernel.py").read_text() + "\n")
    base = tiny()
    others = [
        tiny(TinyPlan(step=3.0)),
        tiny(TinyPlan(step=2)),
        tiny(TinyPlan(dtype="Float16")),
        tiny(name="tiny2"),
        tiny(arch="sm_100a"),
        tiny(sources=()),
        tiny(sources=(changed,)),
    ]
    digests = [base.digest, *(other.digest for other in others)]
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    digests.append(tiny().digest)
    assert len(set(digests)) == len(digests)


@needs_dsl
def test_digest_ignores_location_and_logging(tmp_path, monkeypatch):
    digest = tiny().digest
    shutil.copy(HERE / "tiny_kernel.py", tmp_path)
    monkeypatch.setenv("CUTE_DSL_LOG_TO_CONSOLE", "0")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    assert tiny(sources=(tmp_path / "tiny_kernel.py",)).digest == digest


@needs_dsl
def test_digest_is_the_same_in_another_process(run):
    code = "import json; from tiny_source import tiny; print(json.dumps(tiny().digest))"
    assert run(code, PYTHONHASHSEED="1") == run(code, PYTHONHASHSEED="2") == tiny().digest


def test_sources_may_be_modules_names_packages_and_folders(tmp_path, monkeypatch):
    package = tmp_path / "tiny_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    part = package / "inner" / "part.py"
    part.write_text("A = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    by_name = keys.fingerprint(("tiny_package",))
    assert by_name == keys.fingerprint((importlib.import_module("tiny_package"),))
    assert by_name == keys.fingerprint((package,))
    part.write_text("A = 2\n")
    keys._fingerprint.cache_clear()
    assert keys.fingerprint(("tiny_package",)) != by_name


def test_a_source_without_a_file_is_refused():
    with pytest.raises(ValueError, match="sys"):
        keys.fingerprint(("sys",))
    with pytest.raises((OSError, ValueError)):
        keys.fingerprint((HERE / "no_such_file.py",))
