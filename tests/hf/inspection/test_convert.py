"""Converted folders: transformers and our own programs open them with the plan."""

import json
import signal
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, SmolLM3Config, SmolLM3ForCausalLM
from typer.testing import CliRunner

from longshort import HeadPlan
from longshort.cli import app
from longshort.hf import LongShortForCausalLM
from longshort.hf.head_plans import ATTENTION_NAME
from longshort.hf.importers import from_transformers
from longshort.hf.inspection import uptraining
from longshort.hf.inspection.convert import convert, read_plans
from longshort.hf.inspection.opened import open_folder
from longshort.hf.inspection.planned import loss_on, with_plans
from longshort.hf.inspection.propose import Budget
from longshort.hf.inspection.texts import text_sequences
from longshort.hf.inspection.uptraining import train
from longshort.nn import RopeScaling

from ..small import shell
from .models import CONFIGS, folder_of, model_of

CPU = torch.device("cpu")
PLANS = [HeadPlan(windows=(None, None, 5, 5)), HeadPlan(windows=(9, 9, 3, 3))]
IDS = torch.randint(1, 256, (2, 60), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def logits(model):
    return model(IDS).logits


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_converted_folder_opens_with_the_plan(name, tmp_path, text):
    source = folder_of(model_of(name), tmp_path / "source")
    record = convert(open_folder(source, CPU), tmp_path / "out", plans=PLANS, text=text, length=64, rows=4)
    expected = with_plans(model_of(name), PLANS)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert found.config._attn_implementation == ATTENTION_NAME
    torch.testing.assert_close(logits(found), logits(expected), atol=1e-6, rtol=1e-5)
    assert (logits(found) - logits(model_of(name))).abs().max() > 1e-4
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("né").input_ids == [110, 195, 169]
    assert json.loads((tmp_path / "out" / "conversion.json").read_text()) == record
    assert record["loss"]["after"] == record["loss"]["planned"] != record["loss"]["before"]
    if name in ("llama", "qwen3", "gemma3", "gpt2"):
        torch.testing.assert_close(logits(from_transformers(tmp_path / "out")), logits(found), atol=2e-5, rtol=1e-4)


def test_our_own_folder_converts_and_comes_home_with_its_settings_of_generation(tmp_path, text):
    source = folder_of(shell(positions="rotary"), tmp_path / "source")
    asked = {"do_sample": True, "temperature": 0.3, "max_new_tokens": 7}
    (source / "generation_config.json").write_text(json.dumps(asked))
    plans = [HeadPlan(windows=(None, 8, 4, 2)), HeadPlan(windows=(16, 8, 8, 8))]
    record = convert(open_folder(source, CPU), tmp_path / "out", plans=plans, text=text, length=64, rows=4)
    found = from_transformers(tmp_path / "out")
    assert list(found.config.layer_plans) == plans and record["costs"]["share"] < 0.4
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(theirs), logits(found))
    assert asked.items() <= theirs.generation_config.to_dict().items()


def test_training_lowers_the_loss_and_is_written(llama, tmp_path, text):
    options = {"budget": Budget(share=0.3), "text": text, "length": 64, "rows": 4}
    steps = []
    record = convert(
        open_folder(llama, CPU, trained=True),
        tmp_path / "out",
        **options,
        steps=12,
        batch=2,
        rate=3e-3,
        progress=lambda *step: steps.append(step),
    )
    loss = record["loss"]
    assert loss["after"] < loss["planned"] - 0.3 and len(record["training"]["losses"]) == 12
    assert record["text"] | {"source": ""} == {"source": "", "length": 64, "held_out": 2, "training": 24}
    assert steps[-1][1:] == (12, 12) and steps[-1][0].startswith("training, loss ")
    opened = open_folder(tmp_path / "out", CPU)
    tokens, _ = text_sequences(opened.tokenizer, text, rows=4, length=64)
    assert loss_on(opened.model, tokens[2:]) == pytest.approx(loss["after"], abs=1e-5)
    assert record["costs"]["share"] <= 0.3


