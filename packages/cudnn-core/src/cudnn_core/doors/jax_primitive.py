"""The JAX door: one primitive per Op, generic over contracts.

Abstract evaluation is the contract; on CPU the lowering calls back into the reference engine, on CUDA it is an FFI call
to the cached executable; `jax.vmap` becomes the batch dimension L. May import jax (the jax adapter alone comes here).

Unbatched operands have the contract's shapes with L = 1. Batched ones are batch-outermost: (L, M, K) for (M, K, L),
and (L, R, Q, 32, 4, 4) for scale factors as ever; an operand that no vmap maps keeps a batch extent of 1.
The primitive takes and gives only the operands that are present, of which its static parameter `present` keeps a flag.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from ..adapters.base import refuse_unpacked_fp4
from ..contract import Array, Column, Operand, OutputScale, Problem, ScalarTensor, ScaleFactor
from ..dtypes import FLOAT4_E2M1FN, UINT8, as_dtype
from ..engine import select
from ..errors import mismatch
from ..tensor_desc import Device, TensorDesc, contiguous_stride
from . import jax_fold, jax_gradient

if TYPE_CHECKING:
    from ..op import Op

BATCH = "L"


def call(
    op: Op,
    inputs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    numbers: tuple[float, ...] = (),
) -> tuple[jax.Array | None, ...]:
    """Outputs of the op on JAX arrays or tracers, as a plain tuple; None for those that do not apply.

    What mutated inputs have become comes behind them.
    """
    if op.backward is None:
        return _call(op, inputs, attributes, numbers)
    parsed = op.contract.parse_attributes(op.named(attributes))
    given = tuple(x is not None for x in inputs)
    if not all(
        there or o.may_be_absent for o, there in zip(op.contract.inputs, given, strict=True)
    ):
        return _call(op, inputs, attributes)  # which says what is missing
    function = jax_gradient.differentiable(op, _call, tuple(parsed.items()), given)
    return function(*[x for x in inputs if x is not None])


def _call(
    op: Op,
    inputs: tuple[Any, ...],
    attributes: tuple[Any, ...],
    numbers: tuple[float, ...] = (),
) -> tuple[jax.Array | None, ...]:
    """`call` without a gradient."""
    named = op.named(attributes) | _dense_attributes(op)
    static = tuple(
        (name, UINT8 if value == FLOAT4_E2M1FN else value)
        for name, value in op.contract.parse_attributes(named).items()
    )
    _refuse_unexpressible(op, inputs, dict(static))
    given = [
        _full_rank(operand, x)
        for operand, x in zip(op.contract.inputs, inputs, strict=True)
        if x is not None
    ]
    present = (*(x is not None for x in inputs), *(True for _ in op.contract.outputs))
    if op.contract.outputs_vary:
        outputs = _problem(op, given, static, False, present).outputs
        present = (*present[: len(inputs)], *(desc is not None for desc in outputs))
    # In writing, as 0.0 and -0.0 are one key of the caches of what was traced.
    written = tuple(number.hex() for number in numbers)
    params = {"attributes": static, "batched": False, "present": present, "numbers": written}
    made = iter(primitive(op).bind(*given, **params))
    outputs = tuple(next(made) if there else None for there in present[len(inputs) :])
    return (*outputs, *made)


def _dense_attributes(op: Op) -> dict[str, str]:
    """What JAX asks of the contract: arrays have no strides, so output scales come in their physical view."""
    scales = (o for o in op.contract.outputs if isinstance(o, OutputScale))
    return {o.view_from: "physical" for o in scales}


def _full_rank(operand: Operand, x: jax.Array) -> jax.Array:
    """Scalars in the rank that the executable takes; what fits no rank is left for the contract to refuse."""
    if not isinstance(operand, ScalarTensor):
        return x
    shape = operand.seen(tuple(x.shape))
    return x if shape == tuple(x.shape) else x.reshape(shape)


def _inputs(op: Op, present: tuple[bool, ...]) -> list[Operand]:
    """The inputs that this call has: the primitive takes no others."""
    flags = present[: len(op.contract.inputs)]
    return [o for o, there in zip(op.contract.inputs, flags, strict=True) if there]


def _outputs(op: Op, present: tuple[bool, ...]) -> list[Operand]:
    """The outputs that this call has: the primitive gives no others."""
    flags = present[len(op.contract.inputs) :]
    return [o for o, there in zip(op.contract.outputs, flags, strict=True) if there]


def _mutated(op: Op, present: tuple[bool, ...]) -> list[int]:
    """Indices, among the inputs that this call has, of those whose new content is a result as well."""
    return [index for index, o in enumerate(_inputs(op, present)) if o.mutated]


def _refuse_unexpressible(op: Op, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    """JAX arrays are row-major and direct calls take L = 1: say so before anything else."""
    for operand in op.contract.outputs:
        major_from = getattr(operand, "major_from", "")
        if major_from and attributes[major_from] == "m":
            raise ValueError(mismatch(major_from, "'n' (JAX arrays are row-major)", "'m'"))
    for operand, x in zip(op.contract.inputs, inputs, strict=True):
        if x is None:
            if not operand.may_be_absent:
                raise ValueError(mismatch(operand.name, "a tensor", "None"))
            continue
        if isinstance(operand, Array):
            continue
        axis, rank = (0, 6) if isinstance(operand, ScaleFactor) else (-1, len(operand.dims))
        if BATCH in operand.dims and x.ndim == rank and x.shape[axis] != 1:
            expected = "batch extent L = 1 (use jax.vmap for batches)"
            raise ValueError(mismatch(operand.name, expected, f"shape {tuple(x.shape)}"))


@cache
def primitive(op: Op) -> Primitive:
    """The op's primitive with its rules."""
    prim = Primitive(op.short_name)
    prim.multiple_results = True
    prim.def_impl(_impl(prim))
    prim.def_abstract_eval(lambda *avals, **params: _results(op, avals, **params))
    batching.primitive_batchers[prim] = lambda args, dims, **params: _batch(
        op, prim, args, dims, **params
    )
    mlir.register_lowering(prim, mlir.lower_fun(_on_cpu(op), multiple_results=True), platform="cpu")
    mlir.register_lowering(
        prim, mlir.lower_fun(_on_cuda(op), multiple_results=True), platform="cuda"
    )
    return prim


