"""device_info: against a stand-in for the driver, and on the GPU where there is one."""

import ctypes
import subprocess
import sys
import threading

import pytest

from cudnn_core import device_info as module
from cudnn_core.device_info import DeviceInfo, device_count, device_info, ensure_context

ATTRIBUTES = {75: 9, 76: 0, 16: 132, 97: 232448, 38: 62914560}


class FakeDriver:
    """Two devices; counts its calls. `failing` maps a function's name to the code that it returns."""

    def __init__(self, init_code=0):
        self.init_code, self.failing, self.calls = init_code, {}, []
        self.current = threading.local()

    def __getattr__(self, function):
        def call(*arguments):
            self.calls.append(function)
            if function in self.failing:
                return self.failing[function]
            return getattr(self, f"do_{function}")(*arguments)

        if not function.startswith("cu"):
            raise AttributeError(function)
        return call

    def do_cuInit(self, flags):
        return self.init_code

    def do_cuGetErrorString(self, code, text):
        text._obj.value = b"the reason"
        return 0

    def do_cuDeviceGetCount(self, count):
        count._obj.value = 2
        return 0

    def do_cuDeviceGet(self, handle, ordinal):
        handle._obj.value = ordinal
        return 0

    def do_cuDeviceGetAttribute(self, value, attribute, device):
        if attribute not in ATTRIBUTES:
            return 1
        value._obj.value = ATTRIBUTES[attribute]
        return 0

    def do_cuDeviceGetName(self, text, size, device):
        text.value = b"Fake H200"
        return 0

    def do_cuCtxGetCurrent(self, context):
        context._obj.value = getattr(self.current, "context", None)
        return 0

    def do_cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 1000 + device.value
        return 0

    def do_cuCtxSetCurrent(self, context):
        self.current.context = context.value
        return 0


@pytest.fixture
def fresh(monkeypatch):
    """The module as after import, with the driver that the test installs."""

    def install(driver):
        def load(name):
            if driver is None:
                raise OSError(f"{name}: cannot open shared object file")
            return driver

        monkeypatch.setattr(ctypes, "CDLL", load)
        return driver

    for name in ("_instances", "_contexts"):
        monkeypatch.setattr(module, name, {})
    module._driver.cache_clear()
    yield install
    module._driver.cache_clear()


@pytest.mark.parametrize(
    "driver", [None, FakeDriver(init_code=100)], ids=["no driver", "no device"]
)
def test_without_a_device(fresh, driver):
    fresh(driver)
    assert device_count() == 0
    with pytest.raises(NotImplementedError, match="no CUDA device"):
        device_info(0)


def test_a_driver_that_does_not_start_is_an_error_with_its_reason(fresh):
    fresh(FakeDriver(init_code=803))
    with pytest.raises(RuntimeError, match="cuInit failed with error 803: the reason"):
        device_count()


def test_facts(fresh):
    fresh(FakeDriver())
    info = device_info(1)
    assert device_count() == 2
    assert repr(info) == "DeviceInfo(cuda:1)"
    assert (info.compute_capability, info.sm_version, info.sm_count) == ((9, 0), 90, 132)
    assert info.shared_memory_per_block_optin == 232448
    assert info.oversized_shared_memory_per_block == 0  # the driver does not know the attribute
    assert info.l2_cache_bytes == 62914560
    assert info.device_name == "Fake H200"


def test_facts_are_asked_for_once_and_create_no_context(fresh):
    driver = fresh(FakeDriver())
    info = device_info(0)
    assert "cuDeviceGetAttribute" not in driver.calls
    for _ in range(2):
        assert info.sm_count == 132
    assert driver.calls.count("cuDeviceGetAttribute") == 1
    assert not any("Ctx" in call for call in driver.calls)


def test_one_instance_for_each_ordinal(fresh):
    fresh(FakeDriver())
    assert device_info(0) is device_info(0)
    assert device_info(0) is not device_info(1)


@pytest.mark.parametrize("ordinal", [-1, 2])
def test_ordinals_out_of_range(fresh, ordinal):
    fresh(FakeDriver())
    with pytest.raises(ValueError, match=f"ordinal: expected 0 to 1, got {ordinal}"):
        device_info(ordinal)


@pytest.mark.parametrize("ordinal", [True, 1.0, "0", None])
def test_ordinals_are_ints(fresh, ordinal):
    fresh(FakeDriver())
    with pytest.raises(TypeError, match="ordinal: expected an int"):
        DeviceInfo(ordinal)


def test_a_failing_driver_call_is_a_runtime_error(fresh):
    driver = fresh(FakeDriver())
    driver.failing = {"cuDeviceGetAttribute": 999}
    with pytest.raises(RuntimeError, match="error 999: the reason"):
        device_info(0).sm_count  # noqa: B018


def test_a_thread_without_context_gets_the_primary_one(fresh):
    driver = fresh(FakeDriver())
    seen = {}

    def work(name):
        ensure_context(1)
        ensure_context(1)
        seen[name] = driver.current.context

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {0: 1001, 1: 1001, 2: 1001}
    assert driver.calls.count("cuDevicePrimaryCtxRetain") == 1
    assert driver.calls.count("cuCtxSetCurrent") == 3


def test_a_context_that_is_current_stays(fresh):
    driver = fresh(FakeDriver())
    driver.current.context = 5
    ensure_context(0)
    assert driver.current.context == 5
    assert "cuDevicePrimaryCtxRetain" not in driver.calls


def test_import_loads_no_driver():
    code = """
import ctypes
class Refuse:
    def __init__(self, *arguments): raise AssertionError("loaded")
ctypes.CDLL = Refuse
import cudnn_core.device_info
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
def test_facts_agree_with_torch():
    torch = pytest.importorskip("torch")
    info, properties = device_info(0), torch.cuda.get_device_properties(0)
    assert device_count() == torch.cuda.device_count()
    assert info.compute_capability == (properties.major, properties.minor)
    assert info.sm_count == properties.multi_processor_count
    assert info.shared_memory_per_block_optin == properties.shared_memory_per_block_optin
    assert info.l2_cache_bytes == properties.L2_cache_size
    assert info.device_name == properties.name
