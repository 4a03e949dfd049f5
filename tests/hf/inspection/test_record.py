"""A folder from disk, inspected: the record's numbers, and what cannot be read."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from longshort import HeadPlan
from longshort.files import write_json
from longshort.hf import use_head_plan
from longshort.hf.inspection import record as record_module
from longshort.hf.inspection.opened import open_folder
from longshort.hf.inspection.propose import Budget
from longshort.hf.inspection.record import inspect_model
from longshort.hf.inspection.texts import text_sequences

from ..small import shell
from .models import CONFIGS, folder_of, model_of

CPU = torch.device("cpu")


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_of_any_architecture_gives_a_record(name, tmp_path, text):
    folder = folder_of(model_of(name), tmp_path / name)
    steps = []
    options = {"text": text, "length": 64, "rows": 4, "budget": Budget(share=0.5)}
    record = inspect_model(open_folder(folder, CPU), **options, progress=lambda *step: steps.append(step))
    assert json.loads(write_json(tmp_path / "r.json", record).read_text()) == record
    assert {what for what, _, _ in steps} == {"measuring", "induction", "loss", "plans"}
    assert all(torch.tensor(values).shape == (2, 4) for values in record["heads"].values() if values is not None)
    assert record["heads"]["retrieval"] is None  # 64 bytes have no room for a needle
    assert record["model"]["kv_heads"] == (4 if name in ("gpt2", "gpt-neox") else 2)
    assert record["proposal"]["costs"]["share"] <= 0.5
    windows = record["beyond"]["windows"]
    assert windows == [1, 2, 4, 8, 16, 32] and torch.tensor(record["beyond"]["attention"]).shape == (2, 4, 6)


@torch.no_grad()
def test_losses_are_those_of_transformers_under_the_plan(llama, text):
    opened = open_folder(llama, CPU)
    record = inspect_model(opened, text=text, length=64, rows=5, budget=Budget(share=0.3))
    tokens, _ = text_sequences(opened.tokenizer, text, rows=5, length=64)
    fresh = AutoModelForCausalLM.from_pretrained(llama, attn_implementation="eager").eval()
    held_out = [row[None] for row in tokens[3:]]
    expected = torch.stack([fresh(row, labels=row).loss for row in held_out]).mean().item()
    assert record["loss"] == pytest.approx(expected, abs=1e-5) and record["text"]["held_out"] == 2
    use_head_plan(fresh, [HeadPlan.from_dict(plan) for plan in record["proposal"]["plans"]])
    planned = torch.stack([fresh(row, labels=row).loss for row in held_out]).mean().item()
    assert record["proposal"]["loss"] == pytest.approx(planned, abs=1e-5) and abs(planned - expected) > 1e-3
    chosen = record["proposal"]["candidates"][record["proposal"]["chosen"]]
    assert chosen["loss"] == min(row["loss"] for row in record["proposal"]["candidates"])


@pytest.mark.parametrize("placed", [{"nope": True}, {"dual_rope": True}, {"temperature": True}], ids=str)
def test_global_heads_that_tell_positions_apart_otherwise_stay_global_in_a_proposal(placed, tmp_path, text):
    reach = {"pattern": "long_short", "n_global": 2, "window": 32, **placed}
    folder = folder_of(shell(positions="rotary", context=64, n_kv_heads=2, reach=reach), tmp_path / "ours")
    options = {"text": text, "length": 64, "rows": 4}
    found = inspect_model(open_folder(folder, CPU), **options, budget=Budget(share=0.7))["proposal"]
    assert found["costs"]["share"] <= 0.7 < found["costs"]["share_before"]
    assert [plan["windows"][:2] for plan in found["plans"]] == [[None, None]] * 2
    with pytest.raises(ValueError, match="windows of 8 keys beside the heads that must stay global, which take 6"):
        inspect_model(open_folder(folder, CPU), **options, budget=Budget(share=0.3))


def test_the_plan_of_least_loss_is_chosen_wherever_it_stands(llama, text, monkeypatch):
    options = {"text": text, "length": 64, "rows": 4, "budget": Budget(share=0.3)}
    first = inspect_model(open_folder(llama, CPU), **options)["proposal"]
    inner = record_module.candidates
    monkeypatch.setattr(record_module, "candidates", lambda *given, **more: inner(*given, **more)[::-1])
    turned = inspect_model(open_folder(llama, CPU), **options)["proposal"]
    assert turned["candidates"] == first["candidates"][::-1] and len(first["candidates"]) > 1
    assert turned["plans"] == first["plans"] and turned["chosen"] == len(first["candidates"]) - 1 - first["chosen"]


def test_our_own_folder_is_inspected_within_its_plan(tmp_path, text):
    folder = folder_of(shell(positions="rotary"), tmp_path / "ours")
    record = inspect_model(open_folder(folder, CPU), text=text, length=64, rows=4, budget=Budget(share=0.25))
    assert [plan["windows"] for plan in record["sees"]] == [[None, 8, 8, 8]] * 2
    assert max(max(row[1:]) for row in record["heads"]["window_999"]) <= 8
    assert all(plan["windows"][1:] == [8, 8, 8] for plan in record["proposal"]["plans"])
    assert any(plan["windows"][0] is not None for plan in record["proposal"]["plans"])


def _without(name):
    return lambda folder: (folder / name).unlink()


def _cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:100])


def _config(**changes):
    def change(folder):
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without("config.json"), "MODEL must be a folder with a config.json"),
        (_without("tokenizer.json"), "must hold a tokenizer that transformers can read"),
        (_without("model-00002-of-00005.safetensors"), "must hold a language model that transformers can read"),
        (_cut("model-00002-of-00005.safetensors"), "must hold a language model that transformers can read"),
        (_config(num_hidden_layers=3), "weights do not fit the model, missing keys: .*layers.2"),
        (_config(vocab_size=200), "weights do not fit|no more tokens than the model|must hold a language model"),
        (_config(model_type="nothing"), "must hold a"),
        (_config(attention_dropout=0.1), None),
    ],
)
def test_a_folder_that_cannot_be_read_is_named(damage, words, llama, tmp_path):
    folder = shutil.copytree(llama, tmp_path / "broken")
    damage(folder)
    if words is None:  # dropout is off in evaluation
        open_folder(folder, CPU)
        return
    with pytest.raises(ValueError, match=words):
        open_folder(folder, CPU)


def test_lengths_beyond_the_positions_and_numbers_that_are_not_finite_are_refused(tmp_path, text):
    model = model_of("gpt2")
    opened = open_folder(folder_of(model, tmp_path / "gpt2"), CPU)
    with pytest.raises(ValueError, match="--length must be from 16 to the model's 512 positions, got 513"):
        inspect_model(opened, text=text, length=513)
    opened.model.transformer.h[1].attn.c_attn.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="finite numbers, got some that are not in the attention of layer 1"):
        inspect_model(opened, text=text, length=64, rows=2)
