"""`python -m longshort.hf reach`, and transformers' own command line (serve, chat, ...) with our classes registered."""

import sys

from longshort.hf import LongShortForCausalLM  # noqa: F401 (registers, or says that transformers is missing)

if __name__ == "__main__" and sys.argv[1:2] == ["reach"]:
    import typer

    from longshort.hf.measure_reach import command

    sys.argv = ["python -m longshort.hf reach", *sys.argv[2:]]
    typer.run(command)
elif __name__ == "__main__":
    from transformers.cli.transformers import main

    sys.argv[0] = "transformers"
    main()
