"""Train a small Llama, of transformers' own class, on the source of Python's standard library: a stand-in for a real
model where none can be fetched.

    python examples/small_llama.py small 700 && longshort inspect small --budget 0.25

The folder is laid out as on the hub: weights in several files with an index, configuration, tokenizer.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from longshort.data.corpus import standard_library_corpus
from longshort.data.tokenizer import BPETokenizer
from longshort.hf import fast_tokenizer

VOCABULARY, CONTEXT, LENGTH, BATCH, RATE = 2048, 1024, 512, 4, 2e-3
SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 8}


def main(out: str, steps: int) -> None:
    """Train for some steps, half a second each on one core, and write the folder `out`."""
    texts = list(standard_library_corpus()["train"].documents())
    tokenizer = BPETokenizer.train(texts[:100], vocab_size=VOCABULARY)
    tokens = torch.cat([torch.from_numpy(tokenizer.encode(text).astype("int64")) for text in texts[:400]])
    torch.manual_seed(0)
    context: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **context, num_key_value_heads=4, tie_word_embeddings=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.1)
    warmup = max(0.05, 2 / steps)  # a share; OneCycleLR divides by zero if its warm-up is one step
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps, pct_start=warmup)
    for step in range(steps):
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,)).tolist()
        rows = torch.stack([tokens[start : start + LENGTH] for start in starts])
        loss = model(rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}, loss {loss.item():.3f}", flush=True)
    model.save_pretrained(out, max_shard_size="2MB")
    fast_tokenizer(tokenizer, max_length=CONTEXT).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
