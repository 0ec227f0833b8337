"""A pytest plugin that compiles what the gpu tier needs, on a machine without a GPU.

    CUDNN_CACHE_DIR=DIR pytest -p cudnn_core.testing.ahead --setup-only -m gpu packages/cudnn-gemm-dense/tests/gpu

The tier's fixtures, which compile the kernels of the collected cases, run as if there were a GPU; no test does. The
folder then goes to the machine with the GPU. May import the standard library and `tiers`.
"""

import os

from . import tiers

# Before any conftest takes the function by its name. Fixtures leave one processor to others: here all may work.
tiers.why_no_hopper = lambda: None
_processors = os.cpu_count() or 1
os.cpu_count = lambda: _processors + 1
