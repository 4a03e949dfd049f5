"""Frontiers: find paths in a graph whose edges come in random order; a thought may hold a whole frontier at once.

The nodes of a random directed graph lie in layers by their distance from a start. The thinking walks the layers: its
d-th token is any one of the nodes at distance d, so a mixture of them says more than a single one. The answer is a path
to each target. Why a mixture may help here: Zhu et al., arXiv 2505.12514.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from longshort.data.problems.problem import Problem, ProblemTask, answer_of, below, shuffled
from longshort.numeric import check_count


class FrontierAnswer(NamedTuple):
    """What the verifier of `Frontiers` needs."""

    start: int
    targets: list[int]
    edges: frozenset[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Frontiers(ProblemTask):
    """Paths from a start to targets in the last layer of a random graph.

    Prompt: the edges in random order, a mark, the start, the targets. An edge is two tokens, a node and the node it
    leads to, for which nodes have tokens of their own, written >7: otherwise the end of an edge and the start of the
    next would look like an edge. Solution: one node of each layer, the end mark, then for each target, in the order of
    the prompt, a path from the start, with a mark between paths. All problems of one setting have the same length.

    The default is what a model of 5M parameters learns in a few thousand supervised steps; graphs of 48 nodes and depth
    5, as the task was first thought of, take far more.

    >>> task = Frontiers(n_nodes=9, depth=3, targets=2)
    >>> problem = task.problem(random.Random(1))
    >>> task.text(problem.solution)
    '5 2 3 | 1 5 2 0 , 1 6 7 4 .'
    >>> task.reward(problem, problem.solution), task.reward(problem, problem.solution[:-1])
    (1.0, 0.0)
    """

    n_nodes: int = 22
    """Nodes of the graph, each of them reachable from the start."""
    depth: int = 3
    """Distance of the targets from the start."""
    targets: int = 3
    """Paths to find."""
    min_degree: int = 2
    """Fewest edges out of a node before the last layer."""
    max_degree: int = 3
    """Most edges out of a node; each number from the fewest to the most is equally frequent. The start has the most."""

    def __post_init__(self) -> None:
        check_count("depth", self.depth, 1, 100)
        check_count("targets", self.targets, 1, 1000)
        check_count("min_degree", self.min_degree, 2, 100)
        check_count("max_degree", self.max_degree, self.min_degree, 100)
        # Layers as narrow as the targets allow, and as wide as the fewest edges can reach.
        most = 1 + self.max_degree * sum(self.min_degree**layer for layer in range(self.depth))
        least = max(1 + self.depth, 2 + self.depth * (self.targets - 1))
        check_count("n_nodes", self.n_nodes, least, min(most, 100_000))

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Number of nodes at each distance from the start: even, after as many layers as the edges need to fan out."""
        sizes, left = [1], self.n_nodes - 1
        for layer in range(self.depth):
            fan_out = self.max_degree if layer == 0 else self.min_degree * sizes[-1]
            sizes.append(min(fan_out, left // (self.depth - layer)))
            left -= sizes[-1]
        return tuple(sizes)

    @cached_property
    def _degrees(self) -> tuple[list[int], ...]:
        """Edges out of the nodes of each layer but the last."""
        choices = self.max_degree - self.min_degree + 1
        inner = [[self.min_degree + i % choices for i in range(size)] for size in self.layers[1:-1]]
        return tuple(
            [min(degree, next_size) for degree in degrees]
            for degrees, next_size in zip([[self.max_degree], *inner], self.layers[1:], strict=True)
        )

    @property
    def vocab_size(self) -> int:
        return 2 * self.n_nodes + 4

    @property
    def end_of_thinking(self) -> int:
        return 2 * self.n_nodes

    @property
    def stop(self) -> int:
        return 2 * self.n_nodes + 1

    @property
    def next_path(self) -> int:
        """The mark between two paths."""
        return 2 * self.n_nodes + 2

    @property
    def query(self) -> int:
        """The mark before the start and the targets."""
        return 2 * self.n_nodes + 3

    @cached_property
    def max_prompt(self) -> int:
        return 2 * sum(map(sum, self._degrees)) + 2 + self.targets

    @property
    def max_new_tokens(self) -> int:
        return self.depth + 1 + self.targets * (self.depth + 2)

    def problem(self, rng: random.Random) -> Problem:
        names, layers = shuffled(range(self.n_nodes), rng), []
        for size in self.layers:
            layers.append(names[-size:])
            del names[-size:]
        parents: dict[int, list[int]] = {}
        edges = []
        for upper, lower, degrees in zip(layers, layers[1:], self._degrees, strict=False):
            new = _edges(upper, lower, degrees, rng)
            for parent, child in new:
                parents.setdefault(child, []).append(parent)
            edges += new
        # Names are random already, so the first nodes of the last layer are as good as any.
        start, targets = layers[0][0], layers[-1][: self.targets]
        prompt = [token for node, other in shuffled(edges, rng) for token in (node, self.n_nodes + other)]
        solution = [layer[below(rng, len(layer))] for layer in layers[1:]]
        for number, target in enumerate(targets):
            path = [target]
            while path[-1] != start:
                options = parents[path[-1]]
                path.append(options[below(rng, len(options))])
            solution += [self.next_path if number else self.end_of_thinking, *reversed(path)]
        return Problem(
            prompt=[*prompt, self.query, start, *targets],
            solution=[*solution, self.stop],
            answer=FrontierAnswer(start, targets, frozenset(edges)),
        )

    def reward(self, problem: Problem, tokens: list[int]) -> float:
        """1 if the answer is a path from the start to each target, in their order, along edges that exist; else 0."""
        wanted: FrontierAnswer = problem.answer
        written = answer_of(tokens, self.end_of_thinking, self.stop)
        if written is None:
            return 0.0
        paths: list[list[int]] = [[]]
        for token in written:
            if token == self.next_path:
                paths.append([])
            else:
                paths[-1].append(token)
        ends = [(path[0], path[-1]) for path in paths if path]
        right = ends == [(wanted.start, target) for target in wanted.targets] and len(ends) == len(paths)
        return float(right and all(wanted.edges.issuperset(pairwise(path)) for path in paths))

    def text(self, tokens: Iterable[int]) -> str:
        words = {self.end_of_thinking: "|", self.stop: ".", self.next_path: ",", self.query: "?"}
        words |= {self.n_nodes + node: f">{node}" for node in range(self.n_nodes)}
        return " ".join(words.get(token, str(token)) for token in tokens)


def _edges(upper: list[int], lower: list[int], degrees: list[int], rng: random.Random) -> list[tuple[int, int]]:
    """Edges from one layer to the next: as many out of each node as its degree says, and at least one into each."""
    sources = shuffled(
        (node for node, degree in zip(upper, shuffled(degrees, rng), strict=True) for _ in range(degree)), rng
    )
    edges = list(zip(sources, lower, strict=False))
    taken = set(edges)
    for source in sources[len(lower) :]:
        edge = (source, lower[below(rng, len(lower))])
        while edge in taken:
            edge = (source, lower[below(rng, len(lower))])
        taken.add(edge)
        edges.append(edge)
    return edges
