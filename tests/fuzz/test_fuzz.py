"""A few drawn cases in the ordinary tests, and that a run resumes, records and notices what is wrong."""

import json
from dataclasses import replace

import pytest
import torch

from longshort.nn import attention as layer_module

from . import check as check_module
from . import worker
from .__main__ import main
from .check import Rounding, check
from .draw import Call, Layer, drawn, tags

SEED = 3


def numbers(kind, count):
    """The first cases of a kind that Triton's interpreter has no part in."""
    found = []
    for number in range(0, 25 * 400, 7):
        case = drawn(SEED, number, "cpu")
        if isinstance(case, kind) and "triton" not in case.backends:
            found.append(number)
        if len(found) == count:
            return found
    raise AssertionError(f"too few cases of {kind}")


@pytest.mark.parametrize("number", numbers(Call, 12) + numbers(Layer, 8))
def test_a_drawn_case_agrees_with_the_reference(number):
    row = worker.answer("cpu", SEED, number)
    assert row["failure"] is None and row["found"]


def test_a_case_depends_on_its_number_alone():
    assert drawn(0, 17, "cpu") == drawn(0, 17, "cpu")
    assert drawn(0, 17, "cpu") != drawn(1, 17, "cpu")


def test_every_option_comes_up():
    seen = {tag for number in range(0, 25 * 300, 5) for tag in tags(drawn(SEED, number, "cuda"))}
    named = ("reaches differ between heads", "grouped queries", "sinks", "softcap", "scale", "decays", "slopes")
    named += ("two rotary bases", "heads without rotation", "query temperature", "tokens taken back", "stats: max")
    named += ("segments: left padding", "layout: fused qkv", "smoothing: after, causal", "dtype: bfloat16")
    assert set(named) <= seen


def test_rounding_rounds_results_and_gradients():
    x = torch.tensor([1.0 + 2.0**-12, 3.0], dtype=torch.float64, requires_grad=True)
    with Rounding(torch.bfloat16):
        product = x * x
        (gradient,) = torch.autograd.grad(product.sum(), x)
    assert torch.equal(product, product.bfloat16().double())
    assert torch.equal(gradient, gradient.bfloat16().double()) and gradient[0] == 2


def test_a_wrong_window_is_noticed(monkeypatch):
    case = next(drawn(SEED, n, "cpu") for n in numbers(Call, 40) if drawn(SEED, n, "cpu").case.n_keys > 30)
    plan = replace(case.case.plan, windows=(9,) * case.case.plan.n_heads)
    case = replace(case, case=replace(case.case, plan=plan, batch=2, segments=None, scale=None), backends=("blocked",))
    assert check(case)["blocked"].share <= 1
    op = check_module.attention

    def one_too_many(q, k, v, plan, *, backend, **options):
        wrong = plan if backend == "reference" else replace(plan, windows=(10,) * plan.n_heads)
        return op(q, k, v, wrong, backend=backend, **options)

    monkeypatch.setattr(check_module, "attention", one_too_many)
    assert check(case)["blocked"].share > 1


def test_a_cache_that_places_tokens_wrongly_is_noticed(monkeypatch):
    cases = (drawn(SEED, n, "cpu") for n in numbers(Layer, 40))
    case = next(c for c in cases if c.options["positions"] == "rotary" and c.length > 30 and c.dtype == torch.float32)
    case = replace(case, reach=replace(case.reach, local_share=1.0, global_share=1.0), segments=None)
    assert max(check(case).values()).share <= 1
    attend = layer_module.LSAttention._attend_cached

    def shifted(self, x, positions, *rest):
        return attend(self, x, positions // 2, *rest)

    monkeypatch.setattr(layer_module.LSAttention, "_attend_cached", shifted)
    found = check(case)
    assert found["layer, blocked"].share <= 1 < found["LSCache, blocked"].share


def test_a_run_resumes_and_its_record_names_what_failed(tmp_path, monkeypatch, capsys):
    made = []

    class Answering:
        """A worker in this process; case 7 fails, and one process is lost."""

        def __init__(self, device, seed):
            self.device, self.left, self.hangs = device, [], False
            self.connection, self.process = self, self
            made.append(self)

        def give(self, given):
            self.left = list(given)

        def receive(self):
            number = self.left.pop(0)
            failure = "off by 1" if number == 7 else None
            found = {"blocked": [2.0 if failure else 0.1, 1e-6, "out"]}
            named = {"device": self.device, "case": number, "dtype": "float32", "tags": ["op"]}
            return {**named, "found": found, "failure": failure, "seconds": 0.1}

        def is_alive(self):
            return True

        def stop(self):
            pass

    monkeypatch.setattr("tests.fuzz.__main__.Worker", Answering)
    monkeypatch.setattr("tests.fuzz.__main__.wait", lambda connections, timeout: connections)
    out = tmp_path / "fuzz.json"
    assert main(["--cases", "30", "--device", "cpu", "--out", str(out), "--jobs", "2"]) == 1
    assert "--device cpu --only 7" in capsys.readouterr().out
    assert main(["--cases", "60", "--device", "cpu", "--out", str(out), "--jobs", "2"]) == 1
    assert "resuming after 30 cases" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["cases"] == {"all": 60, "cpu": 60} and [f["case"] for f in found["failures"]] == [7]
    assert found["counts"]["op"] == {"cpu: blocked": 60}
    assert found["worst"]["cpu: blocked"]["float32"]["case"] == 7
