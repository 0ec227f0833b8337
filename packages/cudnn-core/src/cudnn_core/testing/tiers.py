"""The test tiers: what a test marked `gpu`, `host_time` or `compile` needs, and why it is skipped without it.

May import the standard library, pytest and `cudnn_core.device_info`. A package's
`tests/conftest.py` takes its hook from here.
"""

import functools
from importlib.util import find_spec

import pytest


@functools.cache
def why_no_hopper():
    """Why `gpu` and `host_time` tests cannot run here, or None when device 0 is a Hopper GPU."""
    from cudnn_core.device_info import device_info

    try:
        major, minor = device_info(0).compute_capability
    except (NotImplementedError, RuntimeError) as error:
        return str(error)
    return None if major == 9 else f"device 0 has compute capability {major}.{minor}, not 9.x"


@functools.cache
def why_no_compiler():
    """Why `compile` tests cannot run here, or None when the CuTe DSL is installed."""
    return None if find_spec("cutlass") else "the CuTe DSL is not installed (it exists for Linux)"


def pytest_collection_modifyitems(items):
    for item in items:
        for marker, why in (
            ("gpu", why_no_hopper),
            ("host_time", why_no_hopper),
            ("compile", why_no_compiler),
            ("compile_all", why_no_compiler),
        ):
            if item.get_closest_marker(marker) and (reason := why()):
                item.add_marker(pytest.mark.skip(reason=reason))
