"""The op and its backends; `attention` is the only way in."""

from longshort.ops.api import AttentionResult, LogitStats, attention

__all__ = ["AttentionResult", "LogitStats", "attention"]
