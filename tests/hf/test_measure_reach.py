"""How far heads look, against probabilities that are formed, and the command that shows it."""

import json
import runpy
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from longshort import GPT, GPTConfig, HeadPlan
from longshort.data import ByteTokenizer
from longshort.hf import far_mass, fast_tokenizer, plans_by_mass, use_head_plan, write_folder

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(vocab_size=61):
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, vocab_size=vocab_size, num_key_value_heads=2, attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    return model.apply(lambda m: m.weight.data.mul_(4) if isinstance(m, torch.nn.Linear) else None)


@torch.no_grad()
def test_far_mass_is_that_of_the_probabilities():
    model, ids, window = llama(), torch.randint(61, (3, 30)), 8
    probabilities = model(ids, output_attentions=True).attentions
    distance = torch.arange(30)[:, None] - torch.arange(30)
    expected = [(p * (distance >= window)).sum(-1)[:, :, window:].mean(dim=(0, 2)) for p in probabilities]
    use_head_plan(model, HeadPlan.full(4))
    found = far_mass(model, ids, window=window)
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-4)
    assert 0.1 < found.mean() < 0.9


def test_nothing_lies_beyond_the_window_of_a_local_head():
    model = llama()
    use_head_plan(model, HeadPlan(windows=(None, 8, 5, 30)))
    mass = far_mass(model, torch.randint(61, (2, 30)), window=8)
    assert (mass[:, 1:3] == 0).all() and (mass[:, [0, 3]] > 0).all()


def test_heads_are_local_up_to_the_share():
    plans = plans_by_mass(torch.tensor([[0.5, 0.05], [0.2, 0.06]]), window=9, most=0.05)
    assert [plan.windows for plan in plans] == [(None, 9), (None, None)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: far_mass(model, torch.zeros(2, 8, dtype=torch.long), window=8), "more than window=8 tokens"),
        (lambda model: far_mass(model, torch.zeros(2, 9, dtype=torch.long), window=8), "call use_head_plan first"),
        (lambda model: plans_by_mass(torch.zeros(1, 2), window=8, most=2), "a share from 0 to 1"),
    ],
)
def test_errors_say_what_would_be_right(call, words):
    with pytest.raises(ValueError, match=words):
        call(llama())


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["reach", "reach", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("longshort.hf", run_name="__main__")
    return ended.value.code


def test_the_command_shows_what_cutting_heads_costs(tmp_path, monkeypatch, capsys):
    tokenizer = ByteTokenizer()
    llama(tokenizer.vocab_size).save_pretrained(tmp_path / "model")
    fast_tokenizer(tokenizer).save_pretrained(tmp_path / "model")
    (tmp_path / "text").write_text("What each head can see. " * 20)
    common = (tmp_path / "model", "--text", tmp_path / "text", "--length", 40, "--out", tmp_path / "reach.json")
    assert run(monkeypatch, *common, "--window", 8, "--rows", 3) == 0
    data = json.loads((tmp_path / "reach.json").read_text())
    assert torch.tensor(data["mass"]).shape == (2, 4)
    assert data["costs"][-1]["local"] == 8 and data["costs"][0]["local"] <= data["costs"][1]["local"]
    assert abs(data["costs"][-1]["loss"] - data["costs"][0]["loss"]) > 0.01
    assert f"8 of 8  {data['costs'][-1]['loss']:.4f}" in capsys.readouterr().out
    assert run(monkeypatch, *common, "--window", 8, "--rows", 300) == 2
    assert "at least 300 sequences of --length 40" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("missing", ["tokenizer", "language model", "text"])
def test_what_is_not_there_is_named_in_one_line(tmp_path, monkeypatch, capsys, missing):
    if missing != "tokenizer":
        fast_tokenizer(ByteTokenizer()).save_pretrained(tmp_path)
    (tmp_path / "text").write_text("What each head can see. " * 20)
    text = tmp_path / ("nowhere" if missing == "text" else "text")
    assert run(monkeypatch, tmp_path, "--text", text, "--length", 40, "--window", 8, "--rows", 3) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and missing in line


def test_a_model_whose_heads_take_no_plan_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    write_folder(GPT(GPTConfig.preset("tiny", vocab_size=257)), ByteTokenizer(), tmp_path / "exported")
    (tmp_path / "text").write_text("What each head can see. " * 20)
    sizes = ("--length", 40, "--window", 8, "--rows", 3)
    assert run(monkeypatch, tmp_path / "exported", "--text", tmp_path / "text", *sizes) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: {tmp_path / 'exported'}: model must use") and "longshort inspect" in line
