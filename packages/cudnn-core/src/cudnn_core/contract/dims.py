"""Dimension symbols (M, N, K, L ...) bound to extents, each remembering who bound it first."""

from __future__ import annotations

from ..errors import mismatch


class Dims(dict):
    """Symbol -> extent. Extents may be symbolic integers, so they are compared but never hashed."""

    def __init__(self) -> None:
        super().__init__()
        self._source: dict[str, str] = {}

    def bind(self, symbol: str, extent: int, argument: str) -> None:
        """Bind `symbol`, or check it against the extent bound before."""
        if symbol not in self:
            self[symbol] = extent
            self._source[symbol] = argument
        elif self[symbol] != extent:
            expected = f"{symbol} = {self[symbol]} (from {self._source[symbol]})"
            raise ValueError(mismatch(argument, expected, f"{symbol} = {extent}"))

    def source(self, symbol: str) -> str:
        """The argument that bound `symbol`."""
        return self._source[symbol]
