"""`cudnn.discrete_grouped_gemm`: upstream's short path to its discrete grouped GEMM package."""

from cudnn.gemm.cutedsl.discrete_grouped import __dir__ as __dir__
from cudnn.gemm.cutedsl.discrete_grouped import __getattr__ as __getattr__
