"""The chunked loss against torch's own, taken on full logits in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.losses import linear, linear_cross_entropy

# Torch's own word, once a process, on a CPU without bf16 instructions.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")


_DOUBLE = (torch.float64, True, True)


def case(n: int = 23, d: int = 8, v: int = 37, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.randn(n, d, dtype=dtype, requires_grad=True)
    weight = torch.randn(v, d, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(v, (n,))


def on_full_logits(hidden: Tensor, weight: Tensor, targets: Tensor, z_weight: float = 0.0) -> Tensor:
    logits = hidden @ weight.T
    z_term = logits.logsumexp(-1)[targets != -100].square().mean()
    return F.cross_entropy(logits, targets) + z_weight * z_term


@pytest.mark.parametrize("chunk", [1, 5, 23, 100, None])
def test_loss_and_gradients_equal_cross_entropy_of_the_full_logits(chunk: int | None) -> None:
    hidden, weight, targets = case()
    loss = linear_cross_entropy(hidden, weight, targets, chunk=chunk)
    expected = on_full_logits(hidden, weight, targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight))
    )


@pytest.mark.parametrize("z_weight", [0.0, 0.3])
@pytest.mark.parametrize("softcap", [0.5, 2.0, 30.0])
def test_softcapped_loss_and_gradients_equal_cross_entropy_of_the_capped_logits(
    softcap: float, z_weight: float
) -> None:
    hidden, weight, targets = case()
    targets[[0, 9]] = -100
    loss = linear_cross_entropy(hidden, weight, targets, z_weight=z_weight, softcap=softcap, chunk=5)
    logits = softcap * torch.tanh(hidden @ weight.T / softcap)
    z_term = logits.logsumexp(-1)[targets != -100].square().mean()
    expected = F.cross_entropy(logits, targets) + z_weight * z_term
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight))
    )
    with torch.no_grad():
        torch.testing.assert_close(
            linear_cross_entropy(hidden, weight, targets, z_weight=z_weight, softcap=softcap), expected
        )


@pytest.mark.parametrize("z_weight", [0.0, 0.3])
def test_ignored_tokens_enter_neither_the_loss_nor_its_mean(z_weight: float) -> None:
    hidden, weight, targets = case()
    targets[[0, 4, 5, 6, 7, 8, 9, 22]] = -100
    loss = linear_cross_entropy(hidden, weight, targets, z_weight=z_weight, chunk=5)
    expected = on_full_logits(hidden, weight, targets, z_weight)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight))
    )


def test_what_an_ignored_row_holds_does_not_matter() -> None:
    hidden, weight, targets = case()
    targets[3] = -100
    poisoned = hidden.detach().clone()
    poisoned[3] = torch.nan
    poisoned.requires_grad_()
    loss = linear_cross_entropy(poisoned, weight, targets, chunk=4)
    torch.testing.assert_close(loss, on_full_logits(hidden, weight, targets))
    (grad,) = torch.autograd.grad(loss, poisoned)
    assert grad[3].eq(0).all() and grad.isfinite().all()


def test_z_term_is_added_with_its_gradient() -> None:
    hidden, weight, targets = case()
    loss = linear_cross_entropy(hidden, weight, targets, z_weight=0.7, chunk=6)
    expected = on_full_logits(hidden, weight, targets, 0.7)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight))
    )


@pytest.mark.parametrize("n", [0, 7])
def test_loss_and_gradients_are_zero_when_every_token_is_ignored(n: int) -> None:
    hidden, weight, targets = case(n=n)
    loss = linear_cross_entropy(hidden, weight, targets.fill_(-100), z_weight=0.1, chunk=3)
    loss.backward()
    assert loss.item() == 0
    assert hidden.grad is not None and hidden.grad.eq(0).all()
    assert weight.grad is not None and weight.grad.eq(0).all()


def test_gradient_scales_with_what_comes_from_above() -> None:
    hidden, weight, targets = case()
    (unscaled,) = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets), hidden)
    (scaled,) = torch.autograd.grad(3 * linear_cross_entropy(hidden, weight, targets), hidden)
    torch.testing.assert_close(scaled, 3 * unscaled)


@pytest.mark.parametrize("wanted", ["hidden", "weight"])
def test_only_the_gradient_that_is_needed_is_formed(wanted: str) -> None:
    hidden, weight, targets = case()
    {"hidden": weight, "weight": hidden}[wanted].requires_grad_(False)
    x = {"hidden": hidden, "weight": weight}[wanted]
    loss = linear_cross_entropy(hidden, weight, targets, chunk=4)
    saved = [s.shape for s in loss.grad_fn.saved_tensors if s.numel() > 1]  # type: ignore[union-attr]
    assert saved == [x.shape]
    (grad,) = torch.autograd.grad(loss, x)
    (expected,) = torch.autograd.grad(on_full_logits(hidden, weight, targets), x)
    torch.testing.assert_close(grad, expected)


def test_no_gradient_is_formed_without_grad_mode() -> None:
    hidden, weight, targets = case()
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, targets).requires_grad


def test_op_offers_no_gradient_of_its_gradients() -> None:
    hidden, weight, targets = case()
    outputs = torch.ops.longshort.linear_cross_entropy(hidden, weight, targets, -100, 0.0, 1.0, 0.01, 0.0, 7, *_DOUBLE)
    assert [x.requires_grad for x in outputs] == [True, False, False, False]


def test_loss_has_a_shape_on_the_meta_device() -> None:
    hidden, weight, targets = (x.to("meta") for x in case())
    assert linear_cross_entropy(hidden, weight, targets).shape == ()


def test_large_logits_neither_overflow_nor_underflow() -> None:
    hidden, weight, targets = case(dtype=torch.float32)
    loss = linear_cross_entropy(1e3 * hidden, weight, targets)
    torch.testing.assert_close(loss, on_full_logits(1e3 * hidden, weight, targets))
    assert loss.isfinite()


def test_a_nan_in_the_input_shows_in_the_loss() -> None:
    hidden, weight, targets = case()
    with torch.no_grad():
        hidden[2, 2] = torch.nan
    assert linear_cross_entropy(hidden, weight, targets).isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_summed_in_single_precision(dtype: torch.dtype) -> None:
    hidden, weight, targets = case(n=300, dtype=torch.float32)
    half_hidden, half_weight = (x.detach().to(dtype).requires_grad_() for x in (hidden, weight))
    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (half_hidden, half_weight))
    loss = linear_cross_entropy(half_hidden, half_weight, targets, chunk=16)
    expected = on_full_logits(exact_hidden, exact_weight, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-2, atol=0)
    grads = torch.autograd.grad(loss, (half_hidden, half_weight))
    for grad, exact in zip(grads, torch.autograd.grad(expected, (exact_hidden, exact_weight)), strict=True):
        assert grad.dtype == dtype
        assert (grad.double() - exact).norm() < 0.02 * exact.norm()


def test_autocast_multiplies_in_its_dtype_and_keeps_the_weight_gradient_in_the_weights() -> None:
    hidden, weight, targets = case(n=64, dtype=torch.float32)
    exact = on_full_logits(hidden, weight, targets)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, chunk=10)
        mixed = linear_cross_entropy(hidden.bfloat16(), weight, targets, chunk=10)
    assert loss.dtype == torch.float32
    assert loss != exact and mixed == loss
    torch.testing.assert_close(loss, exact, rtol=1e-2, atol=0)
    grad_hidden, grad_weight = torch.autograd.grad(loss, (hidden, weight))
    assert grad_hidden.dtype == grad_weight.dtype == torch.float32
    (expected,) = torch.autograd.grad(exact, weight)
    assert (grad_weight - expected).norm() < 0.02 * expected.norm()
    assert not torch.equal(grad_weight, grad_weight.bfloat16().float())  # the sum over chunks was not rounded


def test_fp16_gradients_survive_a_mean_over_many_tokens() -> None:
    # 1 / 50,000 of a small probability is below fp16's smallest number, the loss scale of mixed precision is not.
    hidden = (1e-3 * torch.randn(50_000, 4)).half().requires_grad_()
    weight = torch.randn(16, 4).half().requires_grad_()
    targets = torch.randint(16, (50_000,))
    (grad,) = torch.autograd.grad(2.0**16 * linear_cross_entropy(hidden, weight, targets), hidden)
    assert (grad != 0).float().mean() > 0.99


def test_fp16_weight_gradients_are_not_summed_in_fp16() -> None:
    hidden, weight = torch.full((20_000, 4), 5.0).half(), torch.zeros(3, 4).half().requires_grad_()
    targets = torch.zeros(20_000, dtype=torch.long)  # a sum of 20,000 times 5 is beyond fp16's largest number
    (grad,) = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets, chunk=1000), weight)
    torch.testing.assert_close(grad, torch.tensor([-10 / 3, 5 / 3, 5 / 3])[:, None].expand(3, 4).half())


def test_second_derivative_is_a_clear_error() -> None:
    hidden, weight, targets = case()
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(linear_cross_entropy(hidden, weight, targets), hidden, create_graph=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("settings", [{}, {"exponent": 0.5, "z_weight": 0.1}, {"softcap": 3.0}])
def test_derivatives_of_torch_func_are_those_of_autograd(settings: dict[str, float]) -> None:
    hidden, weight, targets = case()
    targets[1] = -100

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, targets, **settings)

    expected = torch.autograd.grad(loss(hidden, weight), (hidden, weight))
    hidden, weight = hidden.detach(), weight.detach()
    torch.testing.assert_close(torch.func.grad(loss, argnums=(0, 1))(hidden, weight), expected)
    directions = torch.randn_like(hidden), torch.randn_like(weight)
    value, slope = torch.func.jvp(loss, (hidden, weight), directions)
    torch.testing.assert_close(value, loss(hidden, weight))
    torch.testing.assert_close(slope, sum((g * d).sum() for g, d in zip(expected, directions, strict=True)))


@pytest.mark.parametrize("ignored", [slice(3, 4), slice(None)])
def test_ignored_rows_do_not_matter_to_torch_func(ignored: slice) -> None:
    hidden, weight, targets = (x.detach() for x in case())
    targets[ignored] = -100
    expected = linear_cross_entropy(hidden, weight, targets)
    hidden[ignored] = torch.nan
    gradient, loss = torch.func.grad_and_value(linear_cross_entropy)(hidden, weight, targets)
    assert gradient[ignored].eq(0).all() and gradient.isfinite().all()
    torch.testing.assert_close(loss, expected)


def test_gradients_pass_gradcheck() -> None:
    hidden, weight, targets = case(n=5, d=3, v=4)
    targets[1] = -100
    assert torch.autograd.gradcheck(
        lambda h, w: linear_cross_entropy(h, w, targets, z_weight=0.1, chunk=2), (hidden, weight)
    )


@pytest.mark.parametrize(("exponent", "softcap"), [(1.0, 0.0), (0.5, 0.0), (1.0, 2.0)])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, False)])
def test_op_passes_opcheck(wanted: tuple[bool, bool], exponent: float, softcap: float) -> None:
    hidden, weight, targets = case(dtype=torch.float32)
    hidden.requires_grad_(wanted[0])
    weight.requires_grad_(wanted[1])
    arguments = (hidden, weight, targets, -100, 0.1, exponent, 0.01, softcap, 7)
    torch.library.opcheck(torch.ops.longshort.linear_cross_entropy.default, (*arguments, torch.float32, *wanted))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_loss_equals_eager(dynamic: bool) -> None:
    @torch.compile(fullgraph=True, dynamic=dynamic, backend="aot_eager")
    def compiled(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(hidden.tanh(), weight, targets, chunk=4)

    for n in (6, 11):
        hidden, weight, targets = case(n=n)
        loss = compiled(hidden, weight, targets)
        expected = linear_cross_entropy(hidden.tanh(), weight, targets, chunk=4)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(
            torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight))
        )


def head_of(n_classes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(n_classes, 1, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("n_tokens", "n_classes", "dtype", "expected"),
    [
        (32768, 50304, torch.bfloat16, 8192),
        (32768, 50304, torch.float32, 4736),
        (33000, 50304, torch.bfloat16, 8320),
        (100, 50304, torch.bfloat16, 128),
        (0, 384, torch.bfloat16, 128),
        (1 << 20, 384, torch.bfloat16, 1 << 20),
        (32768, 1 << 27, torch.bfloat16, 128),
    ],
)
def test_chunks_of_the_kernel_are_whole_tiles_of_equal_number(
    n_tokens: int, n_classes: int, dtype: torch.dtype, expected: int
) -> None:
    assert linear._fitting(n_tokens, head_of(n_classes, dtype), True) == expected


def test_no_chunk_of_the_kernel_is_above_a_gibibyte_or_needlessly_small() -> None:
    for n_tokens in range(1, 200_000, 997):
        for n_classes in (384, 32000, 50304, 262144):
            chunk = linear._fitting(n_tokens, head_of(n_classes), True)
            n_chunks = -(-n_tokens // chunk)
            assert chunk * n_classes * 2 <= 2**30
            assert n_chunks * chunk - n_tokens < 128 * n_chunks
            assert n_chunks == 1 or 2 * chunk * n_classes * 2 > 2**30


def test_default_chunk_elsewhere_is_64_mebibytes_of_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    assert linear._fitting(32768, head_of(50304), False) == 333
    monkeypatch.setattr(linear, "_CHUNK_BYTES", 6 * 4 * 37)
    hidden, weight, targets = case(dtype=torch.float32)
    results = [linear_cross_entropy(hidden, weight, targets, chunk=chunk) for chunk in (None, 6, 5)]
    grads = [torch.autograd.grad(loss, weight)[0] for loss in results]
    assert torch.equal(results[0], results[1]) and torch.equal(grads[0], grads[1])
    assert not torch.equal(grads[0], grads[2])


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel and the padding that goes with it, by Triton's interpreter where there is no GPU."""
    pytest.importorskip("triton", reason="the package triton is not installed")
    monkeypatch.setattr(linear, "_has_kernel", lambda device: True)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("shape", [{}, {"exponent": 0.5}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("n_classes", [257, 131, 64, 3])
def test_padding_the_head_changes_neither_loss_nor_gradients(n_classes: int, shape: dict[str, float]) -> None:
    hidden, weight, targets = case(v=n_classes, dtype=torch.float32)
    targets[[0, 9]] = -100
    doubles = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    loss, expected = (
        linear_cross_entropy(*inputs, targets, z_weight=0.3, chunk=10, **shape)
        for inputs in ((hidden, weight), doubles)
    )
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert [grad.shape for grad in grads] == [hidden.shape, weight.shape]
    for grad, exact in zip(grads, torch.autograd.grad(expected, doubles), strict=True):
        torch.testing.assert_close(grad.double(), exact, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.usefixtures("kernel")
def test_padding_brings_no_nan_from_an_ignored_row() -> None:
    hidden, weight, targets = case(dtype=torch.float32)
    targets[3] = -100
    with torch.no_grad():
        hidden[3] = torch.nan
    (grad,) = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets), hidden)
    assert grad[3].eq(0).all() and grad.isfinite().all()


@pytest.mark.usefixtures("kernel")
def test_a_target_in_the_padding_is_no_class() -> None:
    hidden, weight, targets = case(dtype=torch.float32)
    targets[3] = 37
    assert linear_cross_entropy(hidden, weight, targets).isnan()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.randn(4)}, "hidden must be a floating-point matrix"),
        ({"weight": torch.ones(9, 3, dtype=torch.long)}, "weight must be a floating-point matrix, got torch.int64"),
        ({"weight": torch.randn(9, 2)}, "weight must have the 3 features of hidden, got 2"),
        ({"weight": torch.randn(0, 3)}, "weight must have at least one class"),
        (
            {"weight": torch.randn(9, 3).double()},
            "weight must have the dtype of hidden, torch.float32, got torch.float64",
        ),
        ({"weight": torch.randn(9, 3, device="meta")}, "must be on one device, got cpu, meta, cpu"),
        ({"targets": torch.zeros(4, dtype=torch.int32)}, "targets must be int64"),
        ({"targets": torch.zeros(5, dtype=torch.long)}, r"targets must be int64 of shape \(4,\)"),
        ({"hidden": [[1.0]]}, "hidden must be a tensor, got list"),
        ({"targets": [1]}, "targets must be a tensor, got list"),
        ({"z_weight": -1.0}, r"z_weight must be a number from 0 to 1e\+30, got -1.0"),
        ({"z_weight": float("nan")}, r"z_weight must be a number from 0 to 1e\+30, got nan"),
        ({"z_weight": "1"}, r"z_weight must be a number from 0 to 1e\+30, got '1'"),
        ({"chunk": 0}, "chunk must be None or an integer >= 1, got 0"),
        ({"chunk": 1.5}, "chunk must be None or an integer >= 1, got 1.5"),
        ({"ignore_index": None}, "ignore_index must be an integer, got None"),
        ({"softcap": -1.0}, "softcap must be None or a number from 1e-30 .* got -1.0"),
        ({"softcap": 9.0, "exponent": 0.5}, "softcap must be None with exponent=0.5 below 1, got 9.0"),
        ({"exponent": 1.5}, "exponent must be a number from 0 to 1, got 1.5"),
        ({"linear_below": 0.0}, "linear_below must be a number from 1e-30 .* got 0.0"),
    ],
)
def test_wrong_argument_is_a_clear_error(change: dict[str, object], message: str) -> None:
    arguments = {"hidden": torch.randn(4, 3), "weight": torch.randn(9, 3), "targets": torch.zeros(4, dtype=torch.long)}
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**(arguments | change))  # type: ignore[arg-type]
