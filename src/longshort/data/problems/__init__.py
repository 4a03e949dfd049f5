"""Tasks whose answers are verified, for reinforcement learning: one file per task, plain Python, no torch."""

from longshort.data.problems.chains import Chains
from longshort.data.problems.frontiers import Frontiers
from longshort.data.problems.opening import PROBLEM_TASKS, checked_problem, file_of, open_task
from longshort.data.problems.problem import SPLITS, Problem, ProblemTask, answer_of, drawn

__all__ = [
    "PROBLEM_TASKS",
    "SPLITS",
    "Chains",
    "Frontiers",
    "Problem",
    "ProblemTask",
    "answer_of",
    "checked_problem",
    "drawn",
    "file_of",
    "open_task",
]
