"""A folder that transformers opens by itself: written whole or not at all, by a function and by the command line."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, pipeline
from typer.testing import CliRunner

from longshort import generate
from longshort.cli import app
from longshort.data.ends import read_ends
from longshort.data.tokenizer import BPETokenizer, ByteTokenizer, load_tokenizer
from longshort.hf import LongShortForCausalLM, folder, write_folder
from longshort.train import load_model, train

from ..train.tiny import make_corpus, tiny_config
from .small import gpt

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "hugging-face.md"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of two steps."""
    data = make_corpus(tmp_path_factory.mktemp("corpus"))
    return train(tiny_config(data, tmp_path_factory.mktemp("runs") / "run", "run.steps=2")).out


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "deep" / "model"
    shown = CliRunner().invoke(app, ["export", str(trained), str(out), "--format", "hf"])
    assert shown.exit_code == 0, shown.output
    assert f"wrote {out}" in shown.output
    return out


def test_the_exported_model_writes_what_the_checkpoint_writes(trained, exported):
    ours, _ = load_model(trained)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
    assert isinstance(model, LongShortForCausalLM)
    prompt = tokenizer("abc def", return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :].tolist()
    expected = torch.cat(list(generate(ours, prompt["input_ids"], max_new_tokens=20, temperature=0.0, stop=256)))
    assert out == expected.tolist()
    assert model.generation_config.eos_token_id == model.generation_config.pad_token_id == 256
    assert tokenizer.model_max_length == ours.config.context


def test_the_card_says_what_the_model_is_and_how_it_was_trained(trained, exported, tmp_path):
    card = (exported / "README.md").read_text()
    head, facts = yaml.safe_load(card.split("---")[1]), dict(re.findall(r"^\| (.+?) \| (.+) \|$", card, re.MULTILINE))
    model, loaded = load_model(trained)
    assert head["library_name"] == "transformers" and head["pipeline_tag"] == "text-generation"
    assert facts["parameters"] == f"{model.n_parameters():,}" and facts["steps"] == "2"
    batch, length = loaded.state["config"]["data"]["batch_size"], model.config.context
    assert facts["tokens seen"] == f"{2 * batch * length:,}, in sequences of {length:,}"
    assert "global head" in facts["reach"] and str(trained) not in card
    write_folder(model, None, tmp_path / "plain")
    assert "## Training" not in (tmp_path / "plain" / "README.md").read_text()


def run(*arguments):
    shown = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def test_generate_and_evaluate_take_the_folder_as_they_take_the_run(trained, exported, tmp_path):
    options = ("--prompt", "abc", "--tokens", 20, "--seed", 0, "--device", "cpu")
    assert run("generate", exported, *options) == run("generate", trained, *options)
    data, found = load_model(trained)[1].state["config"]["data"]["path"], {}
    for model in (exported, trained):
        run("evaluate", model, "--data", data, "--limit", 3, "--device", "cpu", "--out", tmp_path / model.name)
        found[model] = json.loads((tmp_path / model.name).read_text())
    assert found[exported]["loss"] == found[trained]["loss"]
    assert found[exported]["buckets"] == found[trained]["buckets"]


def test_an_exported_folder_does_not_say_its_data(exported):
    shown = CliRunner().invoke(app, ["evaluate", str(exported)])
    assert shown.exit_code == 1 and "error: --data must be given" in shown.stderr


def test_a_model_that_transformers_changed_and_saved_comes_home(exported, tmp_path):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    for part in (model.to(torch.bfloat16), tokenizer):
        part.save_pretrained(tmp_path / "tuned")
    run("import", tmp_path / "tuned", "--out", tmp_path / "run")
    home, tokens = load_model(tmp_path / "run")[0], torch.randint(257, (1, 20))
    with torch.no_grad():
        torch.testing.assert_close(home(tokens).logits, model.float()(tokens).logits)


