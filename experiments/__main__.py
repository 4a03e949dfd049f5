"""`python -m experiments`, from a checkout."""

import typer

from experiments.engine.verb import reproduce
from longshort.cli import one_line_errors

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(one_line_errors()(reproduce))

if __name__ == "__main__":
    app(prog_name="python -m experiments")
