"""The whole cache with a real, tiny kernel: compiled for sm_90a, stored, loaded. No GPU needed: a loaded
function that is called with CPU arrays refuses them by name, which proves that it is there.
"""

import hashlib
import json
import logging
import os
import resource
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from processes import result
from tiny_source import TinyPlan, tiny

from cudnn_core import cache
from cudnn_core.cache import linking, service, toolchain

pytestmark = pytest.mark.compile

# A process that gets the tiny kernel and reports. torch is hidden: TVM-FFI would import it, which takes
# seconds and is not what is tested.
PROCESS = """
import json, sys
sys.modules["torch"] = None
from tiny_source import tiny
from cudnn_core import cache
executable = cache.get(tiny())
dsl = "cutlass" in sys.modules
import numpy, tvm_ffi
x = tvm_ffi.from_dlpack(numpy.ones(3, numpy.float32))
try:
    executable(x, x, 0)
except ValueError as error:
    message = str(error)
s = cache.stats()
print(json.dumps({"dsl": dsl, "message": message, "origin": executable.origin, "compiles": s.compiles,
    "disk_hits": s.disk_hits, "damaged": s.damaged, "written": s.written, "failed": s.failed_writes,
    "path": str(executable.path), "count": cache.compile_count()}))
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder that holds the compiled tiny kernel; made once, copied by the tests."""
    path = tmp_path_factory.mktemp("template") / "kernels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDNN_CACHE_DIR", str(path))
        entry = cache.compile_ahead(tiny())
        assert entry.state == "written" and entry.path.parent == path
    return path


@pytest.fixture
def filled(template, folder):
    shutil.copytree(template, folder)
    return folder


@pytest.fixture
def fresh(monkeypatch):
    """This process with empty memory level and counters, as if new."""
    monkeypatch.setattr(service, "_state", service._State())


def assert_works(executable):
    import numpy
    import tvm_ffi

    x = tvm_ffi.from_dlpack(numpy.ones(3, numpy.float32))
    for call in (executable, executable.call):
        with pytest.raises(ValueError, match="x_tensor.*expected device_type=cuda"):
            call(x, x, 0)


def counts():
    s = cache.stats()
    return s.compiles, s.disk_hits, s.memory_hits


def test_first_call_compiles_second_remembers_third_reads(folder, fresh, monkeypatch):
    source = tiny()
    first = cache.get(source)
    assert_works(first)
    assert (first.origin, counts()) == ("compiled", (1, 0, 0))
    assert cache.get(source) is first and cache.get(tiny()) is first
    assert (cache.compile_count(), counts()) == (1, (1, 0, 2))
    assert [entry.name for entry in cache.entries()] == ["tiny"]
    monkeypatch.setattr(service, "_state", service._State())
    again = cache.get(source)
    assert_works(again)
    assert (again.origin, counts()) == ("disk", (0, 1, 0))
    assert again.path.parent == folder


def test_another_process_compiles_nothing_and_imports_no_dsl(filled, run):
    report = run(PROCESS)
    assert report["count"] == report["compiles"] == 0 and report["disk_hits"] == 1
    assert not report["dsl"] and report["origin"] == "disk"
    assert "x_tensor" in report["message"]


def test_compile_ahead_says_what_it_did(filled, fresh):
    assert cache.compile_ahead(tiny()).state == "present"
    other = cache.compile_ahead(tiny(TinyPlan(step=5.0)), arch="sm_90a")
    assert other.state == "written" and other.arch == "sm_90a" and other.seconds > 0
    assert other.bytes == other.path.stat().st_size > 1000
    assert {entry.digest for entry in cache.entries()} == {tiny().digest, other.digest}
    assert cache.compile_count() == 1


def test_compile_ahead_for_another_architecture_is_another_entry(filled, fresh):
    other = cache.compile_ahead(tiny(), arch="sm_90")
    assert (other.state, other.arch) == ("written", "sm_90") and other.digest != tiny().digest


def test_compile_ahead_needs_a_folder(folder, fresh, monkeypatch):
    monkeypatch.setenv("CUDNN_CACHE", "0")
    with pytest.raises(OSError, match="CUDNN_CACHE"):
        cache.compile_ahead(tiny())
    assert cache.directory() is None and cache.entries() == []


