"""`cudnn._tupledict`: upstream's second path to TupleDict."""

from cudnn_core.tuple_dict import TupleDict as TupleDict
