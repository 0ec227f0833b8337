"""The epilogue functions of this family, made of core's resources.

May import the CuTe DSL and cudnn_core.hopper; loaded only to compile.

Each takes the FP32 sums of a subtile, where they lie, and handles of resources by name (design: an
epilogue is a function of the accumulator and of named resources). Resources that an op was built
without are None: nothing is traced for them. D's optional amax and quantization follow one rule,
`finish`: amax sees the FP32 values before any conversion.
"""

from cutlass import Float32

from cudnn_core.hopper.epilogue import relu, silu


def store_amax(sums, frame, c, amax=None, norm_const=None) -> None:
    """C = convert(acc); amax = max |acc|."""
    finish(sums, frame, c, amax, norm_const)


def glu_silu(sums, frame, c, alpha=None, ab12=None, amax=None, norm_const=None) -> None:
    """AB12 = alpha * acc; C = up * silu(gate), of the FP32 values; amax = max |C|."""
    x = scaled(sums, alpha)
    if ab12 is not None:
        ab12.put(frame, x)
    values = [x[up] * silu(x[gate]) for up, gate in frame.pairs()]
    finish(values, frame.half(), c, amax, norm_const)


def squared_relu(sums, frame, d, prob, alpha=None, c=None, amax=None, norm_const=None) -> None:
    """x = alpha * acc; C = x; D = relu(x)^2 * prob[m]; amax = max |D|."""
    x = scaled(sums, alpha)
    if c is not None:
        c.put(frame, x)
    rows = prob.get(frame)
    values = []
    for value, p in zip(x, rows, strict=True):
        r = relu(value)
        values.append((r * r) * p)
    finish(values, frame, d, amax, norm_const)


def squared_relu_backward(
    sums, frame, d, c, prob, dprob, alpha=None, amax=None, norm_const=None
) -> None:
    """G = alpha * acc; r = relu(G); D = (2r) * (c * prob[m]); dprob[m] += sum over n of (r*r) * c."""
    g = scaled(sums, alpha)
    incoming, rows = c.get(frame), prob.get(frame)
    values, products = [], []
    for value, given, p in zip(g, incoming, rows, strict=True):
        r = relu(value)
        values.append((Float32(2.0) * r) * (given * p))
        products.append((r * r) * given)
    dprob.add(frame, products)
    finish(values, frame, d, amax, norm_const)


def finish(values, frame, out, amax, norm_const) -> None:
    """Reduce max |values| and store them; norm_const goes with a quantized output."""
    if amax is not None:
        amax.add(frame, values)
    if norm_const is None:
        out.put(frame, values)
    else:
        out.put(frame, values, norm_const.get())


def scaled(sums, alpha) -> list:
    """alpha * acc: one FP32 product before everything else."""
    if alpha is None:
        return sums
    return [alpha.get() * value for value in sums]
