"""The formats' benchmark: its check compares bits."""

import pytest

torch = pytest.importorskip("torch")

from cudnn_core.bench.parts import COPY
from cudnn_core.bench.protocol import WrongResult
from cudnn_core.formats import _bench

SHAPE = (64, 256)


@pytest.mark.parametrize("case", list(_bench.cases()), ids=lambda c: c.dtype + c.op[-4:])
def test_cases_pass_their_check_and_count_their_bytes(case):
    name, block, per_tensor, _ = case.prepare.args
    trial = _bench.prepare(name, block, per_tensor, SHAPE, "cpu")
    trial.check()
    x = 64 * 256 * 2
    codes = 64 * 256 // (2 if "fp4" in name else 1)
    scales = 128 * (256 // block)
    assert trial.nbytes == x * (2 if per_tensor else 1) + codes + scales
    assert case.targets.keys() == trial.bounds.keys() == {COPY}


@pytest.mark.parametrize("key", ["data", "scale"])
def test_one_wrong_bit_is_refused(monkeypatch, key):
    real = _bench.quantize

    def wrong(x, name, engine=None, **options):
        result = real(x, name, engine=engine, **options)
        if engine is None:
            scalar = result[key].view(torch.uint8)[(0,) * result[key].ndim]
            scalar ^= 1
        return result

    monkeypatch.setattr(_bench, "quantize", wrong)
    trial = _bench.prepare("mxfp8", 32, None, SHAPE, "cpu")
    with pytest.raises(WrongResult, match=f"{key} differs"):
        trial.check()
