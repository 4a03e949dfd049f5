"""Bytes that ranks send, against numbers worked out by hand."""

import pytest

from longshort import GPTConfig, HeadPlan
from longshort.planning import Job, Machines, Settings, estimate
from longshort.planning.machines import LATENCY, LATENCY_PER_RANK
from longshort.planning.traffic import exchange_bytes, ring_bytes, ulysses_bytes

SIZES = {"vocab_size": 8, "context": 131_072, "n_layers": 2, "width": 4096, "n_heads": 32, "window": 128}
NODE = Machines(gpus=8)
HEADS = ("halo of local", "keys and values of global", "queries of global")


def job_of(batch=1, **options):
    model = GPTConfig(**SIZES | {"n_global": 1, "positions": "none"} | options)
    return Job(model=model, length=131_072, batch=batch)


@pytest.mark.parametrize(
    ("options", "megabytes"),
    [({}, 130), ({"n_global": 2}, 256), ({"n_global": 4}, 507), ({"n_global": 4, "n_kv_heads": 8}, 152)],
)
def test_a_layer_sends_a_halo_few_keys_and_few_queries(options, megabytes):
    job = job_of(**options)
    sent = exchange_bytes(job.model.layer_plans[0], job, 8)
    assert round(2 * sum(sent.values()) / 1e6) == megabytes


def test_a_halo_is_a_key_less_than_the_window():
    sent = exchange_bytes(job_of().model.layer_plans[0], job_of(), 8)
    assert sent["halo of local heads"] == 2 * 2 * 127 * 128 * 31


def test_smoothing_needs_values_of_the_rank_before_in_every_head():
    plain, smoothed = (exchange_bytes(job.model.layer_plans[0], job, 8) for job in (job_of(), job_of(smoothing=4)))
    assert smoothed["halo of local heads"] - plain["halo of local heads"] == 2 * 3 * 128 * 32


def test_first_keys_go_to_every_other_rank():
    streaming, local = HeadPlan.streaming(32, 4, 128), HeadPlan(windows=(128,) * 32)
    sent, without = (exchange_bytes(plan, job_of(), 8)["halo of local heads"] for plan in (streaming, local))
    assert sent - without == 2 * 2 * 4 * 128 * 32 * 7


def test_queries_go_and_come_back_and_a_halo_is_between_neighbours():
    found = {each.name: each for each in estimate(job_of(), Settings(cp=8), NODE).sent if each.note == "cp 8"}
    halo, keys, queries = (found[f"{name} heads"] for name in HEADS)
    assert [each.calls for each in (halo, keys, queries)] == [4, 4, 8]  # two layers, forward and backward
    assert [each.ranks for each in (halo, keys, queries)] == [2, 8, 8]
    assert halo.waiting == pytest.approx(4 * (LATENCY + LATENCY_PER_RANK))
    assert keys.waiting == pytest.approx(4 * (LATENCY + 7 * LATENCY_PER_RANK))


def test_copies_of_shards_are_a_node_apart():
    machines = Machines(gpus=64)
    found = estimate(job_of(batch=64), Settings(dp_replicate=8, dp_shard=8), machines)
    copies = next(each for each in found.sent if each.name == "gradients of the copies")
    assert copies.bandwidth == machines.group_bandwidth(8, stride=8) < machines.group_bandwidth(8, stride=1)


@pytest.mark.parametrize(
    ("options", "ring", "ulysses"), [({}, 5640, 940), ({"n_kv_heads": 8, "n_global": 4}, 1410, 587)]
)
def test_ring_and_ulysses_send_all_heads(options, ring, ulysses):
    job = job_of(**options)
    assert 3 * ring_bytes(job, 8) / 1e6 == pytest.approx(ring, rel=0.001)
    assert 2 * ulysses_bytes(job, 8) / 1e6 == pytest.approx(ulysses, rel=0.001)


def test_bytes_of_a_step_count_layers_sequences_and_passes():
    job = job_of(batch=6)
    once = sum(exchange_bytes(job.model.layer_plans[0], job, 4).values())
    for again in (False, True):
        settings = Settings(dp_shard=2, cp=4, checkpoint_activations=again)
        found = estimate(job, settings, NODE)
        assert sum(each.bytes for each in found.sent if each.note == "cp 4") == 2 * 3 * once * (2 + again)


def by_name(settings, job=None):
    found = estimate(job or job_of(batch=8), settings, Machines(gpus=settings.gpus))
    return {each.name: each.bytes for each in found.sent}


def test_sharding_gathers_bf16_twice_and_scatters_fp32():
    job = job_of(batch=8)
    block, root = 12 * 4096**2 + 2 * 4096, 2 * 8 * 4096 + 4096
    sent = by_name(Settings(dp_shard=8))
    assert sent["weights gathered"] == pytest.approx(2 * (2 * 2 * block + root) * 7 / 8)
    assert sent["gradients scattered"] == pytest.approx(4 * (2 * block + root) * 7 / 8)
    kept = by_name(Settings(dp_shard=8, reshard=False, reduce="bf16"))
    assert kept["weights gathered"] == pytest.approx(2 * (2 * block + root) * 7 / 8)
    assert kept["gradients scattered"] == pytest.approx(sent["gradients scattered"] / 2)
    assert job.parameters == 2 * block + root


def test_a_layer_of_7b_moves_1409_megabytes_under_fsdp():
    one, two = (by_name(Settings(dp_shard=8), job_of(batch=8, n_layers=layers)) for layers in (1, 2))
    assert (sum(two.values()) - sum(one.values())) / 1e6 == pytest.approx(1409, rel=0.001)


def test_copies_sum_their_gradients_once_per_step_and_copies_of_shards_once_per_micro_batch():
    job = job_of(batch=16)
    sent = by_name(Settings(dp_replicate=4, accumulate=2), job)
    assert sent == {"gradients of the copies": pytest.approx(2 * 4 * job.parameters * 3 / 4)}
    for passes in (1, 2):  # counted in tests/train/test_sharded.py
        both = by_name(Settings(dp_replicate=2, dp_shard=4, accumulate=passes), job)
        assert both["gradients of the copies"] == pytest.approx(passes * 2 * 4 * job.parameters / 4 / 2)


def test_one_gpu_sends_nothing():
    assert by_name(Settings()) == {}


@pytest.mark.parametrize(
    ("size", "stride", "ring", "alone"),
    [
        *[(8, 1, 450, 450), (16, 1, 400, 50), (64, 8, 50, 50), (4, 2, 450, 450), (8, 2, 200, 50), (16, 4, 100, 50)],
        *[(3, 1, 50, 50), (6, 1, 100, 50), (12, 1, 200, 50), (2, 3, 50, 50), (8, 3, 100, 50)],  # ranks 6, 7 and 8 cross
    ],
)
def test_a_group_within_a_node_uses_its_links_and_a_wider_one_the_adapters(size, stride, ring, alone):
    machines = Machines(gpus=1024)
    assert machines.group_bandwidth(size, stride=stride) / 1e9 == pytest.approx(0.8 * ring)
    assert machines.crossing_bandwidth(size, stride=stride) / 1e9 == pytest.approx(0.8 * alone)


def test_any_group_in_the_only_node_uses_its_links():
    machines = Machines(gpus=6)
    assert machines.group_bandwidth(3, stride=1) == machines.crossing_bandwidth(3, stride=2) == 0.8 * 450e9
