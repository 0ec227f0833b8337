"""`cudnn.ops.causal_conv1d` as the module that upstream has beside the function of that name: the convolutions.

May import `cudnn_core.lazy` and the package's table of names.
"""

import cudnn_causal_conv
from cudnn.ops import COMING
from cudnn_core.lazy import attach

NAMES = {**cudnn_causal_conv.NAMES}

__getattr__, __dir__ = attach(
    __name__, NAMES, coming={name: why for name, why in COMING.items() if "causal_conv1d" in name}
)
