"""The decode arithmetic: every element code with every scale code, against ml_dtypes in float64.

May import numpy, ml_dtypes, and the model beside this file.
"""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

_spec = importlib.util.spec_from_file_location(
    "decode_model", Path(__file__).with_name("decode_model.py")
)
model = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(model)

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def element_values(name):
    if name == "float4_e2m1fn":
        return E2M1
    return np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name)).astype(np.float64)


def scale_values(name):
    codes = np.arange(256, dtype=np.uint8)
    if name == "float8_e8m0fnu":
        return np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127))
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def expected(element, scale):
    """(codes, scales): element * scale, rounded once."""
    with np.errstate(all="ignore"):
        return model.round_bf16(element_values(element)[:, None] * scale_values(scale)[None, :])


def expanded(name):
    """(values, fields) of every 8-bit code as the device finds them: bits in BF16 position."""
    element = model.ELEMENTS[name]
    count = 1 << element.bits
    per_word = 32 // element.bits
    values, fields = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
    codes = np.arange(count, dtype=np.uint32)
    # A word whose element i is code + i, so that neighbours differ.
    word = np.zeros(count, np.uint32)
    for i in range(per_word):
        word |= ((codes + i) % count) << np.uint32(element.bits * i)
    for pair in range(per_word // 2):
        value, field = element.expand(word, pair)
        for half, position in enumerate(element.positions(pair)):
            at = (codes + position) % count
            if pair or half:
                np.testing.assert_array_equal(values[at], value[half])
            values[at], fields[at] = value[half], field[half]
    return values, fields


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_fast_path_is_exact_where_it_is_taken(name):
    element = model.ELEMENTS[name]
    values, fields = expanded(name)
    codes = np.arange(256)
    special = model.is_special(element, fields[:, None], codes[None, :])
    got = model.mul_bf16(values[:, None], model.fast_factor(element, codes)[None, :])
    want = expected(name, "float8_e8m0fnu")
    np.testing.assert_array_equal(got[~special], want[~special])
    # The exact path is for NaN, Inf and scales of 2^8 and more: nothing that data usually has.
    odd = ~np.isfinite(element_values(name))
    np.testing.assert_array_equal(special, odd[:, None] | (codes >= 255 - element.gap)[None, :])


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_exact_path(name):
    """FP16 holds every element, FP32 the product with a power of two: one rounding is left."""
    half = element_values(name).astype(np.float16).astype(np.float32)
    scale = model.bf16_value(model.exact_factor(np.arange(256))).astype(np.float32)
    with np.errstate(all="ignore"):
        product = half[:, None] * scale[None, :]
    np.testing.assert_array_equal(
        model.round_bf16(product.astype(np.float64)), expected(name, "float8_e8m0fnu")
    )


def low_codes():
    """The device's first step of every FP4 code, in either place of a byte and beside any other."""
    byte = np.arange(256, dtype=np.uint32)
    low, high = model.low_e2m1(byte)
    values = low[:16]
    np.testing.assert_array_equal(low, values[byte & 15])
    np.testing.assert_array_equal(high, values[byte >> 4])
    return values


@pytest.mark.parametrize("scale", ["float8_e8m0fnu", "float8_e4m3fn"])
def test_fp4(scale):
    """One step for usual scales, two for any."""
    low, codes = low_codes(), np.arange(256, dtype=np.uint32)
    want = expected("float4_e2m1fn", scale)
    usual = ~model.unusual(codes * np.uint32(0x01010101), scale)
    factor = model.fp4_factor(codes[usual], scale)
    assert (factor < 0x7F80).all()
    made = model.mul_bf16(low[:, None], factor[None, :])
    back = 2.0 ** model.LACKING[scale]
    np.testing.assert_array_equal(made * back, want[:, usual])
    if scale == "float8_e8m0fnu":
        exact = model.exact_factor(codes)
    else:
        # The conversion through FP16 and FP32 is exact: e4m3 fits BF16.
        exact = scale_values(scale).astype(np.float32).view(np.uint32) >> np.uint32(16)
    for lacking in (0, model.LACKING[scale]):
        values = model.bf16_bits(model.raised(low, lacking))
        made = model.mul_bf16(values[:, None], exact[None, :])
        np.testing.assert_array_equal(made * 2.0**lacking, want)


@pytest.mark.parametrize("scale", ["float8_e8m0fnu", "float8_e4m3fn"])
def test_scale_codes_that_are_unusual(scale):
    """Every code in every byte of a word, beside others."""
    codes = np.arange(256, dtype=np.uint32)
    first, end = model.USUAL[scale]
    for neighbours in (first, (first + end) // 2, end - 1):
        for byte in range(4):
            rest = np.uint32(neighbours * 0x01010101 & ~(0xFF << 8 * byte) & 0xFFFFFFFF)
            found = model.unusual((codes << np.uint32(8 * byte)) | rest, scale)
            np.testing.assert_array_equal(found, (codes < first) | (codes >= end))


def test_e2m1_rounding():
    """Every tie and its neighbours, all magnitudes, Inf and NaN: nearest even, +6 for NaN."""
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], np.float32)
    near = [np.nextafter(ties, np.float32(side)) for side in (0, 10)]
    spread = np.exp2(np.linspace(-149, 127.9, 4001)).astype(np.float32)
    x = np.concatenate([ties, *near, spread, np.float32([0.0, np.inf])])
    x = np.concatenate([x, -x])
    distance = np.abs(np.minimum(np.abs(x), 6)[:, None].astype(np.float64) - E2M1[None, :8])
    # Codes in the order even, odd: of two equally near ones argmin takes the even one.
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    want = order[distance[:, order].argmin(axis=1)] | (np.signbit(x) << 3)
    np.testing.assert_array_equal(model.e2m1_code(x), want)
    nan = np.array([0x7FFFFFFF, 0x7F800001, -1, -0x007FFFFF], np.int32).view(np.float32)
    np.testing.assert_array_equal(model.e2m1_code(nan), 7)


