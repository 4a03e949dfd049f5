"""The page on TRL does what it says: its blocks run in order, in one folder."""

import re
from pathlib import Path

from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import write_folder

from ..hf.small import gpt

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "trl.md"


def test_blocks_of_the_page_run_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_folder(gpt(context=128), ByteTokenizer(), Path("exported"))
    scope = {"__name__": "page"}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert capsys.readouterr().out.rstrip().endswith("]")
    assert len(scope["trainer"].state.log_history) == 4
