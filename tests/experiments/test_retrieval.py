"""Retrieval: the models of reach are fine-tuned alike, asked, and compared with full attention seed by seed."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest

from experiments import load, reach, reach_30m, retrieval, retrieval_30m, retrieval_modern
from experiments import reach_modern as modern
from experiments.engine import answers, child
from experiments.engine.evidence import FAILS, HOLDS, PARTLY, TWICE, UNDECIDED
from experiments.engine.records import Options
from experiments.engine.sweep import plan_sweep
from longshort.runs import METRICS
from longshort.train import ConfigError, train

from .made_up import planned


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LONGSHORT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_the_usual_plans_have_the_models_of_reach(tmp_path, corpus):
    tuned, base = planned(load("retrieval"), tmp_path, data=corpus), planned(load("reach"), tmp_path)
    assert set(tuned) == set(retrieval.USUAL) and set(planned(load("retrieval"), tmp_path, variants=("ramp",))) == {
        "ramp"
    }
    for name, config in tuned.items():
        assert replace(config.model, vocab_size=8192) == replace(base[name].model, vocab_size=8192)
        assert config.task.path == str(corpus.resolve()) and config.model.vocab_size == 257
    assert len({config.task for config in tuned.values()}) == 1


def test_the_plans_of_a_modern_block_have_its_models(tmp_path, corpus):
    tuned = planned(load("retrieval-modern"), tmp_path, data=corpus)
    base = planned(load("reach-modern"), tmp_path)
    assert set(tuned) == set(retrieval_modern.USUAL) and {"full", *retrieval.JUDGED} <= set(tuned)
    for name, config in tuned.items():
        assert replace(config.model, vocab_size=8192) == base[name].model and config.task.start == "runs/reach-modern"
    assert "(modern-10m, 200M tokens of books) fine-tuned alike for 2,000 steps" in load("retrieval-modern").method
    seen = tuned["full"].run.steps * tuned["full"].data.batch_size
    assert seen == tuned["full"].task.train  # each example once
    with pytest.raises(ConfigError, match="experiments reach-modern --variants full --seeds 0"):
        retrieval.start_of(tuned["full"], retrieval_modern.SOURCE)


def test_a_larger_model_has_its_own_plans_judged(tmp_path, corpus):
    experiment = load("retrieval-30m")
    tuned, base = planned(experiment, tmp_path, data=corpus), planned(load("reach-30m"), tmp_path)
    assert set(tuned) == set(base)
    for name, config in tuned.items():
        assert replace(config.model, vocab_size=8192) == base[name].model and config.task.start == "runs/reach-30m"
    assert "(modern-30m, 300M tokens of books) fine-tuned alike for 1,000 steps" in experiment.method
    one = decided()[0]
    far = one["shares"] | {"variables": {"2048": [0.2, 0.21, 0.2]}}
    rows = [one | {"variant": name} | ({"shares": far} if name == "ladder-nope" else {}) for name in base]
    found = experiment.findings({"rows": rows})
    assert verdicts(found) == {"distance": HOLDS, "kinds": PARTLY, "sooner": UNDECIDED}
    assert found["kinds"].ours.startswith("within: ls1-w128 (+0.0, +0.0 to +0.0 points at needle-noise), ls1-w128-nope")
    assert found["kinds"].ours.endswith("; below: ladder-nope (-69.7, -71.1 to -68.2 points at variables)")
    assert found["kinds"].brief.endswith("; below: ladder-nope (-69.7 points at variables)")
    assert not experiment.findings({"rows": rows[1:]})  # nothing to compare with


def test_needles_far_past_the_training_are_compared_with_those_at_its_length():
    def found(*drops, seeds=3):
        rows = []
        for name, drop in zip(reach_30m.UNTURNED, drops, strict=True):
            far = [0.99 - drop + 0.001 * seed for seed in range(seeds)]
            shares = {kind: {"2048": [0.99] * 3, "16384": far} for kind in answers.KINDS}
            shares["variables"]["16384"] = [0.0] * 3  # no needle
            rows.append({"variant": name, "seeds": [0, 1, 2], "length": 2048, "shares": shares})
        return answers.holds_out({"rows": rows}, reach_30m.UNTURNED)

    assert [found(*pair).verdict for pair in ((0.05,) * 3, (0.05, 0.5, 0.5), (0.5,) * 3)] == [HOLDS, PARTLY, FAILS]
    assert found(0.1, 0.1, 0.1).verdict == UNDECIDED
    assert "ladder-nope (-4.9, -5.1 to -4.7 points at needle-noise)" in found(0.05, 0.05, 0.05).ours
    assert found(0.05, 0.05, 0.05, seeds=1) is None  # not all seeds were asked there
    unasked = [{"variant": name, "seeds": [], "length": 2048, "shares": {}} for name in reach_30m.UNTURNED]
    assert answers.holds_out({"rows": unasked}, reach_30m.UNTURNED) is None  # stopped before that


@contextmanager
def interrupted(run):
    """A run as it was before its end was written."""
    written = (run / METRICS).read_text()
    (run / METRICS).write_text("".join(line for line in written.splitlines(True) if '"kind": "end"' not in line))
    yield
    (run / METRICS).write_text(written)


def test_a_pretrained_model_is_fine_tuned_asked_and_shown(corpus, tmp_path):
    options = Options(out=tmp_path / "reach", variants=("full",), quick=True, steps=1, device="cpu")
    (pretrained,) = plan_sweep(load("reach"), options, data=corpus)
    sizes = ("task.test=4", "task.train=8", "task.kinds=recall,needle-noise", f"task.start={tmp_path / 'reach'}")
    (trial,) = plan_sweep(load("retrieval"), replace(options, out=tmp_path / "out", overrides=sizes), data=None)
    with pytest.raises(
        ConfigError, match=r"full-seed0: holds no weights .* experiments reach --variants full --seeds 0"
    ):
        retrieval.start_of(trial.config)
    train(pretrained.config)
    with interrupted(pretrained.out), pytest.raises(ConfigError, match=r"has not ended \(step 1 of 1\).* until it is"):
        retrieval.start_of(trial.config)
    started = replace(trial.config.task, start=str(retrieval.start_of(trial.config)))
    child.train_and_look(replace(trial.config, task=started), also=retrieval.asked)
    assert trial.is_finished  # where the weights came from does not make it another run
    found = json.loads((trial.out / "after.json").read_text())["retrieval"]
    assert {row["length"] for row in found["rows"]} == {128, 256, 512, 1024, 2048}
    assert [row["questions"] for row in found["rows"] if row["kind"] == "needle-noise"] == [
        4,
        4,
        2,
        1,
    ]  # too long for 128 tokens
    slowed = json.loads((trial.out / "after.json").read_text())["yarn"]["rows"]
    assert {row["length"] for row in slowed} == {512, 1024, 2048} and len(slowed) == 12
    with pytest.MonkeyPatch.context() as patch:  # interrupted before the last of it was written, and run again
        left = json.loads((trial.out / retrieval.ANSWERS).read_text())
        (trial.out / retrieval.ANSWERS).write_text(json.dumps(left | {"answers": left["answers"] | {"8": found}}))
        patch.setattr(retrieval, "evaluate_retrieval", None)  # nothing is asked again
        again = retrieval.asked(replace(trial.config, task=started), trial.out)
        assert len(again["retrieval"]["rows"]) > len(found["rows"]) and again["yarn"]["rows"] == slowed
        (trial.out / retrieval.ANSWERS).write_text(json.dumps(left | {"step": 0}))
        with pytest.raises(TypeError):  # answers of a model with other steps do not count
            retrieval.asked(replace(trial.config, task=started), trial.out)
    data = load("retrieval").collect(tmp_path / "out")
    (row,) = data["rows"]
    assert row["seeds_of_shares"] == {str(length): [0] for length in (256, 128, 512, 1024, 2048)}
    assert row["seeds_of_shares_yarn"] == {str(length): [0] for length in (512, 1024, 2048)}
    assert row["shares_yarn"].keys() == row["shares"].keys() and "| full, YaRN |" in load("retrieval").more(data)
    assert row["pretrained_steps"] == [1]
    assert row["half_at"]["recall"] == [2] and set(row["distances"]) >= {"4-7", "64-127"} and row["seeds"] == [0]
    assert row["distances_before"].keys() == row["distances"].keys()
    assert "| full | 1 |" in load("retrieval").table(data) and "| full |" in load("retrieval").more(data)
    assert "before the fine-tuning" in load("retrieval").more(data)
    assert "At eight times the length:" in load("retrieval").more(data)
    load("retrieval").figure(data).to_dict()


def decided(seeds=3, half_at=None, full=0.9, **gaps):
    """What is found where a plan is so far below full attention, in every kind and at every distance."""
    rows = []
    for name in retrieval.USUAL:
        gap = gaps.get(name.replace("-", "_"), 0.0)
        shares = [full - gap + 0.001 * seed * (name != "full") for seed in range(seeds)]
        rows.append(
            {
                "variant": name,
                "seeds": list(range(seeds)),
                "length": 2048,
                "shares": {kind: {"2048": shares} for kind in answers.KINDS},
                "distances": {"4-7": [0.99] * seeds, "1024-2047": shares},
                "half_at": {"recall": [(half_at or {}).get(name, 500) + seed for seed in range(seeds)]},
            }
        )
    return rows


def findings_of(*args, **options):
    return load("retrieval").findings({"rows": decided(*args, **options)})


def verdicts(findings):
    return {key: found.verdict for key, found in findings.items()}


def test_a_plan_is_within_two_points_where_every_interval_says_so():
    assert verdicts(findings_of()) == {"distance": HOLDS, "kinds": HOLDS, "two": FAILS, "sooner": UNDECIDED}
    findings = findings_of(ls1_w64=0.3, half_at=dict.fromkeys(reach.PLANS, 400) | {"full": 900})
    assert verdicts(findings) == {"distance": PARTLY, "kinds": PARTLY, "two": HOLDS, "sooner": HOLDS}
    assert findings["distance"].ours.startswith("within: one-full-8 (")
    assert findings["distance"].ours.endswith(
        "; below: ls1-w64 (-29.9, -30.1 to -29.7 points at a distance of 1024-2047)"
    )
    far = dict.fromkeys(("ls1_w64", "one_full_8", "ladder"), 0.3)
    assert verdicts(findings_of(**far))["distance"] == FAILS
    assert verdicts(findings_of(**dict.fromkeys(far, 0.021)))["distance"] == UNDECIDED


def test_steps_of_one_evaluation_decide_nothing():
    def verdict(sooner, apart):
        curves = [{"variant": "full", "seed": 0, "kinds": {"recall": [(step, 0.5) for step in (apart, 2 * apart)]}}]
        rows = decided(half_at={name: 900 - sooner for name in reach.PLANS if name != "full"} | {"full": 900})
        return answers.sooner({"rows": rows, "curves": curves}, ("ls1-w64", "ladder")).verdict

    assert [verdict(*given) for given in ((124, 62), (62, 62), (-124, 62))] == [HOLDS, UNDECIDED, FAILS]


def test_nothing_is_decided_by_two_seeds_or_where_full_attention_only_guesses():
    assert set(verdicts(findings_of(seeds=2)).values()) <= {*TWICE.values(), UNDECIDED}
    guessed = findings_of(full=0.2)
    assert verdicts(guessed) == dict.fromkeys(("distance", "kinds", "two", "sooner"), UNDECIDED)
    assert guessed["two"].ours == "neither has 50% right"
    assert {guessed[key].ours for key in ("distance", "kinds", "sooner")} == {"full attention has less than 50% right"}


def far_rows(given, kinds):
    """Three seeds of four were asked at eight times the length; given are (plan, key of shares, share)."""
    return [
        {"variant": name, "seeds": [0, 1, 2, 3], "length": 2048, f"seeds_of_{key}": {"16384": [1, 2, 3]}}
        | {key: {kind: {"16384": [share, share, share + 0.01]} for kind in kinds}}
        for name, key, share in given
    ]


def test_plans_are_ahead_of_slowed_angles_in_all_kinds_of_needles_together():
    def found(slowed):
        given = [("ladder-nope", "shares", 0.9), ("full", "shares_yarn", slowed), ("ladder", "shares_yarn", 0.5)]
        return retrieval_modern.EXPERIMENT.claims["slowed"].judge({"rows": far_rows(given, answers.NEEDLES)})

    assert [found(share).verdict for share in (0.5, 0.95)] == [HOLDS, PARTLY]
    assert found(0.95).ours.endswith("; the other way round: ladder-nope and full (-5.0, -5.0 to -5.0 points)")


@pytest.mark.parametrize(
    ("claim", "others", "key"),
    [("slowed", ("full", "ls1-w128"), "shares_yarn"), ("windows", ("ladder-nope",), "shares")],
)
def test_chains_far_past_the_training_are_compared_with_those_of_other_plans(claim, others, key):
    def found(*theirs, key=key):
        given = [("ls1-w128-nope", "shares", 0.9), *((name, key, theirs[-1]) for name in others[1:])]
        given.append((others[0], key, theirs[0]))
        return retrieval_30m.EXPERIMENT.claims[claim].judge({"rows": far_rows(given, ["variables"])})

    assert [found(share).verdict for share in (0.5, 0.95)] == [HOLDS, FAILS]
    pairs = ", ".join(f"ls1-w128-nope and {other} (+40.0, +40.0 to +40.0 points)" for other in others)
    assert found(0.5).ours == f"the first has more: {pairs}"
    assert found(0.95, 0.5).verdict == (PARTLY if len(others) == 2 else FAILS)
    assert found(0.5, key="shares" if key == "shares_yarn" else "shares_yarn") is None


def test_the_figure_has_every_plan_by_distance_and_no_more_lines_than_colours():
    rows = decided() + [decided()[0] | {"variant": name} for name in ("ls1-w145", "ladder-nope", "ls1-w64-nope")]
    kinds = {"variables": [[1, 0.0], [2, 1.0]]}
    curves = [{"variant": row["variant"], "seed": 0, "kinds": kinds} for row in rows]
    drawn = load("retrieval-modern").figure({"rows": rows, "curves": curves})
    recall, (lined, by_length) = drawn.hconcat[0], drawn.hconcat[1].vconcat
    text = recall.to_json()
    assert all(f'"{row["variant"]}, 2"' in text for row in rows)
    assert recall.height == max(400, 14 * 3 * len(rows))
    shown = {name for name in modern.PLANS if f'"{name}"' in lined.to_json()}
    assert shown == set(retrieval_modern.LINED)
    for panel in by_length.hconcat:
        layers = panel.to_dict()["layer"]
        names = {point["series"] for layer in layers for point in layer["data"]["values"]}
        assert names == {"full", "ladder-nope", "ls1-w64-nope"}
        assert set(layers[0]["encoding"]["color"]["scale"]["domain"]) == names  # no name in the legend without a line
    assert max(len(retrieval_modern.LINED), len(retrieval_modern.FAR)) <= 6


def test_the_figure_has_the_mean_at_each_length_and_the_range_of_the_seeds_that_were_asked_there():
    (row, *_) = decided()
    row["shares"] = {"needles-books": {"16384": [0.5], "2048": [0.8, 0.9, 1.0]}}
    drawn = answers.figure({"rows": [row], "curves": []}, retrieval.USUAL)
    (lengths,) = drawn.hconcat[1].vconcat[0].hconcat
    bars, line = (layer["data"]["values"] for layer in lengths.to_dict()["layer"])
    assert [(bar["length"], bar["low"], bar["high"]) for bar in bars] == [(2048, 0.8, 1.0), (16384, 0.5, 0.5)]
    assert [(point["length"], round(point["accuracy"], 6)) for point in line] == [(2048, 0.9), (16384, 0.5)]


def test_the_figure_shows_answers_with_yarn_apart_from_those_without():
    (row, *_) = decided()
    row["shares"] = {"needles-books": {"16384": [0.0]}}
    row["shares_yarn"] = {"needles-books": {"16384": [1.0]}}
    names = (row["variant"], f"{row['variant']}{answers.YARN_MARK}")
    drawn = answers.figure({"rows": [row], "curves": []}, names, far=(*names, "a plan that was not asked"))
    (lengths,) = drawn.hconcat[1].vconcat[0].hconcat
    points = lengths.to_dict()["layer"][-1]["data"]["values"]
    assert [(point["series"], point["accuracy"]) for point in points] == list(zip(names, (0.0, 1.0), strict=True))


def test_the_page_shows_seeds_that_part_and_what_the_intervals_are():
    rows = decided(ls1_w64=0.3)
    ladder = next(row for row in rows if row["variant"] == "ladder")
    ladder["distances"]["4-7"] = ladder["shares"]["recall"]["2048"] = [1.0, 0.0, 1.0]
    page = answers.more({"rows": rows})
    assert "| ls1-w64 | -29.9 (-30.1 to -29.7) |" in page
    assert "| ladder | 66.7 % (100, 0, 100) |" in page and "| -23.3 (+10, -90, +10) |" in page