def test_the_model_has_the_device_constants():
    pytest.importorskip("cutlass")
    from cudnn_core.hopper import decode

    for name, element in decode.ELEMENTS.items():
        assert vars(element) == vars(model.ELEMENTS[name])
    for name in (
        "CODE_SIGNS",
        "CODE_FIELDS",
        "FIELDS",
        "PAIR",
        "COPIES",
        "LACKING",
        "USUAL",
        "FACTORS",
    ):
        assert getattr(decode, name) == getattr(model, name)
    assert decode.RAISE == model.RAISE * 0x10001


def test_codes_of_a_word_come_in_pairs():
    low, words = low_codes(), np.random.default_rng(0).integers(0, 2**32, 5000, np.uint32)
    for index in range(4):
        for half, code in enumerate((index, index + 4)):
            want = low[(words >> np.uint32(4 * code)) & np.uint32(15)]
            np.testing.assert_array_equal(model.e2m1_pair(words, index)[half], want)


DECODERS = [
    ("float8_e4m3fn", "float8_e8m0fnu", 32),
    ("float8_e5m2", "float8_e8m0fnu", 32),
    ("float4_e2m1fn", "float8_e8m0fnu", 32),
    ("float4_e2m1fn", "float8_e8m0fnu", 16),
    ("float4_e2m1fn", "float8_e4m3fn", 16),
]


@pytest.mark.parametrize("decoder", DECODERS)
def test_threads_have_what_lies_together(decoder):
    """Each element once; a thread's places hold its quarter, and of each half of that under one scale."""
    pytest.importorskip("cutlass")
    from cudnn_core.hopper.decode import Decoder

    decoder = Decoder(*decoder)
    order = np.array(decoder.order())
    assert sorted(order) == list(range(decoder.tile_k))
    place = np.arange(decoder.tile_k)
    thread = place % 8 // 2
    np.testing.assert_array_equal(order // (decoder.tile_k // 4), thread)
    block = decoder.share_start(thread) + (place // 64 if decoder.share_blocks > 1 else 0)
    np.testing.assert_array_equal(order // decoder.sf_vec, block)
    assert decoder.blocks == block.max() + 1


@pytest.mark.parametrize("decoder", DECODERS)
def test_pieces_of_eight_have_one_order(decoder):
    """What `Expand.store` goes by: where the first piece of a raw stage has its pairs, others have theirs."""
    pytest.importorskip("cutlass")
    from cudnn_core.hopper.decode import Decoder

    decoder = Decoder(*decoder)
    order, share = np.array(decoder.order()), decoder.tile_k // 4
    first = np.flatnonzero(order[::2] < 8) * 2
    assert len(first) == 4 and (order[first + 1] < 8).all()
    for k in range(0, decoder.tile_k, 8):
        place = 4 * (k % share) + 2 * (k // share)
        for pair in (0, 1):
            np.testing.assert_array_equal(order[place + first + pair], k + order[first + pair])