@pytest.mark.parametrize("written", ["as a file", "in the configuration", "by name"])
def test_a_chat_template_travels_through_import_and_export(exported, tmp_path, written):
    template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    shutil.copytree(exported, tmp_path / "theirs")
    if written == "as a file":
        (tmp_path / "theirs" / "chat_template.jinja").write_text(template)
    else:
        listed = [{"name": "tools", "template": "no"}, {"name": "default", "template": template}]
        file = tmp_path / "theirs" / "tokenizer_config.json"
        values = {"chat_template": template if written == "in the configuration" else listed}
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    run("import", tmp_path / "theirs", "--out", tmp_path / "run")
    run("export", tmp_path / "run", tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "[hi][yes]"


def test_the_ends_of_turns_travel_through_import_and_export_and_end_texts(exported, tmp_path):
    options = ("--prompt", "abc", "--tokens", 20, "--temperature", 0, "--device", "cpu")
    written = AutoModelForCausalLM.from_pretrained(exported).generate(
        torch.tensor([list(b"abc")]), max_new_tokens=20, do_sample=False
    )
    turn = int(written[0, 8])  # as if it ended a turn
    first = written[0, 3:].tolist().index(turn)
    shutil.copytree(exported, tmp_path / "theirs")
    named = {"eos_token_id": [turn, 256, 99999, None, turn, True]}
    (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps(named))
    run("import", tmp_path / "theirs", "--out", tmp_path / "run")
    run("export", tmp_path / "run", tmp_path / "ours")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert ours.generation_config.eos_token_id == [turn, 256]
    text = AutoTokenizer.from_pretrained(exported).decode(written[0, : 4 + first])
    for name in ("theirs", "run", "ours"):
        assert run("generate", tmp_path / name, *options) == f"{text}\n"
    run("import", tmp_path / "ours", "--out", tmp_path / "again")
    assert read_ends(tmp_path / "again", load_tokenizer(tmp_path / "again")) == (turn,)
    run("import", exported, "--out", tmp_path / "plain")
    assert not (tmp_path / "plain" / "generation_config.json").exists()


@pytest.mark.parametrize("found", ["", "[]", "{}", '{"eos_token_id": null}', '{"eos_token_id": "</s>"}', b"\xff"])
def test_a_file_that_names_no_ends_is_as_good_as_none(tmp_path, found):
    file = tmp_path / "generation_config.json"
    file.write_bytes(found if isinstance(found, bytes) else found.encode())
    assert read_ends(tmp_path, ByteTokenizer()) == ()


def test_the_pipeline_takes_the_folder(exported):
    write = pipeline("text-generation", model=str(exported), device="cpu")
    one, *_ = write("abc", max_new_tokens=5, do_sample=False)
    assert one["generated_text"].startswith("abc")
    rows = write(["abc def gh", "a"], max_new_tokens=5, do_sample=False, batch_size=2)
    assert [row[0]["generated_text"] for row in rows][1] == write("a", max_new_tokens=5, do_sample=False)[0][
        "generated_text"
    ]


@pytest.mark.parametrize("saved", ["by the export", pytest.param("again by transformers", marks=pytest.mark.slow)])
def test_a_program_that_knows_nothing_of_longshort_opens_it_by_trusting_it(exported, tmp_path, saved):
    if saved != "by the export":
        LongShortForCausalLM.from_pretrained(exported).save_pretrained(tmp_path / "tuned")
        exported = tmp_path / "tuned"
    code = f"""
import sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(exported)!r}, trust_remote_code=True)
print(type(model).__module__, model.config.local_window)
"""
    environment = {"HF_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["longshort.hf.modeling", "8"], done.stderr


def test_a_folder_is_never_overwritten(trained, exported):
    before = {path.name: path.stat().st_mtime_ns for path in exported.iterdir()}
    shown = CliRunner().invoke(app, ["export", str(trained), str(exported)])
    assert shown.exit_code == 1
    (line,) = shown.stderr.strip().splitlines()
    assert line.startswith("error: ") and "already exists" in line
    assert {path.name: path.stat().st_mtime_ns for path in exported.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nowhere", "out"], "nowhere: no such folder"), (["x", "y", "--format", "gguf"], "'gguf'")],
)
def test_bad_arguments_end_in_one_line(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["export", *arguments])
    assert shown.exit_code == 1
    (line,) = shown.stderr.strip().splitlines()
    assert line.startswith("error: ") and words in line
    assert not list(tmp_path.iterdir())


def test_what_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(folder, "fast_tokenizer", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_folder(gpt(), ByteTokenizer(), tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("writer", "kind"), [(LongShortForCausalLM, SafetensorError), (PreTrainedTokenizerFast, Exception)]
)
def test_a_full_disk_is_an_os_error_that_names_the_folder(tmp_path, monkeypatch, writer, kind):
    def full_disk(*arguments, **options):
        raise kind("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(writer, "save_pretrained", full_disk)
    with pytest.raises(OSError, match=f"cannot write {tmp_path / 'model'}: .*No space left"):
        write_folder(gpt(), ByteTokenizer(), tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shown", [False, True])
def test_progress_bars_are_shown_afterwards_as_before(tmp_path, monkeypatch, shown):
    bars = transformers.utils.logging
    monkeypatch.setattr(bars, "_tqdm_active", shown)
    write_folder(gpt(), None, tmp_path / "model")
    assert bars.is_progress_bar_enabled() is shown


def test_a_checkpoint_may_be_named_by_text(trained):
    assert load_model(str(trained), "cpu")[1].path == load_model(trained)[1].path


def test_a_model_with_a_trained_vocabulary_takes_it_along(tmp_path):
    tokenizer = BPETokenizer.train(["to be or not to be"], vocab_size=260)
    write_folder(gpt(vocab_size=300), tokenizer, str(tmp_path / "model"))
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert loaded("to be!")["input_ids"] == tokenizer.encode("to be!").tolist()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").config.eos_token_id == tokenizer.end_of_document


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no more tokens than the model, 256, got 257"):
        write_folder(gpt(vocab_size=256), ByteTokenizer(), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_python_of_the_page_runs_beside_an_exported_folder(exported, monkeypatch, capsys):
    monkeypatch.chdir(exported.parent)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example.replace('"exported"', f'"{exported.name}"'), str(PAGE), "exec"), {"__name__": "example"})
    assert "def main():" in capsys.readouterr().out


@pytest.mark.slow
def test_transformers_serve_finds_the_class_in_the_package_whatever_was_imported_since():
    code = "import longshort.hf; from transformers import LlamaForCausalLM, AutoProcessor; import transformers; "
    subprocess.run([sys.executable, "-c", code + "transformers.LongShortForCausalLM"], check=True)
    assert transformers.LongShortForCausalLM is LongShortForCausalLM


def test_the_module_runs_the_command_line_of_transformers(monkeypatch, capsys):
    pytest.importorskip("transformers.cli.transformers", exc_type=ImportError)  # needs requests in older versions
    monkeypatch.setattr(sys, "argv", ["longshort.hf", "version"])
    with pytest.raises(SystemExit):
        runpy.run_module("longshort.hf", run_name="__main__")
    assert capsys.readouterr().out.strip() == transformers.__version__


@pytest.mark.parametrize("arguments", [[], ["serve"], ["reach"]])
def test_help_of_the_module_shows_the_command_to_type(arguments, monkeypatch, capsys):
    if arguments != ["reach"]:
        pytest.importorskip("transformers.cli.transformers", exc_type=ImportError)
    monkeypatch.setattr(sys, "argv", ["longshort.hf", *arguments, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_module("longshort.hf", run_name="__main__")
    assert f"Usage: {' '.join(['python -m longshort.hf', *arguments])} " in capsys.readouterr().out
