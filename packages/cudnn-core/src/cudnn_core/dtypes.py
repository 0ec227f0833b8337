"""Element types: one frozen singleton each, equal to every spelling. Imports no framework.

A dtype argument may be a `DType`, a torch dtype, a NumPy dtype or scalar type, an ml_dtypes or
`jax.numpy` scalar type, a CuTe-DSL numeric class, or a name. `as_dtype` maps all of them to one of
the constants below.
"""

import enum
import sys
from typing import Any, Final, NoReturn

__all__ = [
    "BFLOAT16",
    "BOOL",
    "FLOAT4_E2M1FN",
    "FLOAT8_E4M3FN",
    "FLOAT8_E5M2",
    "FLOAT8_E8M0FNU",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "INT8",
    "INT32",
    "INT64",
    "UINT8",
    "DType",
    "as_dtype",
    "data_type",
    "torch_to_cudnn_data_type",
]


class data_type(enum.Enum):
    """cuDNN's names of the element types."""

    FLOAT = "float32"
    DOUBLE = "float64"
    HALF = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"
    INT64 = "int64"
    BOOLEAN = "bool"
    FP8_E4M3 = "float8_e4m3fn"
    FP8_E5M2 = "float8_e5m2"
    FP8_E8M0 = "float8_e8m0fnu"
    FP4_E2M1 = "float4_e2m1fn"


class DType:
    """An element type. `==` is true for every spelling of the same type.

    Hashing follows the name, so a foreign spelling does not find a `DType` key in a dict: convert
    it with `as_dtype` first.
    """

    __slots__ = ("_cute", "_hash", "bits", "is_float8", "is_fp4", "name")

    name: str
    bits: int
    is_float8: bool
    is_fp4: bool

    def __init__(self, name: str, bits: int, cute: str):
        set_once = object.__setattr__
        set_once(self, "name", name)
        set_once(self, "bits", bits)
        set_once(self, "is_float8", name.startswith("float8"))
        set_once(self, "is_fp4", bits == 4)
        set_once(self, "_cute", cute)
        set_once(self, "_hash", hash(name))

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise AttributeError(f"DType is immutable: cannot set {attribute!r}")

    def __delattr__(self, attribute: str) -> NoReturn:
        raise AttributeError(f"DType is immutable: cannot delete {attribute!r}")

    def __eq__(self, other: object) -> bool:
        return self is other or (not isinstance(other, DType) and _find(other) is self)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"DType({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self):
        return as_dtype, (self.name,)

    def __copy__(self) -> "DType":
        return self

    def __deepcopy__(self, memo: dict) -> "DType":
        return self

    def numpy(self) -> Any:
        """The NumPy dtype of one element (an ml_dtypes type where NumPy has none)."""
        import numpy as np

        if self.name in _ML_DTYPES:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, self.name))
        return np.dtype(self.name)

    def torch(self) -> Any:
        """The torch dtype; FP4 is `float4_e2m1fn_x2`. `ValueError` when this torch lacks it."""
        import torch

        name = "float4_e2m1fn_x2" if self.is_fp4 else self.name
        found = getattr(torch, name, None)
        if found is None:
            raise ValueError(f"torch {torch.__version__} has no dtype {name}; a newer torch has it")
        return found

    def jax(self) -> Any:
        """The NumPy dtype of JAX arrays. `ValueError` for FP4, which JAX has only unpacked."""
        if self.is_fp4:
            raise ValueError(
                "JAX has no packed float4_e2m1fn dtype: carry FP4 as uint8, two codes in a byte"
            )
        return self.numpy()

    def cute(self) -> Any:
        """The CuTe-DSL numeric class. Imports the DSL."""
        import cutlass

        return getattr(cutlass, self._cute)


FLOAT64: Final = DType("float64", 64, "Float64")
FLOAT32: Final = DType("float32", 32, "Float32")
FLOAT16: Final = DType("float16", 16, "Float16")
BFLOAT16: Final = DType("bfloat16", 16, "BFloat16")
INT8: Final = DType("int8", 8, "Int8")
UINT8: Final = DType("uint8", 8, "Uint8")
INT32: Final = DType("int32", 32, "Int32")
INT64: Final = DType("int64", 64, "Int64")
BOOL: Final = DType("bool", 8, "Boolean")
FLOAT8_E4M3FN: Final = DType("float8_e4m3fn", 8, "Float8E4M3FN")
FLOAT8_E5M2: Final = DType("float8_e5m2", 8, "Float8E5M2")
FLOAT8_E8M0FNU: Final = DType("float8_e8m0fnu", 8, "Float8E8M0FNU")
FLOAT4_E2M1FN: Final = DType("float4_e2m1fn", 4, "Float4E2M1FN")

