"""The site's search, in a real browser and from files: two pages built with the site's own configuration."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.report import browser as chromium

DOCS = Path(__file__).parents[2] / "docs"
INDEX = "# Start\n\nA page about trains.\n\n```{toctree}\nother\n```\n"


@pytest.fixture
def site(tmp_path):
    pytest.importorskip("sphinx")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(INDEX)
    (tmp_path / "pages" / "other.md").write_text("# Another page\n\nThe passkey stands here.\n")
    built = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", str(DOCS), "pages", "site"]
    subprocess.run(built, cwd=tmp_path, check=True, timeout=120)
    return tmp_path / "site"


@pytest.fixture
def browser(tmp_path):
    binary = chromium.find()
    if binary is None:
        pytest.skip("no Chromium found; install one, or name it in the variable CHROMIUM")
    opened = chromium.Browser(binary, tmp_path / "profile")
    yield opened
    opened.close()


def press(browser, key, **params):
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, **params)


def test_a_query_that_is_typed_finds_its_page(browser, site):
    browser.call("Page.navigate", url=(site / "index.html").as_uri())
    browser.wait_until("document.readyState === 'complete' && document.title === 'Start — longshort'")
    press(browser, "k", code="KeyK", modifiers=2)  # Ctrl+K opens the search
    browser.wait_until("document.activeElement.name === 'q'")
    browser.call("Input.insertText", text="passkey")
    press(browser, "Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    found = "[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))"
    browser.wait_until(f"location.pathname.endsWith('/search.html') && {found}.length > 0")
    assert browser.evaluate(found) == ["other.html"]
