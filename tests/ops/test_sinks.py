"""Sinks: a learned score per head that joins every row's softmax with a value of zero."""

from importlib.util import find_spec

import pytest
import torch

from longshort import HeadPlan, attention
from longshort.ops.decode import HeadLayout, decode

PLAN = HeadPlan(windows=(None, 7, 3, None))
CASES = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "more keys": {"n_keys": 60},
    "two-sided": {"causal": False},
    "segments": {"segmented": True},
    "softcap": {"softcap": 2.0},
    "decays and slopes": {
        "plan": HeadPlan(windows=(None, 7, 3, None), decays=(0.0, 0.1, 0.3, 0.01), slopes=(0.1, 0.0, 0.2, 0.05))
    },
    "decays": {"plan": HeadPlan(windows=(None, 7, 3, None), decays=(0.0, 0.1, 0.02, 0.01))},
    "negative scale": {"scale": -0.3},
}
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
TRITON = pytest.param("triton", marks=needs_triton)
BACKENDS = ["blocked", TRITON]


def tensors(kv_heads=4, n_keys=45, segmented=False, dtype=torch.float32, **_):
    generator = torch.Generator().manual_seed(0)
    shapes = (4, 41), (kv_heads, n_keys), (kv_heads, n_keys)
    q, k, v = (torch.randn(2, *shape, 16, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0], dtype=torch.promote_types(dtype, torch.float32))
    segments = None
    if segmented:
        segments = (torch.arange(n_keys) // 11).expand(2, -1).clone()
        segments[1, -6:] = -1
    return [x.requires_grad_() for x in (q, k, v, sinks)], segments


def results(backend, dtype=torch.float32, stats=False, **case):
    (q, k, v, sinks), segments = tensors(dtype=dtype, **case)
    options = {name: case[name] for name in ("causal", "softcap", "scale") if name in case}
    plan = case.get("plan", PLAN)
    result = attention(q, k, v, plan, segments=segments, sinks=sinks, stats=stats, backend=backend, **options)
    weight = torch.linspace(-1, 1, result.out.numel(), dtype=result.out.dtype).view_as(result.out)
    grads = torch.autograd.grad((result.out * weight).sum(), (q, k, v, sinks))
    return [result.out, result.lse, *grads, *(result.stats or ())]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_computes_what_the_reference_defines(backend, name):
    for ours, exact in zip(
        results(backend, **CASES[name]), results("reference", torch.float64, **CASES[name]), strict=True
    ):
        torch.testing.assert_close(ours.double(), exact, rtol=2e-4, atol=2e-5)


def test_the_definition_is_a_key_of_zero_value_and_given_score():
    (q, k, v, sinks), _ = tensors(dtype=torch.float64)
    full = HeadPlan.full(4)
    scores = (q @ k.mT) / 4
    scores = torch.cat((scores, sinks[None, :, None, None].expand(2, 4, 41, 1)), -1)
    causal = torch.ones(41, 45, dtype=torch.bool).tril(4)
    causal = torch.cat((causal, torch.ones(41, 1, dtype=torch.bool)), -1)
    weights = scores.masked_fill(~causal, -torch.inf).softmax(-1)
    found = attention(q, k, v, full, sinks=sinks, backend="reference")
    torch.testing.assert_close(found.out, weights[..., :-1] @ v)
    torch.testing.assert_close(found.lse, scores.masked_fill(~causal, -torch.inf).logsumexp(-1))


def test_gradients_of_the_reference_are_those_of_finite_differences():
    (q, k, v, sinks), segments = tensors(n_keys=41, segmented=True, dtype=torch.float64)
    q, k, v = (x[:, :, :9].detach().requires_grad_() for x in (q, k, v))

    def out(*inputs):
        return attention(*inputs[:3], PLAN, sinks=inputs[3], segments=segments[:, :9], backend="reference").out

    assert torch.autograd.gradcheck(out, (q, k, v, sinks))


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_padding_stays_blind_and_statistics_do_not_know_of_sinks(backend):
    (q, k, v, sinks), segments = tensors(segmented=True)
    found = attention(q, k, v, PLAN, sinks=sinks, segments=segments, stats=True, backend=backend)
    without = attention(q, k, v, PLAN, segments=segments, stats=True, backend=backend)
    assert (found.lse[1, :, -6:] == -torch.inf).all() and (found.out[1, :, -6:] == 0).all()
    assert torch.equal(found.stats.max, without.stats.max) and torch.equal(found.stats.min, without.stats.min)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize(("value", "share"), [(-1e4, 1.0), (1e4, 0.0)])
def test_a_sink_far_below_changes_nothing_and_one_far_above_takes_everything(backend, value, share):
    (q, k, v, sinks), _ = tensors()
    far = torch.full_like(sinks, value).requires_grad_()
    found = attention(q, k, v, PLAN, sinks=far, backend=backend)
    without = attention(q, k, v, PLAN, backend=backend)
    torch.testing.assert_close(found.out, share * without.out)
    grads = torch.autograd.grad(found.out.square().sum(), (q, k, v, far))
    assert all(grad.isfinite().all() for grad in grads) and (grads[3] == 0).all()


@needs_triton
def test_walks_in_parts_take_the_sink_once():
    from longshort.ops.triton.tiles import TileShape, use

    with use({kernel: TileShape(16, 16, 1, 4, parts=3) for kernel in ("forward", "grad_q", "grad_kv")}):
        case = {"plan": HeadPlan(windows=(None, 7, 2000, None))}
        found, exact = results("triton", **case), results("reference", torch.float64, **case)
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-4, atol=2e-5)


