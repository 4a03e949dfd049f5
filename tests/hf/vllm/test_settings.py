"""What is asked of vLLM is checked before it starts; vLLM itself is not needed."""

import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from longshort import HeadPlan
from longshort.hf import LongShortConfig
from longshort.hf.vllm.settings import SettingsCheck


def asked(ranks=1, quantization=None):
    return SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        model_config=SimpleNamespace(quantization=quantization),
    )


def test_one_process_and_full_precision_are_served():
    SettingsCheck.verify_and_update_config(asked())


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"ranks": 2}, "tensor_parallel_size must be 1"), ({"quantization": "fp8"}, "quantization must be None")],
)
def test_other_settings_are_refused_by_name(settings, said):
    with pytest.raises(ValueError, match=said):
        SettingsCheck.verify_and_update_config(asked(**settings))


def test_a_plan_is_refused_by_its_configuration():
    decays = [list(HeadPlan.las(n_heads=12, max_decay=0.1).decays)] * 12
    with pytest.raises(ValueError, match="layer 0 has decays"):
        SettingsCheck.verify_and_update_model_config(SimpleNamespace(hf_config=LongShortConfig(head_decays=decays)))
    SettingsCheck.verify_and_update_model_config(SimpleNamespace(hf_config=LongShortConfig()))


def test_the_entry_point_names_a_function():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, name = project["entry-points"]["vllm.general_plugins"]["longshort"].split(":")
    assert callable(getattr(import_module(module), name))
