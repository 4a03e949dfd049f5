"""The attention op and its backends; `attention` is the entry point, `packed_attention` the same for one projection."""

from longshort.ops.api import AttentionResult, LogitStats, attention, packed_attention
from longshort.ops.smoothing import Smoothing

__all__ = ["AttentionResult", "LogitStats", "Smoothing", "attention", "packed_attention"]
