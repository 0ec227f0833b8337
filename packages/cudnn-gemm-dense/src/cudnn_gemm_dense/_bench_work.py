"""Operands, calls and checks of the benchmark's cases. Imports torch.

The maths of the epilogues is written once, for any array library, apart from the operations' own references: float64
here for the check, traced by torch.compile and by JAX for the unfused chains.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from typing import Any

import torch

import cudnn_gemm_dense
from cudnn_core.bench.parts import ROUNDING, judge, nbytes
from cudnn_core.formats import dequantize, quantize
from cudnn_core.formats.spec import FORMATS

# Checks go through the result in pieces of so many rows, to bound the float64 temporaries.
PIECE = 2048
# Error of the sums, relative to the size of the result: FP32 accumulation, with room for the largest of millions of
# elements; activations stretch it; tensor cores keep about 14 bits of an FP8 sum between promotions.
SUM_NOISE, ACTIVATED_NOISE, FP8_NOISE = 1e-4, 5e-4, 4e-3
AMAX_ERROR = 1e-5
GLU_BLOCK = 32


@dataclass(frozen=True)
class Side:
    """An operand: `data` (rows, K, 1) and `scale` as the GEMM takes them; `plain` the scales as (rows, blocks)."""

    format: str
    data: Any
    scale: Any
    plain: Any

    @property
    def block(self) -> int | None:
        return FORMATS[self.format].block if self.format in FORMATS else None

    @cached_property
    def wide(self) -> Any:
        """(rows, K) in BF16: exact for every format."""
        matrix = self.data[:, :, 0]
        if self.scale is not None:
            matrix = dequantize(matrix, self.scale, self.format)
        return matrix.to(torch.bfloat16)


def make_side(x: Any, format: str) -> Side:
    """A matrix (rows, K) of floats in a format: "bfloat16", "float8_e4m3fn", or one of cudnn.quantize."""
    if format not in FORMATS:
        return Side(format, x.to(getattr(torch, format))[:, :, None], None, None)
    packed = quantize(x, format)
    plain = quantize(x, format, scale_layout="plain")
    return Side(format, packed["data"][:, :, None], packed["scale"], plain["scale"])


def amax(acc: Any, extra: tuple, sigmoid: Callable) -> dict[str, Any]:
    """C = acc, amax = max |acc|."""
    return {"c_tensor": acc, "amax_tensor": abs(acc).max()}


def swiglu(acc: Any, extra: tuple, sigmoid: Callable) -> dict[str, Any]:
    """C[32b + i] = up silu(gate), with the up half in columns 64b + i and the gate in 64b + 32 + i."""
    rows, columns = acc.shape
    pairs = acc.reshape(rows, columns // (2 * GLU_BLOCK), 2, GLU_BLOCK)
    up, gate = pairs[:, :, 0], pairs[:, :, 1]
    return {"c_tensor": (up * gate * sigmoid(gate)).reshape(rows, columns // 2)}


def srelu(acc: Any, extra: tuple, sigmoid: Callable) -> dict[str, Any]:
    """C = acc, D = prob relu(acc)^2."""
    (prob,) = extra
    return {"c_tensor": acc, "d_tensor": acc.clip(0) ** 2 * prob}


def dsrelu(acc: Any, extra: tuple, sigmoid: Callable) -> dict[str, Any]:
    """D = 2 relu(acc) Cin prob, dprob = sum over columns of relu(acc)^2 Cin."""
    prob, c = extra
    relu = acc.clip(0)
    return {"d_tensor": 2 * relu * (c * prob), "dprob_tensor": (relu**2 * c).sum(1, keepdims=True)}


EPILOGUES = {"amax": amax, "swiglu": swiglu, "srelu": srelu, "dsrelu": dsrelu}
# Results that stay in FP32 whatever the output's format.
WIDE_RESULTS = ("amax_tensor", "dprob_tensor")


class Work:
    """One operation on one problem, ready on a device."""

    def __init__(
        self, op: str, shape: tuple[int, int, int], a: str, b: str, out: str, device: str
    ) -> None:
        self.op, self.shape, self.out, self.device = op, shape, out, device
        m, n, k = shape
        generator = torch.Generator(device).manual_seed(0)

        def normal(*extents: int) -> torch.Tensor:
            return torch.randn(extents, device=device, generator=generator)

        self.a = make_side(normal(m, k).to(torch.bfloat16), a)
        self.b = make_side(normal(n, k).to(torch.bfloat16), b)
        self.alpha = 1.0 if op == "amax" else k**-0.5
        # prob and, for dsrelu, the gradient that comes in: as the operation takes them, (M, 1, 1) and (M, N, 1).
        self.prob = normal(m, 1, 1) if op in ("srelu", "dsrelu") else None
        self.c = normal(m, n, 1).to(torch.bfloat16) if op == "dsrelu" else None
        self.epilogue = EPILOGUES[op]

    @property
    def extra(self) -> tuple:
        """What the epilogue reads beside the product, as matrices."""
        return tuple(x[:, :, 0] for x in (self.prob, self.c) if x is not None)

    @property
    def flops(self) -> float:
        m, n, k = self.shape
        return 2.0 * m * n * k

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all operands and results."""
        sides = (self.a.data, self.b.data, self.a.scale, self.b.scale)
        # Measured, not computed: what the operation gives back is what it must write.
        results = [x for x in self.ours().values() if x is not None]
        return nbytes(*sides, self.prob, self.c, *results)

    @property
    def vector(self) -> Any:
        """sf_vec_size: one block length, or the pair where the sides differ."""
        blocks = [side.block for side in (self.a, self.b) if side.block is not None]
        return None if not blocks else blocks[0] if len(set(blocks)) == 1 else tuple(blocks)

    @property
    def inputs(self) -> dict[str, Any]:
        """What the operation reads, by its names."""
        sides = {"a_tensor": self.a.data, "b_tensor": self.b.data}
        scales = {"sfa_tensor": self.a.scale, "sfb_tensor": self.b.scale}
        extra = {"prob_tensor": self.prob, "c_tensor": self.c}
        return sides | scales | {name: x for name, x in extra.items() if x is not None}

    @property
    def options(self) -> dict[str, Any]:
        """Attributes of the call."""
        options: dict[str, Any] = {} if self.vector is None else {"sf_vec_size": self.vector}
        if self.op == "swiglu":
            options["ab12_dtype"] = None
        if self.out in FORMATS:
            return options | {"out_format": self.out}
        results = {"amax": "c", "swiglu": "c", "srelu": "cd", "dsrelu": "d"}[self.op]
        return options | {f"{name}_dtype": self.out for name in results}

    @property
    def numbers(self) -> dict[str, float]:
        """What the kernel takes at run time."""
        return {} if self.op == "amax" else {"alpha": self.alpha}

    @cached_property
    def ours(self) -> Callable[[], Any]:
        """The call as a user writes it."""
        function = getattr(cudnn_gemm_dense, f"gemm_{self.op}_wrapper")
        sides, named = (self.a.data, self.b.data), self.inputs | self.options | self.numbers
        del named["a_tensor"], named["b_tensor"]
        return lambda: function(*sides, **named)

    @property
    def noise(self) -> float:
        if self.a.format == self.b.format == "float8_e4m3fn":
            return FP8_NOISE
        return SUM_NOISE if self.op == "amax" else ACTIVATED_NOISE

    def check(self) -> None:
        """Every element of every result against float64 on the same operands; WrongResult beyond tolerance."""
        self.check_results(self.ours(), self.noise, AMAX_ERROR)

    def check_results(self, results: Any, noise: float, amax_error: float) -> None:
        """The same of results made elsewhere, whose sums and amax may be off by so much of their size."""
        got = {name: self._matrix(name, results) for name in self._names(results)}
        weights = self.b.wide.double()
        largest = 0.0
        for start in range(0, self.shape[0], PIECE):
            rows = slice(start, start + PIECE)
            acc = self.a.wide[rows].double() @ weights.T * self.alpha
            exact = self.epilogue(acc, tuple(x[rows].double() for x in self.extra), torch.sigmoid)
            largest = max(largest, exact.pop("amax_tensor", acc.new_zeros(())).item())
            for name, values in exact.items():
                rounding = ROUNDING["float32" if name in WIDE_RESULTS else self._element]
                judge(name, got[name][rows], values, rounding, noise)
        if "amax_tensor" in got:
            exact_amax = torch.tensor(largest, device=self.device, dtype=torch.float64)
            judge("amax_tensor", got["amax_tensor"], exact_amax, amax_error, 0.0)

    @property
    def _element(self) -> str:
        """The dtype that results are rounded to."""
        return FORMATS[self.out].element.name if self.out in FORMATS else self.out

    def _names(self, results: Any) -> list[str]:
        """Results that the epilogue defines."""
        tiny = torch.zeros(1, 2 * GLU_BLOCK), tuple(torch.zeros(1, 1) for _ in self.extra)
        return [name for name in self.epilogue(*tiny, torch.sigmoid) if results[name] is not None]

    def _matrix(self, name: str, results: Any) -> Any:
        """A result as a matrix, decoded when it was quantized; amax as a scalar."""
        value = results[name]
        if name == "amax_tensor":
            return value.reshape(())
        if self.out in FORMATS:
            scale = results[f"sf{name}"]
            return dequantize(value[:, :, 0], scale, self.out)
        return value[:, :, 0]


