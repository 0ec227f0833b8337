"""What families build their cases from."""

import pytest

torch = pytest.importorskip("torch")

from cudnn_core.bench.parts import ROUNDING, copy_of, judge, nbytes, replay
from cudnn_core.bench.protocol import Absent, WrongResult

GENERATOR = torch.Generator().manual_seed(0)


def exact(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_one_rounding_passes(dtype):
    want = exact(64, 512) * 100
    judge("y", want.to(getattr(torch, dtype)), want, ROUNDING[dtype], 1e-5)


def test_two_roundings_of_a_narrower_type_do_not():
    want = exact(64, 512)
    narrow = want.to(torch.float8_e4m3fn).to(torch.bfloat16)
    with pytest.raises(WrongResult, match=r"y: \d+\.\d+% of the elements"):
        judge("y", narrow, want, ROUNDING["bfloat16"], 1e-5)


def test_a_single_wrong_element_is_found():
    want = exact(64, 512)
    got = want.clone()
    got[63, 511] += 0.1
    with pytest.raises(WrongResult, match="0.00% of the elements are beyond .* the worst"):
        judge("y", got, want, 2.0**-8, 1e-4)


@pytest.mark.parametrize("side", ["got", "exact"])
def test_nan_is_wrong_on_either_side(side):
    values = {"got": exact(8, 8), "exact": None}
    values["exact"] = values["got"].clone()
    values[side][3, 3] = torch.nan
    with pytest.raises(WrongResult):
        judge("y", values["got"], values["exact"], 1.0, 1.0)


def test_an_unwritten_output_is_wrong():
    want = exact(32, 32)
    with pytest.raises(WrongResult):
        judge("y", torch.zeros_like(want), want, 2.0**-8, 1e-3)


def test_another_shape_is_wrong():
    with pytest.raises(WrongResult, match=r"y has shape \(2, 3\), expected \(3, 2\)"):
        judge("y", torch.zeros(2, 3), exact(3, 2), 1.0, 1.0)


def test_bytes_count_elements_and_nothing_for_none():
    x = torch.zeros(4, 6, dtype=torch.bfloat16)
    assert nbytes(x, None, x[:2].float()) == 48 + 48


def test_the_copy_moves_as_many_bytes_as_it_says():
    copy = copy_of(1000, "cpu")()
    target = copy()
    assert target.numel() * target.element_size() == 500 and target.unique().numel() > 50


def test_graphs_need_a_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert isinstance(replay(lambda: None), Absent)
