"""`python -m benchmarks`, from a checkout."""

import typer

from benchmarks.verb import bench
from longshort.cli import one_line_errors

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(one_line_errors()(bench))

if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
