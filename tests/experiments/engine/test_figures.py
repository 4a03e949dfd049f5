"""The lines of figures: means and bands over seeds."""

import json

from experiments.engine.figures import lines


def drawn_rows(part):
    """Every row of data in a specification of a chart."""
    if isinstance(part, dict):
        own = part.get("data", {}).get("values", []) if isinstance(part.get("data"), dict) else []
        part = [*part.values()]
        return [*own, *drawn_rows(part)]
    return [row for inner in part for row in drawn_rows(inner)] if isinstance(part, list) else []


def test_where_no_seed_is_finite_there_is_no_mean_and_no_band():
    losses = {1: (2.0, 4.0), 2: (3.0, None), 3: (None, None)}
    rows = [
        {"series": "plain", "detail": str(seed), "step": step, "loss": loss}
        for step, of_seeds in losses.items()
        for seed, loss in enumerate(of_seeds)
    ]
    chart = lines(rows, x="step", x_title="step", y="loss", y_title="loss", names=["plain"], width=99, height=99)
    drawn = drawn_rows(json.loads(chart.to_json()))
    assert {row["step"]: row["loss"] for row in drawn if "low" not in row} == {1: 3.0, 2: None, 3: None}
    assert [(row["step"], row["low"], row["high"]) for row in drawn if "low" in row] == [(1, 2.0, 4.0)]


def test_a_name_is_drawn_alike_in_panels_with_other_names():
    every = ["full", "ls1", "interleave", "ladder", "full, YaRN"]

    def colors(*names, **options):
        rows = [{"series": name, "detail": "", "step": 1, "loss": 1.0} for name in names]
        chart = lines(rows, x="step", x_title="", y="loss", y_title="", names=names, **options).to_dict()
        scale = chart["encoding"]["color"]["scale"]
        return dict(zip(scale["domain"], scale["range"], strict=True))

    one, two = colors("full", "interleave", together=every), colors("full", "full, YaRN", together=every)
    assert one["full"] == two["full"] and one["interleave"] != two["full, YaRN"]
    assert colors("full", "interleave")["interleave"] == colors("full", "full, YaRN")["full, YaRN"]
