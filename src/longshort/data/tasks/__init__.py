"""Tasks for long sequences: generated (ListOps, Pathfinder, recall, passkey) or read from plain files (text, pixels).

`longshort.data.tasks.example_stream` is not imported here: it loads torch, which the generating processes do without.
"""

from longshort.data.tasks.catalogue import TASKS, TaskSettings, classes_of, open_task, task_length, task_vocabulary
from longshort.data.tasks.examples import IGNORED, Examples, Task

__all__ = [
    "IGNORED",
    "TASKS",
    "Examples",
    "Task",
    "TaskSettings",
    "classes_of",
    "open_task",
    "task_length",
    "task_vocabulary",
]
