"""The numbers of the readings of `explosion` and `precision`, and of the page on why, recomputed from their data."""

import json
import statistics

from experiments.engine.comparison import difference

from .measured import RESULTS, ROOT


def published(name):
    data = json.loads((RESULTS / f"{name}.json").read_text())
    reading = " ".join((RESULTS / f"{name}.reading.md").read_text().split())
    return data, {row["variant"]: row for row in data["rows"]}, reading


def test_explosion_says_what_its_data_say():
    data, rows, reading = published("explosion")
    why = " ".join((ROOT / "docs" / "ideas" / "why.md").read_text().split())
    assert [round(value, 1) for value in rows["ls-6e-4"]["max_logits"]] == [43.1, 48.2, 50.4]
    assert "its maxima are 43, 48 and 50.4" in reading
    ls, plain = ([v for n, row in rows.items() if n.startswith(k) for v in row["max_logits"]] for k in ("ls", "plain"))
    assert (round(min(plain)), round(max(plain)), round(min(ls)), round(max(ls))) == (942, 8070, 43, 126)
    assert "942 to 8,070 with plain attention, and 43 to 126" in why
    assert (len(ls), sum(value > 50 for value in ls)) == (7, 5) and "in five of seven runs" in why
    lead = difference(rows["plain-6e-4"], rows["ls-6e-4"])
    assert [round(value, 3) for value in (lead.mean, lead.low, lead.high)] == [0.116, 0.086, 0.146]
    assert "0.116 nats (95 % interval 0.086 to 0.146, three seeds)" in reading and "by 0.116 nats" in why
    assert all(difference(rows[f"plain-{rate}"], rows[f"ls-{rate}"]).low > 0 for rate in ("3e-3", "9.6e-3"))
    assert data["provenance"]["vocabularies_by_seed"].keys() == {"1", "2"} and "seed 0 is of another text" in why


def test_precision_says_what_its_data_say():
    data, rows, reading = published("precision")
    assert all(not row["diverged"] for row in rows.values())
    steps = sorted(step for row in rows.values() for step in row["steps"])
    assert f"after {steps[0]:,} to {steps[-1]:,} of 12,000 steps" in reading
    curves = {(curve["variant"], curve["seed"]): curve for curve in data["curves"]}
    apart, peaks, growth = [], [], {"plain": [], "plain-tf32": []}
    for (name, seed), curve in curves.items():
        around = [[v for step, v in curve["logits"] if at - 250 < step <= at + 250] for at in (4000, 5000)]
        before, after = map(statistics.fmean, around)
        growth[name].append(round(100 * (after / before - 1)))
        if name == "plain-tf32":
            peaks.append(round(max(value for step, value in curve["logits"] if step <= 5250)))
            bf16 = dict(curves["plain", seed]["validation"])
            apart.append({step: abs(loss - bf16[step]) for step, loss in curve["validation"] if step in bf16})
    assert max(each[5250] for each in apart) < 0.0025 and max(max(each.values()) for each in apart) < 0.008
    assert peaks == [310, 519, 408] and "(310, 519 and 408 by step 5,250)" in reading
    assert growth == {"plain": [16, 29, 29], "plain-tf32": [1, -17, 0]}
    assert "+16, +29 and +29 % in bf16, and by +1, -17 and 0 % in TF32" in reading
    assert rows["plain"]["seeds"] == [0, 1, 2]
