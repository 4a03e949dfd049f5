"""The factor of the decay as the Triton kernels compute it, at distances that are too long to interpret whole calls."""

import pytest
import torch

triton = pytest.importorskip("triton", reason="the package triton is not installed")
tl = triton.language

from longshort.ops.triton.scores import scores  # noqa: E402

FAR = 131_072
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def factors(positions, decays, out, t, N: tl.constexpr):
    decay = tl.load(decays)
    j = tl.load(positions + tl.arange(0, N))
    x, derivative = scores(tl.full((N,), 1.0, tl.float32), t, j, decay, 0.0, 0.0, True, False, False)
    tl.store(out + tl.arange(0, N), x)
    tl.store(out + N + tl.arange(0, N), derivative)


@pytest.mark.parametrize("decay", [0.0, 1e-5, 1e-3, 1.0])
def test_the_factor_is_exact_at_every_distance_of_a_long_text(decay):
    j = torch.tensor([FAR, FAR - 1, FAR - 2, FAR - 1000, FAR - 65_537, 3, 1, 0], dtype=torch.int32)
    out = torch.full((2, len(j)), torch.nan, device=DEVICE)
    factors[(1,)](j.to(DEVICE), torch.tensor([decay], device=DEVICE), out, FAR, len(j))
    exact = torch.exp(-decay * (FAR - j).double())
    torch.testing.assert_close(out.cpu().double(), exact.expand(2, -1), atol=1e-12, rtol=2e-5)
