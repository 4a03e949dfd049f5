"""The log of a run: `metrics.jsonl`, written by one `RunLog`, and the one reader that everything else uses."""

from longshort.runs.log import METRICS, RunLog, read_log
from longshort.runs.reading import Reader, Run, find_runs, finished, load_run, load_runs
from longshort.runs.records import Evaluation, RunError, Sample, Spike, Step
from longshort.runs.settings import difference

__all__ = [
    "METRICS",
    "Evaluation",
    "Reader",
    "Run",
    "RunError",
    "RunLog",
    "Sample",
    "Spike",
    "Step",
    "difference",
    "find_runs",
    "finished",
    "load_run",
    "load_runs",
    "read_log",
]
