"""The training benchmark: only the attention differs, and throughput counts what it says it counts."""

import pytest
import torch
from torch.nn.attention import SDPBackend

from benchmarks import training
from benchmarks.harness import Recorder
from benchmarks.training import KERNELS, PLANS, SETTINGS, FirstStep, Kernel, Setting, Trainee
from longshort import GPT

TINY = Setting(preset="tiny", context=32, tokens=64)
LS = Kernel(name="longshort", plan="ls")
PLAIN = Kernel(name="longshort", plan="plain")
SDPA = Kernel(name="FA2", plan="plain", backend="sdpa", sdpa=SDPBackend.FLASH_ATTENTION)
CPU = {"device": "cpu", "backend": "blocked"}


def measure(*kernels, rounds=2, **options):
    return training.measure(TINY, kernels, rounds=rounds, steps=1, **CPU, **options)


def test_every_kernel_runs_and_ls_is_compared_with_each():
    rows = measure(LS, PLAIN, SDPA)
    assert [(row["arm"], row["plan"]) for row in rows] == [(kernel.name, kernel.plan) for kernel in (LS, PLAIN, SDPA)]
    assert all(len(row["milliseconds"]) == 2 and row["tokens_per_second"] > 0 for row in rows)
    assert rows[0]["ls_speedup"] == 1.0 and all(row["ls_speedup"] > 0 for row in rows[1:])
    assert rows[1]["first_loss"] == pytest.approx(rows[2]["first_loss"], abs=1e-5)
    assert rows[0]["mfu"] is None  # nobody knows the peak of this CPU


@pytest.fixture
def theirs(monkeypatch):
    """A kernel whose steps are what a test makes of them."""

    def misbehaving(step):
        class Misbehaving(Trainee):
            def step(self):
                return step(super().step)

        kinds = {"theirs": Misbehaving}
        monkeypatch.setattr(
            training, "Trainee", lambda kernel, *a, **o: kinds.get(kernel.name, Trainee)(kernel, *a, **o)
        )
        return Kernel(name="theirs", plan="ls")

    return misbehaving


def test_a_kernel_that_computes_something_else_is_not_timed(theirs):
    def wrong(step):
        loss, gradient = step()
        return loss, 1.2 * gradient

    row = measure(LS, theirs(wrong))[1]
    assert row["failed"].startswith("wrong: ") and "milliseconds" not in row


def test_another_plan_is_noticed_at_the_first_step():
    first = {}
    for plan in ("ls", "plain"):
        loss, gradient = Trainee(Kernel(name="x", plan=plan), TINY, compiled=False, **CPU).step()
        first[plan] = FirstStep(loss.item(), gradient)
    assert training.disagreement(first["ls"], first["plain"]).startswith("wrong: ")


def test_a_peer_that_fails_at_first_or_later_is_a_row_and_the_others_are_timed(theirs):
    for steps_before in (0, 3):
        called = []

        def tires(step, called=called, most=steps_before):
            called.append(1)
            if len(called) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return step()

        rows = measure(LS, theirs(tires))
        assert rows[1]["failed"] == "OutOfMemoryError: CUDA out of memory" and rows[0]["tokens_per_second"] > 0


def test_a_failure_of_ours_is_not_swallowed():
    with pytest.raises(ValueError, match="backend"):
        training.measure(TINY, [LS], device="cpu", backend="nonsense")


def test_all_start_from_the_same_weights_and_tokens():
    one, other = (Trainee(kernel, TINY, compiled=False, **CPU) for kernel in (LS, PLAIN))
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.targets, other.targets)
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_first_steps_agree_within_rounding_only():
    first = FirstStep(2.0, torch.ones(4))
    assert training.disagreement(FirstStep(2.005, 1.01 * torch.ones(4)), first) is None
    for loss, gradient in ((2.1, torch.ones(4)), (2.0, 1.2 * torch.ones(4)), (2.0, torch.full((4,), torch.nan))):
        assert training.disagreement(FirstStep(loss, gradient), first).startswith("wrong: ")


def test_flops_are_six_a_weight_and_twelve_a_feature_of_a_visible_pair():
    config = TINY.config("ls")
    model = GPT(config)
    tables = model.embedding.weight.numel() + model.position_embedding.weight.numel()
    weights = model.n_parameters() - tables
    head_dim, window, length = config.width // config.n_heads, config.layer_plans[0].windows[-1], TINY.context
    pairs = {"global": length * (length + 1) // 2, "local": window * (window + 1) // 2 + (length - window) * window}
    attended = config.n_layers * (pairs["global"] + (config.n_heads - 1) * pairs["local"])
    batch = 2
    assert training.step_flops(TINY, "ls") == pytest.approx(6 * weights * 64 + 12 * head_dim * attended * batch)
    plain = config.n_layers * config.n_heads * pairs["global"]
    assert training.step_flops(TINY, "plain") == pytest.approx(6 * weights * 64 + 12 * head_dim * plain * batch)


def test_mfu_is_the_share_of_the_peak(monkeypatch):
    monkeypatch.setattr(training, "peak_flops", lambda device: 1e9)
    row = measure(LS)[0]
    seconds = 64 / row["tokens_per_second"]
    assert row["mfu"] == pytest.approx(training.step_flops(TINY, "ls") / seconds / 1e9)
    assert row["mfu_as_plain"] == pytest.approx(training.step_flops(TINY, "plain") / seconds / 1e9)


def test_every_setting_makes_models_of_both_plans_and_whole_rows():
    for setting in SETTINGS:
        assert setting.tokens % setting.context == 0
        plans = [setting.config(plan).layer_plans[0] for plan in ("ls", "plain")]
        assert [plan.n_global for plan in plans] == [1, plans[0].n_heads]


def test_the_table_names_what_failed():
    rows = [{"setting": "tiny:32", "arm": "FA2", "plan": "plain", "compiled": False, "failed": "OutOfMemoryError: no"}]
    assert "| tiny:32 | plain | FA2 | OutOfMemoryError: no |" in training.table({"rows": rows})


def test_a_run_has_the_rows_of_every_setting():
    results = training.run(
        Recorder(), [TINY, Setting(preset="tiny", context=16, tokens=64)], kernels=[LS], rounds=1, **CPU
    )
    assert [row["setting"] for row in results["rows"]] == ["tiny:32", "tiny:16"]


@pytest.mark.parametrize("name", PLANS)
def test_overhead_of_statistics_is_the_ratio_spread_over_the_steps_between_readings(name):
    row = training.statistics_cost(PLANS[name], device="cpu", rounds=1, every=10)
    assert row["milliseconds"] > 0
    assert row["overhead_at_default"] == pytest.approx((row["ratio"] - 1) / 10)


def test_kernels_have_different_names():
    assert len({str(kernel) for kernel in KERNELS}) == len(KERNELS)
