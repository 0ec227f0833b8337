"""How this project's device code spells instructions out, the kernels of other packages included.

May import: the CuTe DSL. Nothing of the project.
"""

from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T


def asm(result, operands: list, text: str, constraints: str, side_effects: bool = True):
    """Inline PTX: $0 is the result of type `result`, if it is not None; $1, or $0, ... the operands.

    side_effects: it stays where it stands. Without, the compiler may move, merge and drop it.
    """
    return llvm.inline_asm(
        result,
        operands,
        text,
        constraints,
        has_side_effects=side_effects,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def vector(first: int, count: int) -> str:
    """Operands from number `first` on as an instruction on `count` words names them."""
    names = ", ".join(f"${first + i}" for i in range(count))
    return names if count == 1 else f"{{{names}}}"


def load(
    kind, count: int, operands: list, text: str, inputs: str, side_effects: bool = True
) -> list:
    """`count` words, as numbers of class `kind`, of an instruction whose results are $0, $1, ...

    inputs: the constraints of its operands, separated by commas.
    """
    constraints = ",".join([*["=r"] * count, inputs])
    if count == 1:
        return [kind(asm(T.i32(), operands, text, constraints, side_effects))]
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>")
    packed = asm(struct, operands, text, constraints, side_effects)
    return [kind(llvm.extractvalue(T.i32(), packed, [i])) for i in range(count)]
