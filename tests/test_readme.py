"""The examples of README.md run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_readme_has_an_example():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[0])
def test_readme_example_runs(example, tmp_path, monkeypatch):
    if '"exported"' in example:
        pytest.importorskip("transformers")
        _export(tmp_path / "exported")
        monkeypatch.chdir(tmp_path)
    exec(compile(example, str(README), "exec"), {"__name__": "__main__"})


def _export(folder):
    from longshort import GPT, GPTConfig
    from longshort.data.tokenizer import ByteTokenizer
    from longshort.hf import write_folder

    tokenizer = ByteTokenizer()
    write_folder(GPT(GPTConfig.preset("tiny", vocab_size=tokenizer.vocab_size)), tokenizer, folder)


def test_readme_names_only_files_that_exist():
    tree = re.search(r"^```text\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert tree
    missing, folders = [], []
    for line in tree[1].splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()
        folders[len(indent) // 2 :] = [name]
        path = README.parent.joinpath(*folders)
        if not path.exists():
            missing.append(str(path.relative_to(README.parent)))
    assert not missing
