"""Runs of reinforcement learning: they learn, repeat themselves, resume, and record what they measure."""

import math

import pytest
import torch
from typer.testing import CliRunner

from longshort import generate
from longshort.cli import app
from longshort.data.problems import Chains
from longshort.rl import FORMS, drawn, open_task, reinforce
from longshort.rl.evaluation import evaluate_rewards, is_of_rl
from longshort.rl.rewards import VerifierError
from longshort.rl.trainer import RLTrainer
from longshort.runs.reading import load_run
from longshort.stability import attention_entropy
from longshort.train import ConfigError, TrainConfig, TrainingStopped, load_model, train
from longshort.train.checkpoints.checkpoint import load_checkpoint
from longshort.train.machine.distributed import World
from longshort.train.progress import Silent

from ..train.tiny import differences, records
from .tiny import TINY_OPTIONS, tiny_rl

ALGORITHMS = [
    ["grpo"],
    ["gaussian-soft"],
    ["grpo", "rl.truncate=true"],
    ["dr-grpo"],
    *(["soft-grpo", f"rl.form={f}"] for f in FORMS),
]
TIMES = ("seconds", "tokens_per_second", "rollouts_per_second", "rollout_share", "crc32")


class Killed(BaseException):
    """As an end without warning."""


def trainer_of(config):
    return RLTrainer(config, World(0, 1, torch.device("cpu")), Silent())


def timeless(out):
    """The training records without what depends on the clock."""
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records(out, "train")]


def killed_after(monkeypatch, step):
    original = RLTrainer._record_step

    def record_step(self, *arguments, **values):
        original(self, *arguments, **values)
        if self.progress.step == step:
            raise Killed

    monkeypatch.setattr(RLTrainer, "_record_step", record_step)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids="/".join)
def test_every_algorithm_runs_and_records_what_it_measures(algorithm, tmp_path):
    name, *changes = algorithm
    result = reinforce(tiny_rl(tmp_path / "run", f"rl.algorithm={name}", "telemetry.logits_every=5", *changes))
    assert (result.status, result.step) == ("finished", 6)
    supervised, learned = records(tmp_path / "run", "train")[:3], records(tmp_path / "run", "train")[3:]
    assert all("reward" not in record for record in supervised) and len(learned) == 3
    for record in learned:
        shares = ("reward", "signal_share", "clip_share", "rollout_share")
        assert all(0 <= record[key] <= 1 for key in shares), record
        assert record["token_entropy"] > 0 and record["kl"] >= 0 and record["rollouts_per_second"] > 0
        measured = record["step"] % 5 == 0
        assert ("gradient_noise" in record) == ("gradient_signal" in record) == ("logit_max" in record) == measured
        assert 0 <= record["thinking_length"] <= 5 and 0 <= record["answer_length"] <= 5
        assert ("mixed_share" in record) == ("soft" in name)
    (evaluation,), (sample,) = records(tmp_path / "run", "eval"), records(tmp_path / "run", "sample")
    assert 0 <= evaluation["reward"] <= 1 and math.isfinite(evaluation["loss"])
    assert "=" in sample["text"] and "reward" in sample["text"]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids="/".join)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_before_the_first_update_the_ratio_is_exactly_1(algorithm, accumulate, tmp_path):
    name, *changes = algorithm
    trainer = trainer_of(tiny_rl(tmp_path, f"rl.algorithm={name}", f"run.accumulate={accumulate}", *changes))
    drawn, rewards, _ = trainer._roll_out(trainer.data.training(0, 4))
    experience, *_ = trainer._experience(drawn, rewards)
    for rows in (rows for update in trainer._slices() for rows in update):
        new = drawn.part(rows).log_probs(trainer.policy, form=trainer.form)
        assert ((new - experience.old[rows]).exp() == 1).all()


