"""Prefill and decode: the same text with and without a cache, in batches, and where it ends."""

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from longshort import generate
from longshort.data.tokenizer import BPETokenizer, ByteTokenizer
from longshort.generation import Sampling, TextStream, decoder
from longshort.generation.decoder import Decoder
from longshort.generation.draws import Draws

from .drawn import build, text


@pytest.fixture(scope="module")
def model():
    return build()


def calls(model, monkeypatch):
    """Tokens a row of each forward pass."""
    sizes, forward = [], model.forward
    monkeypatch.setattr(
        model, "forward", lambda tokens, **options: (sizes.append(tokens.shape[1]), forward(tokens, **options))[1]
    )
    return sizes


PROMPT = torch.tensor([[5, 6, 7, 8, 9], [1, 1, 2, 3, 5]])
ROWS = [[5, 6, 7, 8, 9, 10, 11], [3], [200, 100, 50]]


@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal", "alibi", "none"])
@pytest.mark.parametrize("prompt", [PROMPT, ROWS])
@pytest.mark.every(3)
def test_greedy_text_is_the_same_with_and_without_a_cache(positions, prompt):
    model = build(positions=positions)
    cached = text(model, prompt, max_new_tokens=60)
    assert cached == text(model, prompt, max_new_tokens=60, use_cache=False)
    assert len({tuple(row) for row in cached}) > 1


