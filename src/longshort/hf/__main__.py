"""`python -m longshort.hf reach`, and transformers' own command line (serve, chat, ...) with our classes registered."""

import sys

from longshort.hf import LongShortForCausalLM  # noqa: F401 (registers, or says that transformers is missing)

_NAME = "python -m longshort.hf"

if __name__ == "__main__" and sys.argv[1:2] == ["reach"]:
    import typer

    from longshort.hf.measure_reach import command

    reach = typer.Typer(add_completion=False)
    reach.command()(command)
    reach(sys.argv[2:], prog_name=f"{_NAME} reach")
elif __name__ == "__main__":
    from transformers.cli.transformers import app

    app(prog_name=_NAME)
