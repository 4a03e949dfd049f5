"""Our tokenizers as fast tokenizers of transformers, in its own file format: the same ids for the same text."""

from __future__ import annotations

import json

import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longshort.data.reading import SEPARATOR
from longshort.data.tokenizer import ByteTokenizer, Tokenizer, byte_characters


def fast_tokenizer(tokenizer: Tokenizer, *, max_length: int | None = None) -> PreTrainedTokenizerFast:
    """A transformers tokenizer that gives the same ids as ours and pads on the left, as generation needs.

    Our end-of-document token serves as its end and padding token, and, where tokenizer.json puts nothing before a text,
    as its beginning; text that quotes it stays text.

    >>> from longshort.data.tokenizer import ByteTokenizer
    >>> fast = fast_tokenizer(ByteTokenizer())
    >>> fast("né")["input_ids"], fast.decode([110, 195, 169, 256], skip_special_tokens=True)
    ([110, 195, 169], 'né')
    """
    inner = _bytes() if isinstance(tokenizer, ByteTokenizer) else _parsed(tokenizer)
    end, start = (inner.id_to_token(token) for token in (tokenizer.end_of_document, beginning_token(tokenizer)))
    options = {} if max_length is None else {"model_max_length": max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=start,
        eos_token=end,
        pad_token=end,
        padding_side="left",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        **options,
    )


def beginning_token(tokenizer: Tokenizer) -> int:
    """The first of the tokens before a text, if it is a special one; else the end of the document before."""
    special = {token["id"] for token in tokenizer.to_dict().get("added_tokens", ()) if token.get("special")}
    first = tokenizer.beginning[:1]
    return first[0] if special.issuperset(first) and first else tokenizer.end_of_document


def _parsed(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(tokenizer.to_dict()))


def _bytes() -> tokenizers.Tokenizer:
    """BPE without merges over the printable stand-ins of bytes: every byte is a token with its value as id."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([SEPARATOR])
    return inner