@pytest.mark.parametrize(
    "options", [{"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 1.5, "temperature": 0.7}]
)
def test_sampled_text_is_the_same_with_and_without_a_cache(model, options):
    options = {"temperature": 1.0, "seed": 3} | options
    assert text(model, ROWS, **options) == text(model, ROWS, use_cache=False, **options)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("prompt", [PROMPT, ROWS, torch.arange(40)[None]])
def test_past_the_context_the_text_is_the_same_too(positions, prompt):
    model = build(positions=positions, context=16)
    assert text(model, prompt, max_new_tokens=30) == text(model, prompt, max_new_tokens=30, use_cache=False)


@pytest.mark.parametrize("prompt", [PROMPT, ROWS, torch.arange(40)[None]])
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_model_can_see_more_tokens_than_in_training_and_fewer(prompt, use_cache):
    short, long = (build(positions="rotary", context=context) for context in (16, 96))
    long.load_state_dict(short.state_dict())
    options = {"max_new_tokens": 30, "use_cache": use_cache}
    assert text(short, prompt, context=96, **options) == text(long, prompt, **options) != text(short, prompt, **options)
    assert text(long, prompt, context=16, **options) == text(short, prompt, **options)


def test_a_longer_context_is_held_in_the_cache(monkeypatch):
    model = build(positions="rotary", context=16)
    lengths, forward = [], type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda *a, **k: lengths.append(k["tokens"].shape[1]) or forward(*a, **k)
    )
    text(model, torch.arange(40)[None], context=96, max_new_tokens=5)
    assert lengths == [40, 1, 1, 1, 1]


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize("context", [128, 16])
def test_each_row_of_a_padded_batch_is_the_row_alone(positions, context):
    model = build(positions=positions, context=context)
    assert text(model, ROWS) == [text(model, [row])[0] for row in ROWS]


def test_chunks_of_attention_need_prompts_of_one_length():
    model = build(attention_chunk=4)
    both = text(model, PROMPT, use_cache=False)
    assert both == [text(model, row[None], use_cache=False)[0] for row in PROMPT]
    with pytest.raises(ValueError, match="with attention_chunk=4, got 1 to 7 tokens and 128 new ones"):
        generate(model, ROWS, use_cache=False)
    wide = build(attention_chunk=12)  # padding moves no chunk where all is in the first
    options = {"use_cache": False, "max_new_tokens": 5}
    assert text(wide, ROWS, **options) == [text(wide, [row], **options)[0] for row in ROWS]
    with pytest.raises(ValueError, match="7 tokens and 6 new ones"):
        generate(wide, ROWS, use_cache=False, max_new_tokens=6)


def test_a_great_penalty_lets_no_token_come_twice(model):
    assert len(set(text(model, [ROWS[0]])[0])) < 30
    (drawn,) = text(model, [ROWS[0]], repetition_penalty=1e6)
    assert len({*ROWS[0], *drawn}) == len(ROWS[0]) + 30


def test_padding_does_not_count_as_seen(model):
    draws = Draws(3, 1, sampling=Sampling(), thinking=None, stops=(), vocabulary=257, device=torch.device("cpu"))
    running = Decoder(model, draws, max_prompt=7)
    running.start([torch.tensor(row) for row in ROWS])
    seen = running.seen()
    assert [row.nonzero()[:, 0].tolist() for row in seen] == [sorted(row) for row in ROWS]


def test_with_a_cache_every_token_goes_through_the_model_once(monkeypatch):
    model = build()
    sizes = calls(model, monkeypatch)
    text(model, PROMPT, max_new_tokens=4)
    assert sizes == [5, 1, 1, 1]
    sizes.clear()
    text(model, PROMPT, max_new_tokens=4, use_cache=False)
    assert sizes == [5, 6, 7, 8]


def test_a_long_prompt_goes_in_in_chunks(monkeypatch):
    model = build()
    prompt = torch.randint(256, (1, 100))
    expected = text(model, prompt, max_new_tokens=5, use_cache=False)
    sizes = calls(model, monkeypatch)
    monkeypatch.setattr(decoder, "_PREFILL", 40)
    assert text(model, prompt, max_new_tokens=5) == expected
    assert sizes == [40, 40, 20, 1, 1, 1, 1]


def test_a_callback_gets_each_token_as_it_is_drawn_and_the_iterator_has_them_again(model):
    got = []
    result = generate(model, PROMPT, max_new_tokens=6, temperature=0.0, callback=got.append)
    assert len(got) == 6
    assert torch.stack(got).T.tolist() == torch.stack(list(result)).T.tolist() == text(model, PROMPT, max_new_tokens=6)


def test_without_a_callback_nothing_is_drawn_before_it_is_asked_for(monkeypatch):
    model = build()
    sizes = calls(model, monkeypatch)
    tokens = generate(model, PROMPT)
    assert sizes == []
    next(tokens)
    assert sizes == [5]


def test_a_row_that_has_ended_gives_minus_one_and_leaves_the_others_alone(model):
    free = text(model, ROWS)
    stop = free[0][3]
    assert stop not in free[1] and stop not in free[2]
    stopped = text(model, ROWS, stop=stop)
    first = free[0].index(stop)
    assert stopped[0] == free[0][: first + 1] + [-1] * (30 - first - 1)
    assert stopped[1:] == free[1:]


def test_any_of_several_stop_tokens_ends_a_row(model):
    free = text(model, [ROWS[0]])[0]
    ends = {free[4], free[9]}
    first = min(free.index(token) for token in ends)
    assert text(model, [ROWS[0]], stop=ends) == [free[: first + 1]]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_row_ends_with_the_token_that_completes_a_stop_string(model, length):
    tokenizer = ByteTokenizer()
    letters = {"temperature": 0.5, "seed": 5, "max_new_tokens": 60}
    free = text(model, [ROWS[0]], **letters)[0]
    whole = tokenizer.decode(free)
    at = next(i for i in range(5, 60) if "\N{REPLACEMENT CHARACTER}" not in whole[i : i + length])
    string = whole[at : at + length]
    (stopped,) = text(model, [ROWS[0]], stop_strings=["never comes", string], tokenizer=tokenizer, **letters)
    assert stopped == free[: len(stopped)]
    assert string in tokenizer.decode(stopped) and string not in tokenizer.decode(stopped[:-1])


def test_tokens_without_text_do_not_hide_a_stop_string(model, monkeypatch):
    drawn = iter([97, 256, 256, 256, 98, 99])
    monkeypatch.setattr(Decoder, "step", lambda self: torch.tensor([next(drawn)]))
    options = {"stop_strings": ["ab"], "tokenizer": ByteTokenizer()}
    assert text(model, [ROWS[0]], **options) == [[97, 256, 256, 256, 98]]


def test_stopping_needs_the_tokenizer_for_strings(model):
    with pytest.raises(ValueError, match="stop_strings need the tokenizer"):
        generate(model, PROMPT, stop_strings=["x"])
    with pytest.raises(ValueError, match="stop_strings must be a sequence of texts"):
        generate(model, PROMPT, stop_strings="x", tokenizer=ByteTokenizer())


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []], [[[1]]]])
def test_rows_without_tokens_are_named(model, prompt):
    with pytest.raises(ValueError, match="prompt must be rows of at least one token each"):
        generate(model, prompt)


