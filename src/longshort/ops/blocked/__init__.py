"""The op in plain PyTorch, on any device: heads of equal reach are computed together, in tiles of what they see."""

from longshort.ops.blocked.passes import backward, forward

__all__ = ["backward", "forward"]
