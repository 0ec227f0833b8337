"""Every environment variable that the project honours, in one table. Reads nothing at import.

`docs/environment.md` lists the same rows; a test compares them.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["VARIABLES", "Variable", "get"]


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    default: the value when it is unset. parse: from its text to that value; `ValueError` for a text
    that means nothing.
    """

    name: str
    default: Any
    read: str
    effect: str
    parse: Callable[[str], Any] = str

    def value(self, environ: Mapping[str, str] | None = None) -> Any:
        """The value in `environ`, by default the process's. `ValueError` naming the variable."""
        text = (os.environ if environ is None else environ).get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"environment variable {self.name}: {error}") from None


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected an integer, got {text!r}") from None


def _natural(text: str) -> int:
    value = _integer(text)
    if value < 0:
        raise ValueError(f"expected 0 or more, got {text!r}")
    return value


def _not_zero(text: str) -> bool:
    return text != "0"


def _present(text: str) -> bool:
    return True


def _is_one(text: str) -> bool:
    return text == "1"


_NO_EFFECT = "accepted for compatibility; without effect, because kernels serve every shape"

_ROWS = (
    Variable(
        "CUDNN_CACHE",
        True,
        "when a kernel is compiled or loaded",
        '"0" keeps compiled kernels in memory only',
        _not_zero,
    ),
    Variable(
        "CUDNN_CACHE_DIR",
        None,
        "when a kernel is compiled or loaded",
        "folder of the disk cache; unset: cudnn in XDG_CACHE_HOME or in ~/.cache",
    ),
    Variable(
        "CUDNNFE_CLUSTER_OVERLAP_MARGIN",
        0,
        "when an operation is constructed",
        "clusters left free for a concurrent kernel; ValueError when none is left to run on",
        _natural,
    ),
    Variable("CUDNN_FE_GEMM_DYNAMIC_M", False, "per call", _NO_EFFECT, _present),
    Variable("CUDNN_FE_GEMM_DYNAMIC_MNKL", False, "per call", _NO_EFFECT, _present),
    Variable("CUDNN_FE_GROUPED_GEMM_DYNAMIC_MNKL", True, "per call", _NO_EFFECT, _not_zero),
    Variable(
        "CUDNN_FE_GROUPED_GEMM_VALIDATE_DEVICE_VALUES",
        False,
        "per call",
        '"1" checks offsets and pointer tables on the host, which blocks; not under graph capture',
        _is_one,
    ),
    Variable(
        "CUTE_DSL_ARCH",
        None,
        "when a kernel is compiled",
        "the architecture that the DSL assumes for this machine; kernels are compiled for sm_90a "
        "whatever it says",
    ),
)

VARIABLES: Mapping[str, Variable] = {row.name: row for row in _ROWS}


def get(name: str) -> Any:
    """The present value of a variable of the table."""
    return VARIABLES[name].value()
