"""Chat templates of folders; that they travel is in test_folder."""

import json

import pytest

from longshort.hf.chat_template import read_chat_template


@pytest.mark.parametrize("found", [None, {"default": "a template"}, [], [{"name": "tools", "template": "no"}], [7]])
def test_what_is_no_template_is_none(tmp_path, found):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": found}))
    assert read_chat_template(tmp_path) is None
