"""`longshort import`: what it makes is a run that generate, evaluate and train take."""

import pytest
import torch
import transformers
import yaml
from safetensors import SafetensorError
from typer.testing import CliRunner

from longshort import GPT, GPTConfig
from longshort.cli import app
from longshort.data.tokenizer import BPETokenizer, ByteTokenizer
from longshort.hf.importers.run import import_as_run, save_as_run
from longshort.runs.log import read_log
from longshort.train import load_model
from longshort.train.checkpoints import checkpoint as checkpoint_module
from longshort.train.checkpoints.checkpoint import CheckpointError


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def theirs():
    config = {"vocab_size": 257, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)).eval()


@pytest.fixture
def imported(theirs, tmp_path):
    """The folder of a run made of a saved GPT-2."""
    theirs.save_pretrained(tmp_path / "gpt2")
    shown = run("import", tmp_path / "gpt2", "--out", tmp_path / "run", "--tokenizer", "bytes")
    assert shown.exit_code == 0, shown.output
    assert "step-00000000" in shown.output
    return tmp_path / "run"


def test_an_imported_run_loads_as_the_model_it_came_from(theirs, imported):
    model, _ = load_model(imported)
    tokens = torch.randint(257, (1, 60))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, theirs(tokens).logits, atol=2e-5, rtol=2e-5)


def test_an_imported_run_generates_and_is_evaluated(imported, corpus):
    shown = run("generate", imported, "--prompt", "ab", "--tokens", 5, "--device", "cpu", "--seed", 0)
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("ab")
    shown = run("evaluate", imported, "--data", corpus, "--limit", 2, "--device", "cpu")
    assert shown.exit_code == 0, shown.output


def test_training_goes_on_from_imported_weights_with_settings_of_its_own(imported, corpus):
    before, _ = load_model(imported)
    settings = [f"data.path={corpus}", "data.batch_size=4", "optimizer.lr=1e-6", "run.steps=2", "run.device=cpu"]
    shown = run("train", imported / "config.yaml", *settings)
    assert shown.exit_code == 0, shown.output
    after, checkpoint = load_model(imported)
    assert "imported" not in checkpoint.state
    assert checkpoint.step == 2
    torch.testing.assert_close(after.embedding.weight, before.embedding.weight, atol=1e-4, rtol=0)
    assert read_log(imported)[0]["kind"] == "run"
    shown = run("train", imported / "config.yaml", *settings, "run.steps=3")
    assert "resuming" in shown.output and load_model(imported)[1].step == 3


def test_training_another_model_on_imported_weights_is_refused(imported, corpus):
    shown = run("train", imported / "config.yaml", f"data.path={corpus}", "model.activation=gelu")
    assert shown.exit_code == 1
    assert "model.mlp='gelu_tanh'" in shown.stderr


def test_training_on_another_vocabulary_is_refused(imported, corpus, tmp_path):
    model, _ = load_model(imported)
    save_as_run(model, tmp_path / "without")
    settings = [f"data.path={corpus}", "data.batch_size=4", "run.steps=1", "run.device=cpu"]
    shown = run("train", tmp_path / "without" / "config.yaml", *settings)
    assert shown.exit_code == 0, shown.output  # of weights without a tokenizer the vocabulary is not known

    class Other(ByteTokenizer):
        fingerprint = "another"

    save_as_run(model, tmp_path / "other", tokenizer=Other())
    shown = run("train", tmp_path / "other" / "config.yaml", *settings)
    assert shown.exit_code == 1
    assert "another vocabulary" in shown.stderr and f"--tokenizer {tmp_path / 'other'}" in shown.stderr


