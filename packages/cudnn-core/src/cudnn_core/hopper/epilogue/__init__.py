"""The one epilogue mechanism, and its resources.

Imports its own modules.

An epilogue is a function of FP32 values in the coordinates of C and of named resources. It is
called once for each subtile of a tile: 64 fragment rows by some columns, held by one consumer
warpgroup. A resource owns its run-time arguments, its shared memory, its registers and what it does
at the start and the end of a subtile and of a tile (frame.Resource); it serves both orientations.

    frame       Fragments, Frame: where values lie; Resource, what a resource may have
    mechanism   Epilogue: runs a function over the subtiles of a tile
    staged      tiles on their way through shared memory, and the copy engine's boxes
    store       TileStore
    load        Scalar, DeviceScalar, RowVector, TileLoad
    reduce      AmaxReduce
    row_sum     RowSum
    quantize    Quantize
    math        relu, silu and what they are made of
"""

from .frame import Fragments, Frame, Resource
from .load import DeviceScalar, RowVector, Scalar, TileLoad
from .math import relu, silu
from .mechanism import Epilogue
from .quantize import Quantize
from .reduce import AmaxReduce
from .row_sum import RowSum
from .store import TileStore

__all__ = [
    "AmaxReduce",
    "DeviceScalar",
    "Epilogue",
    "Fragments",
    "Frame",
    "Quantize",
    "Resource",
    "RowSum",
    "RowVector",
    "Scalar",
    "TileLoad",
    "TileStore",
    "relu",
    "silu",
]
