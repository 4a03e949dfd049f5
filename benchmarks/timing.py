"""How calls are timed: by the clock on a CPU; on a GPU by replaying a CUDA graph, which has no Python overhead, or
eagerly between events.

Every timer returns a function that gives the milliseconds of one call; on a GPU it is the median of several calls and
takes a few tens of milliseconds, so that many implementations can take turns.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]
Sample = Callable[[], float]

_GRAPH_MS, _REPLAYS = 10.0, 5
"""What the calls of one graph would take eagerly, and how often a sample replays it."""
_WARMUP_MS, _EAGER_MS = 5, 20
"""Duration of a sample between events."""
_WAIT_CYCLES = 160_000_000
"""About 80 ms of an H200: more than the host needs to launch a step."""


def repeated(calls: Sequence[Call], device: str, *, stream: torch.cuda.Stream | None = None) -> tuple[Sample, str]:
    """A timer for calls that do the same work on different inputs, and its kind: graph, or events if capture fails.

    A backward call must be captured in the stream in which its forward ran.

    The calls take turns, so that together they can exceed the cache; between events the cache is flushed instead.
    """
    if device == "cpu":
        return clocked(warmed(calls[0])), "clock"
    try:
        return graphed(calls, stream=stream), "graph"
    except Exception:  # capture fails in many ways; if the call itself is broken, it fails again below
        torch.cuda.synchronize()
        calls[0]()
        return eager(calls[0], device), "events"


def graphed(calls: Sequence[Call], *, stream: torch.cuda.Stream | None = None) -> Sample:
    """Replay a CUDA graph of the calls; raises if they cannot be captured."""
    stream, start, end = stream or torch.cuda.Stream(), _event(), _event()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for call in calls:
            call()  # compilation and tuning at the first call must not be captured
        start.record()
        for call in calls:
            call()
        end.record()
    torch.cuda.synchronize()
    turns = max(1, round(_GRAPH_MS / max(start.elapsed_time(end), 1e-3)))
    graph = torch.cuda.CUDAGraph()
    outputs: deque[object] = deque(maxlen=len(calls))  # kept, so that outputs take turns in memory too
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(turns):
            for call in calls:
                outputs.append(call())
    outputs.clear()
    torch.cuda.synchronize()

    def sample() -> float:
        graph.replay()  # after another implementation's turn
        times = []
        for _ in range(_REPLAYS):
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / (turns * len(calls)))
        return statistics.median(times)

    return sample


def eager(call: Call, device: str) -> Sample:
    """Single calls between events, with the cache flushed before each."""
    if device == "cpu":
        return clocked(warmed(call))
    from triton.testing import do_bench

    return lambda: float(do_bench(call, warmup=_WARMUP_MS, rep=_EAGER_MS, return_mode="median"))


def clocked(
    call: Call, device: str = "cpu", *, calls: int = 1, clock: Callable[[], float] = time.perf_counter
) -> Sample:
    """One call by the host's clock, averaged over `calls` in a row; the device is idle before and after."""

    def sample() -> float:
        gc.collect()
        finish(device)
        start = clock()
        for _ in range(calls):
            call()
        finish(device)
        return 1e3 * (clock() - start) / calls

    return sample


def queued(call: Call, device: str, *, calls: int = 1) -> Sample:
    """The GPU's own time for one call, averaged over `calls`: each is launched while the GPU waits, so that it never
    waits for the host, as with CUDA graphs. On a CPU, by the clock."""
    if not device.startswith("cuda"):
        return clocked(call, device, calls=calls)
    start, end = _event(), _event()

    def sample() -> float:
        gc.collect()
        total = 0.0
        for _ in range(calls):
            finish(device)
            torch.cuda._sleep(_WAIT_CYCLES)
            start.record()
            call()
            end.record()
            end.synchronize()
            total += start.elapsed_time(end)
        return total / calls

    return sample


def warmed(call: Call, times: int = 1) -> Call:
    """The call, after it has run: compilation, loading and tuning are done."""
    for _ in range(times):
        call()
    return call


def finish(device: str) -> None:
    """Wait until the device has finished."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def free(device: str) -> None:
    """Release memory that is no longer used."""
    if device.startswith("cuda"):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def allocated(device: str) -> int:
    """Bytes of the device's memory in use; 0 on a CPU."""
    return torch.cuda.memory_allocated() if device.startswith("cuda") else 0


def peak_bytes(call: Call, device: str, beyond: int) -> int | None:
    """Bytes in use at the peak of a call beyond so many; None on a CPU."""
    if not device.startswith("cuda"):
        return None
    finish(device)
    torch.cuda.reset_peak_memory_stats()
    call()
    finish(device)
    return torch.cuda.max_memory_allocated() - beyond


def copy_bandwidth(device: str, *, size: int = 1 << 31) -> float:
    """Bytes per second, read and written, of a copy of `size` bytes within the device's memory."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    sample = eager(lambda: target.copy_(source), device)
    return 2e3 * size / statistics.median(sample() for _ in range(3))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
