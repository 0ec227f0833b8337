"""`cudnn.jax.call` and its companions: argument order, aliases, specs and refusals without a GPU; the CUDA lowering
through the DSL's own extension in a process of its own.
"""

import json
import os
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

Shape = jax.ShapeDtypeStruct
F32 = "float32"
OPTIONS = ("input_spec", "output_spec", "allow_cuda_graph", "compile_options", "use_static_tensors")


@pytest.fixture
def bridge():
    pytest.importorskip("cutlass")
    from cudnn_core import jax_bridge

    return jax_bridge


@pytest.fixture
def recorded(bridge, monkeypatch):
    """Replaces the DSL's call by one that keeps what it was given and plays the kernel with labels."""
    calls = []

    def fake(fn, *, output_shape_dtype, input_output_aliases=None, **options):
        def run(*arrays):
            aliases = dict(input_output_aliases or {})
            leaves, tree = jax.tree.flatten(output_shape_dtype)
            inputs = [f"in{i}" for i in range(len(arrays))]
            outputs = [f"out{i}" for i in range(len(leaves)) if i not in aliases.values()]
            constants = {name: value for name, value in options.items() if name not in OPTIONS}
            fn("stream", *inputs, *outputs, **constants)
            calls.append({"aliases": aliases, "constants": constants, **options})
            return jax.tree.unflatten(tree, [jnp.zeros(s.shape, s.dtype) for s in leaves])

        return run

    monkeypatch.setattr(bridge, "cutlass_call", fake)
    bridge._remembered.cache_clear()
    yield calls
    bridge._remembered.cache_clear()


def kernel_log():
    log = []

    def fn(stream, *arrays, **constants):
        log.append((stream, arrays, constants))

    return fn, log


def outputs(count):
    return tuple(Shape((i + 1,), F32) for i in range(count))


def test_one_shape_a_tuple_and_a_list_give_an_array_a_tuple_and_a_list(bridge, recorded):
    fn, _ = kernel_log()
    x = jnp.ones(3)
    one = bridge.call(fn, output_shape_dtype=Shape((2,), F32))(x)
    assert isinstance(one, jax.Array) and one.shape == (2,)
    assert isinstance(bridge.call(fn, output_shape_dtype=outputs(2))(x), tuple)
    assert isinstance(bridge.call(fn, output_shape_dtype=list(outputs(2)))(x), list)
    tree = {"a": Shape((2,), F32), "b": [Shape((3,), F32)]}
    assert bridge.call(fn, output_shape_dtype=(tree,))(x)[0]["b"][0].shape == (3,)


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize(
    ("count", "started", "order"),
    [
        (1, [0], ["in1"]),
        (3, [0], ["in1", "out1", "out2"]),
        (3, [1], ["out0", "in1", "out2"]),
        (3, [2], ["out0", "out1", "in1"]),
        (3, [0, 2], ["in1", "out1", "in2"]),
        (3, [2, 0, 1], ["in1", "in2", "in3"]),
    ],
)
def test_kernel_and_caller_see_outputs_in_declared_order(
    bridge, recorded, kind, count, started, order
):
    fn, log = kernel_log()
    inits = {i: (lambda s, i=i: jnp.full(s.shape, float(i), s.dtype)) for i in started}
    call = bridge.call(fn, output_shape_dtype=kind(outputs(count)), initialized_outputs=inits)
    result = call(jnp.ones(3))
    assert [y.shape for y in result] == [(i + 1,) for i in range(count)]
    assert isinstance(result, kind)
    assert log == [("stream", ("in0", *order), {})]
    assert recorded[0]["aliases"] == {1 + n: i for n, i in enumerate(sorted(started))}


def test_single_output_may_be_initialized(bridge, recorded):
    fn, log = kernel_log()
    call = bridge.call(
        fn, output_shape_dtype=Shape((4,), F32), initialized_outputs={0: bridge.zeros_init}
    )
    assert call(jnp.ones(3), jnp.ones(2)).shape == (4,)
    assert log == [("stream", ("in0", "in1", "in2"), {})]


