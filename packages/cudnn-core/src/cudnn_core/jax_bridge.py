"""`cudnn.jax`: CuTe DSL functions as JAX calls. A thin layer over the DSL's own JAX extension.

May import jax and the DSL; raises ImportError when either is missing or too old. Kernels called this way are
compiled by JAX's lowering for the exact shapes, and stay out of the disk cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .dtypes import as_dtype
from .errors import mismatch
from .tensor_desc import Device, TensorDesc, contiguous_stride

try:
    import jax
    import jax.numpy as jnp
    from cutlass.jax import TensorSpec, cutlass_call
except (ImportError, AttributeError) as error:
    # The extension hides its names (AttributeError) when it finds JAX too old.
    raise ImportError(
        "cudnn.jax needs jax (0.6 or newer for the DSL's JAX extension) and nvidia-cutlass-dsl:"
        f" pip install 'cudnn[jax]'; {error}"
    ) from error

__all__ = [
    "TensorSpec",
    "call",
    "gemm_operand_spec",
    "neg_inf_init",
    "row_major_desc",
    "sf_atom_spec",
    "zeros_init",
]

Init = Callable[[Any], Any]


def call(
    fn: Callable[..., None],
    *,
    output_shape_dtype: Any,
    input_spec: Any = None,
    output_spec: Any = None,
    initialized_outputs: Mapping[int, Init] | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
    allow_cuda_graph: bool = True,
    compile_options: str | None = None,
    use_static_tensors: bool = False,
    **kwargs: Hashable,
) -> Callable[..., Any]:
    """A callable(*arrays) -> outputs that runs the CuTe DSL jit function `fn` on XLA's stream.

    `fn(stream, *inputs, *outputs, **kwargs)` writes its outputs; kwargs are compile-time constants.

    output_shape_dtype:    a `jax.ShapeDtypeStruct` (the result is one array), or a tuple or list of them (the result
                           is a tuple or list); pytrees too when `initialized_outputs` is not used.
    input_spec, output_spec:  `TensorSpec`s aligned with inputs and outputs, None entries meaning row-major. A single
                           one is accepted for a single output.
    initialized_outputs:   {output index: init(ShapeDtypeStruct) -> array} for outputs that `fn` accumulates into. The
                           array is donated; `fn` and the caller see outputs in declared order all the same.
    input_output_aliases:  {input index: output index}; `fn` gets the input only, which is the output.
    allow_cuda_graph:      False keeps XLA from capturing the call into a CUDA graph.
    compile_options:       options of the DSL's compiler, such as "--gpu-arch sm_90a".
    use_static_tensors:    compile the extents in.

    Works eagerly, under `jax.jit` and in XLA's CUDA graphs; reads only shapes and dtypes of its inputs. Compiled once
    for each combination of `fn`, shapes, dtypes, specs, aliases and constants. Not differentiable and not batchable:
    jvp, transpose and vmap raise NotImplementedError (wrap in `jax.custom_vjp`, `jax.custom_batching`).

    Raises ValueError for an output index that does not exist, an output both initialized and aliased, or pytree inputs
    or outputs together with `initialized_outputs`; TypeError for kwargs that are not hashable.
    """
    for name, value in kwargs.items():
        if not _is_hashable(value):
            raise TypeError(mismatch(name, "a hashable compile-time constant", type(value)))
    initialized = tuple(sorted((initialized_outputs or {}).items()))
    aliases = tuple(sorted((input_output_aliases or {}).items()))
    if initialized:
        _check_initialized(output_shape_dtype, [i for i, _ in initialized], dict(aliases))
    leaves, tree = jax.tree.flatten(output_shape_dtype)
    outputs = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    request = _Request(
        fn=fn,
        outputs=outputs,
        tree=tree,
        input_spec=_frozen(input_spec),
        output_spec=_frozen(output_spec),
        initialized=initialized,
        aliases=aliases,
        options=(
            ("allow_cuda_graph", allow_cuda_graph),
            ("compile_options", compile_options),
            ("use_static_tensors", use_static_tensors),
        ),
        kwargs=tuple(sorted(kwargs.items())),
    )
    # Equal requests share one jitted callable, so eager calls in a loop are traced once.
    return _remembered(request) if _is_hashable(request) else _prepare(request)


def gemm_operand_spec() -> TensorSpec:
    """Spec of a GEMM operand (MN, K, 1): K innermost, then MN, L outermost.

    It has to be said, because a trailing extent of 1 leaves open which dimension is contiguous.
    """
    return TensorSpec(layout=(1, 0, 2))


def sf_atom_spec() -> TensorSpec:
    """Spec of scale factors: physical (L, MN', K', 32, 4, 4) seen by the kernel as (32, 4, MN', 4, K', L)."""
    return TensorSpec(mode=(3, 4, 1, 5, 2, 0))


def zeros_init(output: Any) -> Any:
    """Zeros of the output's shape and dtype, for `initialized_outputs`."""
    return jnp.zeros(output.shape, output.dtype)


