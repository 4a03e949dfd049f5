"""transformers opens our folders in a program that never names longshort, and costs others nothing."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import longshort_autoload
from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import write_folder

from .hf.small import gpt


def entry_point():
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    (name, value), *_ = pyproject["project"]["entry-points"]["torch.backends"].items()
    return EntryPoint(name, value, "torch.backends")


def test_torch_is_given_the_function():
    assert entry_point().load() is longshort_autoload.install


def test_a_folder_of_ours_is_opened_as_any_other(tmp_path):
    write_folder(gpt(), ByteTokenizer(), tmp_path / "exported")
    code = f"""
import sys
import longshort_autoload
longshort_autoload.install()
longshort_autoload.install()
assert "torch" not in sys.modules
from transformers import AutoConfig, AutoModelForCausalLM
print(sum(isinstance(finder, longshort_autoload.Finder) for finder in sys.meta_path), "longshort" in sys.modules)
model = AutoModelForCausalLM.from_pretrained({str(tmp_path / "exported")!r}, trust_remote_code=False)
print(type(model).__module__, AutoConfig.for_model("longshort").model_type, AutoConfig.for_model("llama").model_type)
"""
    environment = {"HF_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["1", "False", "longshort.hf.modeling", "longshort", "llama"], done.stderr
