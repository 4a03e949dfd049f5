"""The Python reference, read from the source without importing it: `{api} longshort.nn` shows that package.

Sphinx's autodoc would import torch and transformers and read their sources too, which takes longer than all the rest of
the site. Docstrings are Markdown, as the pages are.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCE = Path(__file__).parents[2] / "src"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("api", _Api)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class _Api(SphinxDirective):
    """The names in `first` lead; the others follow in the package's own order."""

    required_arguments = 1
    option_spec = {"first": str.split}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        lines = list(package(name, self.options.get("first", [])))
        for file in {_found(name).filepath} | {target.filepath for _, target in exported(name)}:
            self.env.note_dependency(str(file))
        container = nodes.container()
        self.state.nested_parse(StringList(lines), 0, container)
        return container.children


@cache
def _source() -> Any:
    return griffe.load("longshort", search_paths=[str(SOURCE)], resolve_aliases=True)


def _found(name: str) -> Any:
    source = _source()
    return source if name == source.path else source[name.removeprefix(f"{source.path}.")]


def _home(found: Any) -> Any:
    return found.final_target if found.is_alias else found


def exported(name: str) -> list[tuple[str, Any]]:
    """The public names of a package and what they are; without those that `longshort` itself has, and packages."""
    found, face = _found(name), _source()
    names = found.exports or [n for n, m in found.members.items() if not (n.startswith("_") or m.is_alias)]
    shown = [(n, _home(found[n])) for n in names if n in found.members]
    shown = [(n, t) for n, t in shown if not t.is_module]
    known = set() if found is face else {_home(face[n]).path for n in face.exports}
    # An attribute that nothing is said about is an older name of something else.
    return [(n, t) for n, t in shown if t.path not in known and (t.docstring or not t.is_attribute)]


def package(name: str, first: Sequence[str] = ()) -> Iterator[str]:
    """The package's own docstring and each of its names, as Markdown with Sphinx's directives for Python objects."""
    found = _found(name)
    yield from (f"```{{py:module}} {name}", "```", "")
    if found is not _source():
        yield from (*to_markdown(found.docstring), "")
    names = dict(exported(name))
    for title in dict.fromkeys([*first, *names]):
        yield from _described(title, names[title])


def _described(name: str, target: Any) -> Iterator[str]:
    """One class, function or attribute, and the documented members of a class."""
    if target.is_class:
        head = f"{{py:class}} {name}{_parameters(target)}"
    elif target.is_function:
        kind = "method" if target.parent.is_class else "function"
        head = f"{{py:{kind}}} {name}{_parameters(target)}{f' -> {target.returns}' if target.returns else ''}"
    else:
        head = f"{{py:{'attribute' if target.parent.is_class else 'data'}}} {name}"
    fence = "`" * (5 if target.parent.is_class else 7)
    yield f"{fence}{head}"
    if "classmethod" in target.labels:
        yield ":classmethod:"
    if target.is_attribute and target.annotation:
        yield f":type: {target.annotation}"
    if target.is_attribute and target.value and "property" not in target.labels and len(str(target.value)) < 60:
        yield f":value: {target.value}"
    yield from ("", *to_markdown(target.docstring), "")
    if target.is_class:
        for member_name, member in target.members.items():
            if not member_name.startswith("_") and not member.is_alias and member.docstring:
                yield from _described(member_name, member)
    yield from (fence, "")


def _parameters(target: Any) -> str:
    """The arguments in parentheses; a named tuple is made from its fields."""
    if target.is_class and any(str(base) == "NamedTuple" for base in target.bases):
        return f"({', '.join(n for n, m in target.members.items() if m.is_attribute and 'property' not in m.labels)})"
    shown, star = [], False
    for parameter in target.parameters:
        if parameter.name in ("self", "cls") and (target.is_class or target.parent.is_class):
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not star:
            shown.append("*")
            star = True
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(parameter.kind.value, "")
        star = star or stars == "*"
        spaced = " = " if parameter.annotation else "="
        shown.append(
            f"{stars}{parameter.name}"
            + (f": {parameter.annotation}" if parameter.annotation else "")
            + (f"{spaced}{parameter.default}" if parameter.default is not None and not stars else "")
        )
    return f"({', '.join(shown)})"


def to_markdown(docstring: Any) -> Iterator[str]:
    """A docstring's examples fenced, and its arguments as a list; the rest of it is Markdown already."""
    in_example = in_arguments = False
    for line in docstring.value.splitlines() if docstring else ():
        if line.startswith(">>>") and not in_example:
            in_example = True
            yield "```pycon"
        elif in_example and not line.strip():
            in_example = False
            yield "```"
        if line == "Args:":
            in_arguments = True
            yield from ("Arguments:", "")
        elif in_arguments and (argument := re.match(r"    (\w[\w, *]*): (.*)", line)):
            yield f"- `{argument[1]}`: {argument[2]}"
        elif in_arguments and line.startswith("        "):
            yield f"  {line.strip()}"
        else:
            in_arguments = in_arguments and not line.strip()
            yield line
    if in_example:
        yield "```"
