"""What vLLM is asked for that this model does not do, refused before vLLM starts its processes."""

from __future__ import annotations

from typing import Any

from longshort.hf.vllm.sublayers import refuse


class SettingsCheck:
    """What vLLM calls with the settings of a model of ours, in the process that reads the command line."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Refuse a model that vLLM cannot compute."""
        refuse(model_config.hf_config.to_gpt())

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Refuse what the model cannot do."""
        ranks = vllm_config.parallel_config.tensor_parallel_size
        if ranks > 1:
            raise ValueError(f"tensor_parallel_size must be 1 for this model, got {ranks}: its heads are not split")
        if (method := vllm_config.model_config.quantization) is not None:
            raise ValueError(f"quantization must be None for this model, got {method!r}")
