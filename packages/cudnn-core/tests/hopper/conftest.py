"""Imports the DSL, where it is there, as `jit` does: it reads its architecture once, and test modules come first."""

from importlib.util import find_spec

from cudnn_core import jit

if find_spec("cutlass") is not None:
    jit._import_dsl("sm_90a")
