"""What a run takes in memory: counted before anything is allocated, never more than it takes."""

import pytest
import torch

from longshort import GPTConfig
from longshort.model import GPT
from longshort.train import ConfigError, TrainConfig, train
from longshort.train import memory as memory_module
from longshort.train.machine.distributed import World
from longshort.train.memory import check_memory, least_parameters, need_of, within_memory
from longshort.train.models import build_model

CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)
GIB = 2**30


def config_of(*overrides):
    return TrainConfig.from_dict({"model": {"preset": "tiny"}}).with_overrides(overrides)


def leave(monkeypatch, size):
    monkeypatch.setattr(memory_module, "available_memory", lambda device: size)


@pytest.mark.parametrize(
    "changes", [{}, {"bias": True}, {"n_kv_heads": 2, "n_global": 2}, {"head_dim": 6}, {"positions": "rotary"}]
)
def test_parameters_are_counted_without_a_model_and_none_too_many(changes):
    config = GPTConfig.preset("tiny", **changes)
    with torch.device("meta"):
        there = sum(p.numel() for p in GPT(config).parameters())
    assert 0.97 * there < least_parameters(config) <= there


@pytest.mark.parametrize("overrides", [[], ["run.checkpoint_activations=true"], ["model.positions=rotary"]])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_counted_and_none_that_is_not_kept(overrides, precision):
    config = config_of(*overrides, f"run.precision={precision}", "data.batch_size=4", "data.length=96")
    model, kept = build_model(config), {}
    model.gradient_checkpointing = config.run.checkpoint_activations
    tokens = torch.randint(257, (4, 97))

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", enabled=precision == "bf16"),
    ):
        model(tokens[:, :-1], tokens[:, 1:])
    there = sum(size for place, (size, _) in kept.items() if place not in weights)
    need = need_of(config, ALONE)
    block = 0  # with checkpoints, one block is computed again in the backward pass, which no hook sees here
    if config.run.checkpoint_activations:
        whole = need_of(config.with_overrides(["run.checkpoint_activations=false"]), ALONE)
        block = whole.activations * whole.micro_rows // config.model.n_layers
    counted = need.activations * need.micro_rows
    assert (there + block) / 6 < counted <= there + block


def test_a_run_that_cannot_fit_is_refused_with_what_would(monkeypatch):
    leave(monkeypatch, GIB)
    with pytest.raises(ConfigError) as caught:
        check_memory(config_of("data.batch_size=100000"), ALONE)
    text = str(caught.value)
    assert "needs at least" in text and "data.batch_size=100000 sequences of 512 tokens" in text and "1.0 GiB" in text
    fits = [part for part in text.split("; ")[-1].split() if "=" in part]
    assert [part.partition("=")[0] for part in fits] == ["data.batch_size", "run.accumulate"]
    for change in fits:
        check_memory(config_of("data.batch_size=100000").with_overrides([change]), ALONE)


def test_a_model_that_cannot_fit_is_refused_as_such(monkeypatch):
    leave(monkeypatch, GIB)
    with pytest.raises(ConfigError, match="a smaller model"):
        check_memory(config_of("model.width=40000"), ALONE)


def test_a_run_that_fits_is_let_through(monkeypatch):
    need = need_of(config_of(), ALONE)
    leave(monkeypatch, need.total)
    check_memory(config_of(), ALONE)
    leave(monkeypatch, None)  # a system that does not say
    check_memory(config_of("data.batch_size=100000000000"), ALONE)


def test_nothing_is_written_for_a_run_that_cannot_fit(tmp_path):
    with pytest.raises(ConfigError, match=r"data.batch_size=\d+ would fit"):
        train(config_of("data.batch_size=1000000000000", f"run.out={tmp_path / 'run'}", "run.device=cpu"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has more to say"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.\nmore"),
        RuntimeError("Storage size calculation overflowed with sizes=[9, 9]"),
        MemoryError(),
    ],
)
def test_a_failed_allocation_is_one_line_with_the_remedy(error, monkeypatch):
    leave(monkeypatch, None)
    with (
        pytest.raises(ConfigError, match=r"full.*; a smaller data.batch_size") as caught,
        within_memory(config_of(), ALONE),
    ):
        raise error
    assert "\n" not in str(caught.value)


def test_a_resumed_run_is_only_told_of_what_it_may_change(tmp_path, monkeypatch):
    config = config_of(f"run.out={tmp_path}", "data.batch_size=64")
    (tmp_path / "checkpoints" / "step-00000004").mkdir(parents=True)
    recomputed = config.with_overrides(["run.checkpoint_activations=true"])
    leave(monkeypatch, need_of(recomputed, ALONE).total)
    with pytest.raises(ConfigError, match=r"free; run\.checkpoint_activations=true would need less$"):
        check_memory(config, ALONE)
    leave(monkeypatch, 1000)
    with pytest.raises(ConfigError, match=r"free; no setting that a resumed run may change would make it fit$"):
        check_memory(config, ALONE)
    leave(monkeypatch, None)
    with (
        pytest.raises(ConfigError, match=r"full; run\.checkpoint_activations=true or a smaller loss\.chunk needs less"),
        within_memory(config, ALONE),
    ):
        raise MemoryError
