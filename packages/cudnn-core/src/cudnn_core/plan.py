"""Plan: the frozen, hashable compile key. Imports nothing of the project.

A Plan holds everything that selects generated code and nothing that does not: no extent, stride, pointer, scalar value
or stream. Equal plans share one executable, in memory and on disk.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """op: "dense/amax"; engine: "hopper"; arch: "sm_90a" ("" for the reference); config: a frozen dataclass."""

    op: str
    engine: str
    arch: str
    config: Hashable
