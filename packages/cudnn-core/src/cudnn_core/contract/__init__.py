"""The declarative contract: what an operation takes and gives, written once.

A ``Contract`` lists operands (matrices, scale factors, scalars), attributes and rules. Binding it to tensor metadata
checks everything and yields a frozen, hashable ``Problem``, from which engines, doors and documentation are derived.
May import dtypes, tensor_desc and errors; never a framework, an engine or a kernel.
"""

from .arrays import Array
from .attributes import Attribute, Number, block_sizes, choice, dtype_attribute, tile_hint
from .contract import Contract, Derived, Problem, Signature
from .dims import Dims
from .operands import (
    Column,
    Matrix,
    Operand,
    OperandPlan,
    OutputScale,
    ScalarTensor,
    ScaleFactor,
)

__all__ = [
    "Array",
    "Attribute",
    "Column",
    "Contract",
    "Derived",
    "Dims",
    "Matrix",
    "Number",
    "Operand",
    "OperandPlan",
    "OutputScale",
    "Problem",
    "ScalarTensor",
    "ScaleFactor",
    "Signature",
    "block_sizes",
    "choice",
    "dtype_attribute",
    "tile_hint",
]
