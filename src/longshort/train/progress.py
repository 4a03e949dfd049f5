"""What is shown during a run: one updating line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Protocol

from rich.console import Console

from longshort.runs.log import largest_logit


class Reporter(Protocol):
    """Receives every record that goes into the run's log, and messages."""

    def record(self, record: dict[str, Any], *, steps: int) -> None: ...

    def message(self, text: str) -> None: ...


class Silent:
    """Shows nothing."""

    def record(self, record: dict[str, Any], *, steps: int) -> None: ...

    def message(self, text: str) -> None: ...


class ConsoleReporter:
    """Step, loss, perplexity, max |logit|, tokens/s, MFU, time left; the updating line stands within a `with` block."""

    def __init__(self) -> None:
        self._console = Console()
        self._status = self._console.status("starting") if self._console.is_terminal else None
        self._every = 10.0 if self._status is None else 0.1
        self._last_shown = -math.inf
        self._logit: float | None = None

    def __enter__(self) -> ConsoleReporter:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._status is not None:
            self._status.stop()  # it hides the cursor until then

    def record(self, record: dict[str, Any], *, steps: int) -> None:
        kind = record["kind"]
        if kind == "train":
            if record.get("logit_max"):
                largest = largest_logit(record)
                self._logit = math.nan if largest is None else largest
            last = record["step"] == steps
            if last or time.monotonic() - self._last_shown >= self._every:
                self._last_shown = time.monotonic()
                self._show(step_line(record, steps=steps, logit=self._logit))
        elif kind == "eval":
            accuracy, reward = record.get("accuracy"), record.get("reward")
            second = f"perplexity {_number(record['perplexity'])}" if accuracy is None else f"accuracy {accuracy:.2%}"
            second = second if reward is None else f"reward {reward:.3f}"
            warning = "warning: " if record["loss"] is None else ""
            self.message(f"{warning}step {record['step']}: validation loss {_number(record['loss'])}, {second}")
        elif kind == "spike":
            self.message(f"step {record['step']}: spike ({record['reason']}), {record['action']}")
        elif kind == "failure":
            failed = f"{record['count']} of {record['of']} samples"
            self.message(f"warning: step {record['step']}: the verifier raised for {failed}: {record['error']}")

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)  # a path may hold [brackets]

    def _show(self, line: str) -> None:
        if self._status is not None:
            self._status.update(line)
        else:
            print(line, file=sys.stdout, flush=True)


def step_line(record: dict[str, Any], *, steps: int, logit: float | None) -> str:
    """One line about one training step."""
    loss, speed = record["loss"], record["tokens_per_second"]
    left = (steps - record["step"]) * record["seconds"] / max(1, record["step"])
    parts = [f"step {record['step']}/{steps}"]
    if record.get("reward") is None:
        parts += [f"loss {_number(loss)}", f"perplexity {_number(None if loss is None else math.exp(min(loss, 50)))}"]
    else:
        parts += [f"reward {record['reward']:.3f}", f"entropy {_number(record['token_entropy'])}"]
    if logit is not None:
        parts.append(f"max |logit| {_number(logit)}")
    if record.get("rollouts_per_second") is not None:
        parts.append(f"{record['rollouts_per_second']:,.0f} rollouts/s")
    parts.append(f"{speed:,.0f} tokens/s")
    if record.get("mfu") is not None:
        parts.append(f"MFU {100 * record['mfu']:.1f} %")
    parts.append(f"{int(left // 60)}:{int(left % 60):02d} left")
    return "  ".join(parts)


def _number(value: float | None) -> str:
    return "not finite" if value is None or math.isnan(value) else f"{value:.4g}"
