"""Time by part, against numbers worked out by hand."""

import pytest
import torch

from longshort import GPT, GPTConfig
from longshort.planning import Job, Machines, Settings, estimate, rates
from longshort.planning import times as parts
from longshort.planning.beside import ways
from longshort.planning.traffic import Sent
from longshort.train.optimizer import build_optimizer
from longshort.train.settings.config import OptimizerConfig

SIZES = {"vocab_size": 32_768, "context": 65_536, "n_layers": 4, "width": 4096, "n_heads": 32, "positions": "none"}


def job_of(batch=8, optimizer="adamw", **options):
    model = GPTConfig(**SIZES | {"n_global": 1, "window": 128} | options)
    return Job(model=model, length=65_536, batch=batch, optimizer=optimizer)


def by_name(job, settings, **machines):
    found = estimate(job, settings, Machines(gpus=settings.gpus, **machines))
    return {figure.name: figure.value for figure in found.times}


def test_matrix_products_take_6_flops_per_weight_and_token():
    found = by_name(job_of(), Settings())
    assert found[parts.MATRICES] == pytest.approx(6 * 4 * 12 * 4096**2 * 8 * 65_536 / rates.MATMUL)


def test_attention_counts_pairs_of_global_heads_and_bytes_of_local_ones():
    tokens, far = 8 * 65_536, rates.GLOBAL[128]
    pairs = tokens * 65_537 / 2
    local = 31 * 128 * tokens
    forward = 4 * 128 * pairs / far.forward + max(
        8 * local / rates.LOCAL_STREAM.forward, 4 * 256 * local / rates.LOCAL.forward
    )
    backward = 10 * 128 * pairs / far.backward + max(
        16 * local / rates.LOCAL_STREAM.backward, 10 * 256 * local / rates.LOCAL.backward
    )
    assert by_name(job_of(), Settings())[parts.ATTENTION] == pytest.approx(4 * (forward + backward))


def test_attention_within_chunks_costs_that_of_short_sequences():
    chunked = job_of(attention_chunk=1024)
    short = Job(model=job_of().model, length=1024, batch=8 * 64)
    assert by_name(chunked, Settings())[parts.ATTENTION] == pytest.approx(by_name(short, Settings())[parts.ATTENTION])


def test_attention_within_chunks_is_compared_with_that_of_whole_sequences():
    (_, whole) = ways(estimate(job_of(), Settings(), Machines()))
    for heads in ({}, {"n_global": None, "window": None}):
        (_, plain) = ways(estimate(job_of(attention_chunk=1024, **heads), Settings(), Machines()))
        assert plain == whole


def test_gpus_share_the_work_and_not_the_gaps():
    alone, shared = by_name(job_of(), Settings()), by_name(job_of(), Settings(dp_shard=2, cp=4))
    for name in (parts.MATRICES, parts.ATTENTION, parts.HEAD, parts.OPTIMIZER):
        assert shared[name] == pytest.approx(alone[name] / 8)
    assert shared[parts.IDLE] == alone[parts.IDLE] == 4 * rates.GAP


def test_a_small_product_takes_as_long_as_its_bytes():
    found = by_name(job_of(width=128, n_heads=2, n_global=1, ff_width=128), Settings())
    tokens, weights = 8 * 65_536, 128 * (384 + 128 + 128 + 128)
    moved = 2 * (tokens * (4 * 128 + 384 + 3 * 128) + weights)
    assert found[parts.MATRICES] == pytest.approx(3 * 4 * moved / rates.STREAM)


def test_checkpoints_cost_one_more_forward_pass_of_the_blocks():
    found = by_name(job_of(), Settings(checkpoint_activations=True))
    assert 0.30 < found[parts.AGAIN] / sum(found[name] for name in (parts.MATRICES, parts.ATTENTION, parts.REST)) < 0.36
    assert parts.AGAIN not in by_name(job_of(), Settings())


def test_collectives_hide_behind_computing_until_links_are_slow():
    fast, slow = (by_name(job_of(), Settings(dp_shard=8), link=link) for link in (450e9, 1e9))
    assert parts.WAITING not in fast
    sent = 8 * job_of().parameters * 7 / 8 / 0.8e9
    assert 0.5 * sent < slow[parts.WAITING] < sent


def test_each_pass_hides_its_own_collectives_alone():
    sent = [Sent("", forward=10.0, backward=20.0, bandwidth=1.0, calls=0, ranks=2, note="")]
    assert parts.exposed_seconds(sent, forward=4.0, backward=100.0) == 6.0
    assert parts.exposed_seconds(sent, forward=100.0, backward=4.0) == 16.0


