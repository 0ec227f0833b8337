"""What the dense family is measured against: bare GEMMs, unfused chains in PyTorch and JAX, and quack. Imports torch.

Bounds do less than ours (a product and nothing else), peers the same. Operands are the same numbers in the layout that
the other side likes best: BF16 for bare products, plain scales for chains, weights repacked ahead for quack.
"""

from collections.abc import Callable
from typing import Any

import torch

from cudnn_core.bench.protocol import Absent, Call, Maker, Train
from cudnn_core.formats.spec import FORMATS

from ._bench import MM, SCALED_MM, W4A16
from ._bench_work import WIDE_RESULTS, Side, Work

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
QUACK, JAX = "quack.gemm", "jax.jit"
# Largest e4m3 number and the block of MXFP8: all that a quantized output needs.
E4M3_MAX, MXFP8_BLOCK = 448.0, 32


def peers(work: Work, chain: str) -> dict[str, Maker]:
    """The unfused chain by torch.compile, and by jax.jit."""
    return {
        chain: lambda: compiled_chain(work),
        chain.replace("torch.compile", JAX).replace("_scaled_mm", "dot").replace("mm", "dot"): (
            lambda: jax_chain(work)
        ),
    }


def bounds(work: Work) -> dict[str, Maker]:
    """Products alone: cuBLAS in BF16, and in FP8 where both sides are; quack's, and its decoding one."""
    found: dict[str, Maker] = {MM: lambda: bare_mm(work)}
    if _is_fp8(work):
        found[SCALED_MM] = lambda: bare_scaled_mm(work)
    found[QUACK] = lambda: quack_gemm(work)
    if work.a.format == "bfloat16" and work.b.format in FORMATS:
        found[W4A16] = lambda: quack_w4a16(work)
    return found


def _is_fp8(work: Work) -> bool:
    return work.a.format == work.b.format == "float8_e4m3fn"


def bare_mm(work: Work) -> Call:
    """torch.mm in BF16 on the decoded operands."""
    a, b = work.a.wide, work.b.wide
    out = a.new_empty(work.shape[:2])
    return lambda: torch.mm(a, b.T, out=out)


def bare_scaled_mm(work: Work) -> Call:
    """torch._scaled_mm in FP8, without fast accumulation, as its results are to be as good as ours."""
    a, b, one = _fp8_operands(work)
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": False}
    return lambda: torch._scaled_mm(a, b.T, one, one, **options)


def _fp8_operands(work: Work) -> tuple[Any, Any, Any]:
    return work.a.data[:, :, 0], work.b.data[:, :, 0], torch.ones((), device=work.device)


def quack_gemm(work: Work) -> Call:
    """quack's plain GEMM in BF16, with its default configuration."""
    from quack.gemm_interface import gemm

    a, b = work.a.wide, work.b.wide
    out = a.new_empty(work.shape[:2])
    return lambda: gemm(a, b.T, out=out, tuned=False)


def quack_w4a16(work: Work) -> Call:
    """quack's GEMM with quantized weights, repacked ahead as it wants them."""
    from quack.gemm_w4 import gemm_w4a16, prepare_w4_weight

    codes, scales = raw_codes(work.b), work.b.plain
    blob, strip = prepare_w4_weight(codes, scales, wformat=work.b.format)
    act = work.a.data[:, :, 0].contiguous()
    return lambda: gemm_w4a16(act, blob, strip, wformat=work.b.format)


def raw_codes(side: Side) -> Any:
    """The elements as a matrix: FP8 as such, FP4 as the bytes that hold two."""
    codes = side.data[:, :, 0]
    is_fp4 = FORMATS[side.format].element.bits == 4
    return codes.view(torch.uint8) if is_fp4 else codes


def expand(codes: Any, scales: Any, block: int) -> Any:
    """(rows, K) in BF16 by PyTorch operations that a compiler fuses. codes: FP8, or bytes of FP4 pairs."""
    if codes.dtype == torch.uint8:
        table = torch.tensor(E2M1, device=codes.device)
        pairs = torch.stack((codes & 15, codes >> 4), dim=-1)
        values = table[pairs.int()].reshape(codes.shape[0], -1)
    else:
        values = codes.float()
    if scales.dtype == torch.float8_e4m3fn:
        factors = scales.float()
    else:
        factors = (scales.view(torch.uint8).int() << 23).view(torch.float32)
    blocks = values.reshape(values.shape[0], -1, block) * factors[:, :, None]
    return blocks.reshape(values.shape).to(torch.bfloat16)


def quantize_mxfp8(c: Any) -> tuple[Any, Any]:
    """e4m3 codes and E8M0 scale bytes along rows, by PyTorch operations that a compiler fuses."""
    blocks = c.reshape(c.shape[0], -1, MXFP8_BLOCK)
    bits = (blocks.abs().amax(dim=-1) * (1 / E4M3_MAX)).view(torch.int32)
    exponents = (bits + 0x7FFFFF) >> 23
    scales = (exponents << 23).view(torch.float32)
    codes = (blocks / scales[:, :, None]).clamp(-E4M3_MAX, E4M3_MAX)
    return codes.reshape(c.shape).to(torch.float8_e4m3fn), exponents.to(torch.uint8)


