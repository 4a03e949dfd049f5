"""The per-head cache in the form that transformers' generation expects: a `Cache` that holds an `LSCache`."""

from __future__ import annotations

from typing import Any, NoReturn, TypeGuard

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from longshort.hf.config import LongShortConfig
from longshort.model import GPT
from longshort.nn import KVCache


class LongShortCache(Cache):
    """Keys and values in which local heads keep a ring and only global heads keep everything.

    `generate` makes one itself; make your own to continue from it in a later call. It takes its batch size, dtype and
    device from the first tokens it is given.

    Args:
        config: the model's configuration.
        max_length: allocate this many positions at once and refuse more; if None, the cache grows.
        rollback: tokens that `crop` can remove; after `activate_past_recording`, all since the last `crop`.

    >>> from longshort.hf import LongShortConfig, LongShortForCausalLM
    >>> sizes = dict(vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    >>> model = LongShortForCausalLM(LongShortConfig(**sizes, num_global_heads=1, local_window=8)).eval()
    >>> cache = LongShortCache(model.config)
    >>> tokens = model.generate(torch.ones(1, 5, dtype=torch.long), max_new_tokens=8, past_key_values=cache)
    >>> cache.get_seq_length(), tokens.shape
    (12, torch.Size([1, 13]))
    """

    def __init__(self, config: LongShortConfig, *, max_length: int | None = None, rollback: int = 32) -> None:
        layers: list[Any] = [_Layer(self) for _ in range(config.num_hidden_layers)]
        super().__init__(layers=layers)
        self.max_length, self.rollback = max_length, rollback
        self.inner: KVCache | None = None
        """None until the first tokens arrive."""
        self._recording = False

    def opened(self, model: GPT, batch_size: int, device: torch.device) -> KVCache:
        """The `LSCache` to pass to the model; `device` is that of the tokens.

        It is made at the first call, and again if it is empty and has another batch size: after `reset`, or after a
        first call that failed.
        """
        if self.inner is None or (self.inner.length == 0 and self.inner.batch_size != batch_size):
            sizes: dict[str, Any] = {"max_length": self.max_length, "rollback": self.rollback}
            self.inner = model.new_cache(batch_size, **sizes, device=device)
            if self._recording:
                self.inner.activate_past_recording()
        return self.inner

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        return 0 if self.inner is None else self.inner.nbytes

    @property
    def batch_size(self) -> int:
        return -1 if self.inner is None else self.inner.batch_size

    @property
    def recording(self) -> bool:
        """See `activate_past_recording`."""
        return self._recording

    @recording.setter
    def recording(self, wanted: bool) -> None:
        self._recording = wanted
        if self.inner is not None:
            self.inner.recording = wanted

    def activate_past_recording(self) -> None:
        """From now on, `crop` can remove all tokens since the last `crop`, however many."""
        self._recording = True
        if self.inner is not None:
            self.inner.activate_past_recording()

    def crop(self, tokens_to_remove: int | Tensor) -> None:
        """Remove the last tokens; as in transformers, their number is given as a negative."""
        number = tokens_to_remove.item() if _is_single(tokens_to_remove) else tokens_to_remove
        if not isinstance(number, int) or number > 0:
            raise ValueError(f"tokens_to_remove must be 0 or a negative integer, got {tokens_to_remove}")
        count = -number
        if self.inner is not None:
            self.inner.crop(count)
        elif count:
            raise ValueError(f"tokens_to_remove must be 0 for an empty cache, got {-count}")

    def reset(self) -> None:
        """Forget everything; the memory is kept for the next use."""
        if self.inner is not None:
            self.inner.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence i becomes a copy of sequence beam_idx[i]."""
        if self.inner is not None:
            self.inner.reorder(beam_idx.to(self.inner.device, torch.long))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence `repeats` times, with the copies side by side."""
        if self.inner is not None:
            self.inner.repeat(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these sequences of the batch, in this order."""
        if self.inner is not None:
            rows = torch.arange(self.inner.batch_size, device=self.inner.device)
            self.inner.select(rows[indices.to(self.inner.device)])


def _is_single(x: Any) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.numel() == 1


class _Layer(CacheLayerMixin):
    """What transformers asks of a single layer: its lengths. The model itself reads and writes all layers together."""

    is_compileable = False
    is_croppable = True
    is_sliding = False

    def __init__(self, cache: LongShortCache) -> None:
        super().__init__()
        self.cache = cache

    @property
    def is_initialized(self) -> bool:
        return self.cache.inner is not None

    @is_initialized.setter
    def is_initialized(self, value: bool) -> None:
        """Ignored: the cache decides."""

    @property
    def record_past(self) -> bool:
        return self.cache.recording

    @record_past.setter
    def record_past(self, wanted: bool) -> None:
        self.cache.recording = wanted

    def get_seq_length(self) -> int:
        return 0 if self.cache.inner is None else self.cache.inner.length

    def get_max_length(self) -> int:
        return -1 if self.cache.max_length is None else self.cache.max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def _by_the_cache(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            "a layer of a LongShortCache can only be changed through its cache: the model writes all layers, "
            "and reset, crop, reorder_cache, batch_repeat_interleave and batch_select_indices are methods of the cache"
        )

    lazy_initialization = update = reset = reorder_cache = crop = offload = prefetch = _by_the_cache
    batch_repeat_interleave = batch_select_indices = _by_the_cache