def test_weights_keep_the_precision_they_had(tmp_path, text):
    source = folder_of(model_of("llama").to(torch.bfloat16), tmp_path / "source")
    opened = open_folder(source, CPU)
    assert opened.model.dtype == torch.float32 and opened.dtype == torch.bfloat16
    convert(opened, tmp_path / "out", plans=PLANS, text=text, length=64, rows=2, steps=1)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert saved.dtype == torch.bfloat16


def test_nothing_is_left_where_it_fails(llama, tmp_path, text):
    opened = open_folder(llama, CPU)
    common = {"text": text, "length": 64, "rows": 4}
    with pytest.raises(ValueError, match="--plan must have 2 layers of 4 heads, got 1 of 4"):
        convert(opened, tmp_path / "out", plans=PLANS[:1], **common)
    with pytest.raises(ValueError, match="the loss must stay finite, got nan at step"):
        convert(opened, tmp_path / "out", plans=PLANS, **common, steps=20, rate=1e30)
    with pytest.raises(ValueError, match="either plans or a budget"):
        convert(opened, tmp_path / "out", **common)
    (tmp_path / "short.txt").write_text("x" * 140)
    with pytest.raises(ValueError, match="--text must have at least 3 sequences of 64 tokens, got 141 tokens"):
        convert(opened, tmp_path / "out", plans=PLANS, **common | {"text": tmp_path / "short.txt"}, steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["short.txt"]


def test_a_folder_that_exists_is_refused_before_the_model_is_read(llama, tmp_path, text, monkeypatch):
    read = "longshort.hf.inspection.convert.model_digest"
    monkeypatch.setattr(read, lambda model: pytest.fail("the model was read"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").touch()
    with pytest.raises(ValueError, match="already exists"):
        convert(open_folder(llama, CPU), tmp_path / "out", plans=PLANS, text=text, length=64)


def test_of_a_text_shorter_than_asked_for_the_last_sequence_is_trained_on(llama, tmp_path):
    (tmp_path / "short.txt").write_text("to be or" * 24)
    common = {"plans": PLANS, "text": tmp_path / "short.txt", "length": 64, "rows": 9, "steps": 1}
    record = convert(open_folder(llama, CPU), tmp_path / "out", **common)
    assert (record["text"]["held_out"], record["text"]["training"]) == (1, 1)


def test_training_goes_over_short_texts_again(tmp_path):
    model = model_of("llama", "sdpa")
    losses = train(model, IDS[:1], tmp_path, steps=6, batch=2, rate=1e-2)
    assert losses[-1] < losses[0] - 0.5 and not model.training


def test_sequences_are_trained_on_in_their_order(tmp_path):
    model, seen = model_of("llama", "sdpa"), []
    model.register_forward_pre_hook(lambda module, inputs: seen.extend(inputs[0][:, 0].tolist()))
    train(model, torch.arange(3)[:, None].repeat(1, 8), tmp_path, steps=2, batch=2)
    assert seen == [0, 1, 2, 0]


def test_the_rate_falls_to_nothing_over_the_steps(tmp_path, monkeypatch):
    rates, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self))
    train(model_of("llama", "sdpa"), IDS[:1], tmp_path, steps=4, batch=1, rate=1e-3)
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_checkpoints_are_minutes_apart(tmp_path, monkeypatch):
    clock, saved = SimpleNamespace(now=0.0, monotonic=lambda: clock.now), []
    monkeypatch.setattr(uptraining, "time", clock)
    monkeypatch.setattr(uptraining, "_save", lambda model, optimizer, folder, losses: saved.append(len(losses)))

    def tick(*step):
        clock.now += 200.0

    train(model_of("llama", "sdpa"), IDS[:1], tmp_path, steps=7, batch=1, progress=tick)
    assert saved == [2, 4, 6]


def test_a_training_that_is_told_to_stop_at_its_last_step_is_finished(tmp_path):
    def stop(what, done, total):
        if done == total:
            signal.raise_signal(signal.SIGTERM)

    assert len(train(model_of("llama", "sdpa"), IDS[:1], tmp_path, steps=2, batch=1, progress=stop)) == 2


@pytest.mark.parametrize(
    "placed", [{"dual_rope": True}, {"temperature": True}, {}], ids=["bases", "temperature", "scaled"]
)
def test_positions_that_depend_on_the_reach_are_kept(placed):
    scaling = {} if placed else {"rope_scaling": RopeScaling(kind="linear", factor=4.0, heads="global")}
    reach = {"pattern": "interleave", "layers": "LG", "window": 8, **placed}
    model = shell(positions="rotary", reach=reach, **scaling)
    model.config.eos_token_id = 256
    kept = with_plans(model, [HeadPlan(windows=(4,) * 4), HeadPlan.full(4)])
    assert kept.config.eos_token_id == 256 and not kept.model.training
    assert kept.model.config.layer_plans[0].windows == (4,) * 4
    with pytest.raises(ValueError, match="global heads must stay global in layer 1"):
        with_plans(model, [HeadPlan(windows=(8,) * 4)] * 2)


def test_unrotated_layers_of_an_imported_model_take_any_plan():
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = SmolLM3Config(**sizes, no_rope_layers=[1, 0], initializer_range=0.3)
    theirs = SmolLM3ForCausalLM(config).eval()
    ours = with_plans(LongShortForCausalLM.from_gpt(from_transformers(theirs)), PLANS)
    torch.testing.assert_close(logits(ours), logits(with_plans(theirs, PLANS)), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("wrong", ["", "7", "[1]", "{}", '{"proposal": {}}', '[{"windows": [0]}]', "[" * 100_000])
def test_a_file_without_plans_is_named(wrong, tmp_path):
    (tmp_path / "p.json").write_text(wrong)
    with pytest.raises(ValueError, match="--plan must be a record of longshort inspect"):
        read_plans(tmp_path / "p.json")


@pytest.mark.parametrize("wrong", ["7", "null", "[]", "[null]", "{}", '{"proposal": null}', '{"plans": null}'])
def test_a_file_with_something_else_says_how_to_make_plans(wrong, tmp_path):
    (tmp_path / "p.json").write_text(wrong)
    with pytest.raises(ValueError, match=r"p\.json: no plans: run longshort inspect with --budget$"):
        read_plans(tmp_path / "p.json")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_from_inspect_to_a_run_that_generates(llama, tmp_path, text):
    common = ("--text", text, "--length", 64, "--rows", 4)
    assert run("inspect", llama, *common, "--budget", 0.3, "--no-page", "--out", tmp_path / "r.json").exit_code == 0
    shown = run("convert", llama, *common, "--plan", tmp_path / "r.json", "--steps", 2, "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    record = json.loads((tmp_path / "r.json").read_text())
    assert f"loss {record['loss']:.4f} before, {record['proposal']['loss']:.4f} with the plan, " in shown.stdout
    assert shown.stdout.endswith(f"wrote {tmp_path / 'out'} (the numbers: {tmp_path / 'out' / 'conversion.json'})\n")
    assert read_plans(tmp_path / "out" / "conversion.json") == read_plans(tmp_path / "r.json")
    assert run("generate", tmp_path / "out", "--tokens", 3).exit_code == 0
    assert run("import", tmp_path / "out", "--out", tmp_path / "run").exit_code == 0
    assert run("export", tmp_path / "run", tmp_path / "ours").exit_code == 0
    home, theirs = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("ours", "out"))
    torch.testing.assert_close(logits(home), logits(theirs), atol=2e-5, rtol=1e-4)
    again = run("convert", llama, *common, "--plan", tmp_path / "r.json", "--out", tmp_path / "out")
    assert again.exit_code == 1 and again.stderr.startswith("error: ") and "already exists" in again.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "either --plan or --budget, got neither"),
        (("--budget", "0.3", "--plan", "x.json"), "either --plan or --budget, got both"),
        (("--budget", "0.3", "--lr", "nan"), "--lr must be a number above 0"),
        (("--plan", "nowhere.json"), "nowhere.json: No such file"),
    ],
)
def test_wrong_options_are_said_in_one_line(options, words, llama, tmp_path):
    shown = run("convert", llama, "--out", tmp_path / "out", *options)
    (line,) = shown.stderr.splitlines()
    assert shown.exit_code == 1 and words in line