_ALL = (
    FLOAT64,
    FLOAT32,
    FLOAT16,
    BFLOAT16,
    INT8,
    UINT8,
    INT32,
    INT64,
    BOOL,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT8_E8M0FNU,
    FLOAT4_E2M1FN,
)
_ML_DTYPES = frozenset(
    d.name for d in (BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT8_E8M0FNU, FLOAT4_E2M1FN)
)
# "float8_e4m3" without "fn" is deliberately absent: it names another format (IEEE-like, with Inf).
_ALIASES = {
    "double": FLOAT64,
    "fp64": FLOAT64,
    "float": FLOAT32,
    "fp32": FLOAT32,
    "half": FLOAT16,
    "fp16": FLOAT16,
    "bf16": BFLOAT16,
    "int": INT32,
    "long": INT64,
    "boolean": BOOL,
    "e4m3": FLOAT8_E4M3FN,
    "fp8_e4m3": FLOAT8_E4M3FN,
    "e5m2": FLOAT8_E5M2,
    "fp8_e5m2": FLOAT8_E5M2,
    "e8m0": FLOAT8_E8M0FNU,
    "fp8_e8m0": FLOAT8_E8M0FNU,
    "e2m1": FLOAT4_E2M1FN,
    "fp4_e2m1": FLOAT4_E2M1FN,
    "float4_e2m1fn_x2": FLOAT4_E2M1FN,
}
_NAMES: dict[str, DType] = {d.name: d for d in _ALL} | _ALIASES
_CUTE_NAMES: dict[str, DType] = {d._cute: d for d in _ALL} | {"Float4E2M1FNx2": FLOAT4_E2M1FN}

# Every spelling met so far, by the module of its type. Only successes are kept, so the number of dtypes bounds it.
# Apart, because torch.compile cannot trace a look-up in a dict that holds other libraries' types as keys; nor can it
# write such dicts anew, as it would if torch's own first came while it traces.
_MEMO: dict[str, dict[Any, DType]] = {"torch": {}}


def as_dtype(x: Any, argument: str = "dtype") -> DType:
    """The `DType` of any spelling. `ValueError` naming `argument` for None and the unknown."""
    found = _find(x)
    if found is None:
        came = f"{x!r} ({type(x).__name__})"
        raise ValueError(
            f"{argument}: expected a dtype - one of {', '.join(d.name for d in _ALL)}, "
            f"as a name, or as a torch, numpy, ml_dtypes or CuTe-DSL type - got {came}"
        )
    return found


def _find(x: Any) -> DType | None:
    """The DType that `x` spells, or None. Remembers what it finds."""
    kind = type(x)
    if kind is DType:
        return x
    if kind is str and x in _NAMES:
        return _NAMES[x]
    memo = _MEMO.get(kind.__module__)
    if memo is None:
        memo = _MEMO[kind.__module__] = {}
    try:
        found = memo.get(x)
    except TypeError:  # not hashable
        return None
    if found is None:
        found = _resolve(x)
        if found is not None:
            memo[x] = found
    return found


def _resolve(x: Any) -> DType | None:
    if isinstance(x, str):
        return _CUTE_NAMES.get(x) or _NAMES.get(x.removeprefix("torch."))
    kind = type(x)
    owner = kind.__module__.partition(".")[0]
    if owner == "torch" and kind.__name__ == "dtype":
        return _NAMES.get(str(x).removeprefix("torch."))
    if owner == "jax":  # jax.numpy.float32 and its like are objects that carry a numpy dtype
        x = getattr(x, "dtype", None)
    elif isinstance(x, type) and x.__module__.partition(".")[0] == "cutlass":
        return _CUTE_NAMES.get(x.__name__)
    return _resolve_numpy(x)


def _resolve_numpy(x: Any) -> DType | None:
    np = sys.modules.get("numpy")
    if np is None:
        return None
    if isinstance(x, type) and issubclass(x, np.generic):
        try:
            found = np.dtype(x)
        except TypeError:
            return None
        if (
            found.type is not x
        ):  # an abstract type such as numpy.floating, which older NumPy reads as float64
            return None
        x = found
    if not isinstance(x, np.dtype) or not x.isnative:
        return None
    return next((d for d in _ALL if d.name == x.name), None)


def torch_to_cudnn_data_type(dtype: Any) -> data_type | None:
    """cuDNN's name of a dtype in any spelling, or None when there is none."""
    found = _find(dtype)
    return None if found is None else data_type(found.name)
