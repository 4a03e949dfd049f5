"""The e-exponentiated loss: its transform against the definition, any base, and the chunked form."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from longshort.losses import BASES, exponentiated, linear_cross_entropy, transform_scores

EXPONENTS = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0]
C = 0.01
# Torch's own word, once a process, on a CPU without bf16 instructions.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")


def by_definition(x, e, c=C):
    return math.copysign(abs(x) ** e, x) if abs(x) >= c else c ** (e - 1) * x


def away_from_kinks(shape):
    """Scores of both signs, inside and outside of the linear part, none within 1e-3 of where the slope jumps."""
    x = torch.cat((torch.linspace(-30, 30, 40), torch.linspace(-0.008, 0.008, 40))).double()
    return x[torch.randperm(80)[: math.prod(shape)]].view(shape).requires_grad_()


@pytest.mark.parametrize("e", EXPONENTS)
def test_transform_is_its_definition_on_every_score(e):
    x = torch.cat((torch.linspace(-50, 50, 101), torch.linspace(-0.02, 0.02, 41))).double()
    expected = torch.tensor([by_definition(v, e) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(transform_scores(x, e, C), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("e", EXPONENTS)
@pytest.mark.parametrize("c", [0.005, 0.5, 3.0])
def test_transform_is_continuous_at_c_and_odd(e, c):
    near = torch.tensor([c * (1 - 1e-12), c, c * (1 + 1e-12)], dtype=torch.float64)
    values = transform_scores(near, e, c)
    torch.testing.assert_close(values, torch.full_like(values, c**e), rtol=1e-9, atol=0)
    torch.testing.assert_close(transform_scores(-near, e, c), -values, rtol=0, atol=0)


@pytest.mark.parametrize("e", EXPONENTS)
def test_transform_keeps_the_order_of_scores(e):
    values = transform_scores(torch.linspace(-20, 20, 10_001, dtype=torch.float64), e, C)
    steps = values.diff()
    assert (steps >= 0).all() and ((steps > 0).all() or e == 0)


@pytest.mark.parametrize("e", EXPONENTS)
def test_slope_at_zero_is_finite_and_that_of_the_linear_part(e):
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(transform_scores(x, e, C).sum(), x)
    torch.testing.assert_close(grad, torch.full_like(grad, C ** (e - 1)))


@pytest.mark.parametrize("e", [0.0, 0.3, 0.5, 0.99])
def test_gradients_and_their_gradients_pass_gradcheck_away_from_the_kinks(e):
    x = away_from_kinks((24,))
    assert torch.autograd.gradcheck(lambda s: transform_scores(s, e, C), x, eps=1e-6)
    assert torch.autograd.gradgradcheck(lambda s: transform_scores(s, e, C), x, eps=1e-6)


@pytest.mark.parametrize("e", EXPONENTS)
def test_a_score_that_is_nan_stays_nan(e):
    assert transform_scores(torch.tensor([math.nan]), e).isnan().all()


def test_at_e_zero_gradients_vanish_beyond_c_and_only_there():
    x = torch.tensor([-2.0, -0.02, 0.009, 0.0, 5.0], requires_grad=True)
    (grad,) = torch.autograd.grad(transform_scores(x, 0.0, C).sum(), x)
    assert (grad != 0).tolist() == [False, False, True, True, False]


def test_a_masked_class_stays_masked_and_sends_no_nan_back():
    scores = torch.tensor([[1.0, -torch.inf, 4.0]], requires_grad=True)
    loss = exponentiated("cross_entropy", e=0.5)(scores, torch.tensor([2]))
    torch.testing.assert_close(loss, F.cross_entropy(torch.tensor([[1.0, 2.0]]), torch.tensor([1])))
    (grad,) = torch.autograd.grad(loss, scores)
    assert grad.isfinite().all() and grad[0, 1] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("e", EXPONENTS)
def test_half_precision_neither_overflows_nor_loses_the_gradient(dtype, e):
    largest = torch.finfo(dtype).max
    scores = torch.tensor([[largest, -largest, 0.0, 1e-7, 1.0]], dtype=dtype, requires_grad=True)
    values = transform_scores(scores, e, 1e-4)
    exact = torch.tensor([[by_definition(v, e, 1e-4) for v in scores[0].tolist()]])
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, exact, rtol=1e-5, atol=0)
    (grad,) = torch.autograd.grad(exponentiated("cross_entropy", e, 1e-4)(scores, torch.tensor([4])), scores)
    assert grad.dtype == dtype and grad.isfinite().all()


def targets_of(base, scores):
    if base == "cross_entropy":
        return torch.randint(scores.shape[-1], scores.shape[:1])
    return torch.randn_like(scores).sign()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("e", [0.0, 0.5, 0.9])
def test_every_base_is_taken_of_the_transformed_scores(base, e):
    scores = away_from_kinks((6, 4))
    targets = targets_of(base, scores)
    loss = exponentiated(base, e, C)(scores, targets)
    expected = BASES[base](torch.tensor([[by_definition(v, e) for v in row] for row in scores.tolist()]), targets)
    torch.testing.assert_close(loss, expected.double(), rtol=1e-5, atol=0)
    assert torch.autograd.gradcheck(lambda s: exponentiated(base, e, C)(s, targets), scores, eps=1e-6)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("of_classes", [True, False])
def test_every_base_maps_over_examples_with_targets_of_their_own(base, of_classes):
    scores = torch.randn(5, 4, 3)
    targets = torch.randint(3, (5, 4)) if of_classes or base == "cross_entropy" else torch.randn(5, 4, 3).sign()
    found = torch.func.vmap(torch.func.grad(exponentiated(base)))(scores, targets)
    one_by_one = [torch.func.grad(exponentiated(base))(*pair) for pair in zip(scores, targets, strict=True)]
    torch.testing.assert_close(found, torch.stack(one_by_one))


@pytest.mark.parametrize("base", ["logistic", "hinge", "squared_hinge"])
def test_class_indices_are_each_class_against_the_rest(base):
    scores, classes = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    signs = 2 * F.one_hot(classes, 3).float() - 1
    torch.testing.assert_close(BASES[base](scores, classes), 3 * BASES[base](scores, signs))


def test_any_callable_may_be_the_base_and_e_one_is_the_base():
    scores, targets = torch.randn(4, 5), torch.randn(4, 5)
    wrapped = exponentiated(F.smooth_l1_loss, e=1.0)
    assert torch.equal(wrapped(scores, targets), F.smooth_l1_loss(scores, targets))


def test_compiled_loss_and_gradients_equal_eager_in_one_graph():
    loss = exponentiated("cross_entropy", e=0.5)
    compiled = torch.compile(lambda s, t: loss(2 * s, t), fullgraph=True, backend="aot_eager")
    for rows in (3, 7):
        scores, targets = torch.randn(rows, 11, requires_grad=True), torch.randint(11, (rows,))
        mine, expected = compiled(scores, targets), loss(2 * scores, targets)
        torch.testing.assert_close(mine, expected)
        torch.testing.assert_close(torch.autograd.grad(mine, scores), torch.autograd.grad(expected, scores))


@pytest.fixture
def fresh_compiler(tmp_path, monkeypatch):
    """Nothing compiled before, in this process or another."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_every_exponent_is_a_constant_of_its_compiled_code(fresh_compiler):
    """torch.compile makes a variable of a second one, by which Inductor takes wrong powers."""
    exponents = []

    def backend(graph, example_inputs):
        exponents.extend(node.args[1] for node in graph.graph.nodes if node.target == "pow")
        return graph

    compiled = torch.compile(transform_scores, fullgraph=True, backend=backend)
    scores = torch.tensor([-4.0, -0.3, 0.002, 0.5, 9.0])
    for e in (0.25, 0.5, 0.75):
        torch.testing.assert_close(compiled(scores, e), transform_scores(scores, e))
    assert exponents == [0.25, 0.5, 0.75]


