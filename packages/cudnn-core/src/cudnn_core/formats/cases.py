"""Inputs that break quantizers, for tests and the bench. Imports numpy, formats.spec.

Deterministic: the same arrays in every process.
"""

from itertools import pairwise

import numpy as np

from .spec import FORMATS

# Every (format, block length) that quantize accepts.
RECIPES = [(name, block) for name, fmt in FORMATS.items() for block in fmt.blocks]


def inputs(rows: int = 67, k: int = 250) -> dict[str, np.ndarray]:
    """FP32 matrices by name: ordinary, tiny, huge, subnormal, special and random-bit values."""
    rng = np.random.default_rng(2024)
    shape = (rows, k)

    def normal(exponents):
        return np.ldexp(rng.standard_normal(shape), exponents).astype(np.float32)

    with np.errstate(over="ignore"):
        words = rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
        found = {
            "normal": normal(0),
            "spread": normal(rng.integers(-20, 3, shape)),
            "wild": normal(rng.integers(-160, 128, shape)),
            "bits": words,
            "finite": np.where(np.isfinite(words), words, np.float32(0)),
            "subnormal": normal(-140),
            "smallest normal": normal(-126),
            "tiny": np.exp2(rng.uniform(np.log2(1e-40), np.log2(6e-35), shape)).astype(np.float32),
            "huge": normal(121),
            "zeros": np.zeros(shape, np.float32),
            "negative zeros": np.full(shape, -0.0, np.float32),
            "all negative": -np.abs(normal(0)),
        }
    found["special"] = special(normal(0))
    return found


def special(x: np.ndarray) -> np.ndarray:
    """NaN at block positions 0, 15 and 31, whole NaN rows, infinities, zero blocks, FP32's max."""
    x = x.copy()
    row = iter(range(len(x)))
    for position in (0, 15, 31):
        x[next(row), position::64] = np.nan
    x[next(row), 3::32] = np.inf
    x[next(row), -1] = -np.inf
    x[next(row)] = np.nan
    x[next(row)] = np.inf
    x[next(row), 5:9] = [np.nan, np.inf, -np.nan, -np.inf]
    x[next(row), ::2] = 0
    x[next(row), :64] = -0.0
    x[next(row), 7] = np.finfo(np.float32).max
    return x


def boundaries(element) -> np.ndarray:
    """Every value of an element type, every midpoint, and the FP32 neighbours of both."""
    values = [element.magnitude(code) for code in range(element.max_code + 1)]
    middles = [(a + b) / 2 for a, b in pairwise(values)]
    exact = np.array(values + middles, np.float32)
    around = np.concatenate([exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)])
    return np.concatenate([around, -around]).astype(np.float32)
