"""A family for the command line's tests: one operation with two tiny kernels and a broken one."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from cudnn_core.cache import KernelSource
from cudnn_core.engine import HopperEngine, ReferenceEngine


@dataclass(frozen=True)
class ScalePlan:
    op: str
    step: float


class ScaleOp:
    contract = SimpleNamespace(name="fake/scale")
    engines = (ReferenceEngine(lambda *_: None), HopperEngine(lambda _: None, lambda _: None))

    def sources(self, arch="sm_90a", everything=False):
        if arch != "sm_90a":
            return
        steps = (2.0, 3.0, 5.0) if everything else (2.0, 3.0)
        for step in steps:
            yield f"step {step:g}", source(step)
        if "FAKE_BROKEN" in os.environ:
            yield "broken", KernelSource("broken", key=ScalePlan("fake/broken", 0.0), build=fail)


def source(step):
    def build():
        from cudnn_fake import kernel

        return kernel.Scale(step), kernel.fake_arguments(), ""

    plan = ScalePlan("fake/scale", step)
    sources = (Path(__file__).with_name("kernel.py"),)
    return KernelSource("fake_scale", key=plan, build=build, sources=sources)


def fail():
    raise ValueError("this kernel [is] meant to fail")


def ops():
    return (ScaleOp(),)
