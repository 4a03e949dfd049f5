"""What memory the machine has left, and whether an exception says that there was not enough."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_FAILED_ALLOCATIONS = (
    "can't allocate memory",  # torch on a CPU
    "not enough memory",
    "Storage size calculation overflowed",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_MEMINFO = Path("/proc/meminfo")


def shortage(error: BaseException) -> str | None:
    """A sentence if the exception is a failed allocation, else None."""
    if isinstance(error, torch.OutOfMemoryError):
        return f"the GPU's memory is full: {str(error).split('. ')[0]}"
    text = str(error)
    if isinstance(error, MemoryError) or any(words in text for words in _FAILED_ALLOCATIONS):
        return f"memory is full{f': {text.splitlines()[0]}' if text else ''}"
    return None


def available_memory(device: torch.device) -> int | None:
    """Bytes that this process may still allocate there; None if the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    bounds = [bound for bound in (_left_on_machine(), _left_to_group()) if bound is not None]
    return min(bounds, default=None)


def _left_on_machine() -> int | None:
    """What the kernel can still give out without killing a process, swap included."""
    found = _numbers(_MEMINFO, ":")
    if "MemAvailable" in found:
        return (found["MemAvailable"] + found.get("SwapFree", 0)) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _left_to_group(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """What the limits of a container or batch system leave; page cache counts as free."""
    try:
        groups = [line.split(":", 2)[1:] for line in own.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return None
    swap = _numbers(_MEMINFO, ":").get("SwapFree", 0) * 1024
    left = []
    for controllers, path in groups:
        for mount, limit, used in (
            (root, "memory.max", "anon"),
            (root / "memory", "memory.limit_in_bytes", "total_rss"),
        ):
            if controllers not in ("", "memory"):
                continue
            folder = mount / path.strip("/")
            for level in (folder, *folder.parents):
                if level.is_relative_to(mount) and (level / limit).is_file():
                    most = (level / limit).read_text(encoding="utf-8").strip()
                    if most.isdigit():
                        left.append(int(most) + swap - _numbers(level / "memory.stat", " ").get(used, 0))
    return min(left, default=None)


def _numbers(path: Path, separator: str) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    try:
        lines = [line.partition(separator) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {name: int(rest.split()[0]) for name, _, rest in lines if rest.split()[:1] and rest.split()[0].isdigit()}
