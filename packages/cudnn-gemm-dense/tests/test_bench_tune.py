"""The family's tables for `cudnn bench dense --tune`: candidates, problems, and calls with a given tile."""

import pytest

from cudnn_core.bench import tuning
from cudnn_core.bench.protocol import WrongResult
from cudnn_core.bench.tuning import kernel_of, label
from cudnn_core.hopper.tile import why_not
from cudnn_core.hopper.workspace import flag_bytes
from cudnn_gemm_dense import _bench, _bench_tune, kernels

TUNINGS = {made.name: made for made in _bench.tunings()}
NAMES = (
    "bf16xbf16",
    "bf16 over long K",
    "tf32xtf32",
    "tf32 over long K",
    "fp8xfp8",
    "bf16xmxfp8",
    "bf16xnvfp4",
    "bf16xmxfp4",
)


def test_every_body_has_a_table():
    assert tuple(TUNINGS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_is_picked_now_is_measured(name):
    made = TUNINGS[name]
    candidates = {kernel_of(rule): rule for rule in made.candidates}
    for problem in made.problems:
        assert made.allows(candidates[made.choose(problem)], problem)


@pytest.mark.parametrize("name", NAMES)
def test_candidates_can_be_told_apart_and_built(name):
    made = TUNINGS[name]
    assert len(set(map(label, made.candidates))) == len(made.candidates)
    assert set(map(kernel_of, made.rules)) < set(map(kernel_of, made.candidates))
    for rule in made.candidates:
        assert why_not(rule.tile) is None
        # GLU pairs lie in the same tile.
        assert rule.tile.bn % 64 == 0


@pytest.mark.parametrize("name", NAMES)
def test_problems_are_of_the_tables_kind_and_always_find_a_tile(name):
    made = TUNINGS[name]
    assert len(set(made.problems)) == len(made.problems) and set(made.quick) <= set(made.problems)
    assert {m for m, _, _ in made.problems} >= {16, 64, 128, 1024}
    assert len({k for _, _, k in made.quick}) > 1
    for problem in made.problems:
        assert any(made.allows(rule, problem) for rule in made.rules)
        if "long" in name:
            assert problem[2] > kernels.LONGEST_PLAIN_K


def test_a_formats_tables_share_six_tiles():
    for name in ("bf16", "tf32"):
        parts = (made for made in TUNINGS.values() if made.name.startswith(name))
        most = {made.table: made.most for made in parts if made.table != "DECODED"}
        assert sum(most.values()) == 6
    assert all(TUNINGS[name].most == 6 for name in NAMES[4:])


def test_long_sums_of_decoded_weights_need_promotion():
    made = TUNINGS["bf16xmxfp8"]
    large = next(rule for rule in made.rules if rule.tile.promote_k is rule.split is None)
    assert made.allows(large, (4096, 4096, 8192)) and not made.allows(large, (4096, 4096, 8224))
    few = made.rules[0]
    assert made.allows(few, (few.most_rows, 64, 9000))
    assert not made.allows(few, (few.most_rows + 1, 64, 64))


@pytest.mark.parametrize("name", NAMES)
def test_kernels_differ_in_tile_and_split_only(name):
    made = TUNINGS[name]
    digests = {made.source(rule).digest for rule in made.candidates}
    assert len(digests) == len(made.candidates)
    picked = made.choose(made.problems[0])
    (rule,) = (rule for rule in made.candidates if kernel_of(rule) == picked)
    bound = _bench_tune.bound(made.prepare.args[0], made.problems[0])
    assert made.source(rule).key.config == kernels.fused_config(bound)


def test_listing_loads_no_framework():
    import subprocess
    import sys

    code = (
        "import sys\nfrom cudnn_gemm_dense import _bench\nlist(_bench.tunings())\n"
        "print([m for m in ('torch', 'jax', 'cutlass') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def on_the_host(monkeypatch):
    """Kernels replaced by float64 on the host; `seen` holds (config, workspaces, operands, numbers)."""
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace

    from cudnn_core import prepared
    from cudnn_gemm_dense import _bench_work

    seen, works = [], []

    class Work(_bench_work.Work):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            works.append(self)

    def launcher(op, adapter, problem, engine, plan):
        def launch(tensors, stream, numbers):
            seen.append((plan.config, engine.workspaces(problem), tensors, numbers))
            acc = works[-1].a.wide.double() @ works[-1].b.wide.double().T * numbers[0]
            results = _bench_work.swiglu(acc, (), torch.sigmoid)
            tensors[-1].copy_(results["c_tensor"][:, :, None] * Work.factor)

        return launch

    Work.factor = 1.0
    monkeypatch.setattr(_bench_work, "Work", Work)
    monkeypatch.setattr(prepared, "launcher", launcher)
    monkeypatch.setattr(prepared, "executable_of", lambda engine, problem: engine.plan(problem))
    monkeypatch.setattr(kernels, "device_info", lambda index: SimpleNamespace(sm_count=132))
    return seen, Work


@pytest.mark.parametrize("name", NAMES)
def test_a_subject_calls_with_the_tile_it_is_given(name, on_the_host):
    seen, Work = on_the_host
    made = TUNINGS[name]
    rule = next(rule for rule in made.candidates if rule.split is not None)
    subject = made.prepare((40, 192, 128), "cpu")
    subject.check(rule)
    config, workspaces, tensors, numbers = seen[-1]
    assert (config.product.tile, config.product.split) == kernel_of(rule)
    assert len(tensors) == len(config.order) and numbers == (128**-0.5,)
    assert tuple(tensors[-1].shape) == (40, 96, 1)
    # A rewritten; partial tiles of this tile, and flags, for every multiprocessor.
    rewritten = 0 if config.product.treatments[0] is None else 40 * 128 * 2
    partials = 132 * rule.tile.bm * rule.tile.bn * 4
    assert [w.nbytes for w in workspaces] == [rewritten + partials + flag_bytes(rule.tile, 132)]
    Work.factor = 1.1
    with pytest.raises(WrongResult, match="c_tensor"):
        subject.check(rule)


def test_a_sweep_of_the_family(on_the_host):
    """From candidates to a table, with a clock that only counts calls."""
    from itertools import count

    ticks = count()
    clock = type(
        "Clock",
        (),
        {
            "now": lambda self: next(ticks) * 1e-6,
            "mark": lambda self: next(ticks) * 1e-6,
            "drain": lambda self: None,
            "free": lambda self: None,
            "idle": lambda self, seconds: None,
            "between": lambda self, start, end: end - start,
        },
    )()
    from dataclasses import replace

    made = replace(TUNINGS["bf16xbf16"], others=(), checks=((40, 192, 128),))
    tuner = tuning.Tuner(clock, "cpu", 132, tuning.Effort(0, 1, 1))
    found = tuner.sweep(made, ((16, 128, 64), (130, 128, 64)))
    assert found.rules == made.rules and found.dropped == {}
    assert [row.seconds[-1] is None for row in found.timed] == [False, True]