def test_micro_batches_give_the_gradients_of_the_whole_update(tmp_path):
    gradients = []
    for accumulate in (1, 4, 8):
        changes = [f"run.accumulate={accumulate}", "data.batch_size=8", "rl.updates=1", "rl.prompts=8"]
        trainer = trainer_of(tiny_rl(tmp_path, *changes))
        experience, *_ = trainer._experience(*trainer._roll_out(trainer.data.training(0, 8))[:2])
        measured = trainer._update(experience, 0)
        gradients.append([p.grad.clone() for p in trainer.policy.parameters()] + [measured[:4]])
    for other in gradients[1:]:
        for one, two in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("step", "kind"), [*((step, "adamw") for step in range(1, 6)), (4, "muon")])
def test_a_killed_run_resumes_as_if_never_stopped(step, kind, tmp_path, monkeypatch):
    whole, run = (tiny_rl(tmp_path / name, f"optimizer.kind={kind}") for name in ("whole", "run"))
    reinforce(whole)
    with monkeypatch.context() as patch:
        killed_after(patch, step)
        with pytest.raises(Killed):
            reinforce(run)
    reinforce(run)
    assert differences(tmp_path / "run", tmp_path / "whole") == []
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_two_runs_are_equal_and_another_seed_is_not(tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        reinforce(tiny_rl(tmp_path / name, f"run.seed={seed}"))
    assert timeless(tmp_path / "one") == timeless(tmp_path / "two") != timeless(tmp_path / "other")


def test_the_reference_is_the_model_after_the_supervised_steps(tmp_path):
    reinforce(tiny_rl(tmp_path / "before", "run.steps=3"))
    reinforce(tiny_rl(tmp_path / "run"))
    before, reference = load_checkpoint(tmp_path / "before"), load_checkpoint(tmp_path / "run" / "reference")
    assert reference.step == 3
    assert all(value.equal(reference.model[name]) for name, value in before.model.items())
    after = load_checkpoint(tmp_path / "run").model
    assert any(not value.equal(after[name]) for name, value in before.model.items())


def test_a_run_is_resumed_only_with_the_file_of_its_task(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from longshort.data.problems import Chains\n\n\nclass Mine(Chains):\n    pass\n")
    task = f"rl.task={file}:Mine"
    reinforce(tiny_rl(tmp_path / "run", task, "run.steps=4"))
    before = file.read_text()
    file.write_text(before.replace("pass", "def reward(self, problem, tokens): return 1.0"))
    message = (
        r"run: trained on another version of .*mine\.py:Mine; set the file back to resume, or choose another run.out"
    )
    with pytest.raises(ConfigError, match=message):
        reinforce(tiny_rl(tmp_path / "run", task))
    file.write_text(before)
    assert reinforce(tiny_rl(tmp_path / "run", task)).status == "finished"


def test_without_its_reference_a_run_is_not_resumed(tmp_path):
    reinforce(tiny_rl(tmp_path / "run", "run.steps=5"))
    (weights,) = (tmp_path / "run" / "reference").glob("*/model.safetensors")
    weights.write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"reference: holds no complete checkpoint.*put the run's reference back"):
        reinforce(tiny_rl(tmp_path / "run"))


def test_a_run_from_a_checkpoint_equals_one_with_its_own_supervised_steps(tmp_path):
    """The first rollout is of the same weights, so the first record after it is the same where problems are."""
    reinforce(tiny_rl(tmp_path / "first", "run.steps=3"))
    start = tiny_rl(tmp_path / "run", f"rl.start={tmp_path / 'first'}", "rl.supervised_steps=0", "run.steps=1")
    trainer = trainer_of(start)
    trainer._prepare(resumed=False)
    weights = load_checkpoint(tmp_path / "first").model
    assert all(value.equal(weights[name]) for name, value in trainer.policy.state_dict().items())
    assert reinforce(start).status == "finished"


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids="/".join)
def test_what_was_drawn_from_is_what_is_computed_again(algorithm, tmp_path):
    name, *changes = algorithm
    reinforce(tiny_rl(tmp_path / "run", f"rl.algorithm={name}", "telemetry.logits_every=1", *changes))
    learned = records(tmp_path / "run", "train")[3:]
    assert all(abs(record["rollout_kl"]) < 1e-6 for record in learned)
    assert all(len(record["logit_max"][0]) == 2 for record in learned)


