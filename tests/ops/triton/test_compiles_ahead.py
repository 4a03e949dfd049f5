"""The kernels compile for Hopper, on a machine without a GPU.

Elsewhere in these tests Triton's interpreter runs the kernels as Python, which takes much that the compiler refuses.
Here a process of its own, without the interpreter, makes the launches of an H200 with tensors that hold nothing, and
compiles each kernel down to machine code instead of running it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longshort import HeadPlan, ops
from longshort.ops.options import Options

SHARED_MEMORY = 227 * 1024
"""Bytes that a program may have on Hopper."""
PLAN = HeadPlan(windows=(None, 128, 128, 128))
DAMPED = HeadPlan(windows=(None, 128, 128, 128), decays=(0.0, 0.1, 0.1, 0.1))
SLOPED = HeadPlan(windows=(None, None, 64, 64), decays=(0.0, 0.5, 0.1, 0.1), slopes=(0.0, 0.1, 0.2, 0.3))


@pytest.mark.slow  # a minute of compiling
def test_every_kernel_compiles_for_hopper_and_fits_its_shared_memory(tmp_path):
    if "nvidia" not in pytest.importorskip("triton.backends").backends:
        pytest.skip("this Triton has no CUDA backend")
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    assert {case: made for case, made in compiled.items() if "error" in made} == {}
    assert set().union(*compiled.values()) == kernels_of_the_source()
    assert max(max(made.values()) for made in compiled.values()) <= SHARED_MEMORY


def kernels_of_the_source() -> set[str]:
    files = Path(ops.__file__).parent.rglob("*.py")
    return {name for file in files for name in re.findall(r"^def (\w+_kernel)\(", file.read_text(), re.MULTILINE)}


def attend(
    plan, *, dim=64, dtype=torch.bfloat16, kv_heads=4, packed=False, extremes=0, causal=True, softcap=None, sunk=False
):
    """Forward and backward."""
    from longshort.ops.triton import launch

    q, k, v = (nothing(1, heads, 4096, dim, dtype=dtype) for heads in (4, kv_heads, kv_heads))
    segments = nothing(1, 4096, dtype=torch.int64) if packed else None
    options = Options.of(plan, causal=causal, softcap=softcap)
    sinks = nothing(4, dtype=torch.float32) if sunk else None
    out, lse, *_ = launch.forward(q, k, v, options, segments, extremes, sinks)
    launch.backward(torch.empty_like(out), q, k, v, out, lse, options, segments, sinks)


def decode(plan, *, new=1, kv_heads=4, packed=False, extremes=0, softcap=None):
    """One step over a cache of 4096 positions, in a row of it for each position and KV head."""
    from longshort.ops.decode import launch

    q, k, v = (nothing(1, heads, new, 64) for heads in (4, kv_heads, kv_heads))
    cache = nothing(kv_heads * 4096 * 64)
    length, tickets = nothing(1, dtype=torch.int64), nothing(kv_heads, dtype=torch.int32)
    segments = nothing(1, 4096, dtype=torch.int64) if packed else None
    layout = tuple(number for head in range(kv_heads) for number in (head * 4096, 4096, 4096, 0))
    options = Options.of(plan, softcap=softcap)
    launch.decode(q, k, v, cache, cache.clone(), length, segments, tickets, layout, options, extremes)


def lose(exponent, *, with_gradient, softcap=0.0):
    from longshort.ops.triton.cross_entropy import chunk_loss

    logits, targets = nothing(64, 50304), nothing(64, dtype=torch.int64)
    chunk_loss(logits, targets, -100, 1e-4, with_gradient, exponent, 0.01, softcap)


def nothing(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda")


CASES = {
    "windows": lambda: attend(PLAN, extremes=2),
    "decay, two-sided": lambda: attend(DAMPED, dim=128, dtype=torch.float16, causal=False),
    "everything": lambda: attend(SLOPED, dim=32, dtype=torch.float32, kv_heads=2, packed=True, extremes=2, softcap=30),
    "maxima": lambda: attend(PLAN, extremes=1),
    "maxima, everything": lambda: attend(SLOPED, dim=32, kv_heads=2, packed=True, extremes=1, softcap=30),
    "sinks": lambda: attend(PLAN, sunk=True),
    "a query": lambda: decode(PLAN),
    "a query, everything": lambda: decode(SLOPED, packed=True, extremes=2, softcap=30),
    "a query, maxima": lambda: decode(PLAN, extremes=1),
    "several queries": lambda: decode(PLAN, new=4),
    "several queries, everything": lambda: decode(SLOPED, kv_heads=2, packed=True, extremes=2, softcap=30),
    "several queries, maxima": lambda: decode(PLAN, new=4, extremes=1),
    "loss": lambda: lose(1.0, with_gradient=False),
    "damped loss": lambda: lose(0.5, with_gradient=True),
    "capped loss": lambda: lose(1.0, with_gradient=True, softcap=30.0),
}


def compile_all() -> dict[str, dict[str, int | str]]:
    """By case: each kernel's bytes of shared memory, or the error."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    torch.cuda.get_device_name = lambda device: "NVIDIA H200"
    torch.cuda.get_device_capability = lambda device: (9, 0)
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
    FakeTensor.data_ptr = lambda self: 0
    # Torch's own asks CUDA for the device.
    FakeTensor.__getitem__ = lambda self, index: torch.empty_like(
        torch.Tensor.__getitem__(self.to("meta"), index), device=self.device
    )
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
        )
    )
    made: dict[str, int | str] = {}

    def compiled(kernel, grid):
        def launch(*arguments, **options):
            made[kernel.__name__] = kernel.run(*arguments, grid=grid, warmup=True, **options).metadata.shared

        return launch

    JITFunction.__getitem__ = compiled
    results = {}
    with FakeTensorMode():
        for name, case in CASES.items():
            made = results[name] = {}
            try:
                case()
            except Exception as error:
                while error.__cause__ is not None:  # the compiler's errors begin at the launch, far from what is wrong
                    error = error.__cause__
                made["error"] = f"{type(error).__name__}: {error}"
    return results


if __name__ == "__main__":
    print(json.dumps(compile_all()))
