"""The settings that are found fit, use every GPU, and are the fastest."""

from dataclasses import replace
from itertools import product

import pytest

from longshort import GPTConfig, HeadPlan
from longshort.planning import Job, Machines, Settings, estimate, fastest, sweep
from longshort.planning.job import check
from longshort.planning.plan import job_of
from longshort.planning.reaches import reaches
from longshort.planning.search import fixed_settings, smallest
from longshort.train import TrainConfig

MODEL = GPTConfig(vocab_size=1024, context=16_384, n_layers=4, width=1024, n_heads=8, n_global=1, window=128)
TOO_FAR = "a window must not reach past the rank before"
JOB = Job(model=MODEL, length=16_384, batch=8)


@pytest.mark.parametrize("memory", [3.5e9, 4e9, 5e9, 6.7e9, 141e9])
@pytest.mark.parametrize("gpus", [1, 2, 6, 8])
def test_the_fastest_of_all_settings_that_fit_is_found(gpus, memory):
    machines = Machines(gpus=gpus, memory=memory)
    every = [
        Settings(dp_replicate=a, dp_shard=b, cp=c, reshard=reshard, accumulate=n, checkpoint_activations=again)
        for a, b, c in product(range(1, gpus + 1), repeat=3)
        if a * b * c == gpus
        for n, reshard, again in product((1, 2, 4, 8), (True, False), (True, False))
    ]
    fitting = [found for s in every if not check(JOB, s) and (found := estimate(JOB, s, machines)).fits]
    found = fastest(JOB, machines)
    if not fitting:
        assert found is None
        return
    assert found is not None and found.fits and found.settings.gpus == gpus
    assert found.seconds == pytest.approx(min(one.seconds for one in fitting))


def test_more_memory_is_never_slower():
    times = [fastest(JOB, Machines(gpus=4, memory=memory)).seconds for memory in (4e9, 5e9, 6e9, 80e9)]
    assert times == sorted(times, reverse=True)


def test_the_smallest_settings_are_those_of_all_micro_batches():
    short = Job(model=replace(MODEL, context=128), length=128, batch=8)  # where gradients weigh more than activations
    machines = Machines(memory=3e9)
    every = [
        estimate(short, Settings(accumulate=n, checkpoint_activations=again), machines)
        for n, again in product((1, 2, 4, 8), (True, False))
    ]
    assert not any(found.fits for found in every)
    assert smallest(short, machines).bytes == min(found.bytes for found in every)


def test_a_setting_that_is_fixed_stays():
    machines = Machines(gpus=8)
    for name, value in {"cp": 4, "dp_shard": 2, "reshard": False, "accumulate": 2, "reduce": "bf16"}.items():
        found = fastest(JOB, machines, {"dp_shard": 2, name: value})
        assert getattr(found.settings, name) == value
    assert fastest(JOB, machines, {"checkpoint_activations": True}).settings.checkpoint_activations


def test_a_sweep_goes_from_1_to_1024_gpus_and_names_those_that_cannot_be_used():
    found = sweep(replace(JOB, batch=4), Machines())
    assert list(found) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert found[1024] is None  # 4 sequences of 16,384 tokens in 128 shards or more would be below the window
    assert found[4] is not None and found[4].settings.gpus == 4


def test_a_window_bounds_how_far_a_sequence_is_divided():
    assert check(JOB, Settings(cp=128)) is None
    assert check(replace(JOB, model=replace(MODEL, window=129)), Settings(cp=128)) is None
    reason = check(JOB, Settings(cp=256))
    assert reason == f"cp must be at most 128 for sequences of 16,384 tokens, got 256: {TOO_FAR}"


def test_the_most_that_a_plan_names_is_what_training_takes():
    job = Job(model=replace(MODEL, window=100), length=1024, batch=8)
    assert check(job, Settings(cp=16)) == f"cp must be at most 8 for sequences of 1,024 tokens, got 16: {TOO_FAR}"
    assert check(job, Settings(cp=8)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention_chunk": 128}, "model.attention_chunk=128 needs cp of 1, got 8"),
        ({"smoothing": 4096}, f"cp must be at most 4 for sequences of 16,384 tokens, got 8: {TOO_FAR}"),
        (
            {"n_global": None, "window": None, "plan": HeadPlan.streaming(8, 1024, 1500)},
            f"cp must be at most 4 for sequences of 16,384 tokens, got 8: {TOO_FAR}",
        ),
    ],
)
def test_sequences_that_training_cannot_share_are_not_shared_in_a_plan(changes, reason):
    job = Job(model=replace(MODEL, **changes), length=16_384, batch=1)
    assert check(job, Settings(cp=8)) == reason
    assert fastest(job, Machines(gpus=8)) is None