def test_the_authors_file_is_imported_with_what_it_does_not_say(tmp_path):
    ours = GPT(GPTConfig(vocab_size=257, context=32, n_layers=1, width=16, n_heads=2, n_global=1, window=4)).eval()
    names = {"embedding": "wte", "position_embedding": "wpe", "norm": "ln_f", "head": "lm_head", "blocks": "h"}
    inner = {"attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj"}
    inner |= {"mlp_norm": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    state = {}
    for name, tensor in ours.state_dict().items():
        first, _, rest = name.partition(".")
        if first == "blocks":
            layer, _, rest = rest.partition(".")
            rest = f"{layer}.{inner[rest.rpartition('.')[0]]}.weight"
        state[f"{names[first]}.{rest}"] = tensor
    torch.save({"model": state, "model_args": {"n_head": 2}}, tmp_path / "ckpt.pt")
    shown = run("import", tmp_path / "ckpt.pt", "--out", tmp_path / "run")
    assert shown.exit_code == 1
    assert "n_global" in shown.stderr and "window, or span" in shown.stderr and len(shown.stderr.splitlines()) == 1
    (tmp_path / "ckpt.pt").rename(tmp_path / "ckpt.pth")
    given = ("--global-heads", 1, "--span", 3, "--activation", "gelu_tanh")
    shown = run("import", tmp_path / "ckpt.pth", "--out", tmp_path / "run", *given)
    assert shown.exit_code == 0, shown.output
    assert "no tokenizer" in shown.stderr
    found = load_model(tmp_path / "run")[0].config
    assert (found.window, found.mlp) == (4, "gelu_tanh")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]["n_global"] == 1


def test_the_tokenizer_is_the_one_that_is_named_or_else_the_one_beside_the_weights(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "gpt2")
    beside = BPETokenizer.train(["to be or not to be"], 257)
    beside.save(tmp_path / "gpt2" / "tokenizer.json")
    named = import_as_run(tmp_path / "gpt2", tmp_path / "named", tokenizer="bytes")
    assert named.tokenizer.fingerprint == ByteTokenizer().fingerprint
    found = import_as_run(tmp_path / "gpt2" / "model.safetensors", tmp_path / "found")
    assert found.tokenizer.fingerprint == beside.fingerprint


def test_a_folder_that_holds_a_run_or_anything_else_is_left_alone(imported, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.yaml").write_text("precious")
    for folder in (imported, tmp_path / "notes"):
        shown = run("import", tmp_path / "gpt2", "--out", folder)
        assert shown.exit_code == 1
        assert f"{folder}: already exists" in shown.stderr
    assert (tmp_path / "notes" / "config.yaml").read_text() == "precious"


def test_an_import_that_fails_leaves_nothing_and_can_be_repeated(theirs, tmp_path, monkeypatch):
    def full(tensors, path):
        raise SafetensorError("No space left on device (os error 28)")

    theirs.save_pretrained(tmp_path / "gpt2")
    arguments = ("import", tmp_path / "gpt2", "--out", tmp_path / "run", "--tokenizer", "bytes")
    monkeypatch.setattr(checkpoint_module, "save_file", full)
    shown = run(*arguments)
    assert shown.exit_code == 1 and "No space left on device" in shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gpt2"]
    monkeypatch.undo()
    shown = run(*arguments)
    assert shown.exit_code == 0, shown.output
    assert f"wrote {tmp_path / 'run' / 'checkpoints' / 'step-00000000'}\n" in shown.output
    assert load_model(tmp_path / "run")[1].path.is_dir()


def test_options_of_the_author_are_refused_for_gpt2_and_a_large_tokenizer_for_a_small_model(tmp_path, imported):
    shown = run("import", tmp_path / "gpt2", "--out", tmp_path / "b", "--window", 5)
    assert shown.exit_code == 1
    assert "window must be left out unless source is an author's" in shown.stderr
    shown = run("import", tmp_path / "gpt2", "--out", tmp_path / "b", "--activation", "gelu")
    assert "activation must be left out unless source is an author's" in shown.stderr
    model = GPT(GPTConfig.preset("tiny", vocab_size=256))
    with pytest.raises(ValueError, match="no more tokens than the model, 256, got 257"):
        save_as_run(model, tmp_path / "c", tokenizer=ByteTokenizer())


def test_without_a_tokenizer_generate_says_what_is_missing(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "gpt2")
    run("import", tmp_path / "gpt2", "--out", tmp_path / "run")
    shown = run("generate", tmp_path / "run")
    assert shown.exit_code == 1
    assert "tokenizer.json" in shown.stderr
    with pytest.raises(CheckpointError):
        load_model(tmp_path / "gpt2")
