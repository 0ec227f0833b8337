"""What this family shows in `cudnn demo`: GEMM + amax on real input, the others on N(0, 1), and what formats cost.

May import NumPy, core's formats and demo protocol. No framework: `place` holds the arrays.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cudnn_core.cli.places import Place, gelu
from cudnn_core.cli.protocol import Case, FeedForward, Study, Trial, engine_of
from cudnn_core.cli.texts import show_error
from cudnn_core.formats import dequantize, quantize
from cudnn_core.formats.spec import FORMATS
from cudnn_gemm_dense import dsrelu, srelu, swiglu
from cudnn_gemm_dense.amax import OP, gemm_amax_wrapper

# FP32 accumulation over K: the bound that the gpu tier holds up to K = 16384.
TOLERANCE = {"C": 2e-5, "amax": 1e-5}
# Of results behind an activation: squares double the error of the sums.
ACTIVATED = {
    "swiglu": {"C": 5e-5, "AB12": 2e-5},
    "srelu": {"D": 5e-5, "C": 2e-5},
    "dsrelu": {"D": 5e-5, "dprob": 1e-4},
}
# (format of A, format of B) in which they are shown.
SIDES = (("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"))


@dataclass(frozen=True)
class Operand:
    """A quantized matrix as the GEMM takes it, and the number that its products still need."""

    data: Any
    scale: Any
    decoded: Any
    factor: Any


def make_operand(matrix: Any, format: str, *, tensor_scale: bool = False) -> Operand:
    """Quantize a matrix (rows, K) along K. `decoded` leaves the per-tensor factor out."""
    q = quantize(matrix, format, per_tensor_scale=tensor_scale or None)
    decoded = dequantize(q["data"], q["scale"], format)
    return Operand(q["data"][:, :, None], q["scale"], decoded, q["per_tensor_scale"])


def multiply(a: Operand, b: Operand, format: str) -> Any:
    """C and amax of A B^T, in FP32."""
    return gemm_amax_wrapper(a.data, b.data, a.scale, b.scale, sf_vec_size=FORMATS[format].block)


def cases(place: Place, block: FeedForward | None) -> Iterator[Case]:
    """GEMM + amax in each format: the up projection of a real network, then a square of N(0, 1); then the others."""
    sources = {}
    if block is not None:
        m, (n, k) = len(block.x), block.w_in.shape
        sources["MiniLM up"] = (m, n, k), lambda: (place.put(block.x), place.put(block.w_in))
    square = (place.side, place.side)
    sources["N(0, 1)"] = (place.side,) * 3, lambda: [place.normal(square, seed) for seed in (1, 2)]
    for source, ((m, n, k), make) in sources.items():
        for format in FORMATS:
            yield Case(
                op="dense/amax",
                source=source,
                shape=f"{m}x{n}x{k}",
                formats=format,
                flop=2.0 * m * n * k,
                tolerance=TOLERANCE,
                prepare=partial(_prepare, place, format, make),
            )
    for stem, tolerance in ACTIVATED.items():
        for sides in SIDES:
            yield Case(
                op=f"dense/{stem}",
                source="N(0, 1)",
                shape="x".join([str(place.side)] * 3),
                formats="x".join(dict.fromkeys(sides)),
                flop=2.0 * place.side**3,
                tolerance=tolerance,
                prepare=partial(_prepare_activated, place, stem, sides),
            )


def _prepare_activated(place: Place, stem: str, sides: tuple[str, str]) -> Trial:
    """An op with an activation on two squares; all results in FP32, each against float64."""
    n = place.side
    a, b = (make_operand(place.normal((n, n), i), f) for i, f in enumerate(sides))
    alpha, wide = n**-0.5, "float32"
    vec = tuple(FORMATS[format].block for format in sides)
    options = {"alpha": alpha, "sf_vec_size": vec}
    prob, gradient = place.normal((n, 1), 2), place.normal((n, n), 3)
    scales = (a.scale, b.scale)
    if stem == "swiglu":
        op, inputs = swiglu, (a.data, b.data, *scales, None)
        options |= {"sfa_tensor": a.scale, "sfb_tensor": b.scale, "c_dtype": wide}
        call = partial(swiglu.gemm_swiglu_wrapper, a.data, b.data, **options)
    elif stem == "srelu":
        op, inputs = srelu, (a.data, b.data, *scales, prob[:, :, None], None)
        options |= {"c_dtype": wide, "d_dtype": wide}
        call = partial(srelu.gemm_srelu_wrapper, *inputs[:-1], **options)
    else:
        op = dsrelu
        inputs = (a.data, b.data, gradient[:, :, None], *scales, prob[:, :, None], None)
        call = partial(dsrelu.gemm_dsrelu_wrapper, *inputs[:-1], d_dtype=wide, **options)
    named = op.OP.contract.parse_attributes({"sf_vec_size": vec})

    def judge(outputs: Mapping[str, Any]) -> dict[str, float]:
        x = alpha * place.product64(a.decoded, b.decoded)
        wanted = results64(place, stem, x, prob, gradient)
        keys = {"AB12": "ab12_tensor", "C": "c_tensor", "D": "d_tensor", "dprob": "dprob_tensor"}
        return {
            name: place.error(outputs[keys[name]][:, :, 0], exact) for name, exact in wanted.items()
        }

    return Trial(engine_of(op.OP, inputs, tuple(named.values())), call, judge)


def results64(place: Place, stem: str, x: Any, prob: Any, gradient: Any) -> dict[str, Any]:
    """The results of an op by name, the main one first, of the pre-activation in float64."""
    if stem == "swiglu":
        groups = x.reshape(len(x), -1, 2, 32)
        c = groups[:, :, 0] * place.silu(groups[:, :, 1])
        return {"C": c.reshape(len(x), -1), "AB12": x}
    r = x.clip(0)
    if stem == "srelu":
        return {"D": r * r * prob, "C": x}
    return {
        "D": 2 * r * (gradient * prob),
        "dprob": (r * r * gradient).sum(1).reshape(-1, 1),
    }


def _prepare(place: Place, format: str, make: Any) -> Trial:
    a, b = (make_operand(matrix, format) for matrix in make())
    inputs, vec = (a.data, b.data, a.scale, b.scale), FORMATS[format].block
    options = OP.plain_attributes(("n", "float32", "float32", None, None, vec))

    def judge(outputs: Mapping[str, Any]) -> dict[str, float]:
        exact = place.product64(a.decoded, b.decoded)
        largest = place.largest(exact)
        amax = place.largest(outputs["amax_tensor"])
        return {
            "C": place.error(outputs["c_tensor"][:, :, 0], exact),
            "amax": abs(amax - largest) / largest,
        }

    return Trial(engine_of(OP, inputs, options), partial(multiply, a, b, format), judge)


@dataclass(frozen=True)
class Cost:
    """What one format does to the block: relative errors against float64, then each token's."""

    name: str
    bits: float
    kernel: float | None
    up: float
    output: float
    tokens: np.ndarray


