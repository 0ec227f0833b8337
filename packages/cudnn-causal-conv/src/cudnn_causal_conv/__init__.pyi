"""The lazy names of `cudnn_causal_conv`, for type checkers and editors; a test compares them."""

from cudnn_causal_conv import compat as compat
from cudnn_causal_conv.backward import causal_conv1d_backward as causal_conv1d_backward
from cudnn_causal_conv.conv1d import causal_conv1d as causal_conv1d
from cudnn_causal_conv.update import causal_conv1d_update as causal_conv1d_update

NAMES: dict[str, str]

def ops() -> tuple: ...