def test_explicitly_aliased_outputs_are_not_passed(bridge, recorded):
    fn, log = kernel_log()
    call = bridge.call(
        fn,
        output_shape_dtype=outputs(3),
        initialized_outputs={2: bridge.neg_inf_init},
        input_output_aliases={0: 0},
    )
    call(jnp.ones(1), jnp.ones(3))
    assert log == [("stream", ("in0", "in1", "out1", "in2"), {})]
    assert recorded[0]["aliases"] == {0: 0, 2: 2}


def test_options_and_constants_are_passed_on(bridge, recorded):
    fn, log = kernel_log()
    bridge.call(
        fn,
        output_shape_dtype=outputs(1),
        allow_cuda_graph=False,
        compile_options="--opt-level 2",
        use_static_tensors=True,
        alpha=2.0,
    )(jnp.ones(1))
    assert log[0][2] == recorded[0]["constants"] == {"alpha": 2.0}
    assert recorded[0]["allow_cuda_graph"] is False and recorded[0]["use_static_tensors"] is True
    assert recorded[0]["compile_options"] == "--opt-level 2"


def test_specs_of_initialized_outputs_apply_to_the_donated_inputs(bridge, recorded):
    fn, _ = kernel_log()
    operand, atom = bridge.gemm_operand_spec(), bridge.sf_atom_spec()
    bridge.call(
        fn,
        output_shape_dtype=outputs(3),
        input_spec=[operand, None],
        output_spec=[None, None, atom],
        initialized_outputs={2: bridge.zeros_init, 0: bridge.zeros_init},
    )(jnp.ones(3), jnp.ones(3))
    assert recorded[0]["input_spec"] == (operand, None, None, atom)
    assert recorded[0]["output_spec"] == (None, None, atom)
    bridge.call(
        fn,
        output_shape_dtype=Shape((1,), F32),
        output_spec=operand,
        initialized_outputs={0: bridge.zeros_init},
    )(jnp.ones(3))
    assert recorded[1]["input_spec"] == (None, operand)


def test_equal_requests_share_one_callable(bridge):
    fn, _ = kernel_log()

    def make(**changes):
        options = {
            "output_shape_dtype": outputs(2),
            "initialized_outputs": {0: bridge.zeros_init},
            "input_spec": [bridge.gemm_operand_spec()],
            "alpha": 1.0,
        }
        return bridge.call(fn, **(options | changes))

    assert make() is make()
    assert make() is not make(alpha=2.0)
    assert make() is not make(initialized_outputs={0: bridge.neg_inf_init})
    assert make() is not make(output_shape_dtype=list(outputs(2)))
    assert make() is not make(allow_cuda_graph=False)
    assert make() is not make(output_shape_dtype=(Shape((1,), F32), Shape((2,), "float16")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initialized_outputs": {2: 0}}, "initialized_outputs: .*got 2"),
        ({"initialized_outputs": {-1: 0}}, "initialized_outputs: .*got -1"),
        (
            {"initialized_outputs": {1: 0}, "input_output_aliases": {0: 1}},
            "initialized_outputs: .*input_output_aliases.*got 1",
        ),
        (
            {"initialized_outputs": {0: 0}, "output_shape_dtype": ([Shape((1,), F32)],)},
            "output_shape_dtype: .*flat",
        ),
        (
            {"initialized_outputs": {0: 0}, "output_shape_dtype": {"a": Shape((1,), F32)}},
            "output_shape_dtype: .*flat",
        ),
    ],
)
def test_refusals(bridge, options, message):
    fn, _ = kernel_log()
    if "initialized_outputs" in options:
        options["initialized_outputs"] = dict.fromkeys(
            options["initialized_outputs"], bridge.zeros_init
        )
    with pytest.raises(ValueError, match=message):
        bridge.call(fn, **({"output_shape_dtype": outputs(2)} | options))


