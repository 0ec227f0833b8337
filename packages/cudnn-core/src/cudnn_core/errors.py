"""The sentences of every refusal, in one place. Imports nothing.

A message names the argument, what was expected and what came:
``a_tensor: expected rank 3 (M, K, L), got shape (4, 4)``.
"""

from __future__ import annotations


def mismatch(argument: str, expected: object, got: object, hint: str = "") -> str:
    """``argument: expected ..., got ...`` and, after a semicolon, a hint."""
    text = f"{argument}: expected {expected}, got {got}"
    return f"{text}; {hint}" if hint else text


def one_of(names: object) -> str:
    """``one of a, b, c`` in a stable order."""
    return "one of " + ", ".join(sorted(str(name) for name in names))


def axes(dims: tuple[str, ...]) -> str:
    """``(M, K, L)``."""
    return "(" + ", ".join(dims) + ")"