def _impl(prim: Primitive):
    """Eager calls run the compiled primitive: one jitted function per set of static parameters."""

    @cache
    def jitted(**static: Any):
        return jax.jit(lambda *args: prim.bind(*args, **static))

    def impl(*args: Any, **static: Any):
        return jitted(**static)(*args)

    return impl


def _device(platform: str) -> Device:
    return Device("cpu") if platform == "cpu" else Device("cuda", 0)


def _problem(
    op: Op, avals, attributes: tuple, batched: bool, present: tuple, platform: str = "cpu"
) -> Problem:
    """Bind the contract to the JAX shapes of the inputs that are present."""
    named = dict(attributes) | (_batch_attributes(op, present) if batched else {})
    device = _device(platform)
    batch = _common_extent(a.shape[0] for a in avals) if batched else 1
    given = iter(avals)
    descs = [
        _desc(operand, next(given), batched, batch, device) if there else None
        for operand, there in zip(op.contract.inputs, present, strict=False)
    ]
    return op.contract.bind(descs, named)


def _common_extent(extents: Iterable[int]) -> int:
    """The batch extent of operands that have it, or 1: an operand that serves every batch, be there none."""
    return next((extent for extent in extents if extent != 1), 1)


def _batch_attributes(op: Op, present: tuple[bool, ...]) -> dict[str, str]:
    """What a mapped call asks of the contract: storage with the batch outermost, one scalar a batch."""
    scalars = (o for o in _outputs(op, present) if isinstance(o, ScalarTensor))
    return {"batch": "outer"} | {o.per_batch_from: "per_batch" for o in scalars if o.per_batch_from}


def _desc(operand, aval, batched: bool, batch: int, device: Device) -> TensorDesc:
    """Metadata in contract order; an unmapped operand is seen with the common batch extent."""
    shape, dtype = tuple(aval.shape), as_dtype(aval.dtype, f"{operand.name} dtype")
    refuse_unpacked_fp4(dtype, operand.name)
    if batched and not _serves_every_batch(operand):
        shape = (batch, *shape[1:])
    stride = contiguous_stride(shape)
    if batched and not _is_blocked(operand):
        shape, stride = (*shape[1:], shape[0]), (*stride[1:], stride[0])
    return TensorDesc(dtype, shape, stride, None, device, name=operand.name)


