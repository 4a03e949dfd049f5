"""The same as `python -m longshort`, under the name by which torchrun was told of it before."""

from longshort.cli import app

if __name__ == "__main__":
    app(prog_name="longshort")
