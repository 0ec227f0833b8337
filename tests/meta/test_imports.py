"""`import cudnn`: what it costs, what it serves, what it says about what it does not serve."""

import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import cudnn
import cudnn_core
import cudnn_gemm_grouped
from cudnn_core.testing.imports import heavy_after, import_seconds, run
from cudnn_core.testing.stubs import stub_names

MODULE_PATHS = (
    "cudnn.api_base",
    "cudnn.datatypes",
    "cudnn.tensor_adapter",
    "cudnn.ops",
    "cudnn.ops.causal_conv1d",
    "cudnn.grouped_gemm",
    "cudnn.discrete_grouped_gemm",
    *(
        f"cudnn.gemm.cutedsl.{path}"
        for path in (
            "dense.amax",
            "dense.amax.api",
            "dense.swiglu",
            "dense.srelu",
            "dense.dsrelu",
            "dense.proj_rope_mxfp8",
            "grouped",
            "discrete_grouped",
        )
    ),
)


@pytest.mark.parametrize("module", ["cudnn", *MODULE_PATHS])
def test_import_loads_nothing_heavy(module):
    assert heavy_after(f"import {module}") == []


def test_import_is_cheap():
    assert import_seconds("cudnn") < 0.06


def test_asking_for_names_loads_nothing_heavy():
    assert heavy_after("import cudnn; dir(cudnn); hasattr(cudnn, 'no_such'); cudnn.ops") == []


def test_ours_is_the_one_imported():
    assert run("from cudnn_core.lazy import foreign_cudnn; print(foreign_cudnn())") == "None\n"


def test_every_distribution_has_one_version():
    ours = [d for d in metadata.distributions() if d.name.split("-")[0] == "cudnn"]
    assert len({d.name for d in ours}) == 7
    assert {d.version for d in ours} == {cudnn_core.__version__} == {cudnn.__version__}


@pytest.mark.parametrize("name", sorted(cudnn.NAMES))
def test_name_is_the_object_at_its_home(name):
    home, _, attribute = cudnn.NAMES[name].partition(":")
    assert getattr(cudnn, name) is getattr(import_module(home), attribute or name)


@pytest.mark.parametrize("name", sorted(cudnn.COMING))
def test_coming_name(name):
    with pytest.raises(NotImplementedError, match=f"cudnn.{name} is not built yet: "):
        getattr(cudnn, name)


def test_from_import_of_a_coming_name():
    with pytest.raises(NotImplementedError, match="coming to the package cudnn-gemm-grouped"):
        from cudnn import grouped_gemm_swiglu_wrapper_sm100  # noqa: F401


def test_unknown_name():
    assert not hasattr(cudnn, "no_such")
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = cudnn.no_such


def test_convolution_stays_in_ops():
    for name in ("causal_conv1d", "causal_conv1d_update"):
        assert not hasattr(cudnn, name)
        assert getattr(cudnn.ops, name).__name__ == name
        assert name in dir(cudnn.ops)
    with pytest.raises(NotImplementedError, match="no package of this project has planned it"):
        _ = cudnn.ops.causal_conv1d_nwh


@pytest.mark.parametrize(
    "statement",
    [
        "from cudnn.ops.causal_conv1d import causal_conv1d",
        "import cudnn.ops.causal_conv1d; from cudnn.ops import causal_conv1d",
        "from cudnn.ops import causal_conv1d; import cudnn.ops.causal_conv1d",
        "import cudnn; cudnn.ops.causal_conv1d; from cudnn.ops.causal_conv1d import causal_conv1d",
    ],
)
def test_the_function_keeps_its_name_beside_the_module(statement):
    """Upstream has a submodule of the function's name; importing it must not hide the function."""
    code = (
        f"{statement}\n"
        "import cudnn, cudnn_causal_conv, sys\n"
        "print(cudnn.ops.causal_conv1d is causal_conv1d is cudnn_causal_conv.causal_conv1d,"
        " type(sys.modules.get('cudnn.ops.causal_conv1d', sys)).__name__)"
    )
    assert run(code) == "True module\n"


