"""Speed and memory, each row gated by a check of correctness; run from a checkout: `python -m benchmarks --list`."""
