"""Benchmark cases of the fake family: two that are built, wrong when FAKE_WRONG is set, and one that is planned.

And a table of two tiles, one of them wrong when FAKE_WRONG is set, with a third to try.
"""

import os
import time

from cudnn_core.bench.protocol import Absent, Case, Trial, WrongResult
from cudnn_core.bench.tuning import Tuning
from cudnn_core.hopper.rules import Rule
from cudnn_core.hopper.tile import TileConfig


def trial(device):
    def check():
        if "FAKE_WRONG" in os.environ:
            raise WrongResult("y is off")

    return Trial(
        ours=lambda: None,
        check=check,
        peers={"slow [peer]": lambda: lambda: None, "lost": lambda: Absent("it is not here")},
        flops=1.0,
        nbytes=1.0,
    )


def cases():
    yield Case("fake/scale", "3,4", "f32->f32", {"slow [peer]": 0.1}, trial, quick=True)
    yield Case("fake/scale", "5,6", "bf16->bf16", {"lost": 1.0}, trial)
    yield Case("fake/planned", "3,4", "f32->f32", {}, trial, not_built=lambda: "it is coming")


SQUARE = Rule(TileConfig(bm=128, bn=128), 0.9, 100)
TALL = Rule(TileConfig(bm=256, bn=128), 1.0, 300)
SHARED = Rule(TileConfig(bm=128, bn=128), 0.9, 100, split=4, join=500)


class Subject:
    """Calls that take as long as the rules say."""

    def __init__(self, problem, device):
        self._problem = problem

    def call(self, rule):
        seconds = 1e-12 * rule.cost(*self._problem, 1, 132)
        return lambda: time.sleep(seconds)

    def check(self, rule):
        if "FAKE_WRONG" in os.environ and rule == TALL:
            raise WrongResult("c is off")


def tunings():
    from cudnn_fake import source

    problems = tuple((m, 4096, 4096) for m in (128, 1024, 4096))
    yield Tuning(
        "f32xf32",
        "FAKE",
        (SQUARE, TALL),
        (SHARED,),
        problems,
        problems[:1],
        ((8, 8, 8),),
        choose=lambda problem: (TALL.tile, None),
        prepare=Subject,
        source=lambda rule: source(2.0 if rule.split is None else 3.0),
    )
