"""Files that an earlier version wrote must go on working: see tests/fixtures/README.md."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from longshort import generate
from longshort.cli import app
from longshort.losses import LossSettings
from longshort.runs import read_log
from longshort.train import TrainConfig, load_model, train

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
PROMPT = "the long head sees far and short heads see"
TOKENS = torch.tensor([list(PROMPT.encode())])
NEW = 6
"""Tokens to write: the prompt and they fit into the context of 48."""


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, folder / name))


def call(*arguments: object) -> str:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", ["run", "damped", "imported"])
def test_a_checkpoint_gives_the_logits_and_the_text_that_it_gave(name):
    model, _ = load_model(FIXTURES / name)
    with torch.no_grad():
        logits = model(TOKENS).logits[0, -1, :8]
    torch.testing.assert_close(logits, torch.tensor(EXPECTED[name]["logits"]), rtol=0, atol=2e-5)
    assert list(generate(model, TOKENS, max_new_tokens=NEW, temperature=0.0)) == EXPECTED[name]["generated"][:NEW]


@pytest.mark.parametrize(("name", "steps"), [("run", 16), ("damped", 8)])
def test_a_run_is_resumed_with_the_losses_that_it_had(name, steps, tmp_path):
    out = copied(name, tmp_path)
    overrides = [f"run.out={out}", f"data.path={FIXTURES / 'data'}", f"run.steps={steps}"]
    assert train(TrainConfig.load(FIXTURES / f"{name}.yaml", overrides)).status == "finished"
    records = read_log(out)
    found = {r["step"]: r["loss"] for r in records if r["kind"] == "train" and r["step"] > steps - 4}
    assert found == pytest.approx(dict(EXPECTED[name]["resumed"]), abs=2e-5)
    assert {"kind": "resume", "step": steps - 4} in records


def test_a_run_is_reported_generated_from_and_evaluated(tmp_path):
    run = copied("run", tmp_path)
    call("report", run, copied("damped", tmp_path), "--out", tmp_path / "report.html", "--no-png")
    assert "damped" in (tmp_path / "report.html").read_text()
    assert PROMPT in call("generate", run, "--prompt", PROMPT, "--tokens", NEW, "--temperature", 0)
    written = tmp_path / "scores.json"
    call("evaluate", run, "--data", FIXTURES / "data", "--limit", 2, "--out", written)
    assert json.loads(written.read_text())["step"] == 12


@pytest.mark.parametrize(("name", "export"), [("run", "exported-run"), ("imported", "exported-gpt2")])
def test_an_export_and_what_is_exported_today_load_as_the_same_model(name, export, tmp_path):
    transformers = pytest.importorskip("transformers")
    call("export", copied(name, tmp_path), tmp_path / "today")
    import longshort.hf  # noqa: F401

    for folder in (FIXTURES / export, tmp_path / "today"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert transformers.AutoTokenizer.from_pretrained(folder).encode(PROMPT) == TOKENS[0].tolist()
        with torch.no_grad():
            logits = model(TOKENS).logits[0, -1, :8]
        torch.testing.assert_close(logits, torch.tensor(EXPECTED[export]["logits"]), rtol=0, atol=2e-5)
        written = model.generate(TOKENS, max_new_tokens=NEW, do_sample=False)[0].tolist()
        assert written == EXPECTED[export]["generated"][: TOKENS.shape[1] + NEW]


def test_a_damped_run_is_exported_with_its_loss(tmp_path):
    transformers = pytest.importorskip("transformers")
    call("export", FIXTURES / "damped", tmp_path / "today")
    import longshort.hf  # noqa: F401

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "today")
    assert model.model.config.loss == LossSettings(exponent=0.5, z_loss=1e-4)
    with torch.no_grad():
        logits = model(TOKENS).logits[0, -1, :8]
    torch.testing.assert_close(logits, torch.tensor(EXPECTED["damped"]["logits"]), rtol=0, atol=2e-5)


def test_gpt2_is_imported_as_it_was(tmp_path):
    pytest.importorskip("transformers")
    call("import", FIXTURES / "gpt2", "--out", tmp_path / "imported", "--tokenizer", "bytes")
    weights, before = (load_model(folder)[0].state_dict() for folder in (tmp_path / "imported", FIXTURES / "imported"))
    assert weights.keys() == before.keys()
    assert all(torch.equal(weights[key], before[key]) for key in before)
