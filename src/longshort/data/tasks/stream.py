"""Alias of `longshort.data.tasks.example_stream`, its name in 0.1."""

from longshort.data.tasks.example_stream import ExampleStream

__all__ = ["ExampleStream"]