def _serves_every_batch(operand: Operand) -> bool:
    """Whether there is one of this input however many batches there are."""
    return isinstance(operand, ScalarTensor) and not operand.per_batch_from


def _results(
    op: Op, avals, *, attributes: tuple, batched: bool, present: tuple, numbers: tuple = ()
):
    """Shapes and dtypes of the present outputs as JAX sees them, then of mutated inputs."""
    problem = _problem(op, avals, attributes, batched, present)
    made = [desc for desc in problem.outputs if desc is not None]
    results = []
    for operand, desc in zip(_outputs(op, present), made, strict=True):
        shape = tuple(desc.shape)
        if batched and not _is_blocked(operand):
            shape = (shape[-1], *shape[:-1])
        results.append(jax.core.ShapedArray(shape, desc.dtype.jax()))
    changed = [avals[index] for index in _mutated(op, present)]
    return [*results, *(jax.core.ShapedArray(x.shape, x.dtype) for x in changed)]


def _is_blocked(operand) -> bool:
    """Scale factors and scalars carry their batch axis first in both forms; matrices carry it last unbatched."""
    return isinstance(operand, ScaleFactor | ScalarTensor)


def _batch(
    op: Op,
    prim: Primitive,
    args,
    dims,
    *,
    attributes: tuple,
    batched: bool,
    present: tuple,
    numbers: tuple,
):
    """vmap over the primitive: the mapped axis becomes L, or multiplies the L that is there; or folds into an axis."""
    if op.contract.folds:
        static = {
            "attributes": attributes,
            "batched": batched,
            "present": present,
            "numbers": numbers,
        }
        inputs = _inputs(op, present)
        results = [*_outputs(op, present), *(inputs[i] for i in _mutated(op, present))]
        return jax_fold.batched(op, partial(prim.bind, **static), inputs, results, args, dims)
    moved = [
        (x, False) if d is None else (jnp.moveaxis(x, d, 0), True)
        for x, d in zip(args, dims, strict=True)
    ]
    merge = _merge_batched if batched else _merge_unbatched
    merged = merge(_inputs(op, present), moved)
    params = {"attributes": attributes, "batched": True, "present": present, "numbers": numbers}
    outputs = prim.bind(*merged, **params)
    if batched:
        split = [y.reshape(*_merged_extents(moved), *y.shape[1:]) for y in outputs]
    else:
        split = [
            y[:, None] if _is_blocked(operand) else y[..., None]
            for operand, y in zip(_outputs(op, present), outputs, strict=True)
        ]
    return split, [0] * len(split)


def _merge_unbatched(operands, moved) -> list[jax.Array]:
    """(B, M, K, 1) or (M, K, 1) -> (B or 1, M, K); scale factors (B, 1, R, ...) -> (B, R, ...)."""
    merged = []
    size = next(x.shape[0] for x, mapped in moved if mapped)
    for operand, (x, mapped) in zip(operands, moved, strict=True):
        x = x if mapped else x[None]
        if not mapped and not operand.shared:
            x = jnp.broadcast_to(x, (size, *x.shape[1:]))
        merged.append(x[:, 0] if _is_blocked(operand) else x[..., 0])
    return merged


def _merge_batched(operands, moved) -> list[jax.Array]:
    """(B, L, M, K) or (L, M, K) -> (B * L, M, K); an operand that no vmap maps keeps its extent of 1."""
    size, inner = _merged_extents(moved)
    merged = []
    for operand, (x, mapped) in zip(operands, moved, strict=True):
        if not mapped and x.shape[0] == 1 and operand.shared:
            merged.append(x)
            continue
        x = x if mapped else x[None]
        full = jnp.broadcast_to(x, (size, inner, *x.shape[2:]))
        merged.append(full.reshape(size * inner, *x.shape[2:]))
    return merged


