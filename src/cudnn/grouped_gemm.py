"""`cudnn.grouped_gemm`: upstream's short path to `cudnn.gemm.cutedsl.grouped`."""

from cudnn.gemm.cutedsl.grouped import __dir__ as __dir__
from cudnn.gemm.cutedsl.grouped import __getattr__ as __getattr__
