"""Benchmark cases of the fake family: two that are built, wrong when FAKE_WRONG is set, and one that is planned."""

import os

from cudnn_core.bench.protocol import Absent, Case, Trial, WrongResult


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