def test_tokens_that_the_tokenizer_does_not_have_are_never_drawn():
    model, tokenizer = build(vocab_size=320), ByteTokenizer()
    options = {"max_new_tokens": 60, "temperature": 1.0, "repetition_penalty": 1.2, "seed": 0}
    assert max(text(model, [[1], [2, 3]], **options)[0]) >= tokenizer.vocab_size
    assert max(map(max, text(model, [[1], [2, 300]], tokenizer=tokenizer, **options))) < tokenizer.vocab_size


def test_rows_may_be_what_a_tokenizer_gives(model):
    assert text(model, [ByteTokenizer().encode("ab")]) == text(model, [[97, 98]])


class Fixed:
    """In place of `generate`: yields the bytes of a text."""

    def __init__(self, written):
        self.written = written

    def __call__(self, model, prompt, **options):
        return (torch.tensor([byte]) for byte in self.written.encode())


def pieces(monkeypatch, written, **options):
    monkeypatch.setattr("longshort.generation.text.generate", Fixed(written))
    return list(TextStream(None, ByteTokenizer(), "a", **options))


def test_a_character_comes_when_all_of_its_bytes_are_there(monkeypatch):
    assert pieces(monkeypatch, "né!€") == ["n", "é", "!", "€"]


def test_what_may_begin_a_stop_string_is_held_back(monkeypatch):
    assert pieces(monkeypatch, "a--b---c", stop_strings=["---"]) == ["a", "--b"]
    assert pieces(monkeypatch, "ab--", stop_strings=["---"]) == ["a", "b", "--"]
    assert pieces(monkeypatch, "xaab", stop_strings=["aab", "b"]) == ["x"]
    assert pieces(monkeypatch, "xaab", stop_strings=["b", "aab"]) == ["x"]


@given(
    st.text(st.sampled_from("ab-é€\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}"), max_size=30),
    st.lists(st.text(st.sampled_from("ab-é€"), min_size=1, max_size=3), max_size=2),
)
def test_any_text_comes_whole_up_to_a_stop_string(written, stop_strings):
    with pytest.MonkeyPatch.context() as patch:
        shown = "".join(pieces(patch, written, stop_strings=stop_strings))
    ends = [written.index(string) for string in stop_strings if string in written]
    assert shown == (written[: min(ends)] if ends else written.rstrip("\N{REPLACEMENT CHARACTER}"))


def test_a_long_text_is_not_decoded_again_and_again(monkeypatch):
    lengths, decode = [], ByteTokenizer.decode
    monkeypatch.setattr(ByteTokenizer, "decode", lambda self, ids: (lengths.append(len(ids)), decode(self, ids))[1])
    assert "".join(pieces(monkeypatch, "né€-" * 100, stop_strings=["--"])) == "né€-" * 100
    assert max(lengths) < 10


def test_words_of_a_vocabulary_that_marks_their_beginnings_keep_their_spaces(monkeypatch):
    inner = tokenizers.Tokenizer(models.BPE(vocab={"▁a": 0, "▁b": 1, "</s>": 2}, merges=[]))
    inner.decoder = decoders.Metaspace()
    monkeypatch.setattr("longshort.generation.text.generate", lambda *_, **__: map(torch.tensor, ([0], [1], [0])))
    monkeypatch.setattr(BPETokenizer, "encode", lambda self, text: torch.tensor([0]))
    assert "".join(TextStream(None, BPETokenizer(inner), "a")) == " a b a"