class ClassDoor:
    """`execute` of a Work's class, into tensors made beforehand: `outputs`, those that apply by their names."""

    def __init__(self, work: Work, in_workspace: bool = False) -> None:
        self.work = work
        results = work.ours().items()
        self.outputs = {name: torch.empty_like(x) for name, x in results if x is not None}
        named = work.inputs | self.outputs
        kind = getattr(cudnn_gemm_dense, f"Gemm{work.op.capitalize()}")
        samples = {f"sample_{name.removesuffix('_tensor')}": x for name, x in named.items()}
        absent = [n for n in signature(kind).parameters if n.startswith("sample_")]
        options = {} if work.vector is None else {"sf_vec_size": work.vector}
        self._op = kind(**dict.fromkeys(absent) | samples | work.numbers | options)
        self._op.compile()
        # swiglu's execute has an alpha of its own; without one, the others take the constructor's.
        given = named | (work.numbers if work.op == "swiglu" else {})
        last = [given.get(name) for name in signature(self._op.execute).parameters]
        while last[-1] is None:
            last.pop()
        self._arguments = tuple(last)
        self._workspace = None
        if in_workspace:
            size = self._op.workspace_size
            self._workspace = torch.empty(size, dtype=torch.uint8, device=work.device)

    @property
    def call(self) -> Callable[[], None]:
        """The call as a user writes it; not behind a star, which takes a tenth of its time."""
        given = {} if self._workspace is None else {"workspace": self._workspace}
        return partial(self._op.execute, *self._arguments, **given)

    def check(self) -> None:
        """As `Work.check`, of what a call writes into the outputs."""
        for name, x in self.outputs.items():
            x.fill_(0.0 if name in WIDE_RESULTS else torch.nan)
        self.call()
        self.work.check_results(self.outputs, self.work.noise, AMAX_ERROR)

    def bare(self) -> Callable[[], None]:
        """The compiled kernel itself, with nothing of Python around it but the call: its scratch memory is there."""
        from cudnn_core.engine import select

        operation, work = self._op.op, self.work
        contract = operation.contract
        attributes = tuple(work.options.get(a.name, a.default) for a in contract.attributes)
        inputs = [work.inputs.get(operand.name) for operand in contract.inputs]
        problem = operation.bind(inputs, attributes)[1]
        engine = select(operation.engines, problem)
        call, scalars = engine.compile(engine.plan(problem)).call, engine.scalars(problem)
        named = work.inputs | self.outputs
        tensors = [named[desc.name] for desc in problem.descs if desc is not None]
        scratch = [
            torch.zeros(workspace.nbytes, dtype=torch.uint8, device=work.device)
            for workspace in engine.workspaces(problem)
        ]
        stream = torch.cuda.current_stream().cuda_stream
        arguments = (*tensors, *scratch, *work.numbers.values(), *scalars, stream)
        return lambda: call(*arguments)
