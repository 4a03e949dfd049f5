"""lm-evaluation-harness scores our folders and checkpoints as a direct computation does, with tasks on this disk."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from longshort import generate
from longshort.cli import app
from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import write_folder
from longshort.train import train

from ..hf.small import gpt
from ..train.tiny import make_corpus, tiny_config

CONTEXT, NEW = 64, 12
CHOICES = [
    {"question": f"the {word} of", "choices": ["a", "any number", "some time"], "answer": i % 3}
    for i, word in enumerate(["beginning", "end", "middle", "sea", "king of the kings", "x"])
]
TEXTS = [{"text": "to be or not to be "[:length] * times} for length, times in ((9, 1), (19, 5), (17, 20))]
PROMPTS = [{"prompt": "abc" * times, "expected": "abc"} for times in range(1, 8)]
TASKS = {
    "own_choices": {
        **{"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}"},
        **{"doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
    },
    "own_text": {
        **{"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"},
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "own_answers": {
        **{"output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "{{expected}}"},
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": NEW, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def model():
    return gpt(context=CONTEXT)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with YAML files of tasks and the JSON files that they name."""
    folder = tmp_path_factory.mktemp("tasks")
    for (name, task), rows in zip(TASKS.items(), (CHOICES, TEXTS, PROMPTS), strict=True):
        data = folder / f"{name}.json"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        where = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **where, **task}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def ran(model, tasks, tmp_path_factory):
    """What the command `lm_eval` prints and writes, started where nothing imports longshort."""
    at = tmp_path_factory.mktemp("harness")
    write_folder(model, ByteTokenizer(), at / "exported")
    command = [Path(sys.executable).parent / "lm_eval", "--model", "hf", "--model_args", "pretrained=exported"]
    command += ["--tasks", ",".join(TASKS), "--include_path", tasks, "--batch_size", "auto", "--device", "cpu"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HOME": str(at / "hub"), "HF_HUB_OFFLINE": "1"}
    options = {"cwd": at, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([*command, "--output_path", "out", "--log_samples"], **options)
    assert done.returncode == 0, done.stderr
    return done, at / "out" / "exported"


def numbers(ran, task):
    (path,) = ran[1].glob("results_*.json")
    return json.loads(path.read_text(encoding="utf-8"))["results"][task]


def samples(ran, task):
    """Of each example, in their order."""
    (path,) = ran[1].glob(f"samples_{task}_*.jsonl")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return sorted(rows, key=lambda row: row["doc_id"])


def log_likelihood(model, tokens, n_targets):
    """Of the last tokens, given those before them."""
    tokens = torch.tensor(list(tokens))
    with torch.no_grad():
        scores = model(tokens[None, :-1]).logits[0].double().log_softmax(dim=-1)
    return scores[-n_targets:].gather(1, tokens[-n_targets:, None]).sum().item()


def test_choices_have_the_likelihoods_of_the_model(model, ran):
    by_sum, by_byte = [], []
    for row, example in zip(samples(ran, "own_choices"), CHOICES, strict=True):
        found = [float(value) for ((value, _),) in row["resps"]]
        answers = [f" {choice}".encode() for choice in example["choices"]]
        direct = [log_likelihood(model, example["question"].encode() + answer, len(answer)) for answer in answers]
        assert found == pytest.approx(direct, abs=1e-3)
        by_sum.append(direct.index(max(direct)) == example["answer"])
        per_byte = [value / len(choice) for value, choice in zip(direct, example["choices"], strict=True)]
        by_byte.append(per_byte.index(max(per_byte)) == example["answer"])
    shown = numbers(ran, "own_choices")
    assert shown["acc,none"] == pytest.approx(sum(by_sum) / len(CHOICES))
    assert shown["acc_norm,none"] == pytest.approx(sum(by_byte) / len(CHOICES))


def test_texts_longer_than_the_context_have_the_bits_of_the_model(model, ran):
    total = 0.0
    for row in TEXTS:
        tokens = [256, *row["text"].encode()]
        for start in range(1, len(tokens), CONTEXT):
            end = min(start + CONTEXT, len(tokens))
            total += log_likelihood(model, tokens[max(0, end - CONTEXT - 1) : end], end - start)
    direct = -total / math.log(2) / sum(len(row["text"]) for row in TEXTS)
    assert numbers(ran, "own_text")["bits_per_byte,none"] == pytest.approx(direct, rel=1e-5)


def test_answers_are_those_of_our_own_generation(model, ran):
    tokenizer = ByteTokenizer()
    for row, example in zip(samples(ran, "own_answers"), PROMPTS, strict=True):
        prompt = torch.tensor([list(example["prompt"].encode())])
        written = torch.cat(list(generate(model, prompt, max_new_tokens=NEW, temperature=0.0, stop=256))).tolist()
        text = tokenizer.decode([token for token in written if token < 256])
        assert row["resps"] == [[text.split("\n")[0]]]


def test_the_command_warns_of_nothing_of_ours(ran):
    assert "longshort" not in ran[0].stderr and "neither marked as CausalLM" not in ran[0].stderr


def tables(*arguments):
    shown = CliRunner().invoke(app, ["evaluate", *map(str, arguments), "--device", "cpu"])
    assert shown.exit_code == 0, shown.output
    return [line for line in shown.stdout.splitlines() if line.startswith("|")]


def test_the_verb_prints_the_table_of_the_command(ran, tasks):
    table = tables(ran[1].parents[1] / "exported", "--harness", ",".join(TASKS), "--include", tasks)
    assert len(table) == 6 and table == [line for line in ran[0].stdout.splitlines() if line.startswith("|")]


def test_a_run_has_the_table_of_its_export(tasks, tmp_path):
    run = train(tiny_config(make_corpus(tmp_path), tmp_path / "run", "run.steps=2")).out
    options = ["--harness", "own_*", "--include", tasks, "--limit", "3"]
    table = tables(run, *options, "--out", tmp_path / "numbers.json")
    saved = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    assert saved["n-samples"]["own_answers"]["effective"] == 3
    assert CliRunner().invoke(app, ["export", str(run), str(tmp_path / "exported")]).exit_code == 0
    assert table == tables(tmp_path / "exported", *options)


def test_the_task_of_the_page_runs(ran, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "hugging-face.md").read_text(encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "capitals.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.S)[1], encoding="utf-8")
    line = re.search(r'`(\{"country".*?\})`', page)[1]
    (tmp_path / "tasks" / "capitals.json").write_text(line + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "|capitals|" in tables(ran[1].parents[1] / "exported", "--harness", "capitals", "--include", "tasks")[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--harness", "no-such-task"], "got 'no-such-task'"),
        (["--harness", ","], "at least one task"),
        (["--harness", "own_text", "--include", "nowhere"], "--include must be a folder"),
        (["--harness", "own_text", "--stride", "4"], "--stride must not be given with --harness"),
        (["--harness", "own_text", "--split", "test"], "--split must not be given with --harness"),
        (["--include", "tasks"], "--include must be given with --harness"),
    ],
)
def test_what_the_verb_cannot_do_is_said_in_one_line(arguments, words):
    shown = CliRunner().invoke(app, ["evaluate", "runs/mine", *arguments])
    assert shown.exit_code == 1 and words in shown.stderr and len(shown.stderr.splitlines()) == 1
