"""vLLM on this CPU: no network, one process, one thread."""

import os

os.environ |= {  # read when vLLM is imported
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the sampler is compiled even where the model is not
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

import pytest
from vllm.distributed import cleanup_dist_env_and_memory

from longshort import GPT
from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import write_folder


@pytest.fixture
def export(tmp_path):
    """Write a model as `longshort export` does."""

    def export(gpt: GPT):
        return write_folder(gpt, ByteTokenizer(), tmp_path / "exported")

    return export


@pytest.fixture
def served(export):
    """Open a model with vLLM, in this process."""
    from vllm import LLM

    def served(gpt: GPT, **options):
        sizes = {"block_size": 32, "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 4}
        options = {"dtype": "float32", "enforce_eager": True, "disable_log_stats": True} | sizes | options
        return LLM(str(export(gpt)), **options)

    yield served
    cleanup_dist_env_and_memory()
