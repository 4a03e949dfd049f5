"""The report of reinforcement learning: its measures are drawn, its rewards compared; other runs have none of it."""

import json

import pytest

from longshort.report import write_report
from longshort.report.datasets import MEASURES, build
from longshort.runs import load_run, load_runs

from .synthetic import eval_record, run_record, train_record, write_lines


def learned(folder, reward, *, mixed=True, supervised=3):
    """A run with supervised steps, then steps whose reward rises to `reward`."""
    records = [run_record(folder.name) | {"config": {"rl": {"task": "chains"}}}]
    records += [train_record(step, 2.0) for step in range(1, supervised + 1)]
    for step in range(supervised + 1, 11):
        values = {"reward": reward * step / 10, "token_entropy": 1 / step, "kl": 0.01 * step, "clip_share": 0.1}
        values |= {"signal_share": 0.5, "thinking_length": 4.0, "answer_length": 2.0}
        records.append(train_record(step, 0.01, **values, **({"mixed_share": 0.2} if mixed else {})))
    records.append(eval_record(10, 1.0) | {"reward": reward})
    return write_lines(folder, records)


def test_a_run_knows_its_measures_and_where_none_were_taken(tmp_path):
    run = load_run(learned(tmp_path / "soft", 0.9, mixed=False))
    assert run.learning["step"].tolist() == list(range(4, 11))
    assert run.learning["reward"][-1] == pytest.approx(0.9) and run.final_reward == run.best_reward == 0.9
    assert not (run.learning["mixed_share"] >= 0).any()


def test_the_page_draws_every_measure_over_every_axis(tmp_path):
    page = write_report([learned(tmp_path / "soft", 0.9)], tmp_path / "report.html", png=False).html.read_text()
    payload = json.loads(page.partition('id="payload">')[2].partition("</script>")[0])
    assert {f"{name}-{x}" for name in MEASURES for x in ("step", "tokens", "time")} <= payload["specs"].keys()
    assert "Reinforcement learning" in page and "Its final validation reward is 0.900." in page
    assert "longshort rl soft.yaml" in page


def test_the_variant_of_highest_reward_is_named_first(tmp_path):
    folders = [learned(tmp_path / name, reward) for name, reward in (("grpo", 0.5), ("soft", 0.8))]
    page = write_report(folders, tmp_path / "report.html", png=False).html.read_text()
    assert "soft has the highest final validation reward, 0.800. grpo has 0.500." in page


def test_a_measure_that_no_run_has_is_not_offered(tmp_path):
    page = write_report([learned(tmp_path / "grpo", 0.5, mixed=False)], tmp_path / "report.html", png=False)
    assert 'data-value="mixed_share"' not in page.html.read_text()


def test_other_runs_have_no_such_section(tmp_path):
    folder = write_lines(tmp_path / "ls", [run_record(), train_record(1, 2.0), eval_record(1, 2.0)])
    page = write_report([folder], tmp_path / "report.html", png=False).html.read_text()
    assert 'id="learning"' not in page and "longshort train ls.yaml" in page
    (table,) = build(load_runs([folder])).tables["learning"]
    assert table["columns"]["reward"] == []


def test_a_picture_is_written_for_each_measure(tmp_path):
    files = write_report([learned(tmp_path / "soft", 0.9)], tmp_path / "report.html")
    names = {path.stem for path in files.pngs}
    assert {"loss", "reward", "entropy", "kl", "clipped", "mixtures", "thinking"} <= names