def studies(place: Place, block: FeedForward | None) -> Iterator[Study]:
    """The error that each format costs in the feed-forward block of a real network."""
    if block is None:
        return
    variants = [(format, False) for format in FORMATS] + [("nvfp4", True)]
    yield Study(
        title=f"What a format costs: MiniLM's feed-forward block, {len(block.x)} tokens",
        columns=("operands", "bits", "kernel", "up product", "block output", "worst token"),
        steps=len(variants) + 2,
        rows=partial(_cost_rows, place, block, variants),
        notes=(
            "Relative errors. kernel: both GEMMs against float64 on the quantized operands;",
            "the others: against float64 on the operands before they were quantized.",
            "Bias and exact GELU are float32. nvfp4+: with a per-tensor scale.",
        ),
        draw=draw,
    )


def _cost_rows(
    place: Place, block: FeedForward, variants: list[tuple[str, bool]]
) -> Iterator[tuple[tuple[str, ...], Cost]]:
    exact_up, exact = run_plain(block, np.float64)
    plain = {"float32": (32.0, np.float32), "bfloat16": (16.0, "bfloat16")}
    for name, (bits, dtype) in plain.items():
        up, output = run_plain(block, dtype)
        yield _row(_cost(name, bits, None, up, output, exact_up, exact))
    for format, tensor_scale in variants:
        kernel, up, output = run_block(place, block, format, tensor_scale)
        fmt = FORMATS[format]
        name, bits = format + "+" * tensor_scale, fmt.element.bits + 8.0 / fmt.block
        yield _row(_cost(name, bits, kernel, up, output, exact_up, exact))


