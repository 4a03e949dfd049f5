"""The picture of a plan, in a terminal and in files."""

import json
import re
import shlex

import pytest
from PIL import Image
from typer.testing import CliRunner

from longshort import GPTConfig, HeadPlan, reach
from longshort.cli import app
from longshort.reach import LayerReach
from longshort.report import write_report
from longshort.report.plan import kinds, plan_chart, plan_text, write_plan
from longshort.runs import load_run
from longshort.train import TrainConfig, train

from ..train.tiny import tiny_config

SIZES = {"vocab_size": 50, "context": 2048, "n_layers": 8, "width": 256, "n_heads": 8, "positions": "rotary"}


def model(written="ladder", **options):
    return GPTConfig(**SIZES | {"reach": written} | options)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_each_head_is_a_letter_from_the_widest_reach_down():
    lines = plan_text(model()).splitlines()
    assert lines[:8] == [f"layer {layer}  G a b c d e f g" for layer in range(8)]
    assert lines[9].split() == ["G", "all", "earlier", "keys", "8", "heads", "base", "10,000"]
    assert lines[16].split() == ["g", "a", "window", "of", "8", "keys", "8", "heads", "base", "10,000"]


def test_costs_stand_beside_those_of_full_attention():
    found = reach.costs(model().layer_reaches, context=2048, head_dim=32)
    lines = plan_text(model()).splitlines()[-4:]
    assert lines[0].startswith("at 2,048 tokens")
    assert [line.split()[-1] for line in lines[1:]] == [
        f"{found.share:.1%}",
        f"{found.cache_share:.1%}",
        f"{found.share:.1%}",
    ]
    assert f"{found.visible_keys:,.0f}" in lines[1]
    assert "at 8,192 tokens" in plan_text(model(), 8192)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"like": "command-a", "window": 64}, {"G": "not rotated", "a": "base 10,000"}),
        ({"like": "mimo-v2-flash", "window": 64}, {"G": "base 5,000,000 on 33%", "a": "base 10,000 on 33%"}),
    ],
)
def test_rotation_of_global_and_local_heads_is_told(written, words):
    lines = plan_text(model(written)).splitlines()
    for letter, said in words.items():
        assert any(line.startswith(f"{letter}  ") and line.endswith(said) for line in lines)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"like": "gpt-oss", "window": 64}, "Learned sinks in every layer"),
        ({"like": "mimo-v2-flash", "window": 64}, "Learned sinks in every layer with local heads"),
        (
            [LayerReach(plan=HeadPlan.full(8), sink="learned")] * 2 + [LayerReach(plan=HeadPlan.full(8))] * 6,
            "2 of 8 layers",
        ),
        ("ladder", None),
    ],
)
def test_sinks_are_told(tmp_path, written, words):
    lines = [line for line in plan_text(model(written)).splitlines() if "sink" in line]
    drawn = write_plan(model(written), tmp_path / "plan.svg", title="Mine").read_text()
    if words is None:
        assert not lines and "sinks" not in drawn
    else:
        assert len(lines) == 1 and lines[0].endswith(words) and words in drawn


@pytest.mark.parametrize(("n_heads", "n_layers"), [(1, 1), (35, 3), (36, 3), (80, 12), (200, 2), (8, 100)])
@pytest.mark.parametrize("color", [False, True])
def test_lines_fit_80_columns(n_heads, n_layers, color):
    config = model("full", n_heads=n_heads, n_layers=n_layers, width=2 * n_heads)
    text = re.sub(r"\x1b\[[\d;]*m", "", plan_text(config, color=color))
    assert max(map(len, text.splitlines())) <= 80
    drawn = text.split("\n\n")[0].replace("layer", "")
    assert drawn.count("G") == n_heads * (n_layers if n_layers <= 48 else 1)


def test_colours_are_terminal_sequences_of_the_same_text():
    plain, coloured = plan_text(model()), plan_text(model(), color=True)
    assert "\x1b[" in coloured and "\x1b[" not in plain
    without = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in without.splitlines()] == plain.splitlines()


def test_kinds_are_told_apart_by_letter_colour_and_label():
    found = kinds([[None, 512, 8], [64, 64, 64]])
    assert list(found) == [None, 512, 64, 8]
    for part in zip(*found.values(), strict=True):
        assert len(set(part)) == 4


def test_chart_has_a_cell_for_every_head():
    plans = [plan.windows for plan in model().layer_plans]
    spec = plan_chart(plans, "a title")
    rows = spec["datasets"]["plan"]
    assert len(rows) == 64
    assert {row["sees"] for row in rows if row["head"] == 0} == {"all"}
    assert rows[1] == {"layer": 0, "head": 1, "sees": "512"}


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<svg"), ("p.html", b"<!DOCTYPE html>")])
def test_show_writes_the_picture(tmp_path, name, start):
    shown = run("show", "paper-6m", "model.reach=ladder", "--out", tmp_path / name)
    assert shown.exit_code == 0, shown.output
    assert shown.output.rstrip().endswith(f"wrote {tmp_path / name}")
    assert (tmp_path / name).read_bytes().lstrip().startswith(start)


@pytest.mark.parametrize("name", ["plan.png", "plan.svg", "plan.html"])
def test_show_replaces_its_own_picture_and_no_other(tmp_path, name):
    for _ in range(2):
        assert run("show", "tiny", "--out", tmp_path / name).exit_code == 0
    (tmp_path / name).write_text("mine")
    shown = run("show", "tiny", "--out", tmp_path / name)
    assert shown.exit_code == 1 and "already exists and is not one of our files" in shown.stderr
    assert (tmp_path / name).read_text() == "mine"


def test_a_png_with_its_title_is_a_whole_picture(tmp_path):
    with Image.open(write_plan(model(), tmp_path / "plan.png", title="Mine")) as image:
        image.load()
        assert image.text == {"Title": "Mine"}


