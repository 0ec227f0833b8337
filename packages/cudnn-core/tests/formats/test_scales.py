"""pack_scales and unpack_scales."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_core.formats import pack_scales, unpack_scales


def offset(batch, row, block, row_atoms, block_atoms):
    """The byte of a scale, as the layout's definition says."""
    atom = (batch * row_atoms + row // 128) * block_atoms + block // 4
    return atom * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("blocks", [1, 3, 4, 5])
def test_every_byte_is_at_its_offset(rows, blocks):
    plain = np.random.default_rng(0).integers(1, 255, (2, rows, blocks), dtype=np.uint8)
    flat = pack_scales(plain, scale_layout="physical").reshape(-1)
    row_atoms, block_atoms = -(-rows // 128), -(-blocks // 4)
    assert flat.size == 2 * row_atoms * block_atoms * 512
    batch, row, block = np.indices(plain.shape)
    expected = np.zeros_like(flat)
    expected[offset(batch, row, block, row_atoms, block_atoms)] = plain
    np.testing.assert_array_equal(flat, expected)


def test_the_views_share_their_bytes():
    plain = np.arange(3 * 5, dtype=np.uint8).reshape(3, 5)
    logical = pack_scales(plain)
    physical = pack_scales(plain, scale_layout="physical")
    assert logical.shape == (32, 4, 1, 4, 2, 1)
    assert logical.strides == (16, 4, 1024, 1, 512, 1024)
    assert physical.shape == (1, 1, 2, 32, 4, 4)
    assert physical.flags.c_contiguous
    np.testing.assert_array_equal(logical.transpose(5, 2, 4, 0, 1, 3), physical)


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(0, 200), st.integers(0, 9)),
    layout=st.sampled_from(["atom", "logical", "physical"]),
    dtype=st.sampled_from([np.uint8, np.int8, ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn]),
)
@settings(max_examples=60)
def test_unpack_undoes_pack(shape, layout, dtype):
    plain = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8).view(dtype)
    packed = pack_scales(plain, scale_layout=layout)
    back = unpack_scales(packed, shape)
    assert packed.dtype == back.dtype == dtype
    np.testing.assert_array_equal(back.view(np.uint8), plain.view(np.uint8))


def test_batch_last():
    plain = np.random.default_rng(2).integers(0, 256, (130, 6, 3), dtype=np.uint8)
    packed = pack_scales(plain, axis=1)
    assert packed.shape == (32, 4, 2, 4, 2, 3)
    np.testing.assert_array_equal(packed, pack_scales(plain.transpose(2, 0, 1)))
    np.testing.assert_array_equal(unpack_scales(packed, plain.shape, axis=1), plain)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack_scales(np.ones((2, 2), np.float32)), "scale: expected dtype .*got float32"),
        (lambda: pack_scales(np.ones((2, 2), np.uint8), scale_layout="plain"), "scale_layout"),
        (
            lambda: unpack_scales(np.ones((32, 4, 1, 4, 1, 1), np.uint8), (129, 4)),
            r"scale: expected shape \(32, 4, 2, 4, 1, 1\)",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