def test_qk_clip_reads_the_largest_logits_at_every_step_and_both_are_recorded_when_due(tmp_path, monkeypatch):
    clipped = []
    monkeypatch.setattr("longshort.rl.trainer.qk_clip", lambda model, largest, **options: clipped.append(largest.shape))
    reinforce(tiny_rl(tmp_path / "run", "stability.qk_clip=1", "telemetry.logits_every=5"))
    found = records(tmp_path / "run", "train")
    assert [record["step"] for record in found if "logit_max" in record and "logit_min" in record] == [1, 5]
    assert sum("logit_max" in record for record in found) == 2
    assert len(clipped) == len(found) == 6 and len(set(clipped)) == 1


def test_gaussian_noise_keeps_its_size_over_a_run(tmp_path):
    reinforce(tiny_rl(tmp_path / "run", "rl.algorithm=gaussian-soft", "run.save_every=1"))
    steps = sorted((tmp_path / "run" / "checkpoints").iterdir())
    sizes = [load_checkpoint(step).state["sigma"] for step in steps]
    assert len(set(sizes[3:])) == 1 and sizes[3] > 0


def test_without_kl_there_is_no_reference(tmp_path):
    reinforce(tiny_rl(tmp_path / "run", "rl.kl=0"))
    assert not (tmp_path / "run" / "reference").exists()
    assert all("kl" not in record for record in records(tmp_path / "run", "train"))


def spoil(monkeypatch, step, update):
    """A loss that is not finite, and gradients likewise, in one update."""
    original = RLTrainer._objective

    def objective(self, experience, rows, denominator):
        found = original(self, experience, rows, denominator)
        here = self.progress.step == step - 1 and rows in self._slices()[update]
        return found._replace(loss=found.loss * math.nan) if here else found

    monkeypatch.setattr(RLTrainer, "_objective", objective)


