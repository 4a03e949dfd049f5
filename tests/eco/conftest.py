"""TRL's trainers on small models: no network, no reports, one process."""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import fast_tokenizer

torch.set_num_threads(1)  # as jobs of a sweep have: their runs are compared with runs in this process, bit for bit


@pytest.fixture
def tokenizer():
    return fast_tokenizer(ByteTokenizer())


@pytest.fixture
def settings(tmp_path):
    """Arguments that all trainers take: three steps on this CPU."""
    return {
        "output_dir": str(tmp_path),
        "max_steps": 3,
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "seed": 0,
        "logging_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": 4,
    }
