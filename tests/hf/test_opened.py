"""Models whose tokenizer begins every text with a token: written, scored and asked as transformers would."""

import json
import shutil
import sys
import types

import pytest
import torch
import transformers
from tokenizers.processors import TemplateProcessing
from typer.testing import CliRunner

from longshort.cli import app
from longshort.data.tokenizer import BPETokenizer
from longshort.data.tokens import TokenFile
from longshort.hf import harness
from longshort.hf.opened import open_language_model
from longshort.train.evaluation import retrieval

TEXT = " ".join(f"the cat number {n} sat on mat {n * n % 97}, and the dog lay on the log" for n in range(200))
CPU = torch.device("cpu")


def run(*arguments):
    shown = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.fixture(scope="module")
def tokenizer():
    """One that begins texts, as Llama's does."""
    inner = BPETokenizer.train([TEXT], vocab_size=300)._inner
    inner.add_special_tokens(["<|begin_of_text|>"])
    begin = inner.token_to_id("<|begin_of_text|>")
    inner.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<|begin_of_text|>", eos_token="<|endoftext|>"
    )


@pytest.fixture(scope="module")
def theirs(tokenizer):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=256, initializer_range=0.5, **sizes
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folders(theirs, tokenizer, tmp_path_factory):
    """The Llama's folder and the run that it is imported as, with a text in its tokens."""
    root = tmp_path_factory.mktemp("llama")
    theirs.save_pretrained(root / "folder")
    tokenizer.save_pretrained(root / "folder")
    run("import", root / "folder", "--out", root / "run")
    (root / "text.txt").write_text(TEXT)
    run("data", root / "text.txt", "--tokenizer", root / "folder", "--out", root / "data", "--split", 0.5, 0.5, 0)
    return root


@pytest.fixture(params=["folder", "run"])
def model(folders, request):
    return folders / request.param


def evaluated(folders, model, *options):
    run("evaluate", model, "--data", folders / "data", "--device", "cpu", "--out", folders / "found.json", *options)
    return json.loads((folders / "found.json").read_text())


def test_text_goes_on_as_in_transformers(theirs, tokenizer, folders, model):
    asked = tokenizer("the cat", return_tensors="pt")
    assert asked.input_ids[0, 0] == tokenizer.bos_token_id
    expected = theirs.generate(**asked, max_new_tokens=12, do_sample=False, pad_token_id=0)[0]
    written = tokenizer.decode(expected, skip_special_tokens=True).rstrip("\N{REPLACEMENT CHARACTER}")
    assert run("generate", model, "--prompt", "the cat", "--tokens", 12, "--temperature", 0).startswith(written)


@torch.no_grad()
def test_the_loss_of_one_window_is_that_of_transformers_on_the_same_text(theirs, tokenizer, folders, model):
    tokens = TokenFile.open(folders / "data" / "validation.tokens")
    asked = tokenizer(tokenizer.decode(tokens.tokens[:40]), return_tensors="pt").input_ids
    assert asked[0].tolist() == [tokenizer.bos_token_id, *tokens.tokens[:40].tolist()]
    found = evaluated(folders, model, "--length", 40, "--limit", 1)
    assert found["loss"] == pytest.approx(theirs(asked, labels=asked).loss.item(), rel=1e-5)
    assert found["tokens"] == 40 and found["beginning"] == [tokenizer.bos_token_id]


@torch.no_grad()
def test_every_window_begins_with_it_and_every_token_of_the_text_counts_once(theirs, tokenizer, folders, model):
    text = torch.tensor(TokenFile.open(folders / "data" / "validation.tokens").tokens.astype("int64"))
    losses, start, last = {}, 0, len(text) - 64
    while len(losses) < len(text):
        row = torch.cat((torch.tensor([tokenizer.bos_token_id]), text[start : start + 64]))[None]
        logits = theirs(row).logits[0, :-1]
        for place, loss in enumerate(torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="none").tolist()):
            losses.setdefault(start + place, loss)
        start = min(start + 48, last)
    found = evaluated(folders, model, "--length", 64, "--stride", 48)
    assert found["tokens"] == len(text)
    assert found["loss"] == pytest.approx(sum(losses.values()) / len(losses), rel=1e-5)


