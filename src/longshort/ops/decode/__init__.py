"""A decoding step over a cache of fixed size, in PyTorch and as one Triton kernel."""

from longshort.ops.decode.layout import HeadLayout
from longshort.ops.decode.step import decode

__all__ = ["HeadLayout", "decode"]
