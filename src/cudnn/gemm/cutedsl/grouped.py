"""`cudnn.gemm.cutedsl.grouped`: upstream's path to the packed grouped GEMM fusions."""

from cudnn_core.lazy import attach
from cudnn_gemm_grouped import COMING, NAMES, PACKED, PLANS

__getattr__, __dir__ = attach(__name__, NAMES, coming={**COMING, **PLANS}, only=(*PACKED, *PLANS))
