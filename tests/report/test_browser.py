"""The page in a real browser: drawn, silent, readable on a phone, in light and in dark."""

import pytest

from longshort.report import theme, write_report

from .synthetic import run_record, train_record, write_lines

DESKTOP, PHONE = 1280, 390


@pytest.fixture
def shown(browser, report):
    """Show the page; on the way out, check that it complained about nothing and loaded nothing but itself."""

    def show(width=DESKTOP, dark=False):
        browser.show(report.files.html, width=width, dark=dark)
        return browser

    browser.complaints.clear()
    browser.requests.clear()
    yield show
    browser.evaluate("1")
    assert browser.complaints == []
    assert {url for url in browser.requests if not url.startswith("data:")} <= {report.files.html.as_uri()}


def marks(browser, chart):
    """How many drawn marks of each kind the chart has that take up room."""
    return browser.evaluate(f"""(() => {{
        const svg = document.querySelectorAll('.chart')[{chart}].querySelector('svg');
        const count = (selector) => [...svg.querySelectorAll(selector)]
            .filter((e) => e.getBBox().width + e.getBBox().height > 0).length;
        return {{lines: count('.mark-line path'), points: count('.mark-symbol path'), cells: count('.mark-rect path'),
            bands: count('.mark-area path')}};
    }})()""")


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.every(4)
def test_charts_are_drawn_and_nothing_overflows(shown, width, dark):
    browser = shown(width, dark)
    loss, logits, first_heat, second_heat, plan = (marks(browser, chart) for chart in range(5))
    assert loss["lines"] >= 5 + 3  # every step of five runs, and the trend of three variants
    assert loss["points"] >= 20 + 10  # ten evaluations of two variants; spikes
    assert loss["bands"] >= 2
    assert logits["lines"] >= 4
    assert min(first_heat["cells"], second_heat["cells"]) >= 3 * 6 * 20
    assert plan["cells"] == 3 * 6
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("Math.max(...[...document.querySelectorAll('svg')].map(s => s.clientWidth))") <= width


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_no_text_is_cut_off_or_tiny(shown, width):
    browser = shown(width)
    spilled = browser.evaluate("""[...document.querySelectorAll('h1, h2, h3, p, button, label, summary, pre, .chart')]
        .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 80))""")
    assert spilled == []
    sizes = browser.evaluate(
        "[...document.querySelectorAll('p, td, th')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_charts_are_laid_out_for_the_width_and_not_shrunk_to_it(shown, width):
    scales = "[...document.querySelectorAll('svg')].map(s => s.clientWidth / s.viewBox.baseVal.width)"
    found = shown(width).evaluate(scales)
    assert found == pytest.approx([1.0] * (4 + 3), abs=0.01)  # three variants, each with a plan of its own


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_follow_the_preferred_scheme(shown, dark):
    browser = shown(dark=dark)
    colors = theme.DARK if dark else theme.LIGHT
    drawn = browser.evaluate(
        "[...document.querySelectorAll('.chart .mark-line path')].map(p => p.getAttribute('stroke'))"
    )
    assert set(colors["category"][:3]) <= set(drawn)  # ls, plain, and one of no known method
    assert browser.evaluate("getComputedStyle(document.querySelector('.swatch')).backgroundColor") == rgb(
        colors["category"][1]
    )
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(colors["page"])


def rgb(color):
    return f"rgb({int(color[1:3], 16)}, {int(color[3:5], 16)}, {int(color[5:7], 16)})"


def test_switching_the_scheme_redraws_the_charts(shown):
    browser = shown()
    browser.emulate(dark=True)
    browser.wait_until_drawn(dark=True)
    drawn = browser.evaluate("document.querySelector('.chart .mark-line path').getAttribute('stroke')")
    assert drawn in theme.DARK["category"]


def axis_titles(browser, chart=0):
    return browser.evaluate(
        f"[...document.querySelectorAll('.chart')[{chart}].querySelectorAll('.role-axis-title text')]"
        ".map(t => t.textContent)"
    )


def click(browser, selector):
    browser.evaluate(f"document.querySelector({selector!r}).click()")
    browser.wait_until_drawn()


def test_switches_change_both_axes(shown):
    browser = shown()
    assert axis_titles(browser) == ["step", "loss (nats per token)"]
    click(browser, "[data-value=tokens]")
    click(browser, "[data-value=perplexity]")
    assert axis_titles(browser) == ["tokens", "perplexity"]
    assert axis_titles(browser, 1) == ["tokens", "max |logit|"]
    click(browser, "[data-value=time]")
    assert axis_titles(browser)[0].startswith("training time")


def test_legend_hides_a_variant(shown):
    browser = shown()
    before = marks(browser, 1)["lines"]
    click(browser, "#legend button")
    assert marks(browser, 1)["lines"] == before - 3  # two seeds and their mean
    click(browser, "#legend button")
    assert marks(browser, 1)["lines"] == before


def test_heat_maps_start_with_two_variants_and_can_be_chosen(shown):
    browser = shown()
    chosen = "[...document.querySelectorAll('select')].map(s => s.selectedOptions[0].textContent)"
    assert browser.evaluate(chosen) == ["plain-s0", "ls-s0"]
    cells = "document.querySelectorAll('.chart')[2].querySelector('.mark-rect').innerHTML"
    before = browser.evaluate(cells)
    browser.evaluate(
        "(s => { s.value = '3'; s.dispatchEvent(new Event('change')); })(document.querySelector('select'))"
    )
    browser.wait_until_drawn()
    assert browser.evaluate(cells) != before


def test_values_that_are_not_finite_are_marked(shown):
    browser = shown()
    for chart in (0, 1, 2):
        paths = f"document.querySelectorAll('.chart')[{chart}].querySelectorAll('path')"
        assert theme.NOT_FINITE in browser.evaluate(f"[...{paths}].map(p => p.getAttribute('fill'))")


def test_page_of_a_single_bare_run_is_silent_too(browser, tmp_path):
    folder = write_lines(tmp_path / "run", [run_record(), *(train_record(step, 2.0) for step in range(1, 9))])
    browser.complaints.clear()
    browser.show(write_report([folder], tmp_path / "r.html", png=False).html)
    assert marks(browser, 0)["lines"] == 2
    assert browser.complaints == []


def test_browser_notices_errors(browser, tmp_path):
    """The tests above rest on it."""
    page = tmp_path / "broken.html"
    page.write_text("<div class=chart data-drawn=light></div><script>console.error('one'); undefined.two</script>")
    browser.complaints.clear()
    browser.show(page)
    browser.evaluate("1")
    assert len(browser.complaints) == 2


def test_of_many_variants_six_are_coloured_and_a_click_colours_another(browser, tmp_path):
    names = ("plain", "ls", "all-local", "layer-wise", "qk-norm-head", "softcap", "z-loss", "las")
    steps = [train_record(step, 2.0 + step / 50) for step in range(1, 30)]
    runs = [write_lines(tmp_path / name, [run_record(name), *steps]) for name in names]
    browser.show(write_report(runs, tmp_path / "r.html", png=False).html)
    colors = "new Set([...document.querySelectorAll('.chart .mark-line path')].map(p => p.getAttribute('stroke')))"
    grey = theme.LIGHT["aside"]
    assert browser.evaluate("document.querySelector('.hint').textContent").startswith("6 variants are drawn in colour")
    assert len(browser.evaluate(f"[...{colors}]")) == 5 + 1  # two of the six are of one family
    assert grey in browser.evaluate(f"[...{colors}]")
    for name in ("las", "z-loss"):
        click(browser, f"#legend [data-variant={name}]")
    assert grey not in browser.evaluate(f"[...{colors}]")
