"""`longshort inspect` from the command line."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from longshort.cli import app
from longshort.data import ByteTokenizer
from longshort.hf import fast_tokenizer
from longshort.report import heads

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("hub") / "llama"
    LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=257, num_key_value_heads=2)).save_pretrained(path)
    fast_tokenizer(ByteTokenizer()).save_pretrained(path)
    (path.parent / "text.txt").write_text("What each head can see, and what it cannot. " * 40)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_a_record_and_a_page_are_written(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "vega_script", lambda: "")  # bundling it takes seconds
    out = tmp_path / "found" / "llama.json"
    common = (folder, "--text", folder.parent / "text.txt", "--length", 200, "--rows", 4, "--out", out)
    shown = run(*common, "--budget", "0.3")
    assert shown.exit_code == 0, shown.output
    record = json.loads(out.read_text())
    assert shown.stdout.startswith("Of 8 heads, ") and f"its loss is {record['proposal']['loss']:.4f}" in shown.stdout
    assert shown.stdout.splitlines()[-2:] == [f"wrote {out}", f"wrote {out.with_suffix('.html')}"]
    assert record["heads"]["retrieval"] is not None and record["text"]["length"] == 200
    assert "--budget 0.3 --rows 4" in out.with_suffix(".html").read_text()
    assert run(*common, "--no-page").exit_code == 0  # it may be replaced
    assert "proposal" not in json.loads(out.read_text())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--budget", "much"), "--budget must be a share"),
        (("--budget", "0.001"), "the budget must allow windows of 8 keys"),
        (("--out", "x.html"), "--out must end in .json"),
        (("--text", "nowhere.txt"), "nowhere.txt"),
        (("--length", "9999"), "--length must be from 16 to the model's 2,048 positions"),
        (("--device", "tpu"), "device must be"),
        (("--out", "text.json"), "already exists and is not one of our files"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options, words, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("{}")
    shown = run(folder, "--text", folder.parent / "text.txt", "--rows", 2, "--length", 64, *options)
    (line,) = shown.stderr.splitlines()
    assert shown.exit_code == 1 and line.startswith("error: ") and words in line
    assert not (tmp_path / "inspect.json").exists()
