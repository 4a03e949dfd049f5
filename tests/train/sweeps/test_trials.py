"""The plan of a comparison: which runs, in which order and folders."""

import pytest

from longshort.train import ConfigError
from longshort.train.sweeps.trials import plan_trials


def test_trials_go_seed_by_seed_so_that_an_interruption_leaves_whole_seeds(config, tmp_path):
    trials = plan_trials(config, ["plain", "ls"], (3, 4), tmp_path)
    assert [(trial.variant, trial.seed) for trial in trials] == [("plain", 3), ("ls", 3), ("plain", 4), ("ls", 4)]
    assert [trial.out.name for trial in trials] == ["plain-seed3", "ls-seed3", "plain-seed4", "ls-seed4"]
    assert all(trial.config.run.seed == trial.seed and trial.config.run.variant == trial.variant for trial in trials)


def test_trials_differ_in_nothing_but_the_variant(config, tmp_path):
    plain, ls = (trial.config for trial in plan_trials(config, ["plain", "ls"], [0], tmp_path))
    assert (plain.data, plain.optimizer, plain.schedule) == (ls.data, ls.optimizer, ls.schedule)
    assert plain.run.steps == ls.run.steps


def test_a_variant_named_twice_is_run_once(config, tmp_path):
    assert len(plan_trials(config, ["plain", "ls", "plain"], [0], tmp_path)) == 2


@pytest.mark.parametrize("variants", [["plain", "pain"], []])
def test_unknown_variants_are_an_error_that_lists_the_known_ones(config, tmp_path, variants):
    with pytest.raises(ConfigError, match=r"--variants must be among plain, ls, .*, got ('pain'|none)"):
        plan_trials(config, variants, [0], tmp_path)