def test_the_guard_skips_an_update_whose_loss_is_not_finite(tmp_path, monkeypatch):
    spoil(monkeypatch, step=5, update=0)
    assert reinforce(tiny_rl(tmp_path / "run", "stability.guard=skip")).status == "finished"
    (spike,) = records(tmp_path / "run", "spike")
    assert (spike["step"], spike["update"], spike["action"]) == (5, 0, "skip")
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint.trainer["embedding.weight/step"].item() == 5  # of three steps of two updates each
    assert all(value.isfinite().all() for value in checkpoint.model.values())
    assert [record["step"] for record in records(tmp_path / "run", "train")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kl", [0, 0.001])
def test_the_first_rewards_after_a_time_of_equal_ones_are_no_spikes(kl, tmp_path, monkeypatch):
    calls = []

    def reward(self, problem, tokens):
        calls.append(None)
        return float(len(calls) > 8 * 16 and len(tokens) < 3)

    monkeypatch.setattr(Chains, "reward", reward)
    guard = ["stability.guard=skip", "stability.guard_warmup=4", "stability.guard_threshold=100"]
    changes = ["rl.supervised_steps=0", "run.steps=14", "rl.algorithm=grpo", f"rl.kl={kl}"]
    reinforce(tiny_rl(tmp_path / "run", *guard, *changes))
    shares = [record["signal_share"] for record in records(tmp_path / "run", "train")]
    assert not any(shares[:8]) and any(shares[8:])
    assert not records(tmp_path / "run", "spike")


def test_a_step_of_which_every_update_is_skipped_leaves_the_weights(tmp_path, monkeypatch):
    for update in range(2):
        spoil(monkeypatch, step=5, update=update)
    changes = ["stability.guard=skip", "stability.qk_clip=0.001", "run.save_every=1"]
    reinforce(tiny_rl(tmp_path / "run", *changes))
    steps = sorted((tmp_path / "run" / "checkpoints").iterdir())
    before, after = map(load_checkpoint, steps[3:5])
    assert (before.step, after.step) == (4, 5)
    assert all(value.equal(after.model[name]) for name, value in before.model.items())


def test_a_step_of_which_every_update_is_skipped_leaves_no_record_but_the_spikes(tmp_path, monkeypatch):
    for update in range(2):
        spoil(monkeypatch, step=6, update=update)
    reinforce(tiny_rl(tmp_path / "run", "stability.guard=skip"))
    assert [record["step"] for record in records(tmp_path / "run", "train")] == [1, 2, 3, 4, 5]
    assert load_run(tmp_path / "run").status == "finished"


def test_the_means_of_a_step_are_those_of_the_updates_that_were_made(tmp_path, monkeypatch):
    monkeypatch.setattr("longshort.rl.objective.k3", lambda log_probs, reference: torch.ones_like(log_probs))
    spoil(monkeypatch, step=5, update=0)
    reinforce(tiny_rl(tmp_path / "run", "stability.guard=skip"))
    assert [record["kl"] for record in records(tmp_path / "run", "train")[3:]] == [1, 1, 1]


def test_the_entropy_of_the_attention_is_that_of_a_problem_without_padding(tmp_path, monkeypatch):
    monkeypatch.setattr(Chains, "max_new_tokens", 9)  # its solutions have 5
    config = tiny_rl(tmp_path / "run", "telemetry.entropy_every=6")
    reinforce(config)
    (problem,) = trainer_of(config).data.held_out(1)
    tokens = torch.tensor([[*problem.prompt, *problem.solution[:-1]]])
    expected = attention_entropy(load_model(tmp_path / "run")[0], tokens)
    torch.testing.assert_close(torch.tensor(records(tmp_path / "run", "train")[-1]["entropy"]), expected)


def test_the_gradients_of_the_layers_are_recorded(tmp_path):
    reinforce(tiny_rl(tmp_path / "run", "telemetry.layer_gradients=true", "rl.updates=1", n_layers=2))
    for record in records(tmp_path / "run", "train"):
        squares = [norm**2 for norm in record["layer_gradients"].values()]
        assert list(record["layer_gradients"]) == ["0", "1"] and 0 < sum(squares) < record["grad_norm"] ** 2


def test_a_guard_measures_no_more_often(tmp_path):
    reinforce(tiny_rl(tmp_path / "run", "stability.guard=skip", "telemetry.logits_every=5"))
    for record in records(tmp_path / "run", "train")[3:]:
        measured = ("logit_max" in record, "rollout_kl" in record, "gradient_noise" in record)
        assert measured == (record["step"] == 5,) * 3


def test_a_rollback_takes_other_problems(tmp_path, monkeypatch):
    spoil(monkeypatch, step=5, update=1)
    original, taken = RLTrainer._roll_out, []

    def roll_out(self, problems):
        taken.append(self.progress.batch)
        if len(taken) == 3:  # the step is repeated: nothing is spoilt any more
            monkeypatch.undo()
        return original(self, problems)

    monkeypatch.setattr(RLTrainer, "_roll_out", roll_out)
    assert reinforce(tiny_rl(tmp_path / "run", "stability.guard=rollback")).status == "finished"
    assert load_checkpoint(tmp_path / "run").state["progress"]["dropped"] == [4]
    assert taken[:3] == [3, 4, 5]


def test_without_a_guard_weights_that_are_not_finite_end_the_run(tmp_path, monkeypatch):
    spoil(monkeypatch, step=5, update=0)
    with pytest.raises(TrainingStopped, match="the run diverged at step 5"):
        reinforce(tiny_rl(tmp_path / "run"))
    assert all(value.isfinite().all() for value in load_checkpoint(tmp_path / "run").model.values())
    assert records(tmp_path / "run", "end")[-1]["status"] == "diverged"


def fragile(monkeypatch, share):
    """A verifier that raises for about this share of the samples, by their order."""
    original, calls = Chains.reward, []

    def reward(self, problem, tokens):
        calls.append(None)
        if len(calls) % round(1 / share) == 0:
            raise ZeroDivisionError("planted")
        return original(self, problem, tokens)

    monkeypatch.setattr(Chains, "reward", reward)


def test_a_verifier_that_raises_now_and_then_is_recorded_and_the_run_goes_on(tmp_path, monkeypatch):
    fragile(monkeypatch, 1 / 16)
    assert reinforce(tiny_rl(tmp_path / "run")).status == "finished"
    failure = records(tmp_path / "run", "failure")[0]
    assert (failure["step"], failure["count"], failure["of"]) == (4, 1, 16)
    assert failure["error"].startswith("ZeroDivisionError: planted (test_trainer.py, line ")
    assert len(failure["prompt"]) == 6 and failure["tokens"]


def test_a_verifier_that_raises_too_often_stops_the_run_with_its_first_error(tmp_path, monkeypatch):
    fragile(monkeypatch, 1 / 4)
    with pytest.raises(
        VerifierError, match=r"raised for 4 of 16 samples.*failed_share=0.1.*ZeroDivisionError: planted"
    ):
        reinforce(tiny_rl(tmp_path / "run"))
    assert records(tmp_path / "run", "failure")


def test_its_checkpoints_are_language_models(tmp_path):
    reinforce(tiny_rl(tmp_path / "run"))
    model, checkpoint = load_model(tmp_path / "run")
    assert checkpoint.step == 6 and model.config.vocab_size == 11


def test_the_first_update_is_what_the_gradient_noise_is_of(tmp_path):
    trainer = trainer_of(tiny_rl(tmp_path, "rl.updates=1", "rl.kl=0"))
    experience, *_ = trainer._experience(*trainer._roll_out(trainer.data.training(0, 4))[:2])
    measured = trainer._update(experience, 0)
    norm, signal, noise = measured[1].item(), measured[4].item(), measured[5].item()
    # With g1 + g2 the whole gradient, |g1 + g2|^2 = |g1 - g2|^2 + 4 <g1, g2>.
    assert norm**2 == pytest.approx(noise + signal, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["rl.group=1"], "rl.group must be an integer from 2"),
        (["rl.tau=0"], "rl.tau must be a number from 1e-38"),
        (["rl.tau=-1"], "rl.tau must be a number from 1e-38"),
        (["rl.updates=3"], "rl.prompts must be a multiple of rl.updates=3, got 4"),
        (["run.accumulate=3", "data.batch_size=6"], "run.accumulate must divide the 8 sequences of an update"),
        (["rl.supervised_steps=7"], "rl.supervised_steps must be at most run.steps=6, got 7"),
        (["rl.truncate=true"], "rl.truncate is for grpo and dr-grpo; soft-grpo always draws"),
        (["rl.noise_clamp=[3, -1]"], "rl.noise_clamp must be a lower and a higher bound"),
        (["rl.task=chain"], "rl.task must be one of frontiers, chains or .*; did you mean chains"),
        (
            ["rl.task_options.operation=2"],
            "rl.task: the task chains has no option 'operation'; did you mean operations",
        ),
        (["model.dropout=0.1"], "model.dropout must be 0 with rl.task, got 0.1"),
        (["model.context=8"], "model.context must be at least 10, for prompts of 6 tokens and answers of 5, got 8"),
        (["model.vocab_size=8"], "model.vocab_size must be above end_of_thinking=8, a token of the task chains, got 8"),
        (["model.vocab_size=10"], "model.vocab_size must be at least 11, the vocabulary of the task chains, got 10"),
        (["task.name=recall"], "task.name must not be set with rl.task=chains"),
        (["data.length=8"], "data.length must not be set with rl.task"),
        (["rl.task=null"], "rl.* needs rl.task"),
        (["run.compile=true", "run.compile_scope=model"], "run.compile must come with run.compile_scope=block"),
        (["model.attention_chunk=4"], "model: rollouts need a model with a cache"),
    ],
)
def test_what_cannot_be_learned_is_one_clear_error(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        reinforce(tiny_rl(tmp_path / "run", *changes))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_each_verb_refuses_what_the_other_is_for(tmp_path):
    with pytest.raises(ConfigError, match=r"rl.task must be null .*, got 'chains'; run longshort rl"):
        train(tiny_rl(tmp_path))
    plain = TrainConfig.from_dict({"model": {"preset": "tiny"}})
    with pytest.raises(ConfigError, match=r"config must be a TrainConfig, such as .*, got .rl-tiny."):
        reinforce("rl-tiny")
    with pytest.raises(ConfigError, match=r"rl.task must name a task, got null; run longshort train"):
        reinforce(plain)


@pytest.mark.parametrize(("start", "message"), [("none", "none: no such folder"), ("run", "model.width=16")])
def test_a_start_that_does_not_fit_is_named(start, message, tmp_path):
    reinforce(tiny_rl(tmp_path / "run", "run.steps=3"))
    with pytest.raises(ValueError, match=message):
        reinforce(tiny_rl(tmp_path / "next", f"rl.start={tmp_path / start}", width=32))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The folder of a finished run."""
    return reinforce(tiny_rl(tmp_path_factory.mktemp("runs") / "run")).out


def test_its_checkpoint_generates_and_is_exported_with_the_stop_token(learned, tmp_path):
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM

    import longshort.hf  # noqa: F401
    from longshort.hf.export import export_checkpoint

    prompt = drawn(open_task("chains", TINY_OPTIONS), "test", 0, 0).prompt
    ours = [int(token) for token in generate(load_model(learned)[0], [prompt], max_new_tokens=4, temperature=0.0)]
    model = AutoModelForCausalLM.from_pretrained(export_checkpoint(learned, tmp_path / "exported"))
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=4, do_sample=False)
    assert theirs[0, len(prompt) :].tolist() == ours[: len(theirs[0]) - len(prompt)]
    assert model.config.eos_token_id == open_task("chains", TINY_OPTIONS).stop


def test_evaluation_draws_answers_and_says_how_many_are_right(learned):
    for wrong in ({"problems": 0}, {"samples": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be an integer from 1"):
            evaluate_rewards(learned, **wrong)
    result = evaluate_rewards(learned, split="test", problems=6, samples=4)
    assert (result["task"], result["examples"], result["samples"]) == ("chains", 6, 4)
    assert list(result["pass"]) == [1, 2, 4] and result["pass"][1] == pytest.approx(result["reward"])
    assert evaluate_rewards(learned, split="test", problems=6, samples=4) == result
    assert is_of_rl(load_checkpoint(learned))


def test_the_verbs_take_a_run_of_reinforcement_learning(learned, tmp_path):
    done = CliRunner().invoke(app, ["evaluate", str(learned), "--limit", "3", "--samples", "2"])
    assert done.exit_code == 0 and "pass@2" in done.output and "reward" in done.output
    wrong = CliRunner().invoke(app, ["evaluate", str(learned), "--stride", "3"])
    assert wrong.exit_code == 1 and "--stride is for text" in wrong.output
    text = CliRunner().invoke(app, ["generate", str(learned)])
    assert text.exit_code == 1 and "its tokens are those of the task chains, not text" in text.output
    again = CliRunner().invoke(app, ["rl", str(tmp_path / "none.yaml")])
    assert again.exit_code == 1 and "no such file" in again.output
