"""A decoding step as a CUDA graph: captured once, replayed for every token, so that the host costs next to nothing."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from longshort.model import GPT
from longshort.nn import LSStaticCache


class DecodingStep:
    """The next logits from the last tokens, with a `LSStaticCache`.

    The first call runs eagerly, which compiles kernels; the second captures the step if `graph` is set, and from then
    on it is replayed. Results of a call are overwritten by the next.
    """

    def __init__(self, model: GPT, cache: LSStaticCache, *, graph: bool, required: bool = False) -> None:
        self._model, self._cache = model, cache
        self._wanted, self._required = graph, required
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._tokens: Tensor | None = None
        self._logits: Tensor | None = None

    @property
    def captured(self) -> bool:
        """Is the step replayed from a graph by now?"""
        return self._graph is not None

    def __call__(self, tokens: Tensor, *, segments: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """(B, V) fp32 of the token after these (B, 1), which join the cache.

        Segments and positions count with the first token alone; after that they go on from the last.
        """
        if not self._warm:
            self._warm = True
            return self._step(tokens, segments=segments, positions=positions)
        if self._wanted and self._graph is None:
            self._capture(tokens)
        if self._graph is None or self._tokens is None or self._logits is None:
            return self._step(tokens)
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._logits

    def _step(self, tokens: Tensor, **options: Tensor | None) -> Tensor:
        logits = self._model(tokens, cache=self._cache, **options).logits
        assert logits is not None
        return logits[:, -1].float()

    def _capture(self, tokens: Tensor) -> None:
        self._tokens = tokens.clone()
        # cuBLAS keeps one workspace a stream, and every capture is on the same stream: this graph would use one in the
        # memory of an earlier graph, and read freed memory once that graph is gone and workspaces are cleared, as
        # torch.compile does (github.com/pytorch/pytorch/issues/193402). Cleared now, it is made anew in this one's.
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # builds without CUDA have none
        if clear is not None:
            clear()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # records, and computes nothing
                self._logits = self._step(self._tokens)
        except RuntimeError as problem:
            self._cache.writing = False  # what was recorded has not run, so nothing was written
            if self._required:
                raise
            self._wanted = False
            reason = str(problem).strip().splitlines()[0]
            warnings.warn(
                f"decoding continues without a CUDA graph, which failed: {reason}", RuntimeWarning, stacklevel=2
            )
        else:
            self._graph = graph
