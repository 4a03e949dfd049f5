"""A corpus and a model small enough to train in a second, and what tests ask of a run."""

import random

from longshort.data.prepare import prepare
from longshort.runs.log import read_log
from longshort.train import TrainConfig
from longshort.train.checkpoints.checkpoint import load_checkpoint

MODEL = {"vocab_size": 257, "context": 64, "n_layers": 2, "width": 16, "n_heads": 2, "n_global": 1, "window": 8}


def make_corpus(folder):
    """Thirty documents of random words, as bytes."""
    random_words = random.Random(0)
    words = ["".join(random_words.choices("abcdefgh", k=random_words.randint(2, 6))) for _ in range(40)]
    (folder / "text").mkdir()
    for number in range(30):
        (folder / "text" / f"{number}.txt").write_text(" ".join(random_words.choices(words, k=300)))
    return prepare(folder / "text", folder / "tokens", split=(0.8, 0.1, 0.1)).folder


def tiny_config(data, out, *overrides, **model):
    """Thirty steps of the smallest model, with `section.key=value` changes."""
    config = TrainConfig.from_dict(
        {
            "model": MODEL | model,
            "data": {"path": str(data), "batch_size": 4},
            "optimizer": {"lr": 1e-2},
            "schedule": {"warmup": 2},
            "run": {
                "out": str(out),
                "steps": 30,
                "device": "cpu",
                "eval_every": 0,
                "eval_batches": 1,
                "save_every": 10,
            },
        }
    )
    return config.with_overrides(overrides)


def records(out, kind):
    return [record for record in read_log(out) if record["kind"] == kind]


def losses(out):
    """Training losses by step."""
    return {record["step"]: record["loss"] for record in records(out, "train")}


def differences(one, other):
    """Names of all tensors in which the newest checkpoints of two runs differ, and of states that do."""
    first, second = load_checkpoint(one), load_checkpoint(other)
    names = []
    for kind in ("model", "trainer"):
        mine, theirs = getattr(first, kind), getattr(second, kind)
        assert mine.keys() == theirs.keys()
        names += [name for name, value in mine.items() if not value.equal(theirs[name])]
    states = [dict(checkpoint.state) for checkpoint in (first, second)]
    for state in states:
        state["progress"] = {**state["progress"], "seconds": None}
        del state["config"], state["sha256"]
    return names + [key for key, value in states[0].items() if value != states[1][key]]