def test_pytree_inputs_are_refused_with_initialized_outputs(bridge, recorded):
    fn, _ = kernel_log()
    call = bridge.call(
        fn, output_shape_dtype=outputs(1), initialized_outputs={0: bridge.zeros_init}
    )
    with pytest.raises(ValueError, match="inputs: expected arrays"):
        call([jnp.ones(3)])
    with pytest.raises(ValueError, match="input_spec: expected 2 entries, got 1"):
        bridge.call(
            fn,
            output_shape_dtype=outputs(1),
            initialized_outputs={0: bridge.zeros_init},
            input_spec=(None,),
        )(jnp.ones(3), jnp.ones(3))


def test_constants_must_be_hashable(bridge):
    fn, _ = kernel_log()
    with pytest.raises(TypeError, match="tile: expected a hashable"):
        bridge.call(fn, output_shape_dtype=outputs(1), tile=[128, 128])


def test_initial_values(bridge):
    shape = Shape((2, 3), jnp.bfloat16)
    zeros, lowest = bridge.zeros_init(shape), bridge.neg_inf_init(shape)
    for array in (zeros, lowest):
        assert (array.shape, array.dtype) == ((2, 3), jnp.bfloat16)
    assert (zeros == 0).all() and (lowest == -jnp.inf).all()


def test_specs_and_descriptions(bridge):
    assert bridge.gemm_operand_spec() == bridge.TensorSpec(layout=(1, 0, 2))
    assert bridge.sf_atom_spec() == bridge.TensorSpec(mode=(3, 4, 1, 5, 2, 0))
    desc = bridge.row_major_desc((4, 8, 1), jnp.float8_e4m3fn, "a_tensor")
    assert (desc.shape, desc.stride, desc.name) == ((4, 8, 1), (8, 1, 1), "a_tensor")
    assert (str(desc.device), str(desc.dtype)) == ("cuda:0", "float8_e4m3fn")
    with pytest.raises(ValueError, match="a_tensor"):
        bridge.row_major_desc((1,), "no such type", "a_tensor")


LOWERING = """
import json
import jax, jax.numpy as jnp
import cutlass, cutlass.cute as cute, cuda.bindings.driver as cuda
from cudnn_core import jax_bridge

@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor, total: cute.Tensor, c: cutlass.Constexpr):
    i = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    if i < x.shape[0]:
        y[i] = x[i] * c
        total[0] = total[0] + x[i]

@cute.jit
def launch(stream: cuda.CUstream, x: cute.Tensor, total: cute.Tensor, y: cute.Tensor, *, c: cutlass.Constexpr):
    kernel(x, y, total, c).launch(
        grid=[cute.ceil_div(x.shape[0], 128), 1, 1], block=[128, 1, 1], stream=stream)

Shape = jax.ShapeDtypeStruct
call = jax_bridge.call(launch, output_shape_dtype=(Shape((1,), "float32"), Shape((300,), "float32")),
    initialized_outputs={0: jax_bridge.zeros_init}, c=2.0)
text = jax.jit(call).trace(Shape((300,), "float32")).lower(lowering_platforms=("cuda",)).as_text()
refused = []
for transformed in (lambda x: jax.vmap(call)(x[None]), jax.grad(lambda x: call(x)[1].sum()),
                    lambda x: jax.jvp(call, (x,), (x,))):
    try:
        transformed(jnp.ones(300))
    except NotImplementedError:
        refused.append(True)
print(json.dumps({"aliased": "output_operand_alias" in text, "target": "CuteDSLRT" in text, "refused": len(refused)}))
"""


@pytest.mark.compile
def test_cuda_lowering_through_the_extension_of_the_dsl(bridge, tmp_path):
    script = tmp_path / "lowering.py"
    script.write_text(LOWERING)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "CUTE_DSL_ARCH": "sm_90a",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report == {"aliased": True, "target": True, "refused": 3}


MISSING = """
import sys
sys.modules[{missing!r}] = None
try:
    import cudnn_core.jax_bridge
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("missing", ["jax", "cutlass"])
def test_missing_dependencies_are_an_import_error(missing):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", MISSING.format(missing=missing)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "nvidia-cutlass-dsl" in done.stdout and missing in done.stdout, done.stderr