def test_svg_says_what_it_costs(tmp_path):
    text = write_plan(model(), tmp_path / "plan.svg", title="Mine").read_text()
    assert "Mine" in text and "23.9% of full attention" in text


def test_show_draws_a_shipped_configuration_without_colours_in_a_file():
    shown = run("show", "tiny", "--context", 1024)
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("layer 0  G a a a\nlayer 1  G a a a\n\nG  all earlier keys")
    assert "at 1,024 tokens" in shown.output


def test_show_of_a_classifier_counts_the_keys_on_both_sides(tmp_path):
    shown = run("show", "listops", "--out", tmp_path / "plan.svg")
    assert shown.exit_code == 0, shown.output
    lines = [" ".join(line.split()) for line in shown.output.splitlines()]
    assert "G all keys 12 heads" in lines and "a 63 keys to each side 36 heads" in lines
    assert "visible keys per token and head 594 2,000 29.7%" in lines
    assert "cache" not in shown.output and "cache" not in (tmp_path / "plan.svg").read_text()
    assert "all earlier keys" in run("show", "listops", "task.causal=true").output


@pytest.mark.parametrize(
    ("arguments", "given", "sizes"),
    [
        (["modern-10m", "--share", "0.2"], {"share": 0.2, "rotary": True}, {"context": 2048, "head_dim": 32}),
        (
            ["tiny", "--cache-bytes", "180", "--context", "4096"],
            {"cache_bytes": 180},
            {"context": 4096, "head_dim": 16},
        ),
    ],
)
def test_show_within_a_budget_draws_the_plan_of_budget_and_says_how_to_write_it(arguments, given, sizes, tmp_path):
    before = TrainConfig.load(arguments[0]).model
    choice = reach.budget(n_layers=before.n_layers, n_heads=before.n_heads, **sizes, **given)
    shown = run("show", *arguments, "--out", tmp_path / "plan.svg")
    assert shown.exit_code == 0, shown.output
    *text, written, _ = shown.output.rstrip().splitlines()
    assert choice.reason in " ".join(" ".join(text).split())
    (override,) = shlex.split(written)
    taken = TrainConfig.load(arguments[0], [override]).model
    assert taken.layer_reaches == choice.layers != before.layer_reaches
    assert shown.output.startswith(plan_text(taken, sizes["context"]))
    assert f"{choice.costs.share:.1%} of full attention" in (tmp_path / "plan.svg").read_text()


SHARED = ["model.n_heads=16", "model.n_kv_heads=4", "model.width=64", "model.positions=rotary"]
SCALED = ["model.positions=rotary", "model.rope_scaling={kind: yarn, factor: 2, original_context: 256, heads: global}"]


@pytest.mark.parametrize(
    "overrides",
    [
        SHARED,
        SCALED,
        ["model.context=128", "model.reach=ladder"],
        ["model.plan={windows: [4, 4, 4]}"],
        ["model.window=9"],
    ],
    ids=["grouped", "scaled", "ladder", "plan", "window"],
)
def test_a_plan_is_chosen_whatever_the_one_that_it_replaces(overrides):
    shown = run("show", "tiny", *overrides, "--share", "0.6")
    assert shown.exit_code == 0, shown.output
    (override,) = shlex.split(shown.output.rstrip().splitlines()[-1])
    sizes = [item for item in overrides if not item.startswith(("model.reach", "model.plan", "model.window"))]
    taken = TrainConfig.load("tiny", [*sizes, override]).model
    assert any(layer.plan.n_global for layer in taken.layer_reaches)
    assert ("nope" in override) is (overrides is SHARED)


def test_budget_of_a_two_sided_model_is_refused():
    shown = run("show", "listops", "--share", "0.5")
    assert shown.exit_code == 1 and shown.stderr.count("\n") == 1
    assert "--share and --cache-bytes choose causal plans" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["tiny", "model.context=256", "--context", "4096", "--share", "0.5"],
            "--context must be at most 256, which is model.context: the plan for 4096 tokens has windows of up to 512",
        ),
        (["tiny", "--share", "0.01"], "the budget must allow the cheapest plan that we know"),
        (["tiny", "--out", "plan.pdf"], "--out must be a file that ends in .png, .svg, .html, got 'plan.pdf'"),
        (["tiny", "model.reach={pattern: interleave, layers: LLXG, window: 8}"], "layers must be letters L (local)"),
        (["tiny", "model.reach=laddr"], "model.reach must be full, long_short"),
        (["no-such.yaml"], "no-such"),
    ],
)
def test_bad_input_is_one_line(arguments, words):
    shown = run("show", *arguments)
    assert shown.exit_code == 1
    (line,) = shown.stderr.strip().splitlines()
    assert line.startswith("error: ") and words in line


def test_page_draws_each_plan_once(report):
    html = report.files.html.read_text()
    payload = json.loads(re.search(r'id="payload">(.*?)</script>', html, re.S)[1])
    drawn = [key for key in payload["specs"] if key.startswith("plan-")]
    assert drawn == [f"plan-{i}" for i in range(len(drawn))] and drawn
    assert all(f'data-chart="{key}"' in html for key in drawn)


def test_page_draws_the_first_keys_of_a_streaming_run(corpus, tmp_path):
    streaming = "model.reach={pattern: streaming, first: 4, recent: 16}"
    config = tiny_config(corpus, tmp_path / "run", streaming, "model.n_global=null", "model.window=null", "run.steps=1")
    train(config)
    assert load_run(tmp_path / "run").header.sees[0][0] == (4, 16)
    html = write_report([tmp_path / "run"], tmp_path / "report.html").html.read_text()
    assert html.count('"4 + 16"') >= 2
