"""The runs of a comparison: each variant with each seed; those that an earlier call finished are left as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from longshort.data.errors import DataError
from longshort.runs import METRICS, RunError, load_run
from longshort.train.identity import check_same_texts, different_setting
from longshort.train.settings.config import ConfigError, TrainConfig
from longshort.train.sweeps.variants import VARIANTS
from longshort.train.text import texts_of


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: a variant with a seed."""

    variant: str
    seed: int
    config: TrainConfig

    @property
    def out(self) -> Path:
        return Path(self.config.run.out)

    @property
    def is_finished(self) -> bool:
        """Whether an earlier call took all its steps, or more, with the same texts; the device and the folders do not
        matter."""
        if not (self.out / METRICS).is_file():
            return False
        try:
            run = load_run(self.out)
            same = different_setting(self.config, run.config) is None
            if run.header.texts:
                with suppress(DataError):  # a text that is gone is not another one
                    texts = texts_of(self.config)
                    check_same_texts(self.config, {"config": run.config, "texts": run.header.texts}, texts)
        except (RunError, ConfigError):  # from another version, or cut short: the trainer decides whether to resume it
            return False
        return same and run.is_finished(self.config.run.steps)


def plan_trials(config: TrainConfig, variants: Sequence[str], seeds: Iterable[int], out: Path) -> list[Trial]:
    """Every variant with every seed, one seed after another, so that an interrupted comparison has complete seeds."""
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown or not variants:
        got = ", ".join(map(repr, unknown)) or "none"
        raise ConfigError(f"--variants must be among {', '.join(VARIANTS)}, got {got}")
    return trials_of({name: VARIANTS[name](config) for name in variants}, seeds, out)


def trials_of(configs: Mapping[str, TrainConfig], seeds: Iterable[int], out: Path) -> list[Trial]:
    """Every named configuration with every seed, one seed after another, each in its own folder."""
    trials = []
    for seed in seeds:
        for name, config in configs.items():
            run = replace(config.run, variant=name, seed=seed, out=str(out / f"{name}-seed{seed}"))
            trials.append(Trial(name, seed, replace(config, run=run)))
    return trials


def check_steps(trials: Sequence[Trial]) -> None:
    """Raise if a run of an earlier call took more steps than the others would: they could not be compared."""
    for trial in trials:
        steps = trial.config.run.steps
        if trial.is_finished and (end := load_run(trial.out).end) is not None and end.step > steps:
            raise ConfigError(
                f"{trial.out}: has taken {end.step:,} steps, more than run.steps={steps}; set run.steps={end.step} for "
                "all, or choose another --out"
            )