def test_clear_forgets_both_levels(filled, fresh):
    held = cache.get(tiny())
    assert cache.clear()[0] == 1 and cache.entries() == []
    assert_works(held)
    assert cache.get(tiny()).origin == "compiled"


def test_disk_level_off(folder, fresh, monkeypatch):
    monkeypatch.setenv("CUDNN_CACHE", "0")
    executable = cache.get(tiny())
    assert_works(executable)
    assert executable.path is None and not folder.exists()


def test_configurations_that_differ_in_one_property(folder, fresh):
    plans = [TinyPlan(), TinyPlan(step=3.0), TinyPlan(dtype="Float16"), TinyPlan(step=2)]
    executables = [cache.get(tiny(plan)) for plan in plans]
    assert len({e.digest for e in executables}) == 4 and cache.compile_count() == 4


@pytest.mark.parametrize(
    "kind", ["one bit", "truncated", "no object", "no sidecar", "wrong object"]
)
def test_damaged_entries_are_compiled_again_and_replaced(filled, fresh, kind):
    entry = cache.entries()[0]
    good = entry.path.read_bytes()
    sidecar = entry.path.with_suffix(".json")
    if kind == "one bit":
        entry.path.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
    elif kind == "truncated":
        entry.path.write_bytes(good[: len(good) // 2])
    elif kind == "no object":
        entry.path.unlink()
    elif kind == "no sidecar":
        sidecar.unlink()
    else:
        # Verifies, yet the loader cannot use it: the checksum is that of the garbage.
        entry.path.write_bytes(b"not a library")
        meta = json.loads(sidecar.read_text())
        meta["sha256"] = hashlib.sha256(b"not a library").hexdigest()
        sidecar.write_text(json.dumps(meta))
    executable = cache.get(tiny())
    assert_works(executable)
    assert executable.origin == "compiled"
    assert (cache.stats().damaged >= 1) is (kind != "no sidecar")
    assert len(cache.entries()) == 1 and cache.compile_ahead(tiny()).state == "present"


DROP_PRIVILEGES = """
import ctypes
# Root may write anywhere; without its capabilities it obeys the mode bits like anyone else.
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())
"""


def test_read_only_folder_serves_what_it_has(filled, run):
    filled.chmod(0o500)
    report = run(DROP_PRIVILEGES + PROCESS)
    assert report["compiles"] == 0 and report["disk_hits"] == 1


def test_read_only_folder_compiles_into_memory(folder, run):
    folder.mkdir(mode=0o500)
    report = run(DROP_PRIVILEGES + PROCESS)
    assert (report["compiles"], report["written"], report["failed"]) == (1, 0, 1)
    assert "x_tensor" in report["message"] and list(folder.iterdir()) == []


def test_full_disk_compiles_into_memory_and_warns_once(folder, fresh, caplog):
    cache.directory()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.WARNING, "cudnn_core.cache"):
        # No file may grow beyond 1 KB: writes fail half way, as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
        try:
            executables = [cache.get(tiny(TinyPlan(step=step))) for step in (7.0, 8.0)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert all(executable.path is None for executable in executables)
    for executable in executables:
        assert_works(executable)
    assert cache.stats().failed_writes == 2
    assert [record.message for record in caplog.records if str(folder) in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
    assert cache.entries() == [] and not list(folder.glob(".tmp-*"))


def test_no_home_and_no_setting(run, tmp_path):
    environment = {"CUDNN_CACHE_DIR": None, "HOME": None, "XDG_CACHE_HOME": None}
    report = run(PROCESS, TMPDIR=str(tmp_path), **environment)
    assert Path(report["path"]).parent == tmp_path / f"cudnn-{os.geteuid()}"
    assert run(PROCESS, TMPDIR=str(tmp_path), **environment)["compiles"] == 0


def test_without_a_linker_objects_are_stored_and_loaded_by_the_dsl(folder, fresh, monkeypatch):
    monkeypatch.setattr(linking, "linker", lambda: None)
    first = cache.get(tiny(TinyPlan(step=9.0)))
    assert first.path.suffix == ".o"
    monkeypatch.setattr(service, "_state", service._State())
    again = cache.get(tiny(TinyPlan(step=9.0)))
    assert again.origin == "disk" and again.path.suffix == ".o"
    assert_works(first)
    assert_works(again)


@pytest.mark.parametrize("name", ["cc", "ld"])
def test_each_kind_of_linker(folder, fresh, monkeypatch, name):
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} here")
    monkeypatch.setattr(linking, "linker", lambda: program)
    executable = cache.get(tiny())
    assert executable.path.suffix == ".so"
    assert_works(executable)


def test_a_linker_that_fails_is_no_linker(folder, fresh, monkeypatch):
    monkeypatch.setattr(linking, "linker", lambda: shutil.which("false"))
    executable = cache.get(tiny(TinyPlan(step=10.0)))
    assert executable.path.suffix == ".o"
    assert_works(executable)


def test_linked_files_hold_no_path_of_this_environment(filled):
    entry = cache.entries()[0]
    runtime = toolchain.toolkit().runtime
    data = entry.path.read_bytes()
    assert runtime.name.encode() in data and str(runtime.parent).encode() not in data
    assert b"libtvm_ffi.so" in data


def test_loading_works_from_a_moved_environment(filled, run, tmp_path):
    # The same packages under another path, as after moving the environment or on another machine.
    moved = tmp_path / "elsewhere"
    moved.symlink_to(toolchain.toolkit().runtime.parents[3])
    report = run(f"import sys; sys.path.insert(0, {str(moved)!r})\n" + PROCESS)
    assert report["compiles"] == 0 and "x_tensor" in report["message"]


def test_chosen_flavour_is_the_one_the_dsl_loads():
    import cutlass

    loaded = Path(cutlass._mlir._mlir_libs._cutlass_ir.__file__).name
    assert f".{toolchain.toolkit().variant}." in loaded


def test_eight_threads_many_kernels(folder, fresh):
    plans = [TinyPlan(step=float(step)) for step in range(20, 23)]
    barrier, seen, errors = threading.Barrier(8), [], []

    def work():
        barrier.wait()
        try:
            seen.extend((plan, cache.get(tiny(plan))) for plan in plans)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert not errors and len(seen) == 24
    assert len({id(executable) for _, executable in seen}) == len(plans) == cache.compile_count()


def test_eight_cold_processes_compile_once(folder, start):
    processes = [start(PROCESS) for _ in range(8)]
    reports = [result(process) for process in processes]
    assert sum(report["compiles"] for report in reports) == 1
    assert all("x_tensor" in report["message"] for report in reports)
    assert len(cache.entries()) == 1 and not list(folder.glob(".tmp-*"))


def test_process_killed_in_mid_compile_does_not_block_the_next(folder, start, run, tmp_path):
    marker = tmp_path / "compiling"
    killed = start(PROCESS, TINY_KERNEL_STALL=str(marker))
    deadline = time.monotonic() + 120
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    waiting = start(PROCESS)
    time.sleep(1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    report = result(waiting)
    assert report["compiles"] == 1 and "x_tensor" in report["message"]
    assert run(PROCESS)["compiles"] == 0


def test_fork_after_compile(folder, fresh):
    cache.get(tiny())
    # Locks that another thread held at the time of the fork must not stay held in the child.
    with service._state.guard:
        child = os.fork()
        if child == 0:
            signal.alarm(120)
            try:
                assert_works(cache.get(tiny()))
                cache.clear(memory=True)
                assert_works(cache.get(tiny(TinyPlan(step=30.0))))
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_errors_of_the_kernel_itself_pass_through_and_leave_nothing(folder, fresh):
    def build():
        raise KeyError("no such tile")

    with pytest.raises(KeyError, match="no such tile"):
        cache.get(tiny(build=build, name="broken"))
    assert cache.entries() == [] and cache.compile_count() == 0
    assert_works(cache.get(tiny()))


def test_warm_lookup_is_cheap(filled, fresh):
    source = tiny()
    cache.get(source)
    start = time.perf_counter()
    for _ in range(10_000):
        cache.get(source)
    assert (time.perf_counter() - start) / 10_000 < 20e-6
