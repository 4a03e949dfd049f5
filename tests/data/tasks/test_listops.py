"""ListOps against an evaluator written here, from the words of the expression alone."""

import statistics

from longshort.data.tasks import listops


def evaluate(text):
    """A stack machine over the words."""
    names = {"[MIN": min, "[MAX": max, "[SM": lambda v: sum(v) % 10, "[MED": lambda v: int(statistics.median(v))}
    stack = [(None, [])]
    for word in text.split():
        if word in names:
            stack.append((names[word], []))
        elif word == "]":
            operator, values = stack.pop()
            assert 2 <= len(values) <= 10
            stack[-1][1].append(operator(values))
        else:
            stack[-1][1].append(int(word))
    ((_, (value,)),) = stack
    return value


def depth(text):
    deepest = level = 1
    for word in text.split():
        level += word.startswith("[") - (word == "]")
        deepest = max(deepest, level)
    return deepest


DRAWN = [listops.draw(f"test/{number}", length=200) for number in range(300)]


def test_the_value_is_that_of_an_independent_evaluator():
    assert all(evaluate(listops.words(tokens)) == value for tokens, value in DRAWN)


def test_lengths_lie_between_a_quarter_of_the_length_and_the_length():
    lengths = [len(tokens) for tokens, _ in DRAWN]
    assert min(lengths) > 50 and max(lengths) < 200
    published = [len(listops.draw(str(number), length=2000)[0]) for number in range(20)]
    assert min(published) > 500 and max(published) < 2000


def test_trees_are_at_most_ten_deep_and_all_operators_occur():
    texts = [listops.words(tokens) for tokens, _ in DRAWN]
    assert max(depth(text) for text in texts) <= 10 < max(depth(text) for text in texts) + 3
    words = " ".join(texts).split()
    counts = [words.count(f"[{name}") for name in listops.OPERATORS]
    assert min(counts) > 0.8 * max(counts)


def test_the_median_of_an_even_number_of_values_is_cut_to_an_integer():
    assert evaluate("[MED 1 4 ]") == 2 == listops._evaluated(listops.OPERATORS.index("MED"), [4, 1])


def test_a_key_gives_one_expression_and_another_key_another():
    assert listops.draw("a", length=64) == listops.draw("a", length=64) != listops.draw("b", length=64)
