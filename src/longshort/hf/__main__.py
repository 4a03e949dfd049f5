"""`python -m longshort.hf`: the command line of transformers (serve, chat, ...) with longshort's classes registered."""

import sys

from longshort.hf import LongShortForCausalLM  # noqa: F401 (registers, or says that transformers is missing)

if __name__ == "__main__":
    from transformers.cli.transformers import main

    sys.argv[0] = "transformers"
    main()
