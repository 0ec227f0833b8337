"""`cudnn.gemm.cutedsl.dense.dsrelu.api`: upstream's path to the class and the wrapper."""

from cudnn.gemm.cutedsl.dense.dsrelu import __dir__ as __dir__
from cudnn.gemm.cutedsl.dense.dsrelu import __getattr__ as __getattr__
