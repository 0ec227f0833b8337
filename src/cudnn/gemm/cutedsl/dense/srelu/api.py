"""`cudnn.gemm.cutedsl.dense.srelu.api`: upstream's path to the class and the wrapper."""

from cudnn.gemm.cutedsl.dense.srelu import __dir__ as __dir__
from cudnn.gemm.cutedsl.dense.srelu import __getattr__ as __getattr__
