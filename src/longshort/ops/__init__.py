"""The op and its backends; `attention` is the only way in."""

from longshort.ops.api import AttentionResult, LogitStats, attention
from longshort.ops.smoothing import Smoothing

__all__ = ["AttentionResult", "LogitStats", "Smoothing", "attention"]
