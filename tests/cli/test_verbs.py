"""train, evaluate, generate, compare and demo as a user meets them."""

import json
import re
import shutil

import pytest
import yaml
from typer.testing import CliRunner

from longshort.cli import app
from longshort.generation.sample import text_stream
from longshort.report.demo import demo_config, introduction
from longshort.runs.log import read_log
from longshort.train.checkpoints import checkpoint


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_one_line_error(shown, *words):
    assert shown.exit_code == 1, shown.output
    (line,) = shown.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert all(word in line for word in words), line


def test_train_says_how_it_went_and_where_things_are(yaml_file, tmp_path):
    shown = run("train", yaml_file, "run.steps=2", f"run.out={tmp_path / 'run'}")
    assert shown.exit_code == 0, shown.output
    assert "step 2/2" in shown.output and "max |logit|" in shown.output and "tokens/s" in shown.output
    assert "step 2: validation loss" in shown.output
    assert f"finished at step 2; metrics and checkpoints are in {tmp_path / 'run'}" in shown.output
    shown = run("train", yaml_file, "run.steps=3", f"run.out={tmp_path / 'run'}")
    assert f"resuming {tmp_path / 'run'} at step 2" in shown.output


def test_train_takes_the_vocabulary_of_the_data_where_none_is_given_and_says_so(config, corpus, tmp_path):
    values = config.to_dict()
    del values["model"]["vocab_size"]
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump(values))
    shown = run("train", tmp_path / "bare.yaml", "run.steps=1", f"run.out={tmp_path / 'run'}")
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines().count(f"model.vocab_size: 257, the vocabulary of {corpus}") == 1
    assert read_log(tmp_path / "run")[0]["config"]["model"]["vocab_size"] == 257


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["run.step=3"], ["run has no key 'step'", "did you mean run.steps?"]),
        (["run.steps"], ["section.key=value"]),
        (["data.path=nowhere"], ["nowhere"]),
        (["stability.guard_warmup=1000", "stability.guard=skip"], ["stability.guard_warmup"]),
        (["model.vocab_size=256"], ["model.vocab_size must be at least 257"]),
        (["run.device=cuda:x"], ["device must be"]),
        (["data.length=100000", "model.positions=rotary"], ["100,000"]),
    ],
)
def test_train_ends_in_one_line_on_bad_settings(yaml_file, tmp_path, changes, words):
    assert_one_line_error(run("train", yaml_file, f"run.out={tmp_path / 'run'}", *changes), *words)


def test_train_ends_in_one_line_without_its_file_or_with_a_broken_one(tmp_path):
    assert_one_line_error(run("train", tmp_path / "nowhere.yaml"), "nowhere.yaml: no such file")
    (tmp_path / "broken.yaml").write_text("model: 5")
    assert_one_line_error(run("train", tmp_path / "broken.yaml"), "model must hold key: value pairs")


def test_evaluate_prints_a_table_by_position_and_writes_the_numbers(trained, tmp_path):
    shown = run("evaluate", trained, "--bucket", 32, "--limit", 3, "--out", tmp_path / "numbers.json")
    assert shown.exit_code == 0, shown.output
    assert "0-31" in shown.output and "32-63" in shown.output and "all, each once" in shown.output
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert (numbers["step"], numbers["split"], numbers["windows"]) == (4, "validation", 3)
    assert f"{numbers['loss']:.4f}" in shown.output


def test_evaluate_replaces_its_own_numbers_and_nothing_else(trained, tmp_path):
    for _ in range(2):
        assert run("evaluate", trained, "--limit", 1, "--out", tmp_path / "numbers.json").exit_code == 0
    before = (trained / "metrics.jsonl").read_bytes()
    shown = run("evaluate", trained, "--limit", 1, "--out", trained / "metrics.jsonl")
    assert_one_line_error(shown, "metrics.jsonl: already exists")
    assert (trained / "metrics.jsonl").read_bytes() == before


def test_evaluate_and_training_agree_on_what_the_loss_is(trained, tmp_path):
    run("evaluate", trained, "--stride", 64, "--out", tmp_path / "numbers.json")
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    (recorded,) = [record["loss"] for record in read_log(trained) if record["kind"] == "eval"]
    assert numbers["loss"] == pytest.approx(recorded, abs=0.1)


def test_generate_writes_on_from_the_prompt_and_repeats_itself_by_seed(trained):
    texts = [run("generate", trained, "--prompt", "abc", "--tokens", 20, "--seed", seed).stdout for seed in (1, 1, 2)]
    assert all(text.startswith("abc") and len(text) > 4 for text in texts)
    assert texts[0] == texts[1] != texts[2]


