"""The Triton kernels at sizes where indices pass 31 bits and only some rows can be checked, and what memory they take.

Shapes: B batch, H heads, T positions, R of them checked, D head dimension. Keys have the heads of the queries.
"""

import pytest
import torch

from longshort import HeadPlan, attention

pytestmark = pytest.mark.usefixtures("memory_given_back")

LENGTH = 131_072
LAST = 70
"""The last keys are seen by the last queries alone, so that these give all of their gradient; more than a tile."""


def some_rows(length):
    return torch.tensor([63, 64, 127, 128, length // 2 - 1, *range(length - LAST, length)], device="cuda")


def gradients_of(step, leaves, grad):
    result = step(*leaves)
    return result, torch.autograd.grad(result.out, leaves, grad)


def attend_rows(q, k, v, grad, windows, rows):
    """out, lse and the gradients of q of these rows, and of the last k and v, in float64 by the dense formula."""
    n_keys = k.shape[2]
    q, k, v = (x.detach().double().requires_grad_() for x in (q[:, :, rows], k, v))
    offset_RS = rows[:, None] - torch.arange(n_keys, device=rows.device)
    visible_HRS = torch.stack([(offset_RS >= 0) & (offset_RS < (window or n_keys)) for window in windows])
    x = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible_HRS, -torch.inf)
    out = x.softmax(-1) @ v
    grad_q, grad_k, grad_v = torch.autograd.grad(out, (q, k, v), grad[:, :, rows].double())
    last = slice(n_keys - LAST, None)
    return {"out": out, "lse": x.logsumexp(-1), "q": grad_q, "k": grad_k[:, :, last], "v": grad_v[:, :, last]}


def assert_rows_agree(result, grads, q, k, v, grad, windows, rows, heads=slice(None)):
    """Row by row, against the size of the row: a late row of a global head is a mean of many keys, and small."""
    want = attend_rows(*(x[:, heads] for x in (q, k, v, grad)), windows[heads], rows)
    last = slice(k.shape[2] - LAST, None)
    got = {"out": result.out[:, heads, rows], "q": grads[0][:, heads, rows]}
    got |= {"k": grads[1][:, heads, last], "v": grads[2][:, heads, last]}
    for name, value in got.items():
        error, size = (x.abs().amax(-1) for x in (value.double() - want[name], want[name]))
        # bf16 itself is within 1/256; a gradient may also happen to vanish in a row.
        due = 0.01 * size if name == "out" else 0.02 * (size + size.median(-1, keepdim=True).values)
        assert (error <= due).all(), f"{name}: {(error / due).max().item():.2f} of what is due"
    torch.testing.assert_close(result.lse[:, heads, rows].double(), want["lse"], rtol=0, atol=1e-4)


def largest_and_smallest_logits(q, k, windows, at_a_time=1024):
    """(H,) each, over all visible pairs, by fp32 products of bf16 numbers."""
    keys, extremes = torch.arange(k.shape[2], device=k.device), []
    for rows in keys.split(at_a_time):
        offset = rows[:, None] - keys
        for head, window in enumerate(windows):
            hidden = (offset < 0) | (offset >= (window or k.shape[2]))
            logits = q[0, head, rows].float() @ k[0, head].float().mT * q.shape[-1] ** -0.5
            extremes += [logits.masked_fill(hidden, -torch.inf).amax(), logits.masked_fill(hidden, torch.inf).amin()]
    largest, smallest = torch.stack(extremes).view(-1, len(windows), 2).unbind(-1)
    return largest.amax(0), smallest.amin(0)


@pytest.fixture(scope="module")
def long_call():
    """q, k, v, the output's gradient, windows, result and gradients of one global and one local head."""
    torch.manual_seed(0)
    windows = (None, 128)
    q, k, v, grad = torch.randn(4, 1, 2, LENGTH, 64, device="cuda", dtype=torch.bfloat16).unbind()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    plan = HeadPlan(windows=windows)
    result, grads = gradients_of(
        lambda *leaves: attention(*leaves, plan, stats=True, backend="triton"), (q, k, v), grad
    )
    return (q.detach(), k.detach(), v.detach(), grad, windows), result, grads


def test_rows_of_a_long_sequence_agree_with_the_dense_formula(long_call):
    (q, k, v, grad, windows), result, grads = long_call
    assert_rows_agree(result, grads, q, k, v, grad, windows, some_rows(LENGTH))


def test_statistics_of_a_long_sequence_are_those_of_all_its_logits(long_call):
    (q, k, _, _, windows), result, _ = long_call
    for got, want in zip(result.stats, largest_and_smallest_logits(q, k, windows), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def check_last_head(q, k, v, grad, window):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    windows = (window,) * q.shape[1]
    plan = HeadPlan(windows=windows)
    result, grads = gradients_of(lambda *leaves: attention(*leaves, plan, backend="triton"), leaves, grad)
    for heads in (slice(0, 1), slice(q.shape[1] - 1, None)):
        assert_rows_agree(result, grads, q, k, v, grad, windows, some_rows(q.shape[2]), heads)


def test_tensors_of_more_than_2_to_the_31_elements_agree_with_the_dense_formula():
    q, k, v, grad = (torch.randn(1, 130, LENGTH, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    assert q.numel() > 2**31
    check_last_head(q, k, v, grad, window=64)


def test_views_of_a_projection_of_more_than_2_to_the_31_elements_agree_with_the_dense_formula():
    projected = torch.randn(1, LENGTH, 3 * 48, 128, device="cuda", dtype=torch.bfloat16)
    grad = torch.randn(1, LENGTH, 48, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    q, k, v = projected.transpose(1, 2).split(48, dim=1)
    assert (LENGTH - LAST) * q.stride(2) > 2**31
    check_last_head(q, k, v, grad, window=64)


def test_step_takes_no_more_memory_than_its_results_two_numbers_a_row_and_the_halves_of_its_global_head():
    q, k, v, grad = torch.randn(4, 1, 4, 16_384, 64, device="cuda", dtype=torch.bfloat16).unbind()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    plan = HeadPlan.long_short(n_heads=4, n_global=1, window=128)

    def step():
        return gradients_of(lambda *leaves: attention(*leaves, plan, backend="triton"), leaves, grad)

    step()  # what is kept from call to call, and the compiled kernels
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result, grads = step()
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before
    results = sum(x.nbytes for x in (result.out, result.lse, *grads))
    halves = 2 * 2 * 16_384 * 64 * 4  # fp32 gradients of keys and values
    assert results <= taken <= 1.15 * (results + 2 * result.lse.nbytes + halves) + (4 << 20)
