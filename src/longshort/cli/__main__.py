"""The same as `python -m longshort`, under the module name that older torchrun commands use."""

from longshort.cli import app

if __name__ == "__main__":
    app(prog_name="longshort")
