"""`python -m longshort`: the command line where the script `longshort` is not on the path, as under torchrun."""

from longshort.cli import app

if __name__ == "__main__":
    app(prog_name="longshort")
