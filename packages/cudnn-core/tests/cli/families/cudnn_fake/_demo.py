"""Demo of the fake family: one good case, one that misses when FAKE_MISS is set, one study."""

import os

from cudnn_core.cli.protocol import Case, Study, Trial


def case(formats, error):
    def prepare():
        return Trial("reference", lambda: 1.0, lambda outputs: {"y": error, "amax": 0.0})

    return Case(
        op="fake/scale",
        source="N(0, 1)",
        shape="3x4",
        formats=formats,
        flop=12.0,
        tolerance={"y": 1e-3, "amax": 0.0},
        prepare=prepare,
    )


def cases(place, block):
    yield case("good", 1e-4)
    if miss := os.environ.get("FAKE_MISS"):
        yield case("bad", float(miss))


def studies(place, block):
    rows = [(("a", "1"), 1), (("b", "2"), 2)]
    yield Study("Study [of] nothing", ("what", "much"), 2, lambda: rows, ("A note.",), draw)


def draw(figure, data):
    figure.subplots().plot(data)
