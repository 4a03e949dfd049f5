"""The op as Triton kernels for CUDA GPUs; imported when first dispatched, never before."""

from longshort.ops.triton.launch import backward, forward

__all__ = ["backward", "forward"]
