"""What the loss of a model is made of: one frozen record, which the model's configuration holds.

Everything that must match the loss (logits, a classifier's scores, calibration, exports) reads it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from longshort.losses.linear import linear_cross_entropy
from longshort.losses.transform import capped_scores, check_exponent, check_softcap, transform_scores
from longshort.numeric import is_int, is_real
from longshort.spelling import check_fields


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Cross-entropy of output scores, which may be damped (the e-exponentiated loss, arXiv 1902.06127) or capped.

    >>> settings = LossSettings(exponent=0.5, z_loss=1e-4)
    >>> LossSettings.from_dict(settings.to_dict()) == settings
    True
    >>> import torch
    >>> settings.transform(torch.tensor([4.0, -9.0]))
    tensor([ 2., -3.])
    """

    exponent: float = 1.0
    """Scores s become sign(s) |s|^exponent before the softmax; 1 is plain cross-entropy."""
    linear_below: float = 0.01
    """Absolute score below which that transform is linear."""
    logit_softcap: float | None = None
    """Scores s become logit_softcap * tanh(s / logit_softcap) before the softmax (30 in Gemma 2); not with an exponent
    below 1. Off if None."""
    z_loss: float = 0.0
    """Weight of the mean squared log-sum-exp of the output logits in the training loss; evaluation leaves it out."""
    chunk: int | None = None
    """Number of tokens whose output logits the loss holds at a time; see `linear_cross_entropy` for None."""

    def __post_init__(self) -> None:
        check_exponent("exponent", self.exponent, "linear_below", self.linear_below)
        check_softcap("logit_softcap", self.logit_softcap, "exponent", self.exponent)
        z_loss, chunk = self.z_loss, self.chunk
        if not is_real(z_loss) or not 0 <= z_loss <= 1e30:
            raise ValueError(f"z_loss must be {RANGES['z_loss']}, got {z_loss!r}")
        if chunk is not None and (not is_int(chunk) or not 1 <= chunk < 2**63):
            raise ValueError(f"chunk must be {RANGES['chunk']}, got {chunk!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LossSettings:
        """The inverse of `to_dict`."""
        check_fields("LossSettings", data, [field.name for field in fields(cls)])
        return cls(**data)

    @property
    def changes_scores(self) -> bool:
        """Whether `transform` does more than convert the scores."""
        return self.exponent != 1 or self.logit_softcap is not None

    def transform(self, scores: Tensor) -> Tensor:
        """The logits that the loss uses: the head's scores, damped or capped, in fp32 or float64."""
        if self.logit_softcap is not None:
            return capped_scores(scores, self.logit_softcap)
        return transform_scores(scores, self.exponent, self.linear_below)

    def cross_entropy(
        self, hidden: Tensor, weight: Tensor, targets: Tensor, *, training: bool, ignore_index: int = -100
    ) -> Tensor:
        """`linear_cross_entropy` with these settings; the z-loss only where `training`."""
        return linear_cross_entropy(
            hidden,
            weight,
            targets,
            ignore_index=ignore_index,
            z_weight=self.z_loss if training else 0.0,
            chunk=self.chunk,
            exponent=self.exponent,
            linear_below=self.linear_below,
            softcap=self.logit_softcap,
        )


RANGES = {
    "exponent": "a number from 0 to 1",
    "linear_below": "a number from 1e-30 to 1e+30",
    "logit_softcap": "None or a number from 1e-30 to 1e+30",
    "z_loss": "a number from 0 to 1e+30",
    "chunk": "None or an integer from 1 to 2^63 - 1",
}
"""What each setting must be, in words; `check_exponent` enforces the first two, `check_softcap` the third."""
