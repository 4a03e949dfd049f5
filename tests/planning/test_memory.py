"""Memory by part, against numbers worked out by hand and against what autograd keeps."""

from dataclasses import replace

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan
from longshort.planning import Job, Machines, Settings, estimate
from longshort.planning import memory as parts
from longshort.planning.memory import chunk_rows, exchanged_bytes, kept_bytes, last_bytes, layer_bytes, loss_bytes

from . import kept

GPT2 = {"vocab_size": 50_304, "context": 1024, "n_layers": 12, "width": 768, "n_heads": 12, "tie_embeddings": True}


def job_of(batch=32, optimizer="adamw", **options):
    model = GPTConfig(**GPT2 | {"n_global": 1, "window": 64} | options)
    return Job(model=model, length=model.context, batch=batch, optimizer=optimizer)


def by_name(job, settings):
    found = estimate(job, settings, Machines(gpus=settings.gpus))
    return {figure.name: figure.value for figure in found.memory}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": True},
        {"norm": "rms", "mlp": "swiglu", "tie_embeddings": False, "positions": "rotary", "qk_norm": "head"},
        {"qk_norm": "width", "n_kv_heads": 4, "n_global": 3, "norm_placement": "sandwich", "bias": True},
        {"head_dim": 32, "ff_width": 100, "positions": "sinusoidal"},
        {"reach": {"like": "gpt-oss", "window": 64}, "positions": "rotary", "n_global": None, "window": None},
        {"sigma_reparam": True},
        {"sigma_reparam": True, "mlp": "swiglu", "n_kv_heads": 4, "n_global": 3},
    ],
)
def test_parameters_are_those_of_the_model(changes):
    job = job_of(**{"n_layers": 2, "vocab_size": 50, "context": 128, "width": 96} | changes)
    model = GPT(job.model)
    assert job.parameters == model.n_parameters()
    assert job.block_parameters == max(sum(p.numel() for p in block.parameters()) for block in model.blocks)


def test_one_gpu_holds_weights_moments_activations_and_the_loss():
    found, weights = by_name(job_of(), Settings()), 124_373_760
    assert found[parts.WEIGHTS] == 4 * weights and found[parts.MOMENTS] == 8 * weights
    assert found[parts.GATHERED] == 2 * 12 * 12 * 768**2
    assert found[parts.KEPT] == 32 * 1024 * (12 * (36 * 768 + 4 * 12 + 16) + 8 * 768 + 8)
    logits, head, hidden = 2 * 8192 * 50_304, 50_304 * 768, 768
    assert found[parts.LOSS] == logits + 6 * head + 2 * 8192 * hidden + 4 * 32_768 * hidden


def test_the_loss_alone_takes_what_was_measured():
    """1,118,897,664 bytes, with hidden states and their gradient in bf16 (benchmarks/results/training.json)."""
    fp32_instead = 2 * 32_768 * 768
    assert loss_bytes(job_of(), Settings(), 32_768) - fp32_instead == pytest.approx(1_118_897_664, rel=1e-5)


@pytest.mark.parametrize(("rows", "chunk"), [(32_768, 8192), (128, 128), (1, 128), (11_000, 5504)])
def test_logits_come_in_chunks_of_at_most_a_gibibyte(rows, chunk):
    assert chunk_rows(job_of(), rows) == chunk


def test_a_chunk_that_is_given_is_kept_to():
    assert chunk_rows(job_of(loss={"chunk": 100}), 32_768) == 100
    assert chunk_rows(job_of(loss={"chunk": 100}), 64) == 64


def test_dropout_keeps_a_byte_of_mask_for_each_feature_of_both_branches():
    assert layer_bytes(job_of(dropout=0.1), Settings()) - layer_bytes(job_of(), Settings()) == 2 * 768


def test_shards_divide_weights_gradients_and_moments():
    job = job_of(context=128)
    found = by_name(job, Settings(dp_shard=8, accumulate=2))
    for name, size in ((parts.WEIGHTS, 4), (parts.MOMENTS, 8), (parts.GRADIENTS, 4)):
        assert found[name] == size * job.parameters / 8
    assert found[parts.GATHERED] == 2 * (job.root_parameters + 2 * job.block_parameters)
    kept = by_name(job, Settings(dp_shard=8, reshard=False))
    assert kept[parts.GATHERED] == 2 * job.parameters


def test_muon_keeps_one_moment_of_the_matrices_of_blocks():
    adamw, muon = (by_name(job_of(optimizer=kind), Settings()) for kind in ("adamw", "muon"))
    assert adamw[parts.MOMENTS] - muon[parts.MOMENTS] == 4 * 12 * 12 * 768**2