def neg_inf_init(output: Any) -> Any:
    """Minus infinity of the output's shape and dtype, for `initialized_outputs`."""
    return jnp.full(output.shape, -jnp.inf, output.dtype)


def row_major_desc(shape: Sequence[int], dtype: Any, name: str = "") -> TensorDesc:
    """TensorDesc of a C-contiguous array on cuda:0: what a JAX array or tracer will be for a kernel."""
    shape = tuple(shape)
    stride = contiguous_stride(shape)
    return TensorDesc(
        as_dtype(dtype, name or "dtype"), shape, stride, None, Device("cuda", 0), name=name
    )


@dataclass(frozen=True)
class _Request:
    """Everything that `call` was asked for, hashable if its parts are."""

    fn: Callable[..., None]
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    tree: Any
    input_spec: Any
    output_spec: Any
    initialized: tuple[tuple[int, Init], ...]
    aliases: tuple[tuple[int, int], ...]
    options: tuple[tuple[str, Any], ...]
    kwargs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _InDeclaredOrder:
    """`fn` for a call whose initialized outputs come as trailing inputs.

    slots: for each output that `fn` takes, its place among the arguments after the inputs.
    """

    fn: Callable[..., None]
    inputs: int
    slots: tuple[int, ...]

    def __call__(self, stream: Any, *arrays: Any, **kwargs: Any) -> None:
        inputs, rest = arrays[: self.inputs], arrays[self.inputs :]
        self.fn(stream, *inputs, *(rest[slot] for slot in self.slots), **kwargs)


def _prepare(request: _Request) -> Callable[..., Any]:
    structure = jax.tree.unflatten(request.tree, request.outputs)
    common = {**dict(request.options), **dict(request.kwargs), "output_shape_dtype": structure}
    if not request.initialized:
        return cutlass_call(
            request.fn,
            input_spec=request.input_spec,
            output_spec=request.output_spec,
            input_output_aliases=dict(request.aliases) or None,
            **common,
        )

    @jax.jit
    def run(*arrays: Any) -> Any:
        if not all(jax.tree_util.all_leaves([x]) for x in arrays):
            expected = "arrays, not pytrees, with initialized_outputs"
            raise ValueError(mismatch("inputs", expected, [type(x).__name__ for x in arrays]))
        starts = [init(request.outputs[i]) for i, init in request.initialized]
        return cutlass_call(
            _declared_order(request, len(arrays)),
            input_spec=_input_specs(request, len(arrays)),
            output_spec=request.output_spec,
            input_output_aliases=_all_aliases(request, len(arrays)),
            **common,
        )(*arrays, *starts)

    return run


_remembered = functools.lru_cache(maxsize=128)(_prepare)


def _declared_order(request: _Request, inputs: int) -> _InDeclaredOrder:
    started = [i for i, _ in request.initialized]
    aliased = {output for _, output in request.aliases}
    slots, passed = [], len(started)
    for index in range(len(request.outputs)):
        if index in started:
            slots.append(started.index(index))
        elif index not in aliased:
            slots.append(passed)
            passed += 1
    return _InDeclaredOrder(request.fn, inputs, tuple(slots))


def _all_aliases(request: _Request, inputs: int) -> dict[int, int]:
    started = {inputs + place: i for place, (i, _) in enumerate(request.initialized)}
    return {**dict(request.aliases), **started}


def _input_specs(request: _Request, inputs: int) -> tuple[Any, ...] | None:
    """The caller's input specs, then those of the initialized outputs."""
    if request.input_spec is None and request.output_spec is None:
        return None
    given = _listed(request.input_spec, inputs, "input_spec")
    of_outputs = _listed(request.output_spec, len(request.outputs), "output_spec")
    return (*given, *(of_outputs[i] for i, _ in request.initialized))


def _listed(spec: Any, count: int, name: str) -> tuple[Any, ...]:
    if spec is None:
        return (None,) * count
    specs = (spec,) if isinstance(spec, TensorSpec) else tuple(spec)
    if len(specs) != count:
        raise ValueError(mismatch(name, f"{count} entries", len(specs)))
    return specs


def _check_initialized(outputs: Any, indices: list[int], aliases: dict[int, int]) -> None:
    listed = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    if not all(hasattr(output, "shape") and hasattr(output, "dtype") for output in listed):
        expected = "one ShapeDtypeStruct or a flat sequence of them, with initialized_outputs"
        raise ValueError(mismatch("output_shape_dtype", expected, type(outputs).__name__))
    for index in indices:
        if not 0 <= index < len(listed):
            expected = f"output indices from 0 to {len(listed) - 1}"
            raise ValueError(mismatch("initialized_outputs", expected, index))
        if index in aliases.values():
            expected = "outputs that input_output_aliases does not name"
            raise ValueError(mismatch("initialized_outputs", expected, index))


def _frozen(spec: Any) -> Any:
    return tuple(spec) if isinstance(spec, list) else spec


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
