"""The parts of the reference that the code itself says: the verbs of the command line and the configuration's keys."""

from collections.abc import Iterator
from itertools import groupby

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from .api import SOURCE


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("verbs", _Verbs)
    app.add_directive("config-keys", _ConfigKeys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def verbs() -> Iterator[str]:
    """A section for each verb of `longshort`, with what its --help prints."""
    import typer

    from longshort.cli import app

    group = typer.main.get_command(app)
    top = group.make_context("longshort", [], resilient_parsing=True, max_content_width=80, terminal_width=80)
    for name, verb in group.commands.items():
        if verb.hidden:
            continue
        with verb.make_context(name, [], parent=top, resilient_parsing=True) as context:
            yield from (f"## longshort {name}", "", "```text", *verb.get_help(context).splitlines(), "```", "")


def config_keys() -> Iterator[str]:
    """A table of keys for each section of a configuration."""
    from longshort.train.settings.keys import config_keys

    for section, keys in groupby(config_keys(), key=lambda key: key.name.partition(".")[0]):
        yield from (f"## {section}", "", "| key | default | meaning | type and range |", "|---|---|---|---|")
        for key in keys:
            type_and_range = f"{key.type}; {key.range}" if key.range else key.type
            cells = (f"`{key.name}`", key.default, key.meaning, type_and_range)
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
        yield ""


class _Generated(SphinxDirective):
    """Markdown from a function, parsed as if it stood on the page, and again when the package has changed."""

    def run(self) -> list[nodes.Node]:
        for file in SOURCE.rglob("*.py"):
            self.env.note_dependency(str(file))
        container = nodes.container()
        self.state.nested_parse(StringList(list(self.lines())), 0, container, match_titles=True)
        return container.children

    def lines(self) -> Iterator[str]:
        raise NotImplementedError


class _Verbs(_Generated):
    def lines(self) -> Iterator[str]:
        return verbs()


class _ConfigKeys(_Generated):
    def lines(self) -> Iterator[str]:
        return config_keys()
