"""Benchmarks of speed and memory; results are checked before they are timed. See `python -m benchmarks --list`."""
