"""`cudnn.gemm.cutedsl.discrete_grouped`: upstream's path to the discrete grouped GEMM fusions."""

from cudnn_core.lazy import attach
from cudnn_gemm_grouped import COMING, DISCRETE, NAMES

__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING, only=DISCRETE)
