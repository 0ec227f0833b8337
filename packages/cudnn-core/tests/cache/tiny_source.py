"""KernelSource of the tiny kernel. Imports no DSL."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from cudnn_core import cache


@dataclass(frozen=True)
class TinyPlan:
    step: float = 2.0
    dtype: str = "Float32"


def tiny(plan=None, **changes):
    plan = plan or TinyPlan()

    def build():
        import tiny_kernel

        # For the test that kills a process in mid-compile.
        if marker := os.environ.get("TINY_KERNEL_STALL"):
            Path(marker).touch()
            time.sleep(600)
        return tiny_kernel.Scale(plan.step), tiny_kernel.fake_args(plan.dtype), ""

    sources = (Path(__file__).with_name("tiny_kernel.py"),)
    return cache.KernelSource(
        **{"name": "tiny", "key": plan, "build": build, "sources": sources, **changes}
    )
