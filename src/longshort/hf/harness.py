"""EleutherAI's lm-evaluation-harness on whatever holds a language model: what `longshort evaluate --harness` does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch

from longshort.files import is_of_transformers
from longshort.train.machine.distributed import choose_device

_CPU_BATCH = 8
"""Sequences per batch on a CPU, where the harness's automatic choice never runs out of memory and takes its largest."""


def evaluate_harness(
    path: Path,
    tasks: str,
    *,
    include: Path | None = None,
    limit: int | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """The harness's results for a run, a checkpoint or a folder that transformers reads.

    `tasks` are names, separated by commas; `include` is a folder with the YAML files of further tasks, `limit` the most
    examples of each.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise ValueError("--harness needs lm-evaluation-harness: pip install 'longshort[eval]'") from None
    if include is not None and not include.is_dir():
        raise ValueError(f"--include must be a folder with YAML files of tasks, got {include}")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of each default that a task relies on
    manager = TaskManager(include_path=None if include is None else str(include))
    names = _known(tasks, manager)
    return simple_evaluate(
        model=_opened(path, choose_device(device)),
        tasks=names,
        task_manager=manager,
        limit=limit,
        log_samples=False,
    )


def harness_tables(results: dict[str, Any]) -> list[str]:
    """The tables that the command `lm_eval` prints."""
    from lm_eval.utils import make_table

    return [make_table(results, column) for column in ("results", "groups") if column in results]


def harness_numbers(results: dict[str, Any]) -> dict[str, Any]:
    """What the tables are made of, as JSON has it; None for what is not finite."""
    from lm_eval.utils import handle_non_serializable

    kept = {name: results[name] for name in ("results", "groups", "n-samples", "versions") if name in results}
    return json.loads(json.dumps(kept, default=handle_non_serializable), parse_constant=lambda _: None)


def _known(tasks: str, manager: Any) -> list[str]:
    """The names of tasks, of which each may be a pattern."""
    found = []
    for name in filter(None, map(str.strip, tasks.split(","))):
        matches = manager.match_tasks([name])
        if not matches:
            raise ValueError(f"--harness must name tasks that lm-evaluation-harness or --include has, got {name!r}")
        found += matches
    if not found:
        raise ValueError(f"--harness must name at least one task, got {tasks!r}")
    return found


def _opened(path: Path, device: torch.device) -> Any:
    """The model as the harness runs it; a folder is opened as `lm_eval --model hf` opens it."""
    from lm_eval.models.huggingface import HFLM

    batches = {"batch_size": "auto" if device.type == "cuda" else _CPU_BATCH}
    if is_of_transformers(path):
        return HFLM(pretrained=str(path), device=str(device), **batches)
    from longshort.data.tokenizer import tokenizer_from_dict
    from longshort.hf import LongShortForCausalLM, fast_tokenizer
    from longshort.hf.opened import open_language_model

    opened = open_language_model(path, device)
    model, tokenizer = opened.model, opened.tokenizer
    if tokenizer.beginning and not opened.beginning:  # the model was not trained with it
        tokenizer = tokenizer_from_dict(tokenizer.to_dict() | {"post_processor": None})
    fast = fast_tokenizer(tokenizer, max_length=model.config.context)
    ids = {name: getattr(fast, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return HFLM(pretrained=LongShortForCausalLM.from_gpt(model, **ids), tokenizer=fast, **batches)