def _merged_extents(moved) -> tuple[int, int]:
    """(extent of the new mapped axis, L as it was), whose product is the new L."""
    size = next(x.shape[0] for x, mapped in moved if mapped)
    return size, _common_extent(x.shape[1 if mapped else 0] for x, mapped in moved)


def _on_cpu(op: Op):
    """The CPU lowering: the reference engine behind a host callback."""

    def lowered(*args: jax.Array, numbers: tuple, **static: Any):
        avals = [jax.core.ShapedArray(x.shape, x.dtype) for x in args]
        problem = _problem(op, avals, **static)
        engine = select(op.engines, problem)
        run = engine.compile(engine.plan(problem))
        shapes = _results(op, avals, **static)
        outputs = _outputs(op, static["present"])
        mutated = _mutated(op, static["present"])

        def host(*arrays: Any) -> tuple[np.ndarray, ...]:
            inputs = [
                np.array(x) if index in mutated else np.asarray(x) for index, x in enumerate(arrays)
            ]
            made = [_fresh(o, s) for o, s in zip(outputs, shapes, strict=False)]
            operands = (*_inputs(op, static["present"]), *outputs)
            views = _contract_views(operands, inputs, made, static["batched"])
            run(*views, *map(float.fromhex, numbers), 0)
            return (*made, *(inputs[index] for index in mutated))

        results = [jax.ShapeDtypeStruct(s.shape, s.dtype) for s in shapes]
        return jax.pure_callback(host, tuple(results), *args, vmap_method=None)

    return lowered


def _fresh(operand: Operand, result: Any) -> np.ndarray:
    """An output for the engine to write, or to accumulate into."""
    initial = getattr(operand, "initial", None)
    if initial is None:
        return np.empty(result.shape, result.dtype)
    return np.full(result.shape, initial, result.dtype)


def _contract_views(operands, inputs, outputs, batched: bool) -> list[np.ndarray]:
    """Views in contract order: the batch axis of matrices last, unmapped operands repeated without a copy."""
    arrays = [*inputs, *outputs]
    if not batched:
        return arrays
    batch = _common_extent(x.shape[0] for x in inputs)
    views = []
    for operand, x in zip(operands, arrays, strict=True):
        if x.shape[0] != batch and not _serves_every_batch(operand):
            x = np.broadcast_to(x, (batch, *x.shape[1:]))
        views.append(x if _is_blocked(operand) else np.moveaxis(x, 0, -1))
    return views


def _on_cuda(op: Op):
    """The CUDA lowering: an FFI call to the executable of the cached plan, on XLA's stream."""

    def lowered(*args: jax.Array, numbers: tuple, **static: Any):
        from .jax_ffi import cuda_call

        avals = [jax.core.ShapedArray(x.shape, x.dtype) for x in args]
        problem = _problem(op, avals, **static, platform="cuda")
        shapes = _results(op, avals, **static)
        outputs = _outputs(op, static["present"])
        mutated = _mutated(op, static["present"])
        if problem.is_empty:
            named = dict(zip((o.name for o in _inputs(op, static["present"])), args, strict=True))
            made = [
                named.get(getattr(operand, "empty_from", ""), jnp.zeros(s.shape, s.dtype))
                for operand, s in zip(outputs, shapes, strict=False)
            ]
            return [*made, *(args[index] for index in mutated)]
        engine = select(op.engines, problem)
        initial = {
            index: jnp.zeros(s.shape, s.dtype)
            for index, (operand, s) in enumerate(zip(outputs, shapes, strict=False))
            if isinstance(operand, Column | ScalarTensor)
        }
        results = [jax.ShapeDtypeStruct(s.shape, s.dtype) for s in shapes]
        # A mutated input shares its buffer with its result, and takes no second place among the arguments.
        shared = {index: len(outputs) + at for at, index in enumerate(mutated)}
        for workspace in engine.workspaces(problem):
            if workspace.zeroed:
                initial[len(results)] = jnp.zeros(workspace.nbytes, jnp.uint8)
            results.append(jax.ShapeDtypeStruct((workspace.nbytes,), jnp.uint8))
        executable = engine.compile(engine.plan(problem))
        scalars = (*map(float.fromhex, numbers), *engine.scalars(problem))
        made = cuda_call(executable, args, results, initial, scalars, shared)
        return made[: len(shapes)]

    return lowered