def test_words_keep_their_spaces_after_a_token_without_text(monkeypatch):
    inner = tokenizers.Tokenizer(models.BPE(vocab={"▁a": 0, "▁b": 1, "</s>": 2}, merges=[]))
    inner.add_special_tokens(["</s>"])
    inner.decoder = decoders.Metaspace()
    monkeypatch.setattr("longshort.generation.text.generate", lambda *_, **__: map(torch.tensor, ([0], [2], [1], [0])))
    monkeypatch.setattr(BPETokenizer, "encode", lambda self, text: torch.tensor([0]))
    assert "".join(TextStream(None, BPETokenizer(inner), "a")) == " a b a"


def bytes_and_words():
    """A vocabulary as Llama 2 has it: words with their spaces, and other characters byte by byte."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁a": 256, "</s>": 257}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(parts)
    return BPETokenizer(inner)


@pytest.mark.parametrize("prompt", ["▁a", "é"])
def test_neighbouring_characters_that_are_written_byte_by_byte_come_whole(monkeypatch, prompt):
    tokens = [*"é€".encode(), 256, *"€é€".encode(), 256]
    monkeypatch.setattr(
        "longshort.generation.text.generate", lambda *_, **__: map(torch.tensor, zip(tokens, strict=True))
    )
    monkeypatch.setattr(BPETokenizer, "encode", lambda *_: torch.tensor([256] if prompt == "▁a" else [*"é".encode()]))
    assert list(TextStream(None, bytes_and_words(), prompt)) == ["é", "€", " a", "€", "é", "€", " a"]


@pytest.mark.parametrize(("string", "count"), [("€", 6), ("é€", 6), ("€ a", 7), (" aé", 3), (" a", 1)])
@pytest.mark.parametrize("others", [[], ["longer than all"]])
def test_a_stop_string_is_found_whatever_its_vocabulary_writes_before_it(model, monkeypatch, string, count, others):
    tokens = [256, *"é€".encode(), 256]
    drawn = iter(tokens)
    monkeypatch.setattr(Decoder, "step", lambda self: torch.tensor([next(drawn)]))
    options = {"stop_strings": [string, *others], "tokenizer": bytes_and_words(), "max_new_tokens": len(tokens)}
    assert text(model, [[256]], **options) == [tokens[:count]]


def test_a_stream_of_text_is_the_text_of_the_tokens(model):
    tokenizer = ByteTokenizer()
    options = {"max_new_tokens": 40, "temperature": 0.7, "seed": 1}
    tokens = text(model, [list(b"def ")], stop=256, **options)[0]
    stream = TextStream(model, tokenizer, "def ", **options)
    assert "".join(stream) == tokenizer.decode(tokens).rstrip("\N{REPLACEMENT CHARACTER}")
    assert stream.n_tokens == len(tokens)
    assert stream.tokens_per_second == pytest.approx(len(tokens) / stream.seconds)


def test_a_stream_of_text_takes_text(model):
    with pytest.raises(ValueError, match=r"prompt must be a text, got \[1, 2\]; generate takes tokens"):
        TextStream(model, ByteTokenizer(), [1, 2])


def test_a_stream_of_text_ends_with_a_stop_token(model):
    options = {"max_new_tokens": 20, "temperature": 0.7, "seed": 1}
    tokens = text(model, [list(b"def ")], stop=256, **options)[0]
    stop = tokens[5]
    stream = TextStream(model, ByteTokenizer(), "def ", stop=[stop], **options)
    written = tokens[: tokens.index(stop) + 1]
    assert "".join(stream) == ByteTokenizer().decode(written).rstrip("\N{REPLACEMENT CHARACTER}")
    assert stream.n_tokens == len(written)
