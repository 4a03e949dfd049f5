"""What a run compiles where its configuration leaves that open."""

import pytest
import torch
from torch._dynamo import config as dynamo

from longshort import GPT, GPTConfig
from longshort.runs.log import read_log
from longshort.train import TrainConfig, models, train
from longshort.train.compilation import announce_compilation, choose_compilation
from longshort.train.machine.distributed import World
from longshort.train.models import build_model, compiled

from .tiny import tiny_config

SMALL = {"vocab_size": 257, "context": 64, "n_layers": 1, "width": 16, "n_heads": 2}


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")


def chosen(*overrides, device="cuda", size=1, **model):
    config = TrainConfig.from_dict({"model": SMALL | model}).with_overrides(["run.steps=10000", *overrides])
    with torch.device("meta"):
        return choose_compilation(config, World(0, size, torch.device(device)), build_model(config))


def test_a_long_run_of_a_small_model_is_compiled_and_replayed():
    assert chosen()[:3] == (True, "model", True)


def test_a_short_run_is_not_compiled():
    found = chosen("run.steps=5999")
    assert found[:3] == (False, "model", False)
    assert (
        announce_compilation(found) == "not compiling (5,999 steps take roughly 120 s, and compiling pays from 120 s)"
    )
    assert chosen("run.steps=6000").compile


def test_a_large_model_is_compiled_sooner_and_not_replayed():
    found = chosen("run.steps=2000", "data.batch_size=32", n_layers=12, width=768, context=1024, vocab_size=50257)
    assert found.compile and not found.cuda_graphs
    assert "graphs are for less than 20 ms" in found.reason


@pytest.mark.parametrize(
    ("changes", "model", "size"),
    [
        (["run.accumulate=2"], {}, 1),
        (["data.segments=true"], {}, 1),
        (["run.checkpoint_activations=true"], {}, 1),
        ([], {"dropout": 0.1}, 1),
        ([], {}, 2),
    ],
)
def test_what_cannot_be_replayed_is_compiled_all_the_same(changes, model, size):
    found = chosen(*changes, size=size, **model)
    assert found.compile and not found.cuda_graphs and "graphs" in found.reason


LARGE = {"n_layers": 12, "width": 768, "context": 1024, "vocab_size": 50257}


@pytest.mark.parametrize(("steps", "scope"), [(30_000, "block"), (60_000, "model")])
def test_the_whole_of_a_large_model_is_compiled_only_in_a_long_run(steps, scope):
    found = chosen(f"run.steps={steps}", "data.batch_size=32", **LARGE)
    assert found[:3] == (True, scope, False)
    assert "compiling the whole model pays from 2,200 s" in announce_compilation(found)
    assert chosen(f"run.steps={steps}", "data.batch_size=32", "run.compile_scope=block", **LARGE).scope == "block"


def test_layers_that_have_no_like_are_compiled_together():
    ramp = {"reach": {"pattern": "ramp", "first": 8, "last": 512}, "positions": "rotary"}
    assert chosen("run.steps=6000", "data.batch_size=32", **LARGE | ramp | {"n_layers": 4})[:2] == (True, "model")


def test_every_block_is_compiled_however_many_differ(monkeypatch):
    graphs, compile_block = [], torch.nn.Module.compile
    count = {"backend": lambda graph, inputs: graphs.append(graph) or graph}
    monkeypatch.setattr(torch.nn.Module, "compile", lambda block, **options: compile_block(block, **count))
    ramp = {"reach": {"pattern": "ramp", "first": 4, "last": 40}, "positions": "rotary"}
    monkeypatch.setattr(models, "_VERSIONS", 1)
    with torch.no_grad(), dynamo.patch(recompile_limit=2):
        model = compiled(GPT(GPTConfig(**SMALL | ramp | {"n_layers": 4})), "block", cuda_graphs=False)
        model(torch.zeros(1, 64, dtype=torch.int64))
    assert len(graphs) == 4


def test_recomputed_blocks_are_compiled_with_the_whole_model():
    assert chosen("run.checkpoint_activations=true", "data.batch_size=32", **LARGE)[:2] == (True, "model")


def test_reinforcement_learning_and_shards_are_compiled_block_by_block():
    assert chosen("run.compile=true", "rl.task=chains", "data.batch_size=32")[:2] == (True, "block")
    assert chosen("run.compile=true", "parallel.dp_shard=2", "run.compile_scope=model", size=2).scope == "block"


@pytest.mark.parametrize("compiles", ["true", "false"])
def test_what_is_asked_for_is_done_without_a_word(compiles):
    found = chosen(f"run.compile={compiles}", "run.cuda_graphs=false", "run.compile_scope=block")
    assert found == (compiles == "true", "block", False, "")


def test_graphs_that_are_asked_for_are_compiled_though_the_run_is_short():
    assert chosen("run.cuda_graphs=true", "run.steps=10")[:3] == (True, "model", True)


def test_a_cpu_compiles_only_what_is_asked_for():
    assert chosen(device="cpu") == chosen("run.cuda_graphs=true", device="cpu") == (False, "model", False, "")
    assert chosen("run.compile=true", device="cpu") == (True, "model", False, "")


def test_the_log_says_what_was_chosen(corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.steps=1"))
    header = read_log(tmp_path / "run")[0]
    assert header["compilation"] == {"compile": False, "scope": "model", "cuda_graphs": False, "reason": ""}
    assert header["matmul_precision"] == "highest"


def test_a_run_from_before_the_choice_can_be_resumed(corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.steps=2", "run.compile=false", "run.cuda_graphs=false"))
    assert train(tiny_config(corpus, tmp_path / "run", "run.steps=4")).step == 4
    assert train(tiny_config(corpus, tmp_path / "run", "run.steps=5", "run.matmul=high")).step == 5
