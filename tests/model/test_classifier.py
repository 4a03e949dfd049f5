"""The classifier: padding changes nothing, two-sided attention sees both sides, and it learns."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from longshort import GPTConfig, HeadPlan
from longshort.losses import LossSettings, transform_scores
from longshort.model import SequenceClassifier

from ..small import small_config

SMALL = {"vocab_size": 16, "context": 32, "n_layers": 2, "width": 32, "n_heads": 4}


def model(*, n_classes=3, causal=False, norm="layer", **changes):
    torch.manual_seed(0)
    return SequenceClassifier(GPTConfig(**(SMALL | changes)), n_classes=n_classes, causal=causal, norm=norm)


def padded(tokens, length):
    """The same rows with padding after them, and the segments that say so."""
    rows, have = tokens.shape
    longer = torch.cat((tokens, torch.zeros(rows, length - have, dtype=torch.long)), 1)
    return longer, torch.where(torch.arange(length) < have, 0, -1).expand(rows, length)


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal", "alibi", "none"])
def test_padding_changes_neither_logits_nor_gradients(positions, norm):
    tokens, labels = torch.randint(1, 16, (3, 20)), torch.tensor([0, 1, 2])
    one, other = (model(positions=positions, norm=norm, n_global=2, window=4) for _ in range(2))
    longer, segments = padded(tokens, 29)
    first, second = one(tokens, labels), other(longer, labels, segments=segments)
    torch.testing.assert_close(second.logits, first.logits, rtol=1e-4, atol=1e-5)
    first.loss.backward()
    second.loss.backward()
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-5)
    for mine, theirs in zip(one.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(theirs, mine)


def test_the_mean_over_what_is_not_padding_does_not_overflow_in_fp16():
    long = model(positions="none", n_layers=1).half().eval()
    torch.nn.init.constant_(long.trunk.norm.weight, 30.0)
    tokens = torch.zeros(1, 2048, dtype=torch.long)
    found = long(tokens, segments=torch.zeros_like(tokens)).logits
    torch.testing.assert_close(found, long(tokens).logits, rtol=1e-2, atol=1e-2)


def test_two_sided_attention_lets_the_first_token_see_the_last():
    tokens = torch.randint(16, (1, 12))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 16
    for causal, moves in ((False, True), (True, False)):
        classifier = model(causal=causal).eval()
        before, after = (classifier.trunk.hidden(rows)[0][0, 0] for rows in (tokens, changed))
        assert bool((before - after).abs().max() > 1e-6) == moves


def test_a_local_head_reaches_its_window_to_both_sides():
    classifier = model(n_layers=1, plan=HeadPlan(windows=(3,) * 4)).eval()
    embedded = classifier.embedding(torch.randint(16, (1, 12))).detach().requires_grad_()
    hidden = classifier.blocks[0](embedded)
    hidden[0, 6].sum().backward()
    seen = embedded.grad[0].abs().sum(-1).nonzero().flatten().tolist()
    assert seen == [4, 5, 6, 7, 8]


def test_two_sided_attention_refuses_a_cache():
    classifier = model()
    with pytest.raises(ValueError, match="causal must be True for decoding with a cache"):
        classifier.trunk(torch.randint(16, (1, 4)), cache=classifier.trunk.new_cache())


def test_statistics_are_those_of_the_heads():
    output = model()(torch.randint(16, (2, 10)), stats=True)
    assert output.stats.shape == (2, 4, 2) and (output.stats[..., 0] >= output.stats[..., 1]).all()
    assert output.loss is None and not output.stats.requires_grad
    assert model()(torch.randint(16, (2, 10)), stats="max").stats.shape == (2, 4, 1)


def test_batch_norm_takes_running_means_when_it_evaluates():
    classifier = model(norm="batch")
    tokens = torch.randint(16, (4, 10))
    before = classifier.eval()(tokens).logits
    classifier.train()(tokens)
    after = classifier.eval()(tokens).logits
    assert not torch.allclose(before, after)
    torch.testing.assert_close(classifier.eval()(tokens[:1]).logits, after[:1])


def test_a_batch_that_is_not_finite_does_not_stay_in_the_running_means():
    from longshort.nn import SequenceBatchNorm

    norm, x = SequenceBatchNorm(5), torch.randn(3, 7, 5)
    x[0, 0, 2] = torch.nan
    norm(x)
    assert norm.running_mean.isfinite().all() and norm.running_variance.isfinite().all()
    assert norm.running_mean[2] == 0 and (norm.running_mean[:2] != 0).all()


def test_batch_norm_is_torchs_own_where_nothing_is_padding():
    from longshort.nn import SequenceBatchNorm

    x, ours, theirs = torch.randn(3, 7, 5), SequenceBatchNorm(5), nn.BatchNorm1d(5)
    torch.testing.assert_close(ours(x), theirs(x.flatten(0, 1)).view_as(x))
    torch.testing.assert_close(ours.running_variance, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view_as(x))


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_it_learns_which_symbol_a_row_holds(norm):
    classifier = model(norm=norm, positions="none")
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(120):
        tokens, labels = torch.randint(3, 16, (16, 12), generator=generator), torch.arange(16) % 3
        tokens[torch.arange(16), torch.randint(12, (16,), generator=generator)] = labels
        loss = classifier(tokens, labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_classes": 1}, "n_classes must be an integer >= 2, got 1"),
        ({"n_classes": 2.5}, "n_classes must be an integer >= 2, got 2.5"),
        ({"norm": "group"}, "norm must be one of layer, batch, got 'group'"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        model(**arguments)


def test_inputs_of_other_types_are_refused():
    with pytest.raises(ValueError, match="config must be a GPTConfig, got dict"):
        SequenceClassifier({"width": 8}, n_classes=2)
    with pytest.raises(ValueError, match="tokens must be a tensor, got list"):
        model()([[1, 2]])
    with pytest.raises(ValueError, match="labels must be a tensor, got list"):
        model()(torch.ones(1, 2, dtype=torch.long), [1])


def test_labels_that_cannot_be_are_refused():
    tokens = torch.randint(16, (2, 4))
    with pytest.raises(ValueError, match=r"labels must be int64 of shape \(2,\)"):
        model()(tokens, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="labels must be from 0 to 2, got values from 0 to 3"):
        model()(tokens, torch.tensor([0, 3]))


def test_recomputing_blocks_is_refused_with_batch_norm():
    model().gradient_checkpointing = True
    with pytest.raises(ValueError, match="gradient_checkpointing must be off with norm='batch'"):
        model(norm="batch").gradient_checkpointing = True


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.every(2)
def test_it_compiles_in_one_graph(norm):
    tokens, segments = padded(torch.randint(1, 16, (2, 12)), 16)
    labels = torch.tensor([0, 2])
    plain, compiled = model(norm=norm, n_global=1, window=4), model(norm=norm, n_global=1, window=4)
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    expected, found = (m(tokens, labels, segments=segments, stats=True) for m in (plain, run))
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.stats, expected.stats)
    expected.loss.backward()
    found.loss.backward()
    for mine, theirs in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-4, atol=1e-6)
    for mine, theirs in zip(plain.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(theirs, mine)


def test_exponentiated_scores_are_what_the_loss_is_taken_of():
    torch.manual_seed(0)
    model = SequenceClassifier(small_config(positions="none"), n_classes=5).double().eval()
    tokens, labels = torch.randint(256, (3, 20)), torch.tensor([0, 4, 2])
    plain = model(tokens, labels)
    model.config = replace(model.config, loss=LossSettings(exponent=0.5))
    damped = model(tokens, labels)
    torch.testing.assert_close(damped.logits, transform_scores(plain.logits, 0.5, 0.01))
    torch.testing.assert_close(damped.loss, torch.nn.functional.cross_entropy(damped.logits, labels))


def test_centred_smoothing_serves_a_two_sided_classifier_and_is_refused_in_a_causal_one():
    config = small_config(smoothing=3, smoothing_side="centred")
    assert SequenceClassifier(config, n_classes=3)(torch.randint(256, (2, 20))).logits.shape == (2, 3)
    with pytest.raises(ValueError, match="centred"):
        SequenceClassifier(config, n_classes=3, causal=True)