def test_first_keys_of_documents_are_not_shared_in_a_plan_either():
    streaming = replace(MODEL, n_global=None, window=None, plan=HeadPlan.streaming(8, 4, 128))
    job = Job(model=streaming, length=16_384, batch=1)
    assert check(job, Settings(cp=8)) is None
    reason = check(replace(job, segments=True), Settings(cp=8))
    assert reason.startswith("cp must be 1, got 8: segments must be None for streaming heads (plan.firsts) in a group")
    assert check(replace(job, segments=True), Settings()) is None
    config = TrainConfig.load("paper-6m", ["data.segments=true", "data.length=2048"])
    assert job_of(config).segments and not job_of(TrainConfig.load("paper-6m")).segments


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (Settings(dp_shard=3), "data.batch_size=8 is not a multiple of dp_replicate x dp_shard = 3"),
        (Settings(dp_shard=2, accumulate=3), "the 4 sequences per rank are not a multiple of run.accumulate=3"),
        (Settings(cp=3), "16,384 tokens are not a multiple of cp=3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(settings, reason):
    assert check(JOB, settings) == reason
    with pytest.raises(ValueError, match=reason.split("=")[0]):
        estimate(JOB, settings, Machines(gpus=settings.gpus))


def test_the_part_of_a_rank_may_be_an_odd_number_of_tokens_as_in_training():
    assert check(replace(JOB, length=12), Settings(cp=4)) is None


def test_tokens_per_day_are_of_all_gpus_and_hours_of_each():
    found = estimate(JOB, Settings(dp_shard=4), Machines(gpus=4))
    assert found.tokens_per_day == pytest.approx(86_400 / found.seconds * 8 * 16_384)
    assert found.gpu_hours == pytest.approx(4 * 24 * 1e9 / found.tokens_per_day)


def test_plain_job_has_full_attention_however_the_reach_was_given():
    reach = {"pattern": "ladder", "largest": 128}
    job = replace(JOB, model=replace(MODEL, n_global=None, window=None, reach=reach))
    assert job.as_plain().plans == ((HeadPlan.full(8), 4),)


@pytest.mark.parametrize(("windows", "far"), [((None, 1024), 2), ((2048, 1023), 1)])
def test_window_as_long_as_the_sequence_sees_all_of_it(windows, far):
    found = reaches(HeadPlan(windows=windows), 1024)
    assert (found.far, found.near) == (far, (1023,) * (2 - far))


def test_sizes_must_come_to_the_number_of_gpus():
    with pytest.raises(ValueError, match=r"must be the 8 GPUs, got 1 x 2 x 2 = 4"):
        estimate(JOB, Settings(dp_shard=2, cp=2), Machines(gpus=8))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("pp=2", "--fix must be name=value with a name of dp_replicate, "),
        ("cp=0", "--fix cp must be an integer from 1 to 999,999, got '0'"),
        ("reshard=1", "--fix reshard must be true or false, got '1'"),
        ("reduce=fp8", "--fix reduce must be fp32 or bf16, got 'fp8'"),
    ],
)
def test_a_setting_that_is_none_is_refused(word, message):
    with pytest.raises(ValueError, match=message):
        fixed_settings([word])


def test_a_setting_is_fixed_once():
    with pytest.raises(ValueError, match="--fix cp must be given once, got it again with '4'"):
        fixed_settings(["cp=2", "cp=4"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "tpu"}, "gpu must be one of h200, h100"),
        ({"gpus": 0}, "gpus must be an integer from 1 to 65,536, got 0"),
        ({"memory": -1.0}, "memory must be a number above 0, got -1.0"),
        ({"network": float("nan")}, "network must be a number above 0, got nan"),
    ],
)
def test_machines_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Machines(**options)
