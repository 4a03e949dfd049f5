"""Serving with vLLM: `vllm serve` opens a folder that `longshort export` wrote, and frees what left a head's window.

`register` is the entry point by which vLLM finds the model; nothing here imports vLLM before vLLM calls it.
"""

ARCHITECTURE = "LongShortForCausalLM"
"""What the config.json of an exported folder names."""


def register() -> None:
    """Make the configuration and the model known to vLLM, in each of its processes."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import longshort.hf  # noqa: F401 (registers the configuration with transformers)
    from longshort.hf.vllm.settings import SettingsCheck

    MODELS_CONFIG_MAP[ARCHITECTURE] = SettingsCheck
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, "longshort.hf.vllm.model:ServedModel")
