"""The attention op and its backends; `attention` is the only entry point."""

from longshort.ops.api import AttentionResult, LogitStats, attention
from longshort.ops.smoothing import Smoothing

__all__ = ["AttentionResult", "LogitStats", "Smoothing", "attention"]
