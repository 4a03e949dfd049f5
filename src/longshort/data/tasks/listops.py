"""ListOps (Nangia & Bowman, arXiv 1804.06028) to the specification of Long Range Arena (arXiv 2011.04006).

An example is a nested expression in prefix form, `[MAX 4 [MIN 2 9 ] 7 ]`; its class is the digit that it evaluates to.
Above the maximum depth, a node is an operator with probability 1/4, else a digit; an operator has 2 to 10 arguments.
Trees between a quarter of the length and the full length are kept: 500 to 2,000 tokens as published.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

OPERATORS = ("MIN", "MAX", "MED", "SM")
SYMBOLS = ("PAD", *(str(digit) for digit in range(10)), *(f"[{name}" for name in OPERATORS), "]")
"""A token is an index into this list."""
VOCAB_SIZE, N_CLASSES, PADDING = len(SYMBOLS), 10, 0
_DIGIT, _OPERATOR, _END = 1, 11, 15
LARGEST_DEPTH, MOST_ARGUMENTS, OPERATOR_SHARE = 10, 10, 0.25


def draw(key: str, *, length: int) -> tuple[list[int], int]:
    """One expression, chosen by the key, as (tokens, value); its number of tokens is between length / 4 and length."""
    source = random.Random(key)
    while True:
        tokens: list[int] = []
        value = _operation(source, tokens, depth=1, most=length - 1)
        if value is not None and len(tokens) > length // 4:
            return tokens, value


def words(tokens: Sequence[int]) -> str:
    """An expression in readable form.

    >>> words([12, 5, 11, 3, 10, 15, 8, 15])
    '[MAX 4 [MIN 2 9 ] 7 ]'
    """
    return " ".join(SYMBOLS[token] for token in tokens)


def _operation(source: random.Random, tokens: list[int], *, depth: int, most: int) -> int | None:
    """Append an operator with its arguments; its value, or None as soon as there are more than `most` tokens.

    The root is always an operator, since a single digit would be too short to keep. Only `random()` is used, whose
    numbers are the same in every version of Python.
    """
    operator = int(source.random() * len(OPERATORS))
    tokens.append(_OPERATOR + operator)
    values = []
    for _ in range(2 + int(source.random() * (MOST_ARGUMENTS - 1))):
        if len(tokens) > most:
            return None
        if depth + 1 < LARGEST_DEPTH and source.random() < OPERATOR_SHARE:
            value = _operation(source, tokens, depth=depth + 1, most=most)
            if value is None:
                return None
        else:
            value = int(source.random() * 10)
            tokens.append(_DIGIT + value)
        values.append(value)
    tokens.append(_END)
    return _evaluated(operator, values) if len(tokens) <= most else None


def _evaluated(operator: int, values: Sequence[int]) -> int:
    if OPERATORS[operator] == "MIN":
        return min(values)
    if OPERATORS[operator] == "MAX":
        return max(values)
    if OPERATORS[operator] == "SM":
        return sum(values) % 10
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
