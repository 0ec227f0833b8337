"""Shared-memory instructions with constant offsets, as staging uses them.

May import: the CuTe DSL, inline.py.

Addresses are 32-bit byte addresses of shared memory.
"""

import cutlass
from cutlass import Int32, Int64
from cutlass.cutlass_dsl import dsl_user_op

from ..inline import asm, load, vector


def _words(values, loc, ip) -> list:
    return [Int32(v).ir_value(loc=loc, ip=ip) for v in values]


@dsl_user_op
def store_matrices(
    address: Int32, words: list, transposed: cutlass.Constexpr, offset: int, *, loc=None, ip=None
) -> None:
    """stmatrix: 1, 2 or 4 matrices of 8x8 16-bit elements; lane l addresses row l%8 of matrix l//8."""
    count = len(words)
    names = ", ".join(f"${i + 1}" for i in range(count))
    trans = ".trans" if transposed else ""
    text = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [$0 + {offset}], {{{names}}};"
    asm(None, _words((address, *words), loc, ip), text, ",".join("r" * (count + 1)))


@dsl_user_op
def load_matrices(
    address: Int32,
    count: cutlass.Constexpr,
    transposed: cutlass.Constexpr,
    offset: int,
    *,
    loc=None,
    ip=None,
) -> list:
    """ldmatrix: what `store_matrices` stored, as words."""
    trans = ".trans" if transposed else ""
    names = ", ".join(f"${i}" for i in range(count))
    text = (
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [${count} + {offset}];"
    )
    return load(Int32, count, _words([address], loc, ip), text, "r")


@dsl_user_op
def store_words(address: Int32, words: list, offset: int, *, loc=None, ip=None) -> None:
    """One, two or four 32-bit words."""
    count = len(words)
    size = f".v{count}" if count > 1 else ""
    text = f"st.shared{size}.b32 [$0 + {offset}], {vector(1, count)};"
    asm(None, _words((address, *words), loc, ip), text, ",".join("r" * (count + 1)))


@dsl_user_op
def load_words(address: Int32, count: cutlass.Constexpr, offset: int, *, loc=None, ip=None) -> list:
    """One, two or four 32-bit words."""
    size = f".v{count}" if count > 1 else ""
    text = f"ld.shared{size}.b32 {vector(0, count)}, [${count} + {offset}];"
    return load(Int32, count, _words([address], loc, ip), text, "r")


@dsl_user_op
def store_narrow(
    address: Int32, word: Int32, size: cutlass.Constexpr, offset: int, *, loc=None, ip=None
) -> None:
    """The low one or two bytes of a word."""
    if size == 1:
        text = f"st.shared.u8 [$0 + {offset}], $1;"
    else:
        text = f"{{\n.reg .b16 lo, hi;\nmov.b32 {{lo, hi}}, $1;\nst.shared.b16 [$0 + {offset}], lo;\n}}"
    asm(None, _words((address, word), loc, ip), text, "r,r")


@dsl_user_op
def copy_word(address: Int32, source, exists: Int32, *, loc=None, ip=None) -> None:
    """Four bytes of global to shared memory, asynchronously; zeros, and no access, where `exists` is 0."""
    operands = [
        Int32(address).ir_value(loc=loc, ip=ip),
        Int64(source).ir_value(loc=loc, ip=ip),
        Int32(exists).ir_value(loc=loc, ip=ip),
    ]
    text = (
        "{\n.reg .b32 size;\nshl.b32 size, $2, 2;\n"
        "cp.async.ca.shared.global [$0], [$1], 4, size;\n}"
    )
    asm(None, operands, text, "r,l,r")


@dsl_user_op
def wait_copies(*, loc=None, ip=None) -> None:
    """This thread's `copy_word`s have arrived."""
    asm(None, [], "cp.async.wait_all;", "")
