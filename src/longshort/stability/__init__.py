"""Watching a training run and stepping in: logit meter, attention entropy, spike guard, QK-clip, gradient clipping."""

from longshort.stability.clipping import TensorClip
from longshort.stability.entropy import attention_entropy
from longshort.stability.guard import SpikeGuard, Verdict
from longshort.stability.meter import LogitMeter
from longshort.stability.qk_clip import qk_clip
from longshort.stability.watch import watch_logits

__all__ = [
    "LogitMeter",
    "SpikeGuard",
    "TensorClip",
    "Verdict",
    "attention_entropy",
    "qk_clip",
    "watch_logits",
]
