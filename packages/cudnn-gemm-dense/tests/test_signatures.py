"""Parameters of every wrapper and class are upstream's, in its order; ours come after them, by keyword only."""

import inspect

import pytest

import cudnn_gemm_dense as dense

HINTS = "acc_dtype mma_tiler_mn cluster_shape_mn"
SIDES = "a_tensor b_tensor"
SCALES = "sfa_tensor sfb_tensor"
# op -> (wrapper, class, execute, by keyword only)
UPSTREAM = {
    "amax": (
        f"{SIDES} {SCALES} c_major c_dtype {HINTS} sf_vec_size stream",
        f"sample_a sample_b sample_sfa sample_sfb sample_c sample_amax {HINTS} sf_vec_size",
        f"{SIDES} {SCALES} c_tensor amax_tensor current_stream",
        "",
    ),
    "swiglu": (
        f"{SIDES} alpha c_major ab12_dtype c_dtype {HINTS} {SCALES} norm_const_tensor sf_vec_size vector_f32 "
        "ab12_stages stream",
        f"sample_a sample_b sample_ab12 sample_c alpha {HINTS} sample_sfa sample_sfb sample_amax sample_sfc "
        "sample_norm_const sf_vec_size vector_f32 ab12_stages",
        f"{SIDES} ab12_tensor c_tensor {SCALES} amax_tensor sfc_tensor norm_const_tensor alpha current_stream",
        "glu_layout out_format",
    ),
    "srelu": (
        f"{SIDES} {SCALES} prob_tensor alpha c_major c_dtype d_dtype {HINTS} norm_const_tensor sf_vec_size vector_f32 "
        "stream",
        "sample_a sample_b sample_c sample_d sample_sfa sample_sfb sample_prob sample_sfd sample_amax "
        f"sample_norm_const alpha {HINTS} sf_vec_size vector_f32",
        f"{SIDES} c_tensor d_tensor {SCALES} prob_tensor sfd_tensor amax_tensor norm_const_tensor alpha current_stream",
        "out_format",
    ),
    "dsrelu": (
        f"{SIDES} c_tensor {SCALES} prob_tensor alpha d_major d_dtype {HINTS} norm_const_tensor sf_vec_size vector_f32 "
        "stream",
        "sample_a sample_b sample_c sample_d sample_dprob sample_sfa sample_sfb sample_prob sample_sfd sample_amax "
        f"sample_norm_const alpha {HINTS} sf_vec_size vector_f32",
        f"{SIDES} c_tensor d_tensor dprob_tensor {SCALES} prob_tensor sfd_tensor amax_tensor norm_const_tensor alpha "
        "current_stream",
        "out_format",
    ),
}
every_op = pytest.mark.parametrize("op", UPSTREAM)


def public(op):
    """(wrapper, class) of an op."""
    return getattr(dense, f"gemm_{op}_wrapper"), getattr(dense, f"Gemm{op.capitalize()}")


def names(function, keyword_only=False):
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if (p.kind is p.KEYWORD_ONLY) == keyword_only]


@every_op
def test_signatures_are_upstreams(op):
    wrapper, made, execute, ours = map(str.split, UPSTREAM[op])
    function, kind = public(op)
    assert names(function) == wrapper
    assert names(kind) == made
    assert names(kind.execute) == ["self", *execute]
    assert names(function, True) == names(kind, True) == ours
    assert names(kind.execute, True) == ["workspace"]


def test_the_class_of_swiglu_takes_alpha_by_the_call():
    assert inspect.signature(dense.GemmSwiglu.execute).parameters["alpha"].default == 1.0


@every_op
def test_upstream_names_are_the_same_objects(op):
    function, kind = public(op)
    assert getattr(dense, f"gemm_{op}_wrapper_sm100") is function
    assert getattr(dense, f"gemm_{op}_jax_sm100") is getattr(dense, f"gemm_{op}_jax")
    assert issubclass(getattr(dense, f"{kind.__name__}Sm100"), kind)
