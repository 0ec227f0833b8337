"""`cudnn.gemm.cutedsl.dense.amax.api`: upstream's path to the class and the wrapper."""

from cudnn.gemm.cutedsl.dense.amax import __dir__ as __dir__
from cudnn.gemm.cutedsl.dense.amax import __getattr__ as __getattr__
