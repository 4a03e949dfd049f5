"""A decoding step as a CUDA graph: captured once, replayed for every token, so that the host costs next to nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from longshort.model import GPT
from longshort.nn import LSStaticCache


class CapturedStep:
    """A function of tensors that stay where they are, which it changes in place.

    The first call runs it eagerly, which compiles kernels; the second captures it if `graph` is set, and from then on
    it is replayed. Results of a call are overwritten by the next.
    """

    def __init__(
        self,
        function: Callable[[], Tensor],
        *,
        graph: bool,
        required: bool = False,
        generator: torch.Generator | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """A failed capture is an error if `required`, else a warning; `on_failure` is called in either case.

        `generator` is what the function draws from, if it is not the global one.
        """
        self._function, self._generator, self._on_failure = function, generator, on_failure
        self._wanted, self._required = graph, required
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Tensor | None = None

    @property
    def captured(self) -> bool:
        """Is the step replayed from a graph by now?"""
        return self._graph is not None

    def __call__(self) -> Tensor:
        if self._warm and self._wanted and self._graph is None:
            self._capture()
        self._warm = True
        if self._graph is None or self._result is None:
            return self._function()
        self._graph.replay()
        return self._result

    def _capture(self) -> None:
        # cuBLAS keeps one workspace a stream, and every capture is on the same stream: this graph would use one in the
        # memory of an earlier graph, and read freed memory once that graph is gone and workspaces are cleared, as
        # torch.compile does (github.com/pytorch/pytorch/issues/193402). Cleared now, it is made anew in this one's.
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # builds without CUDA have none
        if clear is not None:
            clear()
        try:
            graph = torch.cuda.CUDAGraph()
            if self._generator is not None:
                graph.register_generator_state(self._generator)
            with torch.cuda.graph(graph):  # records, and computes nothing
                self._result = self._function()
        except RuntimeError as problem:
            self._on_failure()
            if self._required:
                raise
            self._wanted = False
            reason = str(problem).strip().splitlines()[0]
            warnings.warn(
                f"decoding continues without a CUDA graph, which failed: {reason}", RuntimeWarning, stacklevel=2
            )
        else:
            self._graph = graph


class DecodingStep:
    """The next logits from given tokens, with a `LSStaticCache`; captured as `CapturedStep` says."""

    def __init__(self, model: GPT, cache: LSStaticCache, *, graph: bool, required: bool = False) -> None:
        self._model, self._cache = model, cache
        self._tokens: Tensor | None = None
        self._layout: dict[str, Tensor | None] = {}
        self._step = CapturedStep(self._logits, graph=graph, required=required, on_failure=cache.nothing_was_written)

    @property
    def captured(self) -> bool:
        """Is the step replayed from a graph by now?"""
        return self._step.captured

    def __call__(self, tokens: Tensor, *, segments: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """(B, V) fp32 of the token after these (B, 1), which join the cache.

        Segments and positions count with the first token alone; after that they go on from the last.
        """
        if self._tokens is None:
            self._tokens, self._layout = tokens.clone(), {"segments": segments, "positions": positions}
            logits, self._layout = self._step(), {}
            return logits
        self._tokens.copy_(tokens)
        return self._step()

    def _logits(self) -> Tensor:
        logits = self._model(self._tokens, cache=self._cache, **self._layout).logits
        assert logits is not None
        return logits[:, -1].float()