def test_the_sequences_of_the_retrieval_suite_begin_with_it(tokenizer, folders, model, monkeypatch):
    seen, answers = [], retrieval.model_answers
    monkeypatch.setattr(
        retrieval, "model_answers", lambda model, tokens, *rest: seen.append(tokens) or answers(model, tokens, *rest)
    )
    run("evaluate", model, "--suite", "retrieval", "--length", 250, "--limit", 2, "--device", "cpu")
    assert seen and all(tokens.shape == (2, 250) for tokens in seen)
    assert all((tokens[:, 0] == tokenizer.bos_token_id).all() for tokens in seen)
    assert not any((tokens[:, 1:] == tokenizer.bos_token_id).any() for tokens in seen)


def for_the_harness(path, monkeypatch):
    """What lm-evaluation-harness, which need not be installed, is given."""
    for name in ("lm_eval", "lm_eval.models", "lm_eval.models.huggingface"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["lm_eval.models.huggingface"].HFLM = dict
    return harness._opened(path, CPU)


def test_a_run_that_was_trained_with_such_a_tokenizer_gets_the_text_alone(tokenizer, folders, tmp_path, monkeypatch):
    start = (folders / "run" / "config.yaml").read_text().replace(str(folders / "run"), str(tmp_path / "run"))
    (tmp_path / "own.yaml").write_text(start)
    settings = ("run.steps=1", "run.device=cpu", "data.length=32", "data.batch_size=2")
    run("train", tmp_path / "own.yaml", f"data.path={folders / 'data'}", *settings)
    assert open_language_model(tmp_path / "run", CPU).beginning == ()
    run("export", tmp_path / "run", tmp_path / "exported")
    sizes = ("--length", 40, "--limit", 1)
    mine, exported = (evaluated(folders, tmp_path / name, *sizes) for name in ("run", "exported"))
    assert exported["loss"] == pytest.approx(mine["loss"], rel=1e-5) and "beginning" not in mine | exported
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert fast("the cat").input_ids == tokenizer("the cat").input_ids[1:]
    assert fast.bos_token_id == fast.eos_token_id == tokenizer.eos_token_id
    assert for_the_harness(tmp_path / "run", monkeypatch)["tokenizer"].bos_token_id == tokenizer.eos_token_id


def test_an_imported_model_that_is_exported_begins_texts_as_before(tokenizer, folders, tmp_path):
    run("export", folders / "run", tmp_path / "exported")
    assert open_language_model(tmp_path / "exported", CPU).beginning == (tokenizer.bos_token_id,)
    assert "## Training" not in (tmp_path / "exported" / "README.md").read_text()  # of which the run knows nothing


def test_an_imported_model_that_is_exported_keeps_the_token_that_begins_texts(tokenizer, folders, tmp_path):
    shutil.copytree(folders / "run", tmp_path / "run")
    (tmp_path / "run" / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    run("export", tmp_path / "run", tmp_path / "exported")
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    chat = fast.apply_chat_template([{"role": "user", "content": "the cat"}], tokenize=False)
    assert chat == "<|begin_of_text|>the cat<|endoftext|>"
    assert fast("the cat").input_ids == tokenizer("the cat").input_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert model.config.bos_token_id == model.generation_config.bos_token_id == tokenizer.bos_token_id
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_the_harness_begins_an_empty_text_of_an_imported_model_with_it(tokenizer, folders, monkeypatch):
    given = for_the_harness(folders / "run", monkeypatch)
    assert given["tokenizer"].bos_token_id == given["pretrained"].config.bos_token_id == tokenizer.bos_token_id


def test_an_imported_model_without_a_tokenizer_is_scored_on_the_text_alone(folders, theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "bare")
    run("import", tmp_path / "bare", "--out", tmp_path / "run")
    assert "beginning" not in evaluated(folders, tmp_path / "run", "--length", 40, "--limit", 1)
