"""Open a task by its name or from a user's own file, and check what it says of itself."""

from __future__ import annotations

import importlib.util
import inspect
import random
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from longshort.data.errors import DataError
from longshort.data.problems.chains import Chains
from longshort.data.problems.frontiers import Frontiers
from longshort.data.problems.problem import Problem, ProblemTask
from longshort.spelling import closest

PROBLEM_TASKS: dict[str, type[ProblemTask]] = {"frontiers": Frontiers, "chains": Chains}
"""The tasks that come with the package."""


def open_task(name: str, options: Mapping[str, Any] | None = None) -> ProblemTask:
    """The task of this name, or of a class in a Python file, `path/to/file.py:ClassName`. The file is executed.

    >>> open_task("chains", {"operations": 3})
    Chains(modulus=997, operations=3, constants=9)
    """
    kind = _class_of(name)
    given = dict(options or {})
    known = [option for option in inspect.signature(kind).parameters if option != "self"]
    for option in given:
        if option not in known:
            near = closest(option, known)
            hint = f"did you mean {near}?" if near else f"it has {', '.join(known) or 'none'}"
            raise DataError(f"the task {name} has no option {option!r}; {hint}")
    try:
        task = kind(**given)
    except (TypeError, ValueError) as error:
        raise DataError(f"the task {name}: {error}") from None
    except Exception as error:
        raise DataError(f"the task {name}: cannot be made, {_told(error)}") from error
    _check(name, task)
    return task


def file_of(name: str) -> Path | None:
    """The file that a task is in; None for those that come with the package.

    >>> file_of("mine/sorting.py:Sorting"), file_of("chains")
    (PosixPath('mine/sorting.py'), None)
    """
    return None if name in PROBLEM_TASKS else Path(name.rpartition(":")[0])


def checked_problem(name: str, task: ProblemTask, draw: Callable[[], object]) -> Problem:
    """What `draw` gives, which asks the task for a problem; an error if the problem contradicts the task.

    >>> task = Chains(operations=1)
    >>> checked_problem("chains", task, lambda: Problem([5], [5], None))
    Traceback (most recent call last):
    longshort.data.errors.DataError: the task chains: a solution must end with stop=1001, got 5
    """
    try:
        problem = draw()
    except Exception as error:
        raise DataError(f"the task {name}: problem raised {_told(error)}") from error
    if not isinstance(problem, Problem):
        raise DataError(f"the task {name}: problem must return a Problem, got {type(problem).__name__}")
    count = task.vocab_size
    for part, most in (("prompt", task.max_prompt), ("solution", task.max_new_tokens)):
        tokens = getattr(problem, part)
        if not isinstance(tokens, list):
            raise DataError(f"the task {name}: a {part} must be a list of tokens, got {tokens!r:.100}")
        if not 1 <= len(tokens) <= most:
            raise DataError(f"the task {name}: a {part} must have from 1 to {most} tokens, got {len(tokens)}")
        wrong = [token for token in tokens if type(token) is not int or not 0 <= token < count]
        if wrong:
            raise DataError(f"the task {name}: tokens must be from 0 to {count - 1}, got {wrong[0]!r} in a {part}")
    if problem.solution[-1] != task.stop:
        raise DataError(f"the task {name}: a solution must end with stop={task.stop}, got {problem.solution[-1]}")
    return problem


def _class_of(name: str) -> type[ProblemTask]:
    if name in PROBLEM_TASKS:
        return PROBLEM_TASKS[name]
    path, colon, class_name = str(name).rpartition(":")
    if not colon or not path.endswith(".py"):
        near = closest(name, PROBLEM_TASKS, cutoff=0.6)
        hint = f"; did you mean {near}?" if near else ""
        known = ", ".join(PROBLEM_TASKS)
        raise DataError(f"task must be one of {known} or path/to/file.py:ClassName, got {name!r}{hint}")
    kind = getattr(_module(Path(path)), class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, ProblemTask)):
        raise DataError(f"{path}: {class_name} must be a class in it that inherits from longshort.rl.ProblemTask")
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise DataError(f"{path}: {class_name} must define {', '.join(missing)}")
    return kind


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise DataError(f"{path}: no such file; a task is given as path/to/file.py:ClassName")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DataError(f"{path}: cannot be imported, {_told(error, where=False)}") from error
    return module


def _check(name: str, task: ProblemTask) -> None:
    """Raise on a task that contradicts itself in its first problem, before a model is made for it."""
    sizes = ("vocab_size", "max_prompt", "max_new_tokens", "end_of_thinking", "stop")
    for size in sizes:
        try:
            value = getattr(task, size)
        except Exception as error:
            raise DataError(f"the task {name}: {size} raised {_told(error)}") from error
        least, most = (0, task.vocab_size - 1) if size in sizes[3:] else (1, 2**31 - 1)
        if type(value) is not int or not least <= value <= most:
            raise DataError(f"the task {name}: {size} must be an integer from {least} to {most}, got {value!r}")
    problem = checked_problem(name, task, lambda: task.problem(random.Random("check")))
    try:
        text = task.text(problem.solution)
    except Exception as error:
        raise DataError(f"the task {name}: text raised {_told(error)}") from error
    if not isinstance(text, str):
        raise DataError(f"the task {name}: text must return a text, got {type(text).__name__}")


def _told(error: Exception, *, where: bool = True) -> str:
    """One line: the error, and the line of code in which it was raised."""
    last, lines = traceback.extract_tb(error.__traceback__)[-1], str(error).splitlines()[:1] or [""]
    place = f" ({Path(last.filename).name}, line {last.lineno})" if where else ""
    return f"{type(error).__name__}: {lines[0]}{place}"
