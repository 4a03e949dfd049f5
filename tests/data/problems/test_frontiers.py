"""Frontiers: the graphs are what the task says, the verifier is strict, and chance does not solve it."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.data.problems import Frontiers, drawn

SMALL = Frontiers(n_nodes=14, depth=3, targets=2)


def distances(problem):
    """Distance of each node from the start, by a search over the edges."""
    edges, frontier, found = problem.answer.edges, {problem.answer.start}, {}
    while frontier:
        found |= dict.fromkeys(frontier, len(set(found.values())))
        frontier = {b for a, b in edges if a in frontier} - found.keys()
    return found


@pytest.mark.parametrize(
    "task",
    [
        Frontiers(),
        Frontiers(n_nodes=48, depth=5),
        SMALL,
        Frontiers(n_nodes=9, depth=2, targets=4, max_degree=8),
        Frontiers(n_nodes=2, depth=1, targets=1),
    ],
)
def test_layers_degrees_and_lengths_are_those_of_the_options(task):
    for index in range(20):
        problem = drawn(task, "train", 0, index)
        distance = distances(problem)
        assert len(distance) == task.n_nodes and max(distance.values()) == task.depth
        assert [list(distance.values()).count(d) for d in range(task.depth + 1)] == list(task.layers)
        for node, at in distance.items():
            degree = sum(a == node for a, _ in problem.answer.edges)
            if at < task.depth:
                least = min(task.min_degree, task.layers[at + 1])
                assert least <= degree <= task.max_degree
            else:
                assert degree == 0
        assert len(problem.prompt) == task.max_prompt and len(problem.solution) == task.max_new_tokens
        assert max(problem.prompt + problem.solution) < task.vocab_size


def test_the_prompt_shows_every_edge_once_then_start_and_targets():
    problem = drawn(SMALL, "train", 0, 0)
    query = problem.prompt.index(SMALL.query)
    shown = [(a, b - SMALL.n_nodes) for a, b in zip(problem.prompt[:query:2], problem.prompt[1:query:2], strict=True)]
    assert set(shown) == problem.answer.edges and len(shown) == len(problem.answer.edges)
    assert problem.prompt[query + 1 :] == [problem.answer.start, *problem.answer.targets]
    assert all(distances(problem)[target] == SMALL.depth for target in problem.answer.targets)


def test_text_tells_an_edge_from_a_path():
    assert SMALL.text([3, SMALL.n_nodes + 5, SMALL.query, 3, SMALL.end_of_thinking, SMALL.next_path, SMALL.stop]) == (
        "3 >5 ? 3 | , ."
    )


def test_edges_come_in_an_order_that_does_not_tell_their_layer():
    first = [distances(p)[p.prompt[0]] for p in (drawn(SMALL, "train", 0, i) for i in range(200))]
    assert {0, 1, 2} == set(first)


def test_the_thought_is_drawn_evenly_from_the_nodes_at_its_distance():
    counts = [[0] * size for size in SMALL.layers]
    for index in range(3000):
        problem = drawn(SMALL, "train", 0, index)
        distance, targets = distances(problem), problem.answer.targets
        for depth, node in enumerate(problem.solution[: SMALL.depth], 1):
            # Targets first: a thought that pointed at them would show.
            layer = sorted((n for n, d in distance.items() if d == depth), key=lambda n: (n not in targets, n))
            counts[depth][layer.index(node)] += 1
    for size, found in zip(SMALL.layers[1:], counts[1:], strict=True):
        assert all(abs(count - 3000 / size) < 5 * (3000 / size) ** 0.5 for count in found)


@pytest.mark.parametrize("task", [Frontiers(), SMALL])
def test_own_solutions_are_right(task):
    problems = [drawn(task, "train", 0, index) for index in range(50)]
    assert all(task.reward(problem, problem.solution) == 1.0 for problem in problems)


def wrong_answers():
    task, problem = SMALL, drawn(SMALL, "train", 0, 1)
    thinking, paths = problem.solution[: task.depth], problem.solution[task.depth + 1 : -1]
    cut = paths.index(task.next_path)
    first, second = paths[:cut], paths[cut + 1 :]
    stranger = next(n for n in range(task.n_nodes) if (first[0], n) not in problem.answer.edges and n != first[0])

    def written(*parts, end=task.end_of_thinking, stop=(task.stop,)):
        joined = [token for number, part in enumerate(parts) for token in ([task.next_path] * (number > 0) + part)]
        return [*thinking, *([] if end is None else [end]), *joined, *stop]

    return {
        "no stop": written(first, second, stop=()),
        "no end mark": written(first, second, end=None),
        "targets in the wrong order": written(second, first),
        "one path only": written(first),
        "a third path": written(first, second, second),
        "an empty path": written(first, second, []),
        "an edge that does not exist": written([first[0], stranger, *first[2:]], second),
        "a path that begins elsewhere": written(first[1:], second),
        "a path that ends early": written(first[:-1], second),
        "an end mark within a path": written([*first[:2], task.end_of_thinking, *first[2:]], second),
        "no answer": written(),
        "nothing": [],
        "marks alone": [task.end_of_thinking, task.next_path, task.stop],
    }


@pytest.mark.parametrize("why", wrong_answers())
def test_wrong_answers_are_worth_nothing(why):
    assert SMALL.reward(drawn(SMALL, "train", 0, 1), wrong_answers()[why]) == 0.0


def test_the_thinking_is_not_judged():
    problem = drawn(SMALL, "train", 0, 1)
    answer = problem.solution[SMALL.depth :]
    assert SMALL.reward(problem, answer) == SMALL.reward(problem, [5] * 9 + answer) == 1.0


@given(st.lists(st.integers(-1, 40), max_size=40))
def test_any_tokens_can_be_judged(tokens):
    problem = drawn(SMALL, "train", 0, 1)
    assert SMALL.reward(problem, tokens) == 0.0
    assert SMALL.reward(problem, [*tokens, SMALL.stop]) in (0.0, 1.0)
    assert isinstance(SMALL.text(tokens), str)


@pytest.mark.parametrize("task", [Frontiers(), Frontiers(n_nodes=48, depth=5)])
def test_random_walks_solve_less_than_five_in_a_hundred_problems_in_32_tries(task):
    rng, solved, tries = random.Random(0), 0, 400
    for index in range(tries):
        problem = drawn(task, "test", 0, index)
        children = {}
        for a, b in sorted(problem.answer.edges):
            children.setdefault(a, []).append(b)
        for _ in range(32):
            walks = []
            for _ in range(task.targets):
                walk = [problem.answer.start]
                while walk[-1] in children:
                    walk.append(rng.choice(children[walk[-1]]))
                walks += [task.next_path, *walk]
            if task.reward(problem, [task.end_of_thinking, *walks[1:], task.stop]):
                solved += 1
                break
    assert 0 < solved < 0.05 * tries, solved


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n_nodes": 7}, "n_nodes must be an integer from 8 to 22, got 7"),
        ({"n_nodes": 23}, "n_nodes must be an integer from 8 to 22, got 23"),
        ({"depth": 0}, "depth must be an integer from 1 to 100, got 0"),
        ({"targets": 1.0}, "targets must be an integer from 1 to 1000, got 1.0"),
        ({"min_degree": 1}, "min_degree must be an integer from 2 to 100, got 1"),
        ({"max_degree": 1}, "max_degree must be an integer from 2 to 100, got 1"),
    ],
)
def test_options_that_allow_no_graph_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Frontiers(**options)


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(2, 4), st.integers(0, 2), st.integers(0, 60), st.integers(0, 99)
)
def test_every_setting_that_is_allowed_gives_problems_with_right_solutions(depth, targets, least, more, extra, seed):
    options = {"depth": depth, "targets": targets, "min_degree": least, "max_degree": least + more}
    try:
        task = Frontiers(n_nodes=2 + depth * (targets - 1) + extra, **options)
    except ValueError:
        return
    problem = drawn(task, "train", seed, 0)
    assert sum(task.layers) == task.n_nodes and task.layers[-1] >= targets
    assert task.reward(problem, problem.solution) == 1.0
    assert all(edge in problem.answer.edges for edge in pairwise(problem.solution[depth + 1 : 2 * depth + 2]))
