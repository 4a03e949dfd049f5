"""The e-exponentiated loss in training: its options, its logits, and perplexity by a fitted temperature."""

import math

import pytest
import torch
from torch.nn import functional as F

from longshort.data.stream import TokenStream
from longshort.data.tokens import TokenFile
from longshort.losses import LossSettings, transform_scores
from longshort.train import ConfigError, TrainConfig, load_model, train
from longshort.train.evaluation.calibration import calibrated_losses, fit_temperature
from longshort.train.evaluation.checkpoint_scores import evaluate_checkpoint, text_scores
from longshort.train.evaluation.held_out import evaluate_split, raw_scores
from longshort.train.text import TextData

from ..tiny import losses, tiny_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def damped(corpus, tmp_path_factory):
    """A run with e = 0.5 on corrupted text."""
    out = tmp_path_factory.mktemp("runs") / "damped"
    train(tiny_config(corpus, out, "loss.exponent=0.5", "data.corruption=0.2", "run.keep=1"))
    return out


def test_a_run_with_an_exponent_learns_and_its_model_keeps_it(damped):
    found = losses(damped)
    assert found[30] < found[1] - 1
    model, _ = load_model(damped)
    assert model.config.loss == LossSettings(exponent=0.5)
    assert (model.exponent, model.linear_below) == (0.5, 0.01)


def test_logits_are_those_that_the_loss_was_taken_of(damped, corpus):
    model, _ = load_model(damped)
    tokens = torch.randint(257, (2, 65))
    output = model(tokens[:, :-1], tokens[:, 1:], return_logits=True)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits.flatten(0, 1), tokens[:, 1:].flatten()))
    scores = raw_scores(model, tokens[:, :-1], None, "fp32")
    torch.testing.assert_close(transform_scores(scores, 0.5, 0.01), output.logits)


def test_only_training_text_is_corrupted(corpus, tmp_path):
    noisy, clean = (TextData.open(tiny_config(corpus, tmp_path, f"data.corruption={share}")) for share in (0.5, 0.0))
    for split, equal in (("train", False), ("validation", True), ("test", True)):
        one, other = (c.stream(split, seed=0).batch(0).targets for c in (noisy, clean))
        assert torch.equal(one, other) is equal


def test_only_training_text_is_cut_short(corpus, tmp_path):
    some, whole = (TextData.open(tiny_config(corpus, tmp_path, f"data.share={share}")) for share in (0.5, 1.0))
    for split, part in (("train", 2), ("validation", 1), ("test", 1)):
        one, other = (data.stream(split, seed=0).windows_per_epoch for data in (some, whole))
        assert one == pytest.approx(other / part, abs=1)


@pytest.mark.parametrize("temperature", [0.05, 1.0, 700.0])
def test_a_fitted_temperature_is_the_one_the_labels_were_drawn_with(temperature):
    scores = temperature * torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0))
    drawn = (scores / temperature).softmax(-1).multinomial(1, generator=torch.Generator().manual_seed(1))[:, 0]
    assert fit_temperature(scores, drawn) == pytest.approx(temperature, rel=0.05)


def test_a_temperature_beyond_the_bounds_is_the_bound():
    scores = torch.tensor([[0.0, 1.0]])
    assert fit_temperature(scores, torch.tensor([1]), lowest=0.25) == pytest.approx(0.25)
    assert fit_temperature(scores, torch.tensor([0]), highest=30.0) == pytest.approx(30.0)


def test_losses_on_clean_text_are_as_trained_and_by_both_temperatures(damped, corpus):
    model, _ = load_model(damped)
    stream = TokenStream(TokenFile.open(corpus / "validation.tokens"), batch_size=4, length=64, seed=0)
    found = calibrated_losses(model, stream, batches=2, device=CPU, precision="fp32")
    batches = [stream.batch(step) for step in range(2)]
    with torch.no_grad():
        trained = sum(model(b.tokens, b.targets).loss.item() for b in batches) / 2
        scores = [raw_scores(model, b.tokens, None, "fp32").flatten(0, 1) for b in batches]
        scores = [s / found["scores_temperature"] for s in scores]
    fitted = sum(F.cross_entropy(s, b.targets.flatten()).item() for s, b in zip(scores, batches, strict=True)) / 2
    assert found["loss"] == pytest.approx(trained, rel=1e-5)
    assert found["scores_loss"] == pytest.approx(fitted, rel=1e-5)
    assert found["transformed_loss"] <= found["loss"] + 0.01


def test_a_plain_model_has_one_temperature(finished, corpus):
    model, _ = load_model(finished)
    stream = TokenStream(TokenFile.open(corpus / "validation.tokens"), batch_size=4, length=64, seed=0)
    found = calibrated_losses(model, stream, batches=1, device=CPU, precision="fp32")
    assert found["scores_loss"] == found["transformed_loss"]


def test_evaluation_shows_the_untransformed_scores_at_their_temperature_too(damped, finished, corpus):
    found = evaluate_checkpoint(damped, device="cpu", limit=6)
    assert found["temperature_perplexity"] == pytest.approx(math.exp(found["temperature_loss"]))
    model, _ = load_model(damped)
    split = TokenFile.open(corpus / "validation.tokens")
    options = {"length": 64, "stride": 32, "limit": 6, "device": CPU, "temperature": found["temperature"]}
    assert found["temperature_loss"] == evaluate_split(model, split, **options)["loss"] != found["loss"]
    assert "temperature" not in evaluate_checkpoint(finished, device="cpu", limit=6)


def test_a_temperature_is_fitted_on_windows_that_begin_as_those_scored(damped, corpus):
    model, found = load_model(damped)
    split, config = TokenFile.open(corpus / "validation.tokens"), TrainConfig.from_dict(found.state["config"])
    sizes = {"length": 8, "stride": None, "limit": 4, "bucket": 8, "progress": lambda done: None}
    fitted = text_scores(model, split, config, beginning=(7, 9, 11), **sizes)["temperature"]
    text = torch.tensor(split.tokens[: 8 * 6].astype("int64")).view(8, 6)
    rows = torch.cat((torch.tensor([7, 9, 11]).expand(8, 3), text), 1)
    scores = raw_scores(model, rows[:, :-1], None, "fp32")[:, 2:].flatten(0, 1)
    assert fitted == pytest.approx(fit_temperature(scores, text.flatten()), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loss.exponent=1.5", "loss.exponent must be a number from 0 to 1, got 1.5"),
        ("loss.linear_below=0", "loss.linear_below must be a number from 1e-30 .* got 0"),
        ("data.corruption=-0.1", "data.corruption must be a number from 0 to 1, got -0.1"),
        ("data.share=0", "data.share must be a number above 0 and at most 1, got 0"),
        ("loss.exponents=0.5", "loss has no key 'exponents'; did you mean loss.exponent\\?"),
    ],
)
def test_a_wrong_option_is_a_clear_error(corpus, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(corpus, tmp_path, change)
