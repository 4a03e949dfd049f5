"""Many convolutional networks on a GPU: in bf16 their gradients are close to a CPU's, and the quick form runs."""

import torch

from experiments.engine.records import Options
from experiments.label_noise.data import CLASSES
from experiments.label_noise.losses import cross_entropy
from experiments.label_noise.models import CONVOLUTIONAL
from experiments.label_noise.tuned import measure, read_all


def gradients(device, dtype):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 64, 32 * 32, generator=draw), torch.randint(CLASSES, (6, 64), generator=draw)
    start = CONVOLUTIONAL.start(32 * 32, CLASSES, range(6))
    models = [p.to(device).requires_grad_() for p in start]
    cross_entropy(CONVOLUTIONAL.scores(models, x.to(device, dtype)), y.to(device)).backward()
    return [p.grad.cpu() for p in models]


def test_gradients_in_bf16_are_close_to_those_in_fp32():
    exact, rounded = gradients("cpu", torch.float32), gradients("cuda", torch.bfloat16)
    for mine, theirs in zip(rounded, exact, strict=True):
        assert (mine - theirs).norm() < 0.15 * theirs.norm()  # 0.09 at most on a CPU


def test_the_quick_form_runs_on_a_gpu(tmp_path):
    measure(Options(out=tmp_path, quick=True, device="cuda"), lambda text: None)
    clean, noisy = read_all(tmp_path)
    assert clean["share"] == 0 < noisy["share"] and "gpu" in clean["machine"]
