"""Nothing in the package changes a parameter through a slice of it: where it is sharded, the slice is a copy, and the
change is lost without a word. See `longshort.parallel.shards`.
"""

import ast
from pathlib import Path

import pytest

import longshort

PARTS = ("nn", "model", "stability", "train", "rl", "parallel")
"""Packages that see the parameters of a model in training."""
VIEWS = {"split", "chunk", "narrow", "select", "unbind", "view", "view_as", "reshape", "unfold", "diagonal", "flatten"}
PARAMETERS = {"weight", "bias", "gamma", "parameter", "param", "sinks"}


def forbidden(source):
    """The lines on which a part of a parameter is changed in place."""
    tree = ast.parse(source)
    lines = []
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        parts = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and _is_part(node.value, set())
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                if name.endswith("_") and not name.startswith("_") and _is_part(node.func.value, parts):
                    lines.append(node.lineno)
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, ast.Assign | ast.AugAssign):
                lines += [node.lineno for target in targets if _is_part(target, set())]
    return sorted(set(lines))


def _is_part(node, parts):
    """Whether an expression is a part of something that has the name of a parameter, or a name of such a part."""
    if isinstance(node, ast.Name):
        return node.id in parts
    if isinstance(node, ast.Subscript):
        return _is_parameter(node.value) or _is_part(node.value, parts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        return _is_parameter(node.func.value) or _is_part(node.func.value, parts)
    return False


def _is_parameter(node):
    if isinstance(node, ast.Attribute):
        return node.attr in PARAMETERS or (node.attr == "data" and _is_parameter(node.value))
    return isinstance(node, ast.Name) and node.id in PARAMETERS


@pytest.mark.parametrize("part", PARTS)
def test_no_parameter_is_changed_through_a_slice(part):
    root = Path(longshort.__file__).parent
    found = [f"{path}:{line}" for path in (root / part).rglob("*.py") for line in forbidden(path.read_text())]
    assert not found, f"take longshort.parallel.shards.local(parameter) instead: {found}"


@pytest.mark.parametrize(
    "body",
    [
        "part = parameter[:4]\n    part.mul_(2)",
        "layer.weight[:4].mul_(2)",
        "layer.weight.data[0].zero_()",
        "layer.weight[:4] *= 2",
        "layer.bias[3] = 0",
        "layer.weight.view(2, -1)[0].copy_(x)",
    ],
)
def test_the_pattern_is_found(body):
    assert forbidden(f"def f(layer, parameter, x):\n    {body}") == [2 + body.count("\n")]


@pytest.mark.parametrize("body", ["part = local(parameter)\n    part[:4].mul_(2)", "layer.weight.mul_(2)", "x[:2] = 1"])
def test_what_is_allowed_is_not(body):
    assert forbidden(f"def f(layer, parameter, x):\n    {body}") == []