# Core contract, section 8: upstream's lazy names, spelled out so that a table cannot lose one.
UPSTREAM = """
GemmAmaxSm100 gemm_amax_wrapper_sm100 gemm_amax_jax_sm100
GemmSwigluSm100 gemm_swiglu_wrapper_sm100 gemm_swiglu_jax_sm100
GemmSreluSm100 gemm_srelu_wrapper_sm100 gemm_srelu_jax_sm100
GemmDsreluSm100 gemm_dsrelu_wrapper_sm100 gemm_dsrelu_jax_sm100
GemmProjRopeMxfp8Bf16InSm100 GemmProjRopeMxfp8Mxfp8InSm100
gemm_proj_rope_mxfp8_wrapper_sm100 gemm_proj_rope_mxfp8_jax_sm100
GroupedGemmSm100 GroupedGemmSwigluSm100 GroupedGemmDswigluSm100 GroupedGemmSreluSm100
GroupedGemmDsreluSm100 GroupedGemmQuantSm100 GroupedGemmGluSm100 GroupedGemmGluHadamardSm100
GroupedGemmGluHadamardQuantSm100 GroupedGemmDgluSm100 GroupedGemmWgradSm100
grouped_gemm_wrapper_sm100 grouped_gemm_swiglu_wrapper_sm100 grouped_gemm_dswiglu_wrapper_sm100
grouped_gemm_srelu_wrapper_sm100 grouped_gemm_dsrelu_wrapper_sm100
grouped_gemm_quant_wrapper_sm100 grouped_gemm_glu_wrapper_sm100
grouped_gemm_glu_hadamard_wrapper_sm100 grouped_gemm_glu_hadamard_quant_wrapper_sm100
grouped_gemm_dglu_wrapper_sm100 grouped_gemm_wgrad_wrapper_sm100
get_grouped_gemm_wgrad_workspace_size_sm100
grouped_gemm_jax_sm100 grouped_gemm_glu_jax_sm100 grouped_gemm_dglu_jax_sm100
grouped_gemm_dsrelu_jax_sm100 grouped_gemm_wgrad_jax_sm100
grouped_gemm_quant_jax_forward grouped_gemm_srelu_jax_forward
grouped_gemm_glu_hadamard_jax_forward grouped_gemm_glu_hadamard_quant_jax_forward
DiscreteGroupedGemmSwigluSm100 DiscreteGroupedGemmDswigluSm100
discrete_grouped_gemm_swiglu_wrapper_sm100 discrete_grouped_gemm_dswiglu_wrapper_sm100
discrete_grouped_gemm_swiglu_jax_sm100 discrete_grouped_gemm_dswiglu_jax_sm100
FlexAttentionFwd FlexAttentionBwd create_mask_plan flex_attn_func
BSA block_sparse_attention_forward block_sparse_attention_fp8_forward
block_sparse_attention_backward
Nvfp4AttentionQatBackward nvfp4_attention_qat_backward NSA
TailRoPEForward tail_rope VisionRoPEBackward vision_rope_backward_wrapper RopeQDQInplace
rope_qdq_inplace
""".split()


def test_every_upstream_name_is_in_a_table():
    assert set(UPSTREAM) <= {*cudnn.NAMES, *cudnn.COMING}


def test_no_name_is_both_built_and_coming():
    assert not cudnn.NAMES.keys() & cudnn.COMING.keys()


def test_every_family_name_has_a_canonical_spelling():
    for name in (*cudnn.NAMES, *cudnn.COMING):
        if name.endswith(("_sm100", "Sm100")):
            plain = name.removesuffix("_sm100").removesuffix("Sm100")
            assert plain in cudnn.NAMES or plain in cudnn.COMING, name


def test_module_paths_serve_the_same_objects():
    from cudnn.gemm.cutedsl.dense import amax

    assert amax.gemm_amax_wrapper_sm100 is cudnn.gemm_amax_wrapper_sm100
    assert amax.__all__ == ["GemmAmaxSm100", "gemm_amax_wrapper_sm100", "gemm_amax_jax_sm100"]
    with pytest.raises(AttributeError):
        _ = amax.GemmSwiglu
    with pytest.raises(NotImplementedError):
        _ = cudnn.grouped_gemm.prepare_grouped_gemm
    assert set(cudnn_gemm_grouped.PLANS).isdisjoint(cudnn.COMING)


def test_api_base_path():
    from cudnn._tupledict import TupleDict
    from cudnn.api_base import NAMES

    api_base = import_module("cudnn.api_base")
    for name in NAMES:
        getattr(api_base, name)
    assert api_base.TupleDict is TupleDict is cudnn.TupleDict


def test_second_paths_serve_the_same_objects():
    from cudnn.gemm.cutedsl.dense.amax import api

    assert api.GemmAmaxSm100 is cudnn.GemmAmaxSm100
    assert import_module("cudnn.tensor_adapter").TensorDesc is cudnn.TensorDesc


def test_tuple_dict_needs_nothing_heavy():
    assert heavy_after("from cudnn.api_base import TupleDict") == []


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_framework_namespace_without_the_framework(framework):
    code = (
        f"import sys; from importlib import util; find = util.find_spec\n"
        f"util.find_spec = lambda n, p=None: None if n == {framework!r} else find(n, p)\n"
        f"import cudnn\n"
        f"try: cudnn.{framework}\n"
        f"except ImportError as error: print(error)"
    )
    assert f"cudnn.{framework} needs the module '{framework}'" in run(code)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_framework_namespace_holds_short_names(framework):
    pytest.importorskip(framework)
    namespace = import_module(f"cudnn.{framework}")
    assert framework not in heavy_after(f"import cudnn.{framework}")
    suffix = "wrapper" if framework == "torch" else "jax"
    assert namespace.gemm_amax is getattr(cudnn, f"gemm_amax_{suffix}")
    for name in namespace.NAMES:
        getattr(namespace, name)
    with pytest.raises(NotImplementedError, match="coming to the package cudnn-gemm-grouped"):
        _ = namespace.grouped_gemm_swiglu


def test_module_and_script_are_the_same_command():
    shown = [
        subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
        for command in ([sys.executable, "-m", "cudnn"], [Path(sys.executable).with_name("cudnn")])
    ]
    assert "demo" in shown[0]
    assert shown[0].replace("python -m cudnn", "cudnn") == shown[1]


def test_editors_see_the_same_names():
    assert stub_names(cudnn) == {*cudnn.NAMES, *cudnn.SUBMODULES}


def test_help_works_without_a_framework():
    text = run(
        "import importlib.util, pydoc, cudnn\n"
        "find = importlib.util.find_spec\n"
        "absent = ('torch', 'jax')\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in absent else find(name, *rest)\n"
        "print(pydoc.render_doc(cudnn))"
    )
    assert "Fused low-precision GPU kernels" in text
