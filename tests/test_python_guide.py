"""The guide to Python does what it says: its blocks run in order, in one folder."""

import re
from pathlib import Path

GUIDE = Path(__file__).parents[1] / "docs" / "howto" / "python.md"


def test_blocks_of_the_guide_run_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "guide"}
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), scope)
    shown = capsys.readouterr().out
    assert "finished 20 " in shown and "torch.Size([2, 4, 2])" in shown and "torch.Size([2, 100, 64])" in shown
    assert scope["run"].status == "finished" and scope["seen"][0].abs_max.shape == (4,)
