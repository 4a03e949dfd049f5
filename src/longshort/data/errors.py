"""The exception for a user's mistakes about data."""

from __future__ import annotations


class DataError(ValueError):
    """Input that cannot be used; the message is one line that names the file and what would be right."""
