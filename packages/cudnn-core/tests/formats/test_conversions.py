"""Every conversion against exact arithmetic, ml_dtypes, and the shared integer forms."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnn_core.formats import bits, cases, reference
from cudnn_core.formats.spec import E2M1, E4M3, E5M2, float_bits

ELEMENTS = [E4M3, E5M2, E2M1]
by_name = pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)
any_float32 = st.integers(0, 2**32 - 1).map(lambda w: np.uint32(w).view(np.float32))


def exact_encode(x: np.float32, element) -> int:
    """The code by search over all values in rational arithmetic."""
    if np.isnan(x):
        return element.nan_code
    sign = element.sign_code if np.signbit(x) else 0
    if np.isinf(x):
        return sign | element.max_code
    magnitude = abs(Fraction(float(x)))
    distance = [
        (abs(Fraction(element.magnitude(code)) - magnitude), code % 2, code)
        for code in range(element.max_code + 1)
    ]
    return sign | min(distance)[2]


@by_name
def test_values_of_all_codes_are_those_of_ml_dtypes(element):
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    theirs = codes.view(getattr(ml_dtypes, element.name)).astype(np.float32)
    np.testing.assert_array_equal(reference.decode(codes, element), theirs)


def test_values_of_all_e8m0_scales_are_those_of_ml_dtypes():
    theirs = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(reference.e8m0_values(), theirs)


def test_the_named_scale_bytes():
    ours = reference.e8m0_values()[[0, 1, 126, 127, 134, 254, 255]]
    np.testing.assert_array_equal(
        ours, np.float32([2.0**-127, 2.0**-126, 0.5, 1, 128, 2.0**127, np.nan])
    )


@by_name
def test_encoding_a_value_gives_its_code(element):
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    values = reference.decode(codes, element)
    keep = np.isfinite(values)
    np.testing.assert_array_equal(reference.encode(values[keep], element), codes[keep])


@by_name
def test_boundaries_round_as_exact_arithmetic_says(element):
    x = cases.boundaries(element)
    expected = [exact_encode(value, element) for value in x]
    np.testing.assert_array_equal(reference.encode(x, element), expected)


@by_name
@given(x=any_float32)
def test_any_float_rounds_as_exact_arithmetic_says(element, x):
    assert reference.encode(x, element) == exact_encode(x, element)


@by_name
@given(x=any_float32)
def test_finite_floats_in_range_agree_with_ml_dtypes(element, x):
    if not abs(x) <= element.max_value:
        return
    theirs = np.float32(x).astype(getattr(ml_dtypes, element.name)).view(np.uint8)
    assert reference.encode(x, element) == theirs


def test_e4m3_saturates():
    x = np.float32([447, 448, 464, 465, 1e4, np.inf, -1e4, np.nan, -np.nan])
    expected = [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x7F]
    np.testing.assert_array_equal(reference.encode(x, E4M3), expected)


def test_e5m2_saturates():
    x = np.float32([57344, 61440, 1e9, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(reference.encode(x, E5M2), [0x7B] * 4 + [0xFB, 0x7F])


def test_e2m1_ties_go_to_the_even_code():
    x = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, np.inf, np.nan, -0.0, -5])
    values = reference.decode(reference.encode(x, E2M1), E2M1)
    np.testing.assert_array_equal(values, [0, 1, 1, 2, 2, 4, 4, 6, 6, 6, -0.0, -4])
    assert np.signbit(values[-2])


def test_e8m0_rounds_up():
    def code(x):
        return int(reference.e8m0_encode(np.float32(x)))

    for exponent in range(-126, 128):
        power = np.float32(2.0**exponent)
        assert code(power) == exponent + 127
        assert code(np.nextafter(power, np.float32(0))) == exponent + 127
        assert code(np.nextafter(power, np.float32(np.inf))) == min(exponent + 128, 254)
    least = np.float32(2.0**-127)
    assert [code(0), code(least), code(np.nextafter(least, np.float32(1)))] == [0, 0, 1]
    assert [code(1e-45), code(3e38), code(np.inf), code(np.nan)] == [0, 254, 254, 255]


@given(x=any_float32)
def test_e8m0_is_the_least_power_not_below(x):
    x = abs(x)
    code = int(reference.e8m0_encode(x))
    if np.isnan(x):
        assert code == 255
    else:
        exact = Fraction(float(x)) if np.isfinite(x) else Fraction(2) ** 127
        assert Fraction(2) ** (code - 127) >= min(exact, Fraction(2) ** 127)
        assert code == 0 or Fraction(2) ** (code - 128) < exact


@by_name
def test_the_reciprocal_constant_is_correctly_rounded(element):
    word = element.reciprocal_bits
    exact = 1 / Fraction(element.max_value)
    near = [
        abs(Fraction(float(np.uint32(w).view(np.float32))) - exact)
        for w in (word - 1, word, word + 1)
    ]
    assert min(near) == near[1]


@by_name
def test_an_amax_of_the_largest_value_needs_no_larger_scale(element):
    reciprocal = np.uint32(element.reciprocal_bits).view(np.float32)
    for exponent in range(-120, 112 - int(element.max_value > 448) * 7):
        amax = np.float32(element.max_value) * np.float32(2.0**exponent)
        assert reference.e8m0_encode(amax * reciprocal) == exponent + 127
        above = np.nextafter(amax, np.float32(np.inf))
        assert reference.e8m0_encode(above * reciprocal) == exponent + 128


def test_first_fp4_element_is_the_low_nibble():
    codes = reference.encode(np.float32([0.5, 1.0, -6.0]), E2M1)
    np.testing.assert_array_equal(reference.pack_fp4(codes), [0x21, 0x0F])
    np.testing.assert_array_equal(reference.unpack_fp4(np.uint8([0x21])), [1, 2])


class numpy_bits:
    """The namespace that formats.bits takes, in NumPy."""

    where = staticmethod(np.where)
    clamp = staticmethod(np.clip)
    like = staticmethod(lambda value, array: np.full_like(array, value))
    bits_of_integer = staticmethod(lambda a: a.astype(np.float32).view(np.int32))


def magnitudes(words) -> np.ndarray:
    return np.asarray(words, np.uint32).view(np.int32) & 0x7FFFFFFF


def interesting_words() -> np.ndarray:
    rng = np.random.default_rng(7)
    powers = np.arange(0, 256, dtype=np.uint32) << np.uint32(23)
    near = [powers, powers + np.uint32(1), powers + np.uint32(0x7FFFFF), powers + np.uint32(2**22)]
    return np.concatenate([*near, rng.integers(0, 2**31, 3000, dtype=np.uint32)])


@by_name
def test_integer_encode_is_the_law(element):
    words = np.concatenate([interesting_words(), cases.boundaries(element).view(np.uint32)])
    x = words.view(np.float32)
    ours = bits.encode(numpy_bits, magnitudes(words), np.signbit(x), 0, element)
    np.testing.assert_array_equal(ours, reference.encode(x, element))


@by_name
@pytest.mark.parametrize("power", [-127, -126, -1, 1, 60, 127])
def test_integer_encode_scales_exactly(element, power):
    words = interesting_words()
    with np.errstate(invalid="ignore"):
        x = np.abs(words.view(np.float32).astype(np.float64))
    scaled = np.ldexp(x, power)
    # FP64 holds the product exactly; rounding it once to odd in FP32 cannot disturb the encoder.
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = scaled.astype(np.float32)
        toward = np.where(np.abs(narrow.astype(np.float64)) > scaled, np.float32(0), np.inf)
        inexact = narrow.astype(np.float64) != scaled
        even = narrow.view(np.uint32) % 2 == 0
        odd = np.where(inexact & even, np.nextafter(narrow, toward.astype(np.float32)), narrow)
    infinite = np.isinf(x)
    odd = np.where(infinite, np.inf, odd).astype(np.float32)
    ours = bits.encode(numpy_bits, magnitudes(words), np.zeros(words.shape, bool), power, element)
    np.testing.assert_array_equal(ours, reference.encode(odd, element))


def test_integer_round_up_is_the_law():
    words = interesting_words()
    ours = bits.e8m0_round_up(numpy_bits, magnitudes(words))
    np.testing.assert_array_equal(ours, reference.e8m0_encode(np.abs(words.view(np.float32))))


def assert_same_words(ours, theirs):
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(ours > bits.INF, nan)
    np.testing.assert_array_equal(ours[~nan], theirs[~nan].view(np.int32))


def test_integer_product_is_the_ieee_product():
    rng = np.random.default_rng(11)
    a, b = rng.choice(interesting_words(), (2, 40000))
    with np.errstate(all="ignore"):
        product = a.view(np.float32) * b.view(np.float32)
    assert_same_words(bits.multiply(numpy_bits, magnitudes(a), magnitudes(b)), product)


@given(a=st.integers(0, 2**31 - 1), b=st.integers(0, 2**31 - 1))
def test_any_integer_product_is_the_ieee_product(a, b):
    a, b = np.uint32([a]), np.uint32([b])
    with np.errstate(all="ignore"):
        product = a.view(np.float32) * b.view(np.float32)
    assert_same_words(bits.multiply(numpy_bits, magnitudes(a), magnitudes(b)), product)


@pytest.mark.parametrize("scale", ["float8_e8m0fnu", "float8_e4m3fn"])
def test_inverse_scales_are_ieee_quotients(scale):
    with np.errstate(divide="ignore"):
        quotient = np.float32(1) / np.abs(reference.scale_values(scale))
    assert_same_words(np.array(bits.inverse_scales(scale), np.int32), quotient)


def test_float_bits_of_known_numbers():
    assert float_bits(1.0) == 0x3F800000
    assert float_bits(2.0**-127) == 0x00400000
