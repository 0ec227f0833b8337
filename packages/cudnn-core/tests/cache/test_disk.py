"""The disk level on its own: what verifies, who may write, where the folder is."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from cudnn_core.cache import disk

META = {"name": "k", "digest": "d" * 64, "arch": "sm_90a", "symbol": "s", "seconds": 1.5}
CODE = b"\x7fELF" + bytes(range(256)) * 8


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "kernels"
    folder, reason = disk.choose({"CUDNN_CACHE_DIR": str(path)})
    assert folder is not None, reason
    return folder


def put(store, stem="k-1", code=CODE):
    with store.lock(stem) as locked, store.scratch() as scratch:
        assert locked
        made = scratch / "kernel.so"
        made.write_bytes(code)
        return store.write(stem, made, META)


def test_written_entry_is_found(store):
    written = put(store)
    found = store.find("k-1")
    assert (written.state, found.state) == ("written", "present")
    assert found.path.read_bytes() == CODE and found.bytes == len(CODE)
    assert store.entries() == [found]
    assert sorted(p.suffix for p in store.path.iterdir()) == [".json", ".lock", ".so"]
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in store.path.iterdir())
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700


def test_absent_entry_is_none(store):
    assert store.find("k-1") is None


def flip(path):
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "one bit": lambda so, js: flip(so),
    "truncated": lambda so, js: so.write_bytes(so.read_bytes()[:-1]),
    "empty": lambda so, js: so.write_bytes(b""),
    "object gone": lambda so, js: so.unlink(),
    "sidecar truncated": lambda so, js: js.write_text(js.read_text()[:40]),
    "sidecar binary": lambda so, js: js.write_bytes(b"\xff\xfe\x00"),
    "sidecar nested too deep": lambda so, js: js.write_text("[" * 100_000),
    "sidecar a pipe": lambda so, js: (js.unlink(), os.mkfifo(js, 0o600)),
    "sidecar a folder": lambda so, js: (js.unlink(), js.mkdir()),
    "sidecar a dangling link": lambda so, js: (js.unlink(), js.symlink_to("nowhere")),
    "text as size": lambda so, js: js.write_text(
        json.dumps(json.loads(js.read_text()) | {"bytes": "many"})
    ),
    "no time": lambda so, js: js.write_text(
        json.dumps(json.loads(js.read_text()) | {"seconds": None})
    ),
    "number as name": lambda so, js: js.write_text(
        json.dumps(json.loads(js.read_text()) | {"name": 3})
    ),
    "sidecar a list": lambda so, js: js.write_text("[]"),
    "sidecar incomplete": lambda so, js: js.write_text('{"format": 1, "kind": "so"}'),
    "other format": lambda so, js: js.write_text(
        json.dumps(json.loads(js.read_text()) | {"format": 99})
    ),
    "path as kind": lambda so, js: js.write_text(
        json.dumps(json.loads(js.read_text()) | {"kind": "/x"})
    ),
    "writable by others": lambda so, js: so.chmod(0o666),
    "sidecar writable by group": lambda so, js: js.chmod(0o660),
    "symbolic link": lambda so, js: (
        so.rename(so.with_suffix(".x")),
        so.symlink_to(so.with_suffix(".x")),
    ),
    "a folder": lambda so, js: (so.unlink(), so.mkdir()),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_entry_is_never_returned(store, kind):
    entry = put(store)
    DAMAGE[kind](entry.path, entry.path.with_suffix(".json"))
    with pytest.raises(disk.Damaged):
        store.find("k-1")
    assert store.entries() == []


def test_replacing_a_damaged_entry(store):
    entry = put(store)
    flip(entry.path)
    put(store)
    assert store.find("k-1").path.read_bytes() == CODE


def test_clear_removes_only_what_the_cache_made(store):
    put(store, "k-1")
    put(store, "k-2")
    (store.path / ".tmp-left").mkdir()
    (store.path / "README").write_text("mine")
    count, size = store.clear()
    assert count == 2 and size > 2 * len(CODE)
    assert [p.name for p in store.path.iterdir()] == ["README"]


def test_clear_passes_over_what_it_cannot_have_made(store):
    put(store)
    (store.path / "folder.so").mkdir()
    (store.path / "link.json").symlink_to("nowhere")
    assert store.clear()[0] == 1
    assert [path.name for path in store.path.iterdir()] == ["folder.so"]
    (store.path / "folder.so").rmdir()
    store.path.rmdir()
    assert store.clear() == (0, 0) and store.entries() == []


def test_scratch_of_killed_processes_is_swept(store):
    old, young = store.path / ".tmp-old", store.path / ".tmp-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (time.time() - 7200,) * 2)
    put(store)
    assert not old.exists() and young.exists()


def test_lock_excludes_and_dies_with_its_process(store):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with store.lock("k-1"):
            os.write(write, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    fd = os.open(store.path / "k-1.lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        disk.fcntl.flock(fd, disk.fcntl.LOCK_EX | disk.fcntl.LOCK_NB)
    os.kill(child, 9)
    os.waitpid(child, 0)
    start = time.monotonic()
    with store.lock("k-1") as locked:
        assert locked and time.monotonic() - start < 5
    for descriptor in (fd, read, write):
        os.close(descriptor)


def test_forked_child_does_not_prolong_a_lock(store):
    with store.lock("k-1"):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    start = time.monotonic()
    with store.lock("k-1") as locked:
        assert locked and time.monotonic() - start < 5
    os.kill(child, 9)
    os.waitpid(child, 0)


def test_stuck_lock_is_given_up(store, monkeypatch):
    monkeypatch.setattr(disk, "_LOCK_SECONDS", 0.2)
    with store.lock("k-1") as first, store.lock("k-1") as second:
        assert first and not second


def test_folder_writable_by_others_is_refused(tmp_path):
    for mode in (0o770, 0o707, 0o777):
        path = tmp_path / oct(mode)
        path.mkdir()
        path.chmod(mode)
        folder, reason = disk.choose({"CUDNN_CACHE_DIR": str(path)})
        assert folder is None and "other users can write" in reason


def test_folder_under_a_writable_parent_is_refused_unless_sticky(tmp_path):
    parent = tmp_path / "shared"
    parent.mkdir()
    for mode, usable in ((0o777, False), (0o1777, True)):
        parent.chmod(mode)
        folder, _ = disk.choose({"CUDNN_CACHE_DIR": str(parent / "kernels")})
        assert (folder is not None) is usable


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(tmp_path):
    path = tmp_path / "theirs"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    folder, reason = disk.choose({"CUDNN_CACHE_DIR": str(path)})
    assert folder is None and "another user" in reason


def test_default_folders(tmp_path, monkeypatch):
    home, base = tmp_path / "home", tmp_path / "base"
    home.mkdir()
    monkeypatch.setattr(disk.tempfile, "tempdir", str(tmp_path))
    temporary = tmp_path / f"cudnn-{os.geteuid()}"

    def chosen(**environ):
        return disk.choose(environ)[0].path

    assert chosen(HOME=str(home)) == home / ".cache" / "cudnn"
    assert chosen(HOME=str(home), XDG_CACHE_HOME=str(base)) == base / "cudnn"
    assert chosen() == chosen(HOME="") == temporary
    assert chosen(HOME="/proc/no-such-home") == temporary
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    temporary.chmod(0o777)
    folder, reason = disk.choose({})
    assert folder is None and str(temporary) in reason


def test_explicit_folder_that_cannot_be_made_is_not_replaced_by_another(tmp_path):
    (tmp_path / "file").write_text("")
    folder, reason = disk.choose(
        {"CUDNN_CACHE_DIR": str(tmp_path / "file" / "kernels"), "HOME": str(tmp_path)}
    )
    assert folder is None and "file" in reason


def test_switch(tmp_path):
    folder, reason = disk.choose({"CUDNN_CACHE": "0", "CUDNN_CACHE_DIR": str(tmp_path)})
    assert folder is None and "CUDNN_CACHE" in reason


def test_relative_folder_is_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert disk.choose({"CUDNN_CACHE_DIR": "here"})[0].path == Path(tmp_path / "here")
