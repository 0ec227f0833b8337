"""Hopper kernels of the causal convolution: what selects them, how they are built, their device code.

`config` and `host` import neither the DSL nor a framework; the other modules are loaded to compile.
"""
