"""Dimension symbols (M, N, K, L ...) bound to extents, each remembering who bound it first."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import mismatch


class Dims(dict):
    """Symbol -> extent. Extents may be symbolic integers, so they are compared but never hashed.

    aliases: symbol -> the symbol it is another name of in this call.
    """

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._source: dict[str, str] = {}
        self._aliases = dict(aliases or {})

    def __missing__(self, symbol: str) -> int:
        if symbol in self._aliases:
            return self[self._aliases[symbol]]
        raise KeyError(symbol)

    def __contains__(self, symbol: object) -> bool:
        return super().__contains__(self._aliases.get(symbol, symbol))

    def bind(self, symbol: str, extent: int, argument: str) -> None:
        """Bind `symbol`, or check it against the extent bound before."""
        symbol = self._aliases.get(symbol, symbol)
        if symbol not in self:
            self[symbol] = extent
            self._source[symbol] = argument
        elif self[symbol] != extent:
            expected = f"{symbol} = {self[symbol]} (from {self._source[symbol]})"
            raise ValueError(mismatch(argument, expected, f"{symbol} = {extent}"))

    def admits(self, symbol: str, extent: int) -> bool:
        """Whether `bind` would take the extent."""
        return extent >= 0 and (symbol not in self or self[symbol] == extent)

    def source(self, symbol: str) -> str:
        """The argument that bound `symbol`."""
        return self._source[self._aliases.get(symbol, symbol)]

    def spelled(self, text: str) -> str:
        """A symbol, or a symbol and an offset, in the names of this call."""
        for symbol, other in self._aliases.items():
            text = text.replace(symbol, other)
        return text

    def extents(self) -> dict[str, int]:
        """Every symbol that is bound, aliases included."""
        return {**self, **{s: self[o] for s, o in self._aliases.items() if o in self}}
