"""Shared-memory instructions with constant offsets, as staging uses them.

May import: the CuTe DSL. Nothing of the project.

Addresses are 32-bit byte addresses of shared memory.
"""

import cutlass
from cutlass import Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op


def _asm(result, operands, text, constraints):
    return llvm.inline_asm(
        result,
        operands,
        text,
        constraints,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


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
    _asm(None, _words((address, *words), loc, ip), text, ",".join("r" * (count + 1)))


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
    names = ", ".join(f"${i}" for i in range(count))
    trans = ".trans" if transposed else ""
    text = (
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [${count} + {offset}];"
    )
    return _loaded(_words([address], loc, ip), text, count)


def _loaded(operands, text, count: int) -> list:
    constraints = ",".join(["=r"] * count + ["r"])
    if count == 1:
        return [Int32(_asm(T.i32(), operands, text, constraints))]
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>")
    packed = _asm(struct, operands, text, constraints)
    return [Int32(llvm.extractvalue(T.i32(), packed, [i])) for i in range(count)]


@dsl_user_op
def store_words(address: Int32, words: list, offset: int, *, loc=None, ip=None) -> None:
    """One, two or four 32-bit words."""
    count = len(words)
    vector = f".v{count}" if count > 1 else ""
    names = ", ".join(f"${i + 1}" for i in range(count))
    text = f"st.shared{vector}.b32 [$0 + {offset}], {{{names}}};"
    _asm(None, _words((address, *words), loc, ip), text, ",".join("r" * (count + 1)))


@dsl_user_op
def load_words(address: Int32, count: cutlass.Constexpr, offset: int, *, loc=None, ip=None) -> list:
    """One, two or four 32-bit words."""
    vector = f".v{count}" if count > 1 else ""
    names = ", ".join(f"${i}" for i in range(count))
    text = f"ld.shared{vector}.b32 {{{names}}}, [${count} + {offset}];"
    return _loaded(_words([address], loc, ip), text, count)


@dsl_user_op
def store_narrow(
    address: Int32, word: Int32, size: cutlass.Constexpr, offset: int, *, loc=None, ip=None
) -> None:
    """The low one or two bytes of a word."""
    if size == 1:
        text = f"st.shared.u8 [$0 + {offset}], $1;"
    else:
        text = f"{{\n.reg .b16 lo, hi;\nmov.b32 {{lo, hi}}, $1;\nst.shared.b16 [$0 + {offset}], lo;\n}}"
    _asm(None, _words((address, word), loc, ip), text, "r,r")


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
    _asm(None, operands, text, "r,l,r")


@dsl_user_op
def wait_copies(*, loc=None, ip=None) -> None:
    """This thread's `copy_word`s have arrived."""
    _asm(None, [], "cp.async.wait_all;", "")