def test_compiled_calls_learn_sinks():
    (q, k, v, sinks), _ = tensors()

    def loss(q, k, v, sinks):
        return attention(q, k, v, PLAN, sinks=sinks, backend="blocked").out.square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(q, k, v, sinks), (q, k, v, sinks))
    for ours, theirs in zip(found, torch.autograd.grad(loss(q, k, v, sinks), (q, k, v, sinks)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_forward_op_with_sinks_passes_opcheck():
    (q, k, v, sinks), _ = tensors()
    options = ([1 << 30, 7, 3, 1 << 30], None, None, None, True, None, None, None, 0, sinks)
    torch.library.opcheck(torch.ops.longshort.blocked_forward.default, (q, k, v, *options))


@pytest.mark.parametrize("backend", ["plain", TRITON])
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("group", [1, 2])
def test_a_decoding_step_drains_as_a_whole_pass_does(backend, new, group):
    (q, k, v, sinks), _ = tensors(kv_heads=4 // group, n_keys=45)
    q, k, v, sinks = (x.detach() for x in (q[:, :, -new:], k, v, sinks))
    held, n_kv = 45 - new, 4 // group
    plan = HeadPlan(windows=(None,) * group + (7,) * (4 - group))
    keys, values = (x[:, :, :held] for x in (k, v))
    room = torch.zeros(2, n_kv, 64, 16)
    stored = []
    for past in (keys, values):
        filled = room.clone()
        filled[:, :, :held] = past
        stored.append(filled.flatten())
    layout = tuple(HeadLayout(first=head * 64, apart=n_kv * 64, rows=64) for head in range(n_kv))
    out, _ = decode(
        q,
        k[:, :, held:],
        v[:, :, held:],
        *stored,
        torch.tensor([held]),
        None,
        torch.zeros(2 * n_kv, dtype=torch.int32),
        layout,
        plan,
        sinks=sinks,
        backend="triton" if backend == "triton" else "blocked",
    )
    expected = attention(q, k, v, plan, sinks=sinks, backend="reference").out
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        (
            torch.zeros(3),
            r"sinks must be torch.float32 of shape \(heads,\) = \(4,\), got torch.float32 of shape \(3,\)",
        ),
        (torch.zeros(4, dtype=torch.float16), "sinks must be torch.float32"),
        ([0.0] * 4, "sinks must be None or a tensor, got list"),
        (torch.zeros(4, device="meta"), "sinks must be on the device of q, cpu, got meta"),
    ],
)
def test_other_sinks_are_refused(sinks, message):
    (q, k, v, _), _ = tensors()
    with pytest.raises(ValueError, match=message):
        attention(q, k, v, PLAN, sinks=sinks)


def test_peers_have_no_sinks():
    (q, k, v, sinks), _ = tensors(n_keys=41)
    with pytest.raises(ValueError, match='backend="sdpa" cannot serve this call: it has no sinks'):
        attention(q, k, v, PLAN, sinks=sinks, backend="sdpa")
