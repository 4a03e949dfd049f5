"""The drop-in example does what its page says: weights carry over, and what it prints is what it measured."""

import copy
import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

from longshort import HeadPlan, LSAttention

ROOT = Path(__file__).parents[2]
SCRIPT, PAGE = ROOT / "examples" / "drop_in.py", ROOT / "docs" / "howto" / "drop-in.md"
TINY = ["--width", "32", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--length", "40", "--window", "4"]
SIZES = {"width": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "length": 40}


@pytest.fixture(scope="module")
def drop_in():
    spec = importlib.util.spec_from_file_location("drop_in", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["llama", "nanogpt"])
def test_with_global_heads_alone_outputs_and_gradients_stay(drop_in, name):
    torch.manual_seed(0)
    build, swap = drop_in.MODELS[name]
    model = build(**SIZES).double()
    swapped = copy.deepcopy(model)
    swap(swapped, HeadPlan.full(4))
    assert sum(isinstance(module, LSAttention) for module in swapped.modules()) == 2
    tokens, embeddings = torch.randint(256, (2, 40)), []
    for own in (model, swapped):
        own(tokens).square().sum().backward()
        embeddings.append(next(own.parameters()).grad)
    # The example's rotary angles are fp32, as they are in most models; ours follow the dtype of the queries.
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if name == "llama" else {}
    torch.testing.assert_close(swapped(tokens), model(tokens), **tolerance)
    torch.testing.assert_close(embeddings[1], embeddings[0], **tolerance)


@pytest.mark.parametrize("name", ["llama", "nanogpt"])
def test_with_local_heads_no_token_sees_past_the_windows_of_all_layers(drop_in, name):
    build, swap = drop_in.MODELS[name]
    model = build(**SIZES).eval()
    swap(model, HeadPlan.long_short(n_heads=4, n_global=0, window=4))
    tokens = torch.randint(256, (1, 40))
    changed = tokens.clone()
    changed[0, 0] = (tokens[0, 0] + 1) % 256
    differs = (model(tokens) != model(changed)).any(-1)[0]
    assert differs[:7].any() and not differs[7:].any()  # two layers of three keys back each


def test_script_prints_and_writes_what_it_measured(drop_in, tmp_path, capsys):
    drop_in.main([*TINY, "--steps", "4", "--warmup", "1", "--out", str(tmp_path / "found.json")])
    shown, found = capsys.readouterr().out, json.loads((tmp_path / "found.json").read_text())
    assert [(row["model"], row["attention"]) for row in found["rows"]] == [
        (model, attention)
        for model in ("llama", "nanogpt")
        for attention in ("own", "all global", "2 global, window 4")
    ]
    assert all(drop_in.line(row) in shown for row in found["rows"])
    assert "layer 1" in shown and found["settings"]["window"] == 4
    for own, same, local in (found["rows"][:3], found["rows"][3:]):
        assert same["outputs_differ_by"] < 1e-4 < local["outputs_differ_by"]
        assert same["cache_bytes"] == own["cache_bytes"] > local["cache_bytes"]
        assert same["loss"] == pytest.approx(own["loss"], rel=1e-3)
        assert own["largest_logit"] is None and len(local["largest_logit"]) == 2 and len(local["largest_logit"][0]) == 4
        assert own["step_ms"] > 0


def test_page_shows_the_committed_numbers(drop_in):
    found = json.loads((ROOT / "examples" / "results" / "drop-in-cpu.json").read_text())
    shown = PAGE.read_text(encoding="utf-8").splitlines()
    assert len(found["rows"]) == 6 and drop_in.HEADER.splitlines()[0] in shown
    assert [row for row in found["rows"] if drop_in.line(row) not in shown] == []


def test_lines_of_the_page_are_those_of_the_script():
    script = "".join(SCRIPT.read_text(encoding="utf-8").split())
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)[:2]:
        assert "".join(block[block.index("for ") :].split()) in script


def test_page_runs_from_top_to_bottom(drop_in):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    sizes = {"width": 256, "n_layers": 2, "n_heads": 8, "n_kv_heads": 4, "length": 40}
    scope = {name: getattr(drop_in, name) for name in ("HeadPlan", "LSAttention", "LSCache", "watch_logits")}
    gpt = drop_in.NanoGPT(**sizes)
    tokens, x = torch.randint(256, (1, 20)), torch.randn(1, 20, 256)
    for block, model in zip(blocks, (gpt, drop_in.Llama(**sizes), gpt, gpt), strict=True):
        scope |= {"model": model, "tokens": tokens, "x": x, "training_step": drop_in.training_step}
        scope["optimizer"] = torch.optim.AdamW(model.parameters())
        exec(compile(block, str(PAGE), "exec"), scope)
    assert scope["seen"][0].abs_max.shape == (8,) and scope["out"].shape == x.shape


def test_memory_of_a_step_is_measured_where_it_can_be(drop_in):
    memory = drop_in.PeakMemory("cpu")
    held = torch.ones(2**23)  # 32 MiB
    found = memory.mebibytes()
    assert held.sum() and (found is None or 30 < found < 60)


def test_too_few_steps_are_a_clear_error(drop_in, capsys):
    with pytest.raises(SystemExit):
        drop_in.main(["--steps", "3"])
    assert "--steps must be at least --warmup + 2 = 4, got 3" in capsys.readouterr().err
