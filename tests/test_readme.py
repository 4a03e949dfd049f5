"""README.md: its examples run, its links lead to files, it stays short, and its numbers come from committed data."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest

from experiments.engine import comparison
from experiments.engine.evidence import paired

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
NAMES = (
    r"GPT-2|H200|x86|bf16|fp32|e-exponentiated|Hajra \d{4}|Python 3\.\d+ to 3\.\d+|torch you have \(2\.\d+ or newer\)|"
    r"127\.0\.0\.1|\[reach-30m\]"
)
"""Digits that are part of a name or a version."""


def visible(text):
    """What a reader sees: no addresses of links, no figures."""
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"!\[[^]]*\]\([^)]*\)", "", text))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[0])
def test_readme_example_runs(example):
    exec(compile(example, str(README), "exec"), {"__name__": "__main__"})


def test_readme_has_about_600_words():
    words = [word for word in visible(TEXT).split() if re.search(r"\w", word)]
    assert EXAMPLES and len(words) <= 650


def test_readme_links_lead_to_files():
    targets = [target for target in re.findall(r"\]\(([^)#]+)", TEXT) if not target.startswith("http")]
    assert targets and not [target for target in targets if not (README.parent / target).exists()]


def data(path):
    return json.loads((README.parent / path).read_text(encoding="utf-8"))


def endurance():
    """The row about long runs: the perplexity of each at its end, and which diverged."""
    found = data("experiments/results/endurance.json")
    rows = {row["variant"]: row for row in found["rows"]}
    ends = {name: [] for name in rows}
    for curve in found["curves"]:
        ends[curve["variant"]].append(f"{math.exp(curve['validation'][-1][1]):.3g}")
    steps, seeds = f"{max(rows['ls']['steps']):,}", rows["ls"]["seeds"]
    assert seeds == rows["plain"]["seeds"] == [0, 1, 2]
    *diverged, survived = ends["plain"]
    assert (rows["plain"]["diverged"], rows["ls"]["diverged"]) == (len(diverged), 0)
    assert min(map(float, diverged)) > 900
    plain, ls = f"{' and '.join(diverged)} (diverged), {survived}", ", ".join(ends["ls"])
    others = data("experiments/results/endurance-others.json")["rows"]
    assert [row["diverged"] for row in others if row["variant"] == "layer-wise"] == [0]
    recipe = f"paper's recipe at 1/16 of its batch, {steps} steps"
    assert found["provenance"]["batch_sizes"] == [256 // 16]  # the paper's, by a sixteenth
    yield f"| {recipe}: perplexity by seed | {plain} | {ls} | | {len(seeds)} |"


def reach():
    for name, short, words, seeds in (
        ("reach-modern", "ls1-w64", "validation loss", 4),
        ("reach-30m", "ls1-w128", "| a similar one, 27.5M parameters", 3),
    ):
        rows = {row["variant"]: row for row in data(f"experiments/results/{name}.json")["rows"]}
        full, *mixed = (rows[plan] for plan in ("full", f"{short}-nope", "ladder-nope"))
        below = [comparison.difference(row, full) for row in mixed]
        assert all(found.seeds == len(full["seeds"]) == seeds and found.sign() < 0 for found in below)
        cells = [f"{statistics.mean(row['final_losses']):.3f}" for row in (full, *mixed)]
        ls, ladder = (f"{mean} ({d.low:+.3f} to {d.high:+.3f})" for mean, d in zip(cells[1:], below, strict=True))
        yield f"{words} | {cells[0]} | {ls} | {ladder} | {seeds} |"
        assert comparison.difference(full, rows[short]).sign() == 0

    def change(name, key="beyond"):
        last = rows[name][key]
        near, far = rows[name]["beyond"]["losses"]["1 to 2,048"], last["losses"]["8,193 to 16,384"]
        assert last["seeds"] == rows["full"]["seeds"]
        return f"{statistics.fmean(far) - statistics.fmean(near):+.2f}"

    plain, ls, ladder = (change(name) for name in ("full", "ls1-w128-nope", "ladder-nope"))
    cells = f"{plain}; with YaRN {change('full', 'beyond_yarn')} | {ls} | {ladder} | {seeds} |"
    yield f"| its change at {8192 // 2048} to {16384 // 2048} times the training length | {cells}"


def retrieval():
    rows = {row["variant"]: row for row in data("experiments/results/retrieval-30m.json")["rows"]}
    full, *mixed = (
        dict(zip(rows[name]["seeds"], rows[name]["shares"]["variables"]["2048"], strict=True))
        for name in ("full", "ladder-nope", "ls1-w128-nope")
    )
    assert all(found.seeds == 3 and found.sign() == 0 for found in (paired(each, full) for each in mixed))
    plain, ladder, ls = (f"{100 * statistics.fmean(each.values()):.0f} %" for each in (full, *mixed))
    chains = "[chains of variables](docs/results/retrieval-30m.md)"
    told = f"answers {plain}, the ladder {ladder}, LS {ls} (three seeds; differences undecided)."
    yield f"Of {chains} plain attention (27.5M) {told}"
    larger = {row["variant"]: row for row in data("experiments/results/reach-30m.json")["rows"]}
    assert comparison.difference(larger["ls1-w128-nope"], larger["ls1-w128"]).sign() == 0
    yield "after the first pass](docs/ideas/plans-compared.md#when-the-gain-comes), at 27.5M undecided."
    rows = {row["variant"]: row for row in data("experiments/results/retrieval-modern.json")["rows"]}
    shares = [
        dict(zip(rows[name]["seeds"], rows[name]["shares"]["variables"]["2048"], strict=True))
        for name in ("one-full-8", "full")
    ]
    single, full = (statistics.fmean(each[seed] for seed in shares[0]) for each in shares)
    assert single < full - 0.15
    yield "One full layer alone answers [fewer chains](docs/results/retrieval-modern.md)."


def attention_times(path, works):
    """Median milliseconds forward and backward, by shape and entrant."""
    times = {}
    for row in data(path)["rows"]:
        if (row["work"], row["name"]) in works and row["direction"] in ("forward", "backward"):
            key = row["shape"], row["name"]
            times[key] = times.get(key, 0) + statistics.median(row["milliseconds"])
    return times


def attention():
    shapes = ("B2 H12 T8192 D64 w128", "B1 H12 T32768 D64 w128")
    speedup = data("benchmarks/results/attention-gpu.json")["summary"]["mhsa_speedup"]
    plain = [f"{speedup[shape]:.1f}" for shape in shapes]
    times = attention_times("benchmarks/results/attention-gpu.json", {("ls", "longshort"), ("ls", "FlexAttention")})
    flex = [f"{times[shape, 'FlexAttention'] / times[shape, 'longshort']:.1f}" for shape in shapes]
    cells = f"{plain[0]} at 8,192 tokens; {plain[1]} at 32,768"
    yield f"| attention, forward and backward | cuDNN's plain attention | {cells} |"
    yield f"| the same | FlexAttention, same masks | {flex[0]} at 8,192; {flex[1]} at 32,768 |"


def training():
    rows = [row for row in data("benchmarks/results/training.json")["step"] if row["how"] == "compiled"]
    time = {
        (row["tokens"].split(" x ")[1], row["name"], row["heads"]): statistics.median(row["milliseconds"])
        for row in rows
    }
    lengths = ("1,024", "4,096", "32,768")
    faster = [time[n, "nanoGPT-style", "plain"] / time[n, "longshort", "ls"] for n in lengths]
    cells = "; ".join(f"{ratio:.2f} at {n}" for n, ratio in zip(lengths, faster, strict=True))
    widths = {row["tokens"].split(" x ")[1]: row["window"] for row in rows if row["heads"] == "ls"}
    assert widths == {"1,024": 64, "4,096": 128, "32,768": 128}
    yield f"| training step, 124M parameters | a compiled nanoGPT-style model | {cells} |"


def decoding():
    found = data("benchmarks/results/decoding-gpu.json")
    ratio = {
        row["batch"]: row["ls_speedup"]
        for row in found["speed"]
        if (row["variant"], row["heads"]) == ("longshort", "plain")
    }
    cells = f"{ratio[1]:.1f} at batch 1; {ratio[32]:.1f} at batch 32"
    yield f"| decoding at 32,768 tokens, GPT-2 small | plain heads | {cells} |"
    batch = found["batch"][0]
    smaller = batch["plain"]["bytes_a_row"] / batch["ls"]["bytes_a_row"]
    yield f"At {batch['length']:,} tokens the key/value cache is {smaller:.1f} times smaller."


def cpu():
    rows = data("benchmarks/results/attention-cpu.json")["rows"]
    ratio = {
        row["shape"]: row["speedup"] for row in rows if (row["work"], row["direction"]) == ("ls", "forward+backward")
    }
    cells = "; ".join(f"{ratio[f'B1 H12 T{length} D64 w128']:.1f} at {length:,}" for length in (2048, 8192))
    yield f"| the same on two CPU cores, fp32 | PyTorch's SDPA | {cells} |"


def soak():
    kills = sum(sum(run["kills"].values()) for run in data("docs/notes/soak.json")["kills"])
    yield f"{kills} kills"


def settings():
    """Numbers that describe a setting, which the commands of the pages name too."""
    yield "Models of the first rows have 6.9M and 10.6M parameters"
    yield "One global head of 12 and windows of 128 (64 at 1,024 tokens)"
    yield "95 % interval over seeds"


SOURCES = (endurance, reach, retrieval, attention, training, decoding, cpu, soak, settings)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_readme_says_what_the_data_say(source):
    text = " ".join(TEXT.split())
    assert [line for line in source() if line not in text] == []


def test_every_number_of_the_readme_is_traced():
    """Outside of code, what no source accounts for has no digit."""
    prose = " ".join(re.sub(r"^```.*?^```", "", visible(TEXT), flags=re.DOTALL | re.MULTILINE).split())
    for source in SOURCES:
        for line in source():
            prose = prose.replace(" ".join(visible(line).split()), "")
    left = re.sub(NAMES, "", prose)
    assert re.findall(r"\S*\d\S*", left) == []
