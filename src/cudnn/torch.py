"""`cudnn.torch`: every operation for PyTorch by its short name.

Needs PyTorch to be installed (ImportError otherwise); imports it when a name is first used.
"""

import cudnn
from cudnn_core.lazy import attach, require

require(__name__, "torch")

_SUFFIX = "_wrapper"

NAMES = {
    name.removesuffix(_SUFFIX): f"{home}:{name}"
    for name, home in cudnn.NAMES.items()
    if name.endswith(_SUFFIX)
}

COMING = {
    name.removesuffix(_SUFFIX): why for name, why in cudnn.COMING.items() if name.endswith(_SUFFIX)
}

__getattr__, __dir__ = attach(__name__, NAMES, coming=COMING)