@pytest.mark.slow
def test_one_compiled_transform_serves_every_exponent(fresh_compiler):
    compiled = torch.compile(transform_scores, fullgraph=True)
    scores = torch.tensor([-4.0, -0.3, 0.002, 0.5, 9.0])
    for e in (0.25, 0.5, 0.75, 0.0):
        torch.testing.assert_close(compiled(scores, e), transform_scores(scores, e))
    for e in (0.0, 0.75):
        torch.testing.assert_close(compiled(scores, e, 0.1), transform_scores(scores, e, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("base", ["cross_entropy", "hinge"])
def test_losses_of_several_exponents_compile_one_after_the_other(base, fresh_compiler):
    targets = torch.randint(11, (3,))
    for e in (0.25, 0.5, 0.75, 0.0):
        scores, loss = torch.randn(3, 11, requires_grad=True), exponentiated(base, e=e)
        mine, expected = torch.compile(loss, fullgraph=True)(scores, targets), loss(scores, targets)
        torch.testing.assert_close(mine, expected)
        torch.testing.assert_close(torch.autograd.grad(mine, scores), torch.autograd.grad(expected, scores))


def test_it_can_be_mapped_over_models():
    scores, targets = torch.randn(3, 6, 4), torch.randint(4, (6,))
    loss = exponentiated("cross_entropy", e=0.25)
    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(scores, targets)
    each = torch.stack([torch.func.grad(loss)(s, targets) for s in scores])
    torch.testing.assert_close(mapped, each)


@pytest.mark.parametrize("e", [0.0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("z_weight", [0.0, 0.1])
def test_chunked_loss_and_gradients_equal_those_of_full_logits(e, z_weight):
    hidden = torch.randn(23, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(37, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(37, (23,))
    targets[[0, 7, 22]] = -100
    loss = linear_cross_entropy(hidden, weight, targets, z_weight=z_weight, chunk=5, exponent=e, linear_below=0.3)
    scores = transform_scores(hidden @ weight.T, e, 0.3)
    expected = F.cross_entropy(scores, targets) + z_weight * scores.logsumexp(-1)[targets != -100].square().mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight))
    )


def test_an_ignored_row_of_the_chunked_loss_may_hold_anything():
    hidden, weight = torch.randn(6, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    targets = torch.tensor([1, 2, -100, 3, 4, 5])
    clean = linear_cross_entropy(hidden, weight, targets, exponent=0.5)
    hidden[2] = torch.nan
    loss = linear_cross_entropy(hidden.requires_grad_(), weight, targets, exponent=0.5, chunk=2)
    torch.testing.assert_close(loss, clean)
    (grad,) = torch.autograd.grad(loss, hidden)
    assert grad.isfinite().all() and grad[2].eq(0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exponentiated("cross_entropy", e=1.1), "e must be a number from 0 to 1, got 1.1"),
        (lambda: exponentiated("cross_entropy", e=-0.1), "e must be a number from 0 to 1, got -0.1"),
        (lambda: exponentiated("cross_entropy", e=math.nan), "e must be a number from 0 to 1, got nan"),
        (lambda: exponentiated("cross_entropy", c=0.0), r"c must be a number from 1e-30 to 1e\+30, got 0.0"),
        (lambda: transform_scores(torch.zeros(2), e=0.0, c=1e-40), r"c must be a number from 1e-30 .* got 1e-40"),
        (lambda: exponentiated("hinge", e="0.5"), "e must be a number from 0 to 1, got '0.5'"),
        (lambda: exponentiated("hinge", e=True), "e must be a number from 0 to 1, got True"),
        (lambda: exponentiated("hinge", c=None), "c must be a number from 1e-30 .* got None"),
        (lambda: transform_scores([1.0]), "scores must be a floating-point tensor, got list"),
        (lambda: BASES["hinge"](torch.zeros(2, 3), torch.tensor([0, 3])), "targets must be classes from 0 to 2"),
        (lambda: BASES["logistic"](torch.zeros(2, 3), torch.tensor([0, -1])), "targets must be classes from 0 to 2"),
        (lambda: BASES["hinge"](torch.zeros(2), torch.tensor([True, False])), r"must be \+1 or -1"),
        (lambda: exponentiated("crossentropy"), "base must be a callable or one of cross_entropy, logistic"),
        (lambda: exponentiated(3), "base must be a callable .* got int"),
        (
            lambda: transform_scores(torch.zeros(2, dtype=torch.long)),
            "scores must be a floating-point tensor, got torch.int64",
        ),
        (lambda: BASES["hinge"](torch.zeros(2), torch.tensor([0.0, 1.0])), r"must be \+1 or -1"),
        (lambda: BASES["hinge"](torch.zeros(2, 3), torch.zeros(4).long()), r"targets must have shape \(2, 3\)"),
        (lambda: BASES["squared_error"](torch.zeros(4, 3), torch.zeros(1).long()), r"targets must have .* \(1,\)"),
        (lambda: BASES["squared_error"](torch.zeros(4, 1), torch.zeros(4)), "int64 class indices .* got torch.float32"),
    ],
)
def test_wrong_argument_is_a_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_example_of_the_guide_runs():
    guide = (Path(__file__).parents[2] / "docs" / "ideas" / "robust-loss.md").read_text(encoding="utf-8")
    example, _ = re.findall(r"```python\n(.*?)```", guide, re.S)  # tests/docs/test_ideas.py runs the second
    exec(compile(example, "docs/ideas/robust-loss.md", "exec"), {"__name__": "example"})