def test_generate_reads_a_prompt_from_standard_input(trained):
    said = run("generate", trained, "--prompt", "abc\n", "--tokens", 20, "--seed", 1).stdout
    arguments = ["generate", str(trained), "--prompt", "-", "--tokens", "20", "--seed", "1"]
    assert CliRunner().invoke(app, arguments, input="abc\n").stdout == said
    assert_one_line_error(CliRunner().invoke(app, arguments, input=b"abc\xff"), "prompt must be text in UTF-8")


def test_generate_tells_the_speed_beside_the_text_and_ends_before_a_stop_string(trained):
    greedy = ("generate", trained, "--prompt", "abc", "--tokens", 20, "--temperature", 0)
    free = run(*greedy)
    assert re.fullmatch(r"20 tokens, \d+ tokens/s\n", free.stderr), free.output
    written = free.stdout.removeprefix("abc").removesuffix("\n")
    stop = written[4:6]
    assert run(*greedy, "--stop", stop).stdout == f"abc{written[: written.index(stop)]}\n"


def test_generate_narrows_the_choice_by_probability_and_repetition(trained):
    options = ("generate", trained, "--prompt", "abc", "--tokens", 20, "--seed", 0)
    assert run(*options, "--min-p", 1).stdout == run(*options, "--temperature", 0).stdout
    unlike = run(*options, "--temperature", 0, "--repetition-penalty", 1e6).stdout
    assert len(set(unlike[:7])) == 7


def test_generate_sees_as_many_tokens_as_it_is_told(trained, monkeypatch):
    refused = CliRunner().invoke(app, ["generate", str(trained), "--context", "999"])
    assert refused.exit_code == 1 and re.search(r"context must be at most the \d+ learned positions", refused.stderr)
    told = []
    monkeypatch.setattr(
        "longshort.generation.text.generate", lambda *_, context, **__: iter(told.append(context) or ())
    )
    for given in ((), ("--context", 9)):
        run("generate", trained, *given)
    assert told == [None, 9]


def test_generate_thinks_softly_before_it_writes(trained):
    options = ("generate", trained, "--prompt", "abc", "--tokens", 20, "--temperature", 0)
    soft = (*options, "--thinking", "soft", "--thinking-end", "~")
    greedy = run(*options).stdout
    assert run(*soft, "--thinking-top-k", 1).stdout == greedy
    noisy = [run(*soft, "--seed", 0, *clamp).stdout for clamp in ((), ("--thinking-clamp", -0.1, 0.1))]
    assert noisy[0] != noisy[1]
    quiet = ("--thinking-noise", "none", "--thinking-tau", 9, "--thinking-top-k", 200, "--thinking-top-p", 1)
    assert run(*soft, *quiet).stdout not in ("", greedy)
    gaussian = ("--thinking-noise", "gaussian", "--seed", 0)
    assert len({run(*soft, *gaussian, "--thinking-sigma", sigma).stdout for sigma in (1e-9, 1.0)}) == 2


def test_text_comes_in_whole_characters(trained):
    pieces = list(text_stream(trained, "ä", max_new_tokens=60, temperature=3.0, seed=0))
    assert len(pieces) > 1 and all("\N{REPLACEMENT CHARACTER}" not in piece[-1:] for piece in pieces)


def test_a_split_that_is_empty_is_named_where_it_is_made_and_where_it_is_missed(trained, yaml_file, tmp_path):
    (tmp_path / "text.txt").write_text("all of it is for training " * 20)
    made = run("data", "--out", tmp_path / "tokens", tmp_path / "text.txt", "--split", 1, 0, 0)
    assert made.exit_code == 0 and "no text for validation and test" in made.output
    words = ["validation.tokens: empty", "--split 0.9 0.05 0.05"]
    options = [f"data.path={tmp_path / 'tokens'}", f"run.out={tmp_path / 'run'}"]
    assert_one_line_error(run("train", yaml_file, *options), *words)
    assert_one_line_error(run("evaluate", trained, "--data", tmp_path / "tokens"), *words)


def test_evaluate_reads_the_weights_once_and_tells_of_a_damaged_checkpoint_once(trained, tmp_path, caplog, monkeypatch):
    shutil.copytree(trained, tmp_path / "run")
    (good,) = (tmp_path / "run" / "checkpoints").iterdir()
    damaged = shutil.copytree(good, good.with_name("step-00009999"))
    (damaged / "model.safetensors").write_bytes(b"nothing")
    read, load_file = [], checkpoint.load_file
    monkeypatch.setattr(checkpoint, "load_file", lambda path: read.append(path) or load_file(path))
    shown = run("evaluate", tmp_path / "run", "--limit", 1)
    assert shown.exit_code == 0, shown.output
    assert read == [good / "model.safetensors", good / "trainer.safetensors"]
    assert [message.rpartition("; ")[2] for message in caplog.messages] == ["trying the one before it"]


