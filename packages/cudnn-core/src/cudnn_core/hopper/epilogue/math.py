"""Functions of FP32 numbers that epilogues are made of.

May import: the CuTe DSL, inline.py.
"""

from cutlass import Float32
from cutlass.cutlass_dsl import T, dsl_user_op

from ..inline import asm


@dsl_user_op
def relu(x: Float32, *, loc=None, ip=None) -> Float32:
    """max(x, 0); NaN stays NaN."""
    return _call("max.NaN.f32 $0, $1, 0f00000000;", x, loc, ip)


@dsl_user_op
def exp2(x: Float32, *, loc=None, ip=None) -> Float32:
    """2^x within 2 units in the last place; results below 2^-126 are 0."""
    return _call("ex2.approx.ftz.f32 $0, $1;", x, loc, ip)


@dsl_user_op
def reciprocal(x: Float32, *, loc=None, ip=None) -> Float32:
    """1/x within 1 unit in the last place; subnormal numbers count as 0."""
    return _call("rcp.approx.ftz.f32 $0, $1;", x, loc, ip)


def silu(g: Float32) -> Float32:
    """g / (1 + 2^(-g*log2(e))); -0 for g below -88, NaN for -Inf."""
    return g * reciprocal(Float32(1.0) + exp2(g * Float32(-1.4426950408889634)))


def _call(text: str, x: Float32, loc, ip) -> Float32:
    operands = [Float32(x).ir_value(loc=loc, ip=ip)]
    return Float32(asm(T.f32(), operands, text, "=f,f", side_effects=False))
