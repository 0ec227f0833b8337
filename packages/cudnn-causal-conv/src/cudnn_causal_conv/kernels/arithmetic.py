"""The one arithmetic of forward, update and the backward's recomputation: taps, bias, SiLU. Imports the DSL.

Every kernel sums in FP32, oldest tap first, each by one fused multiply-add, then adds the bias; so one long call,
chunks of it, packed sequences and decode steps agree bit for bit, whatever the layout. Instructions are spelled out,
for a compiler that contracts or reorders would break that.
"""

from cutlass import Float32
from cutlass.cutlass_dsl import T, dsl_user_op

from cudnn_core.hopper.inline import asm

NEGATIVE_LOG2_E = -1.4426950408889634


@dsl_user_op
def _pure(operands: list, text: str, *, loc=None, ip=None) -> Float32:
    values = [Float32(x).ir_value(loc=loc, ip=ip) for x in operands]
    constraints = ",".join(["=f"] + ["f"] * len(values))
    return Float32(asm(T.f32(), values, text, constraints, side_effects=False))


def fma(a: Float32, b: Float32, c: Float32) -> Float32:
    """a * b + c, rounded once."""
    return _pure([a, b, c], "fma.rn.f32 $0, $1, $2, $3;")


def add(a: Float32, b: Float32) -> Float32:
    """a + b, never contracted."""
    return _pure([a, b], "add.rn.f32 $0, $1, $2;")


def multiply(a: Float32, b: Float32) -> Float32:
    """a * b, never contracted."""
    return _pure([a, b], "mul.rn.f32 $0, $1, $2;")


def tap_sum(history: list, weights: list, bias) -> Float32:
    """sum_j weights[j] * history[j] + bias, in the order above; bias may be None."""
    return tap_sums([history], [weights], [bias])[0]


def tap_sums(histories: list, weights: list, biases: list) -> list:
    """`tap_sum` of several values, instruction by instruction: the compiler keeps the order, and none waits."""
    totals = [Float32(0.0)] * len(histories)
    for j in range(len(weights[0])):
        steps = zip(histories, weights, totals, strict=True)
        totals = [fma(weight[j], history[j], total) for history, weight, total in steps]
    pairs = zip(totals, biases, strict=True)
    return [total if bias is None else add(total, bias) for total, bias in pairs]


def sigmoid(z: Float32) -> Float32:
    """1 / (1 + exp(-z)) by two approximate instructions; relative error below 2^-20 for |z| < 16, 2^-17 up to 87.

    0 from where exp(-z) passes 2^126 on; NaN stays NaN.
    """
    return sigmoids([z])[0]


def sigmoids(values: list) -> list:
    """`sigmoid` of several values, instruction by instruction."""
    powers = [multiply(z, Float32(NEGATIVE_LOG2_E)) for z in values]
    powers = [_pure([p], "ex2.approx.ftz.f32 $0, $1;") for p in powers]
    powers = [add(p, Float32(1.0)) for p in powers]
    return [_pure([p], "rcp.approx.ftz.f32 $0, $1;") for p in powers]


def activate(z: Float32, activation: str) -> Float32:
    """z, or z * sigmoid(z)."""
    return z if activation == "identity" else multiply(z, sigmoid(z))