@pytest.mark.parametrize("verb", ["evaluate", "generate"])
@pytest.mark.parametrize("state", ["[" * 100_000, "[]", '{"sha256": {}}', '{"sha256": 5, "step": 1, "config": {}}'])
def test_a_state_that_is_no_state_is_one_line(verb, state, tmp_path):
    (tmp_path / "state.json").write_text(state)
    assert_one_line_error(run(verb, tmp_path), "state.json: damaged")


@pytest.mark.parametrize("verb", ["evaluate", "generate"])
def test_a_folder_without_a_checkpoint_is_one_line(verb, tmp_path):
    assert_one_line_error(run(verb, tmp_path), str(tmp_path), "no complete checkpoint")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "--split", "tset"], ["split must be train, validation or test, got 'tset'"]),
        (["evaluate", "--data", "nowhere"], ["nowhere"]),
        (["evaluate", "--stride", "65"], ["stride"]),
        (["evaluate", "--length", "100"], ["length must be at most 64", "got 100"]),
        (["evaluate", "--yarn"], ["--yarn must come with --length N, got --yarn alone"]),
        (["evaluate", "--device", "gpu"], ["device must be auto, cpu, cuda or cuda:N, got 'gpu'"]),
        (["generate", "--prompt", ""], ["prompt must hold at least one token"]),
        (["generate", "--prompt", "a\udcff"], ["prompt must be text in UTF-8"]),
        (["generate", "--tokens", "9" * 18], ["max_new_tokens must be"]),
        (["generate", "--top-p", "1.5"], ["top_p"]),
        (["generate", "--yarn"], ["--yarn must come with --context N, got --yarn alone"]),
        (["generate", "--yarn", "--context", "99"], ["got positions='learned': no angle can be slowed"]),
        (["generate", "--thinking", "hard"], ["thinking must be soft, got 'hard'"]),
        (["generate", "--thinking", "soft"], ["thinking-end must be given with --thinking"]),
        (["generate", "--thinking-tau", "1"], ["thinking must be soft with --thinking-tau, got none"]),
        (
            ["generate", "--thinking", "soft", "--thinking-end", "</think>"],
            ["end must be one token of the tokenizer, got '</think>', which is 8"],
        ),
        (
            ["generate", "--thinking", "soft", "--thinking-end", "~", "--thinking-tau", "0"],
            ["tau must be a finite number above 0, got 0.0"],
        ),
        (["generate", "--device", "gpu"], ["device must be auto, cpu, cuda or cuda:N, got 'gpu'"]),
    ],
)
def test_bad_options_are_one_line(trained, arguments, words):
    assert_one_line_error(run(arguments[0], trained, *arguments[1:]), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "plain,pain"], ["--variants must be among", "got 'pain'"]),
        (["optimizer.lr=fast"], ["optimizer.lr must be a number"]),
        (["data.path=nowhere", "--variants", "ls"], ["nowhere"]),
    ],
)
def test_compare_ends_in_one_line_on_bad_input(yaml_file, tmp_path, arguments, words):
    shown = run("compare", yaml_file, *arguments, "--out", tmp_path / "out")
    assert_one_line_error(shown, *words)


def test_the_demo_trains_both_models_and_writes_the_report(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSHORT_CACHE", str(tmp_path / "cache"))
    shown = run("demo", "--steps", 2, "--out", tmp_path / "demo")
    assert shown.exit_code == 0, shown.output
    assert f"report: {tmp_path / 'demo' / 'report.html'}" in shown.output
    assert (tmp_path / "demo" / "report.html").is_file()
    assert "a sample from plain" in shown.output and "a sample from ls" in shown.output
    rows = json.loads((tmp_path / "demo" / "comparison.json").read_text())
    assert [row["variant"] for row in rows] == ["plain", "ls"]
    assert rows[0]["parameters"] == rows[1]["parameters"]


@pytest.mark.parametrize(
    ("verb", "name"), [("demo", "report.html"), ("demo", "comparison.json"), ("compare", "report.html")]
)
def test_a_comparison_does_not_start_where_its_results_would_replace_a_users_own(yaml_file, tmp_path, verb, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("precious")
    shown = run(verb, *([yaml_file] if verb == "compare" else []), "--out", tmp_path / "out")
    assert_one_line_error(shown, f"{name}: already exists and is not one of our files")
    assert [(path.name, path.read_text()) for path in (tmp_path / "out").iterdir()] == [(name, "precious")]


def test_the_demo_refuses_a_device_of_no_kind(tmp_path):
    assert_one_line_error(run("demo", "--device", "gpu", "--out", tmp_path), "run.device must be one of")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_demo_introduces_the_setting_that_it_runs(device):
    config = demo_config(device, steps=7)
    assert config.run.steps == 7 and config.run.device == device
    text = introduction(config)
    assert (
        f"width {config.model.width}" in text and "for 7 steps" in text and f"see {config.model.window} bytes" in text
    )
    assert demo_config(device).run.steps > 100