def test_norms_and_sums_move_half_as_many_bytes_of_a_stream_in_bf16():
    """Forward the stream and what is added to it are read, their sum and its norm written; backward the gradients of
    both and the stream are read, the gradient of the stream and, of an fp32 stream, its copy in bf16 written.
    """
    alone, sharded = (by_name(job_of(), Settings(dp_shard=shards))[parts.REST] for shards in (1, 8))
    tokens, hidden = 8 * 65_536, 4 * 4096
    activations = (2 * 2 + 2 * 3) * hidden
    in_fp32 = 2 * 4096 * (4 + 2 + 4 + 2 + 2 + 4 + 4 + 4 + 2)
    in_bf16 = 2 * 4096 * (2 + 2 + 2 + 2 + 2 + 2 + 2 + 2)
    assert alone == pytest.approx(4 * tokens * (in_fp32 + activations) / rates.STREAM)
    assert sharded == pytest.approx(4 * tokens / 8 * (in_bf16 + activations) / rates.STREAM)


def test_qk_norm_reads_and_writes_queries_and_keys_as_rotation_does():
    plain, normed, turned = (
        by_name(job_of(**options), Settings())[parts.REST]
        for options in ({}, {"qk_norm": "head"}, {"positions": "rotary"})
    )
    assert normed == turned > plain


def test_what_ranks_exchange_is_waited_for():
    found = estimate(job_of(), Settings(cp=8), Machines(gpus=8))
    waited = next(figure.value for figure in found.times if figure.name == parts.EXCHANGE)
    assert waited == pytest.approx(sum(each.seconds for each in found.sent if each.note == "cp 8"))


def test_muon_takes_longer():
    adamw, muon = (by_name(job_of(optimizer=kind), Settings())[parts.OPTIMIZER] for kind in ("adamw", "muon"))
    square, wide = 5 * 6 * 4096**3, 5 * (4 * 4 + 2) * 4096**3  # queries, keys and values are fused, and taken apart
    assert muon - adamw == pytest.approx(4 * (4 * square + 2 * wide) / rates.MATMUL)


@pytest.mark.parametrize("options", [{"mlp": "swiglu"}, {"n_kv_heads": 2}, {"head_dim": 32}])
def test_muon_orthogonalises_the_matrices_that_are_counted(options):
    small = GPTConfig(**SIZES | {"n_layers": 1, "vocab_size": 8, "width": 96, "n_heads": 4} | options)
    of_muon = build_optimizer(GPT(small), OptimizerConfig(kind="muon"), torch.device("cpu")).param_groups[0]
    fused = zip(of_muon["params"], of_muon["rows"], strict=True)
    apart = [(parameter.shape[1], height) for parameter, heights in fused for height in heights]
    assert apart == list(Job(model=small, length=64, batch=1).matrices)


def test_a_ring_is_hidden_by_attention_and_ulysses_is_not():
    found = estimate(job_of(), Settings(cp=8), Machines(gpus=8))
    ours, ring, ulysses = ways(found)
    layers, sequences = 4, 8
    assert ring.sent == pytest.approx(layers * sequences * 3 * 4 * 65_536 / 8 * 7 * 4096)
    assert ulysses.sent == pytest.approx(layers * sequences * 2 * 8 * 65_536 / 8 * 7 / 8 * 4096)
    assert ring.attention == ulysses.attention > 10 * ours.attention
    assert ours.sent < ulysses.sent / 5 and ours.seconds < ring.seconds < ulysses.seconds


def test_ring_that_attention_does_not_hide_takes_at_least_as_long_as_its_links():
    ring = ways(estimate(job_of(), Settings(cp=8), Machines(gpus=8, link=1e6)))[1]
    assert ring.seconds > ring.sent / 0.8e6
    again = ways(estimate(job_of(), Settings(cp=8, checkpoint_activations=True), Machines(gpus=8)))[1]
    assert again.sent == pytest.approx(ring.sent * 4 / 3)


def test_ulysses_needs_a_kv_head_for_each_rank():
    found = estimate(job_of(n_kv_heads=4, n_global=8), Settings(cp=8), Machines(gpus=8))
    assert [way.name for way in ways(found)] == ["as configured", "full attention, ring"]


def test_full_attention_is_not_compared_with_itself():
    plain = job_of(n_global=None, window=None)
    assert len(ways(estimate(plain, Settings(cp=8), Machines(gpus=8)))) == 1
    assert [way.name for way in ways(estimate(job_of(), Settings(), Machines()))] == ["as configured", "full attention"]
