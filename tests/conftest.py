"""Settings shared by all tests: threads, randomness, and which tests need a GPU."""

import gc
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    # Read when a kernel is defined: without a GPU, Triton's interpreter runs it.
    os.environ["TRITON_INTERPRET"] = "1"

GPU_TESTS = Path(__file__).parent / "gpu"

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("quick", settings.get_profile("repeatable"), max_examples=25)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    # Two processes with a thread pool each on two cores take several times as long as with one thread each.
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    if config.getoption("markexpr") == "not slow":  # `make test`; `make test-all` draws a hundred cases of each
        settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    for item in items:
        if every := item.get_closest_marker("every"):
            name = item.nodeid.partition("[")[0]
            if seen[name] % every.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    # What is there now stays. Benchmarks and compilers collect often, and would go through all of it each time.
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # some libraries complain of what is left at the end


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def bf16_by_default():
    """Torch's default dtype, which those set who build whole models in bf16."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """One token folder for all tests of a process."""
    from .train.tiny import make_corpus

    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def config(corpus, tmp_path_factory):
    """A run of four steps with an LS plan."""
    from .train.tiny import tiny_config

    return tiny_config(corpus, tmp_path_factory.mktemp("runs") / "run", "run.steps=4", "telemetry.logits_every=1")


@pytest.fixture(scope="session")
def yaml_file(config, tmp_path_factory):
    """The same run as a configuration file."""
    import yaml

    path = tmp_path_factory.mktemp("yaml") / "tiny.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()))
    return path


@pytest.fixture(scope="session")
def trained(config):
    """The folder of a finished run."""
    from longshort.train import train

    return train(config).out


@pytest.fixture(scope="session")
def ranks():
    """Processes that work together."""
    from .ranks import Ranks

    started = Ranks()
    yield started
    started.stop()