def run_plain(block: FeedForward, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """(up product, block output) on the host: operands in `dtype`, sums in float32 or wider."""
    if dtype == "bfloat16":
        import ml_dtypes

        rounded, wide = ml_dtypes.bfloat16, np.float32
    else:
        rounded = wide = dtype

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.astype(rounded).astype(wide) @ b.astype(rounded).astype(wide).T

    up = product(block.x, block.w_in)
    hidden = gelu(up + block.b_in.astype(wide))
    return up, product(hidden, block.w_out) + block.b_out.astype(wide)


def run_block(
    place: Place, block: FeedForward, format: str, tensor_scale: bool
) -> tuple[float, np.ndarray, np.ndarray]:
    """(kernel error, up product, block output), both GEMMs in `format` on the place's engine."""
    errors = []

    def product(matrix: Any, weight: np.ndarray) -> Any:
        a = make_operand(matrix, format, tensor_scale=tensor_scale)
        b = make_operand(place.put(weight), format, tensor_scale=tensor_scale)
        c = multiply(a, b, format)["c_tensor"][:, :, 0]
        errors.append(place.error(c, place.product64(a.decoded, b.decoded)))
        return c * (a.factor * b.factor) if tensor_scale else c

    up = product(place.put(block.x), block.w_in)
    hidden = place.gelu(up + place.put(block.b_in))
    output = product(hidden, block.w_out) + place.put(block.b_out)
    return max(errors), place.get(up), place.get(output)


def _cost(
    name: str,
    bits: float,
    kernel: float | None,
    up: np.ndarray,
    output: np.ndarray,
    exact_up: np.ndarray,
    exact: np.ndarray,
) -> Cost:
    difference, norm = output - exact, np.linalg.norm
    tokens = norm(difference, axis=1) / norm(exact, axis=1)
    return Cost(
        name,
        bits,
        kernel,
        float(norm(up - exact_up) / norm(exact_up)),
        float(norm(difference) / norm(exact)),
        tokens,
    )


def _row(cost: Cost) -> tuple[tuple[str, ...], Cost]:
    errors = (cost.up, cost.output, cost.tokens.max())
    kernel = "-" if cost.kernel is None else show_error(cost.kernel)
    return (cost.name, f"{cost.bits:g}", kernel, *map(show_error, errors)), cost


# Name -> colour and dashes; lines that lie on each other differ in both.
_LINES = {
    "bfloat16": ("#555555", "-"),
    "mxfp8": ("#0b559f", "-"),
    "mxfp8_e5m2": ("#2a9d8f", "-"),
    "mxfp4": ("#d1495b", "-"),
    "nvfp4": ("#e09f3e", "-"),
    "nvfp4+": ("#5f3dc4", ":"),
}


def draw(figure: Any, costs: list[Cost]) -> None:
    """Left: errors of each format on a log scale. Right: how the last one spreads over tokens."""
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_errors(left, costs)
    _draw_tokens(right, costs)


def _draw_errors(axes: Any, costs: list[Cost]) -> None:
    rows = range(len(costs))
    measures = (
        ("kernel itself", "o", "#999999", [c.kernel for c in costs]),
        ("up product", "s", "#74a9d8", [c.up for c in costs]),
        ("block output", "D", "#0b559f", [c.output for c in costs]),
    )
    smallest = 1e-9
    for label, marker, colour, values in measures:
        # An exact product has no place on a log axis: its mark stands on the left edge.
        shown = [
            (max(v, smallest), row) for v, row in zip(values, rows, strict=True) if v is not None
        ]
        axes.plot(
            *zip(*shown, strict=True), marker, color=colour, label=label, clip_on=False, zorder=3
        )
    beside = {"xytext": (7, -3), "textcoords": "offset points", "fontsize": 8}
    for row, cost in zip(rows, costs, strict=True):
        axes.annotate(show_error(cost.output), (cost.output, row), **beside)
        if cost.kernel is not None:
            point = (max(cost.kernel, smallest), row)
            axes.annotate(show_error(cost.kernel), point, **beside)
    axes.set(xscale="log", xlim=(smallest, 3.0), xlabel="relative error against float64")
    axes.set_yticks(rows, [f"{c.name}\n{c.bits:g} bits" for c in costs], fontsize=8)
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    axes.set_title("Feed-forward block: what a format costs", fontsize=10)
    axes.legend(fontsize=8, loc="upper right")


def _draw_tokens(axes: Any, costs: list[Cost]) -> None:
    for cost in costs:
        if cost.name in _LINES:
            colour, dashes = _LINES[cost.name]
            share = 100.0 * np.arange(1, len(cost.tokens) + 1) / len(cost.tokens)
            axes.plot(np.sort(cost.tokens), share, dashes, color=colour, label=cost.name)
    axes.set(
        xscale="log", xlabel="relative error of a token", ylabel="% of tokens with at most this"
    )
    axes.set_title("Block output, token by token", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left")
