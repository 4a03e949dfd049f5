"""The op as Triton kernels for CUDA GPUs; imported on first use."""

from longshort.ops.triton.launch import backward, forward

__all__ = ["backward", "forward"]
