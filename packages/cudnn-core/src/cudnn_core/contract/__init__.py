"""The declarative contract: what an operation takes and gives, written once.

A ``Contract`` lists operands (matrices, scale factors, scalars), attributes and rules. Binding it to tensor metadata
checks everything and yields a frozen, hashable ``Problem``, from which engines, doors and documentation are derived.
May import dtypes, tensor_desc and errors; never a framework, an engine or a kernel.
"""

from .arrays import Array
from .attributes import Attribute, choice, dtype_attribute, tile_hint
from .contract import Contract, Problem, Signature
from .dims import Dims
from .operands import Matrix, Operand, OperandPlan, ScalarTensor, ScaleFactor

__all__ = [
    "Array",
    "Attribute",
    "Contract",
    "Dims",
    "Matrix",
    "Operand",
    "OperandPlan",
    "Problem",
    "ScalarTensor",
    "ScaleFactor",
    "Signature",
    "choice",
    "dtype_attribute",
    "tile_hint",
]
