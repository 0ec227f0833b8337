"""XLA FFI targets of cached executables: how a compiled kernel is called from inside a JAX computation.

May import jax, jax-tvm-ffi and TVM-FFI; nothing of the project but type names.

An executable takes tensors by TVM-FFI - inputs, outputs, then scalars, then the stream. XLA hands over buffers: dense,
row-major, of the extents that JAX sees, 1 included; the stream is the one XLA runs the computation on. Kernels are
called without Python, so they need neither the GIL nor a host callback. Errors that a kernel raises about its arguments
reach the user as the text of a JAX runtime error.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from ..cache import Executable

_lock = threading.Lock()
_targets: dict[tuple[Any, ...], str] = {}


def cuda_call(
    executable: Executable,
    operands: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
    initial: Mapping[int, jax.Array] | None = None,
    scalars: Sequence[int | float] = (),
    shared: Mapping[int, int] | None = None,
) -> list[jax.Array]:
    """Call `executable` on XLA's stream: (*operands, *outputs, *scalars, stream). Returns all results.

    results:  shape and dtype of each output, in the executable's order.
    initial:  {output index: array} for outputs that the kernel accumulates into; the buffer starts with these values.
              The array itself is not changed: XLA copies it if anything else reads it.
    shared:   {operand index: output index} for operands that the kernel writes in place: the output is the operand's
              buffer (a copy of it, where XLA needs the operand again) and no argument of its own.
    scalars:  numbers known while the computation is traced; part of it, not of the kernel.

    For use inside a lowering (`mlir.lower_fun`) or any traced function; defined for CUDA only. Raises ValueError when
    an initial array does not match its output.
    """
    initial, shared = dict(initial or {}), dict(shared or {})
    for index, array in initial.items():
        if not 0 <= index < len(results):
            raise ValueError(f"initial: expected output indices below {len(results)}, got {index}")
        expected = (tuple(results[index].shape), np.dtype(results[index].dtype))
        if (tuple(array.shape), np.dtype(array.dtype)) != expected:
            got = (tuple(array.shape), np.dtype(array.dtype))
            raise ValueError(f"initial[{index}]: expected {expected}, got {got}")
    target = ffi_target(executable, scalars=len(scalars), in_place=bool(initial or shared))
    attributes = {_scalar_name(i): _attribute(value) for i, value in enumerate(scalars)}
    if not (initial or shared):
        return list(jax.ffi.ffi_call(target, tuple(results))(*operands, **attributes))
    # The kernel gets each output once, as an operand that shares its buffer with the result. What
    # it does not accumulate into comes from `empty`, which allocates and fills nothing on a GPU.
    fresh = [i for i in range(len(results)) if i not in shared.values()]
    buffers = [
        initial[i] if i in initial else jax.lax.empty(tuple(results[i].shape), results[i].dtype)
        for i in fresh
    ]
    aliases = shared | {len(operands) + at: i for at, i in enumerate(fresh)}
    call = jax.ffi.ffi_call(target, tuple(results), input_output_aliases=aliases)
    return list(call(*operands, *buffers, **attributes))


def ffi_target(executable: Executable, *, scalars: int = 0, in_place: bool = False) -> str:
    """Name of the FFI target for `executable`, registered on first use.

    scalars: how many numbers the kernel takes before the stream. in_place: outputs come as operands that alias the
    results, so results are not passed again. Raises RuntimeError when the process has used up its 1024 targets.
    """
    key = (executable.digest, scalars, in_place)
    with _lock:
        if key not in _targets:
            _targets[key] = _register(executable, scalars, in_place)
        return _targets[key]


def _register(executable: Executable, scalars: int, in_place: bool) -> str:
    import jax_tvm_ffi

    name = f"cudnn_{executable.name}_{executable.digest}_{scalars}{'i' if in_place else 'o'}"
    # A call whose attributes differ from this list is not refused but crashes, so both are made
    # here, from one number.
    arguments = [
        "args",
        *([] if in_place else ["rets"]),
        *(f"attrs.{_scalar_name(i)}" for i in range(scalars)),
        "ctx.stream",
    ]
    # Not to be captured into a CUDA graph: the first call on a device loads the kernel's code, and
    # XLA gives no sign of when that call has been.
    try:
        jax_tvm_ffi.register_ffi_target(
            name, executable.call, arguments, platform="gpu", allow_cuda_graph=False
        )
    except RuntimeError as error:
        raise RuntimeError(f"cannot register the FFI target {name}: {error}") from error
    return name


def _scalar_name(index: int) -> str:
    # XLA sorts attributes by name.
    return f"s{index:02d}"


def _attribute(value: int | float) -> np.generic:
    return np.int64(value) if isinstance(value, int | np.integer) else np.float64(value)
