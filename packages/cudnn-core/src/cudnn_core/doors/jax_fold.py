"""`jax.vmap` of ops whose contract names axes along which operands are independent: the mapped axis is merged with one.

May import jax; only the JAX door comes here. Where no axis serves every operand, the calls run one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ..contract.arrays import symbol_and_offset

if TYPE_CHECKING:
    from ..contract import Operand
    from ..op import Op


def batched(
    op: Op,
    call: Callable[..., Sequence[jax.Array]],
    operands: Sequence[Operand],
    results: Sequence[Operand],
    args: Sequence[jax.Array],
    dims: Sequence[int | None],
) -> tuple[list[jax.Array], list[int]]:
    """The results of `call` for each index of the mapped axes `dims`, and where that axis is in each result."""
    aliases = op.contract.aliases(frozenset(operand.name for operand in operands))
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    # Nothing mapped leaves no extent to split again.
    for group in op.contract.folds if size else ():
        symbols = {aliases.get(symbol, symbol) for symbol in group}
        places = [_place(operand, symbols, aliases) for operand in operands]
        ends = [_place(operand, symbols, aliases) for operand in results]
        known = all(d is None or at is not None for d, at in zip(dims, places, strict=True))
        if known and None not in ends and not _offset(operands, symbols, aliases):
            merged = [_merge(*each, size) for each in zip(args, dims, places, strict=True)]
            made = call(*merged)
            return [_split(y, at, size) for y, at in zip(made, ends, strict=True)], ends
    return _one_by_one(call, args, dims), [0] * len(results)


def _symbols(operand: Operand, aliases: dict[str, str]) -> list[tuple[str, int]]:
    parts = [symbol_and_offset(text) for text in operand.dims]
    return [(aliases.get(symbol, symbol), offset) for symbol, offset in parts]


def _place(operand: Operand, symbols: set[str], aliases: dict[str, str]) -> int | None:
    """Index of the operand's axis that is one of `symbols`; None without one."""
    for at, (symbol, offset) in enumerate(_symbols(operand, aliases)):
        if symbol in symbols and offset == 0:
            return at
    return None


def _offset(operands: Iterable[Operand], symbols: set[str], aliases: dict[str, str]) -> bool:
    """Whether some extent is one of `symbols` plus a number: such axes do not merge."""
    return any(
        symbol in symbols and offset != 0
        for operand in operands
        for symbol, offset in _symbols(operand, aliases)
    )


def _merge(x: jax.Array, mapped: int | None, at: int | None, size: int) -> jax.Array:
    """`x` with its mapped axis merged into axis `at` (of the rest); repeated where it has none."""
    if at is None:
        return x
    if mapped is None:
        x = jnp.broadcast_to(jnp.expand_dims(x, at), (*x.shape[:at], size, *x.shape[at:]))
    else:
        x = jnp.moveaxis(x, mapped, at)
    return x.reshape(*x.shape[:at], size * x.shape[at + 1], *x.shape[at + 2 :])


def _split(y: jax.Array, at: int, size: int) -> jax.Array:
    return y.reshape(*y.shape[:at], size, y.shape[at] // size, *y.shape[at + 1 :])


def _one_by_one(
    call: Callable[..., Sequence[jax.Array]],
    args: Sequence[jax.Array],
    dims: Sequence[int | None],
) -> list[jax.Array]:
    """The results stacked along a new first axis."""
    mapped = [jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True) if d is not None]

    def one(entries: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        given = iter(entries)
        return tuple(
            call(*(x if d is None else next(given) for x, d in zip(args, dims, strict=True)))
        )

    return list(jax.lax.map(one, mapped))
