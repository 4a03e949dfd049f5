"""The record of a run: what `metrics.jsonl` holds, read in one way by everything that looks at runs."""