def chain(work: Work) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The unfused chain as a function of tensors, not compiled, and its arguments."""
    sides, alpha, epilogue, extra = (work.a, work.b), work.alpha, work.epilogue, work.extra
    quantized = [side.format in FORMATS for side in sides]
    arrays = []
    for side, is_quantized in zip(sides, quantized, strict=True):
        arrays += [raw_codes(side), side.plain] if is_quantized else [side.data[:, :, 0]]
    blocks = [side.block for side in sides]
    fp8, one = _is_fp8(work), torch.ones((), device=work.device)

    def run(arrays: list[Any], extra: tuple[Any, ...]) -> Any:
        rest = iter(arrays)
        if fp8:
            a, b = rest
            options = {"out_dtype": torch.bfloat16, "use_fast_accum": False}
            product = torch._scaled_mm(a, b.T, one, one, **options)
        else:
            wide = [
                expand(next(rest), next(rest), block) if block else next(rest) for block in blocks
            ]
            product = torch.mm(wide[0], wide[1].T)
        found = epilogue(product.float() * alpha, extra, torch.sigmoid)
        if work.out in FORMATS:
            return {"c_tensor": quantize_mxfp8(found["c_tensor"])}
        return {
            name: x if name in WIDE_RESULTS else x.to(torch.bfloat16) for name, x in found.items()
        }

    return run, (arrays, extra)


def compiled_chain(work: Work) -> Call:
    """The unfused chain by torch.compile."""
    run, arguments = chain(work)
    # Shapes are fixed and each case has its own: without a reset the cases would share one cache and its limit.
    torch._dynamo.reset()
    compiled = torch.compile(run, dynamic=False)
    return lambda: compiled(*arguments)


def jax_chain(work: Work) -> Train | Absent:
    """The unfused chain under jax.jit, on the same memory."""
    import os

    # Before JAX starts: it would take three quarters of the memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if work.device == "cuda" and jax.default_backend() != "gpu":
        return Absent("JAX sees no GPU here")
    if work.out in FORMATS:
        return Absent("JAX has no quantization of its own to E8M0 blocks")
    run, arguments = jax_function(work)
    compiled = jax.jit(run)
    return Train(lambda: compiled(*arguments), jax.block_until_ready)


def jax_function(work: Work) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The unfused chain as a JAX function, and its arguments."""
    import jax
    import jax.numpy as jnp

    def array(x: Any) -> Any:
        # One-byte floats travel as bytes: DLPack of either side may not know them.
        x = x.contiguous()
        return jnp.from_dlpack(x.view(torch.uint8) if x.element_size() == 1 else x)

    def wide(codes: Any, scales: Any, format: str) -> Any:
        if format == "bfloat16":
            return codes
        if format in FORMATS and FORMATS[format].element.bits == 4:
            pairs = jnp.stack((codes & 15, codes >> 4), axis=-1)
            values = jnp.asarray(E2M1)[pairs].reshape(codes.shape[0], -1)
        else:
            element = FORMATS[format].element.name if format in FORMATS else format
            values = jax.lax.bitcast_convert_type(codes, jnp.dtype(element)).astype(jnp.float32)
        if scales is None:
            return values.astype(jnp.bfloat16)
        if format == "nvfp4":
            factors = jax.lax.bitcast_convert_type(scales, jnp.float8_e4m3fn).astype(jnp.float32)
        else:
            shifted = scales.astype(jnp.uint32) << 23
            factors = jax.lax.bitcast_convert_type(shifted, jnp.float32)
        blocks = values.reshape(codes.shape[0], scales.shape[1], -1) * factors[:, :, None]
        return blocks.reshape(codes.shape[0], -1).astype(jnp.bfloat16)

    formats = work.a.format, work.b.format
    alpha, epilogue = work.alpha, work.epilogue

    def run(a: Any, sa: Any, b: Any, sb: Any, extra: tuple[Any, ...]) -> Any:
        left, right = wide(a, sa, formats[0]), wide(b, sb, formats[1])
        contract = (((1,), (1,)), ((), ()))
        product = jax.lax.dot_general(left, right, contract, preferred_element_type=jnp.bfloat16)
        found = epilogue(product.astype(jnp.float32) * alpha, extra, jax.nn.sigmoid)
        return {
            name: x if name in WIDE_RESULTS else x.astype(jnp.bfloat16) for name, x in found.items()
        }

    arrays = []
    for side in (work.a, work.b):
        arrays += [array(side.data[:, :, 0]), None if side.plain is None else array(side.plain)]
    return run, (*arrays, tuple(array(x) for x in work.extra))
