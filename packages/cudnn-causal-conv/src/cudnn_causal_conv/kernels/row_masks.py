"""What tokens of a row may see of each other, for the backward over token-contiguous rows.

Imports the DSL and this folder's parts.
"""

import cutlass

from . import parts
from .config import CHUNK as TOKENS


class Masks:
    """What the eight tokens of a lane may see of others, where not all of them may see all."""

    def __init__(self, kernel, walk, ids, bounds, b, t):
        self.bounds, self.b, self.t, self.tokens = bounds, b, t, walk.tokens
        self.history, self.segmented = kernel.history, kernel.segmented
        if self.segmented:
            last = walk.tokens - 1
            places = range(-self.history, TOKENS + self.history)
            self.names = [
                parts.sequence_at(ids, b, cutlass.min(cutlass.max(t + i, 0), last)) for i in places
            ]

    def name(self, i):
        """Which sequence token i belongs to: the batch, or an entry of cu_seqlens."""
        return self.names[self.history + i] if self.segmented else self.b

    def counts(self, i):
        """Whether token i exists and is no padding."""
        exists = (self.t + i >= 0) & (self.t + i < self.tokens)
        return exists & (self.name(i) >= 0) if self.segmented else exists

    def sees(self, i, k):
        """Whether the input k tokens before token i reaches it."""
        if not self.segmented:
            return self.counts(i)
        return self.counts(i) & (self.names[self.history + i - k] == self.name(i))

    def strays(self, i):
        """Whether token i looks back past the start of its sequence."""
        return self.counts(i) & ~self.sees(i, self.history)