def test_micro_batches_and_shared_sequences_divide_activations():
    whole = by_name(job_of(), Settings())[parts.KEPT]
    assert by_name(job_of(), Settings(accumulate=4))[parts.KEPT] == whole / 4
    shared = by_name(job_of(), Settings(cp=4))[parts.KEPT]
    local = 11 * (1 + 63 / 256)  # with the halo
    keys = 2 * 2 * 64 * (4 * 1 + 1 + local)  # of one global head from four ranks, and its queries dealt anew
    halved = 2 * 2 * 768  # inputs of both norms, in bf16
    assert shared == pytest.approx((whole + 32 * 1024 * 12 * (keys - halved)) / 4)


@pytest.mark.parametrize("windows", [(32, 32), (9, 17, 1)])
def test_a_halo_is_kept_by_all_ranks_but_the_first(windows, ranks):
    first, second = ranks.run(kept.bytes_of_shared_attention, windows, 64, size=2)
    plans = (HeadPlan(windows=given) for given in (windows, (1,) * len(windows)))
    small = GPT2 | {"context": 64, "width": 16 * len(windows), "n_heads": len(windows)}
    jobs = [Job(model=GPTConfig(**small, plan=plan), length=64, batch=1) for plan in plans]
    counted, without = (exchanged_bytes(job, job.model.layer_plans[0], Settings(cp=2)) for job in jobs)
    assert second - first == counted - without > 0


def test_checkpoints_keep_a_block_s_input_alone():
    job, settings = job_of(), Settings(checkpoint_activations=True)
    assert kept_bytes(job, settings) == 12 * 4 * 768
    found = by_name(job, settings)
    kept = 32 * 1024 * kept_bytes(job, settings)
    assert found[parts.KEPT] in (kept, kept + 32 * 1024 * last_bytes(job, settings))  # by the moment of the peak
    assert found[parts.GATHERED] == 2 * job.block_matrices


@pytest.mark.parametrize("changes", [{}, {"mlp": "relu2", "ff_width": 100}, {"n_kv_heads": 2, "n_global": 2}])
def test_autograd_keeps_what_is_counted_of_a_block(changes):
    """In fp32, on the CPU, where the attention's output is copied for the product that follows."""
    small = GPT2 | {"vocab_size": 64, "context": 64, "n_layers": 1, "width": 64, "n_heads": 4, "n_global": 1}
    small |= {"window": 16, "positions": "none"} | changes
    kept = {}
    for layers in (1, 2):
        model, sizes = GPT(GPTConfig(**small | {"n_layers": layers, "backend": "blocked"})), {}

        def keep(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
            return tensor

        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        tokens = torch.randint(64, (2, 64))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(tokens, tokens)
        kept[layers] = sum(size for place, (size, _) in sizes.items() if place not in weights)
    job = Job(model=GPTConfig(**small), length=64, batch=2)
    in_fp32 = 2 * 4 * 64 + 4 * 4 + 2 * 8  # inputs of norms, lse, means and deviations
    copied = 4 * 64
    assert (kept[2] - kept[1]) / 128 == 2 * (layer_bytes(job, Settings()) - in_fp32) + in_fp32 + copied


@pytest.mark.parametrize(
    ("shards", "again", "changes"),
    [
        pytest.param(1, False, {}, marks=pytest.mark.slow),
        pytest.param(1, False, {"norm_placement": "sandwich"}, marks=pytest.mark.slow),
        pytest.param(1, False, {"norm_placement": "post"}, marks=pytest.mark.slow),
        (2, False, {"mlp": "swiglu"}),
        (2, True, {}),
    ],
)
def test_a_compiled_layer_keeps_what_is_counted_in_bf16(shards, again, changes, ranks):
    """On the CPU the attention's output is also copied for the product that follows."""
    small = GPT2 | {"vocab_size": 80, "context": 64, "width": 64, "n_heads": 4, "n_global": 1, "window": 16}
    small |= {"norm": "rms", "positions": "none", "backend": "blocked", "n_layers": 1} | changes
    job, settings = Job(model=GPTConfig(**small), length=64, batch=2), Settings(dp_shard=shards)
    settings = replace(settings, checkpoint_activations=again)
    (found,) = ranks.run(kept.bytes_per_layer, small, shards > 1, again, size=1)
    assert found == kept_bytes(job, settings) + (0 if again else 2 * 64)
