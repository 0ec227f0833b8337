"""Cases of swiglu, srelu and dsrelu for the gpu tier: what is run, the plan it takes, and its independent model.

May import numpy, the project's contracts and their testing module; torch in functions that get data.
"""

from dataclasses import dataclass
from importlib import import_module

from cudnn_core.tensor_desc import TensorDesc
from cudnn_gemm_dense.testing import (
    Call,
    column_tensor,
    dsrelu,
    make_call,
    matrix_tensor,
    srelu,
    swiglu,
)


@dataclass(frozen=True)
class FusedCase:
    """dtype: of C (swiglu) or D; second: of AB12 or C, None: not stored. out_format decides over dtype."""

    op: str
    a: str = "bfloat16"
    b: str = "bfloat16"
    m: int = 200
    n: int = 192
    k: int = 352
    l: int = 2
    a_major: str = "k"
    b_major: str = "k"
    dtype: str = "float32"
    major: str = "n"
    second: str | None = "float32"
    out_format: str | None = None
    norm_const: float | None = None
    glu: str = "interleaved"
    alpha: float = -0.75

    def __str__(self):
        name = f"{self.op}-{self.m}x{self.n}x{self.k}x{self.l}-{self.a}x{self.b}"
        name += f"-{self.a_major}{self.b_major}{self.major}-{self.out_format or self.dtype}"
        return name + f"-{self.second}" + ("-halves" if self.glu == "concatenated" else "")

    @property
    def module(self):
        return f"cudnn_gemm_dense.{self.op}"

    def call(self, seed: int = 0) -> Call:
        """Few-bit data: sums are exact in any order."""
        made = make_call(self.m, self.n, self.k, self.l, self.a, self.b, seed)
        made.alpha = self.alpha
        return made

    def inputs(self, call: Call, framework: str = "cuda", pad: int = 0, offset: int = 0) -> dict:
        """Keyword arguments of a wrapper call: operands."""
        given = {
            "a_tensor": call.a.tensor(framework, self.a_major, pad, offset),
            "b_tensor": call.b.tensor(framework, self.b_major, pad, offset),
            "sfa_tensor": call.a.scale(framework),
            "sfb_tensor": call.b.scale(framework),
        }
        if self.op != "swiglu":
            given["prob_tensor"] = column_tensor(call.column, framework)
        if self.op == "dsrelu":
            given["c_tensor"] = matrix_tensor(call.gradient, "bfloat16", self.major, framework)
        if self.norm_const is not None:
            import numpy as np

            from cudnn_core.testing.gemm import shaped, to_framework

            flat = np.full(1, self.norm_const, np.float32).view(np.uint8)
            given["norm_const_tensor"] = shaped(
                to_framework(flat, framework), "float32", (1,), 1, (0,)
            )
        return given

    def options(self, call: Call) -> dict:
        """Keyword arguments of a wrapper call: options."""
        made = {"sf_vec_size": call.vec(), "out_format": self.out_format, "alpha": self.alpha}
        made["d_major" if self.op == "dsrelu" else "c_major"] = self.major
        made["c_dtype" if self.op == "swiglu" else "d_dtype"] = self.dtype
        if self.op == "swiglu":
            made |= {"ab12_dtype": self.second, "glu_layout": self.glu}
        if self.op == "srelu":
            made["c_dtype"] = self.second
        return made

    def run(self, call: Call, framework: str = "cuda", **changes):
        """The wrapper's TupleDict."""
        wrapper = getattr(import_module(self.module), f"gemm_{self.op}_wrapper")
        layout = {k: changes.pop(k) for k in ("pad", "offset") if k in changes}
        return wrapper(**self.inputs(call, framework, **layout), **(self.options(call) | changes))

    def model(self, call: Call):
        """C or D, (L, M, columns) float64."""
        if self.op == "swiglu":
            return swiglu(call.preactivation(), self.glu)
        return srelu(call) if self.op == "srelu" else dsrelu(call)[0]

    @property
    def result(self) -> str:
        return "c_tensor" if self.op == "swiglu" else "d_tensor"

    def plans(self) -> set:
        """The plan of this case, as torch tensors on a GPU make it; none for an empty problem."""
        if 0 in (self.m, self.n, self.k, self.l):
            return set()
        op = import_module(self.module).OP
        call = make_call(self.m, self.n, self.k, self.l, self.a, self.b)
        arrays = self.inputs(call, "numpy")
        descs = [describe(arrays.get(o.name), o.name, self) for o in op.contract.inputs]
        options = self.options(call)
        options.pop("alpha")
        element = {"mxfp8": "float8_e4m3fn", None: None}.get(self.out_format, "float4_e2m1fn")
        if element is not None:
            options["c_dtype" if self.op == "swiglu" else "d_dtype"] = element
        engine = next(e for e in op.engines if e.name == "hopper")
        return {engine.plan(op.contract.bind(descs, options))}


def describe(x, name, case):
    """Metadata of a NumPy array as that of the torch tensor on cuda:0 that holds the same."""
    if x is None:
        return None
    stride = [s // x.itemsize for s in x.strides]
    desc = TensorDesc.of(x.dtype, x.shape, stride, "cuda:0", name)
    if x.dtype == "uint8":
        logical = desc.as_fp4(1)
        return TensorDesc.of("float4_e2m1fn", logical.shape, logical.stride, "cuda:0", name)
    return desc


@dataclass(frozen=True)
class JaxCase:
    """What the JAX tests run: BF16 operands of 200x192x352 (320 columns if quantized), FP32 results."""

    op: str
    mapped: bool = False
    out_format: str | None = None

    def __str__(self):
        return f"{self.op}{'-vmap' if self.mapped else ''}{'-' + self.out_format if self.out_format else ''}"

    @property
    def extents(self):
        return 200, 320 if self.out_format else 192, 352

    def plans(self) -> set:
        """The plan that an entry makes of these arrays on a GPU."""
        op = import_module(f"cudnn_gemm_dense.{self.op}").OP
        (m, n, k), l = self.extents, 3 if self.mapped else 1
        shapes = {"a_tensor": (m, k, "bfloat16"), "b_tensor": (n, k, "bfloat16")}
        if self.op != "swiglu":
            shapes["prob_tensor"] = (m, 1, "float32")
        if self.op == "dsrelu":
            shapes["c_tensor"] = (m, n, "float32")
        descs = []
        for operand in op.contract.inputs:
            rows, columns, dtype = shapes.get(operand.name, (0, 0, None))
            stride = (columns, 1, rows * columns)
            made = dtype and TensorDesc.of(
                dtype, (rows, columns, l), stride, "cuda:0", operand.name
            )
            descs.append(made or None)
        options = {"out_format": self.out_format, "amax": "none", "scale_view": "physical"}
        options |= {"batch": "outer"} if self.mapped else {}
        names = {a.name for a in op.contract.attributes} & {"c_dtype", "d_dtype", "ab12_dtype"}
        options |= dict.fromkeys(names, "float32")
        if self.out_format == "mxfp8":
            options["c_dtype" if self.op == "swiglu" else "d_dtype"] = "float8_e4m3fn"
        engine = next(e for e in op.engines if e.name == "hopper")
        return {engine.plan(op.contract.bind(descs, options))}
