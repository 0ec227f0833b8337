"""Strides of extent-1 axes mean nothing; where an executable would refuse them, the operand is passed restrided."""

import pytest

from cudnn_core.prepared import SOLE_LINE, odd_strides
from cudnn_core.tensor_desc import TensorDesc
from cudnn_core.testing import toy


def restrided(x_shape, x_stride, w_shape=(4, 8, 1), w_stride=(8, 1, 32)):
    descs = [
        TensorDesc.of("float32", x_shape, x_stride, name="x_tensor"),
        TensorDesc.of("float32", w_shape, w_stride, name="w_tensor"),
    ]
    return odd_strides(toy_op(), toy.CONTRACT.bind(descs, {}))


def toy_op():
    return next(value for value in vars(toy).values() if type(value).__name__ == "Op")


def test_ordinary_strides_pass_as_they_are():
    assert restrided((3, 8, 1), (8, 1, 24)) == {}


@pytest.mark.parametrize("batch", [0, 1, 7, 10**9])
def test_the_stride_of_a_sole_batch_is_never_looked_at(batch):
    assert restrided((3, 8, 1), (8, 1, batch)) == {}


@pytest.mark.parametrize("row", [1, 3, 10**9 + 1])
def test_a_sole_row_with_an_odd_stride_is_restrided(row):
    assert restrided((1, 8, 1), (row, 1, 8))[0] == (SOLE_LINE, 1, 8)


@pytest.mark.parametrize("row", [0, 8, 4 * 10**9])
def test_a_sole_row_with_whole_16_bytes_is_not(row):
    assert 0 not in restrided((1, 8, 1), (row, 1, 8))
