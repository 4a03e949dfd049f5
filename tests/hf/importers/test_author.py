"""The author's checkpoints: the imported model gives the logits of the one that was saved, in both of its forms."""

import functools
import pickle
import re

import pytest
import torch

from longshort import HeadPlan
from longshort.hf.importers import from_author

from .nano import SIZES, Nano, save

TIGHT = {"atol": 2e-5, "rtol": 2e-5}


def tokens():
    return torch.randint(SIZES["vocab_size"], (2, 48), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def logits(model):
    return model(tokens()).logits


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n_local", [1, 2, 3])
def test_fused_form_gives_the_logits_of_the_saved_model(tmp_path, n_local, bias):
    theirs = Nano(n_local=n_local, visible=7, separate=False, bias=bias)
    path = save(tmp_path / "ckpt.pt", theirs, args=SIZES | {"n_local_heads": n_local, "window": 7})
    ours = from_author(path)
    torch.testing.assert_close(logits(ours), theirs(tokens()), **TIGHT)
    assert ours.config.layer_plans[0] == HeadPlan.long_short(4, 4 - n_local, 7)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n_local", [1, 2, 3])
def test_separate_form_gives_the_logits_of_the_saved_model_and_counts_the_current_key(tmp_path, n_local, bias):
    theirs = Nano(n_local=n_local, visible=7, separate=True, bias=bias)
    path = save(tmp_path / "ckpt.pt", theirs, args=SIZES | {"span": 6})
    ours = from_author(path)
    torch.testing.assert_close(logits(ours), theirs(tokens()), **TIGHT)
    assert ours.config.window == 7


@pytest.mark.parametrize("separate", [False, True])
def test_what_the_checkpoint_does_not_say_can_be_given(tmp_path, separate):
    theirs = Nano(n_local=3, visible=5, separate=separate)
    path = save(tmp_path / "ckpt.pt", theirs)
    for reach in ({"window": 5}, {"span": 4}):
        ours = from_author(path, n_heads=4, n_global=1, **reach)
        torch.testing.assert_close(logits(ours), theirs(tokens()), **TIGHT)


def test_what_is_given_overrides_the_checkpoint(tmp_path):
    theirs = Nano(n_local=3, visible=5, separate=False)
    path = save(tmp_path / "ckpt.pt", theirs, args=SIZES | {"n_global_heads": 2, "window": 9})
    torch.testing.assert_close(logits(from_author(path, n_global=1, window=5)), theirs(tokens()), **TIGHT)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_names_of_a_compiled_or_distributed_model_are_read(tmp_path, prefix):
    theirs = Nano(n_local=2, visible=5, separate=False)
    path = save(tmp_path / "ckpt.pt", theirs, prefix=prefix, args=SIZES, config={"n_local_heads": 2, "window": 5})
    torch.testing.assert_close(logits(from_author(path)), theirs(tokens()), **TIGHT)


def test_what_made_the_model_is_believed_before_what_was_asked_for(tmp_path):
    theirs, asked = Nano(n_local=2, visible=5, separate=False), {"n_head": 8, "n_local_heads": 2, "window": 5}
    path = save(tmp_path / "ckpt.pt", theirs, args=SIZES, config=asked)
    torch.testing.assert_close(logits(from_author(path)), theirs(tokens()), **TIGHT)


SEEN = torch.ones(48, 48, dtype=torch.bool).tril()
MASKS = {
    "bias": SEEN.float().view(1, 1, 48, 48),
    "mask": SEEN,
    "local_mask": SEEN.triu(-4).view(1, 48, 48),
    "head_masks": torch.stack((SEEN, SEEN, SEEN.triu(-4), SEEN.triu(-4))),
    "added": torch.zeros(1, 4, 48, 48).masked_fill(~SEEN, -torch.inf),
    "half_mask": torch.zeros(48, 48, dtype=torch.float16).masked_fill(~SEEN, -6e4),
    "span": torch.tensor(4),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_saved_with_the_weights_are_left_out(tmp_path, name):
    theirs = Nano(n_local=2, visible=5, separate=False)
    for block in theirs.transformer.h:
        block["attn"].register_buffer(name, MASKS[name])
    path = save(tmp_path / "ckpt.pt", theirs, args=SIZES)
    torch.testing.assert_close(logits(from_author(path, n_global=2, window=5)), theirs(tokens()), **TIGHT)


@pytest.mark.parametrize("name", ["mask", "sinks", "scale"])
def test_what_attention_adds_to_its_logits_is_not_taken_for_a_mask(tmp_path, name):
    theirs = Nano(n_local=2, visible=5, separate=False)
    added = {"mask": -torch.arange(48.0).expand(48, 48), "sinks": torch.zeros(4), "scale": torch.ones(4, 1)}[name]
    theirs.transformer.h[1]["attn"].register_buffer(name, added)
    path = save(tmp_path / "ckpt.pt", theirs, args=SIZES)
    with pytest.raises(ValueError, match=f"unknown h.1.attn.{name}"):
        from_author(path, n_global=2, window=5)


def test_a_tied_head_stays_tied_and_an_untied_one_untied(tmp_path):
    for tied in (True, False):
        theirs = Nano(n_local=2, visible=5, separate=False, tied=tied)
        path = save(tmp_path / "ckpt.pt", theirs, args=SIZES)
        ours = from_author(path, n_global=2, window=5)
        assert ours.config.tie_embeddings is tied
        torch.testing.assert_close(logits(ours), theirs(tokens()), **TIGHT)


@pytest.mark.parametrize(("separate", "n_local"), [(False, 0), (True, 0), (True, 4)])
def test_heads_all_of_one_kind_are_read(tmp_path, separate, n_local):
    theirs = Nano(n_local=n_local, visible=5, separate=separate)
    path = save(tmp_path / "ckpt.pt", theirs, args=SIZES)
    reach = {"window": 5} if n_local else {}
    ours = from_author(path, n_global=None if separate else 4, **reach)
    torch.testing.assert_close(logits(ours), theirs(tokens()), **TIGHT)


def test_all_that_is_missing_is_listed_at_once(tmp_path):
    path = save(tmp_path / "ckpt.pt", Nano(n_local=2, visible=5, separate=False), config={"learning_rate_steps": 9})
    with pytest.raises(ValueError, match=r"n_heads.*n_global.*window, or span.*learning_rate_steps=9"):
        from_author(path)
    with pytest.raises(ValueError, match=r"must be given: window") as caught:
        from_author(path, n_heads=4, n_global=2)
    assert "n_heads (" not in str(caught.value)


@pytest.mark.parametrize(("separate", "name"), [(False, "span"), (True, "window")])
def test_a_window_whose_convention_is_unknown_is_not_guessed(tmp_path, separate, name):
    path = save(tmp_path / "ckpt.pt", Nano(n_local=2, visible=5, separate=separate), args=SIZES | {name: 5})
    with pytest.raises(ValueError, match=f"{name}=5.*may or may not count the current key"):
        from_author(path, n_global=2)


def test_a_wrong_number_of_heads_is_named(tmp_path):
    path = save(tmp_path / "ckpt.pt", Nano(n_local=2, visible=5, separate=True), args=SIZES)
    with pytest.raises(ValueError, match=r"n_heads must divide the width 32.*got 5"):
        from_author(path, n_heads=5, window=5)
    with pytest.raises(ValueError, match=r"c_local_attn must have 72 rows .*got 48"):
        from_author(path, n_global=1, window=5)
    with pytest.raises(ValueError, match=r"n_global must be .* 0 to n_heads=4, got 7"):
        from_author(path, n_global=7, window=5)


def test_a_tensor_without_a_place_is_named_and_so_is_a_missing_one(tmp_path):
    theirs = Nano(n_local=2, visible=5, separate=False)
    theirs.transformer.h[1]["attn"].q_norm = torch.nn.LayerNorm(8, bias=False)
    del theirs.transformer.h[1]["mlp"].c_proj
    path = save(tmp_path / "ckpt.pt", theirs, args=SIZES)
    with pytest.raises(ValueError, match=r"missing blocks.1.mlp.down.weight; unknown h.1.attn.q_norm.weight"):
        from_author(path, n_global=2, window=5)


def test_a_file_that_may_not_be_read_is_not_taken_for_a_damaged_one(tmp_path, monkeypatch):
    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "ckpt.pt").touch()
    monkeypatch.setattr(torch, "load", refused)
    with pytest.raises(PermissionError):
        from_author(tmp_path / "ckpt.pt")


def test_both_window_and_span_are_refused(tmp_path):
    with pytest.raises(ValueError, match="window and span must not both be given"):
        from_author(tmp_path / "ckpt.pt", window=5, span=4)


def test_files_that_are_no_checkpoint_are_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        from_author(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("not a checkpoint")
    with pytest.raises(ValueError, match="weights_only=True"):
        from_author(tmp_path / "text.pt")
    torch.save({"state_dict": {}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="key model, got state_dict"):
        from_author(tmp_path / "other.pt")
    torch.save({"model": {"lin.weight": torch.ones(2, 2)}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"must have wte.weight.*it has lin.weight"):
        from_author(tmp_path / "other.pt")


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    ran = tmp_path / "ran"
    torch.save({"model": functools.partial(open, str(ran), "w")}, tmp_path / "bad.pt")
    with pytest.raises(ValueError, match=r"weights_only=True; got one that names functools\.partial: code") as raised:
        from_author(tmp_path / "bad.pt")
    assert not ran.exists()
    assert not re.search("Re-running|False|trusted", str(raised.value)), "torch's advice to unpickle it"


@pytest.mark.parametrize("content", [b"", b"rubbish" * 10, pickle.dumps({"model": 1}, protocol=5)])
def test_damaged_and_foreign_files_are_refused_without_advice_or_warnings(tmp_path, content):
    (tmp_path / "bad.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.pt must be a checkpoint of tensors.*; got something else$"):
        from_author(tmp_path / "bad.pt")
