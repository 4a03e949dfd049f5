"""`longshort report --watch`: a page that follows its runs, served to this machine alone."""

import http.client
import json
import threading

import pytest
from typer.testing import CliRunner

from longshort.cli import app
from longshort.report import watch as watching
from longshort.report.watch import HOST, LivePage, serve
from longshort.runs import RunError, find_runs, load_runs

from .synthetic import run_record, train_record, write_lines


@pytest.fixture
def server():
    page = LivePage()
    page.set("<html><body>numbers</body></html>", "ls: in progress at step 3")
    opened = serve(page)
    yield opened
    opened.shutdown()
    opened.server_close()


def ask(server, path, *, method="GET", host=None):
    connection = http.client.HTTPConnection(HOST, server.server_address[1], timeout=10)
    connection.request(method, path, headers={"Host": host or f"{HOST}:{server.server_address[1]}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_page_and_version_are_served_on_the_loopback_address(server):
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/") == (200, b'<html><body data-live="/version">numbers</body></html>')
    assert json.loads(ask(server, "/version")[1]) == {"version": 1, "runs": True, "state": "ls: in progress at step 3"}


@pytest.mark.parametrize("path", ["/metrics.jsonl", "/../pyproject.toml", "/report.html", "//etc/passwd", "/?x"])
def test_nothing_else_is_served(server, path):
    assert ask(server, path)[0] == 404


def test_another_host_name_is_refused(server):
    assert ask(server, "/", host="evil.example")[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_only_get_is_answered(server, method):
    assert ask(server, "/", method=method)[0] == 501


def test_busy_port_is_named(server):
    with pytest.raises(ValueError, match="--port must be a free port, got"):
        serve(LivePage(), server.server_address[1])


def test_port_without_watch_is_refused(tmp_path):
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--port", "9000"])
    assert shown.exit_code == 1
    assert shown.output == "error: --port must come with --watch, got --port 9000 alone\n"


def test_runs_are_found_in_a_folder_one_level_down_and_nested(tmp_path):
    steps = [run_record(), train_record(1, 2.0)]
    runs = [write_lines(tmp_path / name, steps) for name in ("compare/ls-seed0", "compare/sweep/a/plain-seed0")]
    assert find_runs([tmp_path / "compare"]) == runs
    assert find_runs(runs) == runs
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds no run"):
        find_runs([tmp_path / "empty"])


def test_verb_reports_a_folder_of_runs(tmp_path):
    for seed in (0, 1):
        write_lines(tmp_path / f"runs/ls-{seed}", [run_record(f"ls-{seed}", seed=seed), train_record(1, 2.0)])
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r.html"), "--no-png"])
    assert shown.exit_code == 0, shown.output
    assert "ls-0" in (tmp_path / "r.html").read_text() and "ls-1" in (tmp_path / "r.html").read_text()


def test_browser_follows_a_run_from_before_its_first_record_to_its_end(browser, tmp_path, monkeypatch):
    folder, said, stopped = tmp_path / "run", [], threading.Event()
    folder.mkdir()

    def pause(seconds):
        if stopped.wait(0.2):
            raise KeyboardInterrupt

    monkeypatch.setattr(watching, "_pause", pause)
    options = {"title": None, "port": 0, "say": said.append}
    thread = threading.Thread(target=watching.watch, args=([folder], tmp_path / "r.html"), kwargs=options)
    thread.start()
    try:
        while not said:
            stopped.wait(0.05)
        browser.complaints.clear()
        browser.emulate()
        browser.call("Page.navigate", url=said[0].split()[1])
        browser.wait_until("!!document.getElementById('waiting')")
        steps = [train_record(step, 4.0) for step in range(1, 20)]
        write_lines(folder, [run_record(), *steps[:9]])
        browser.wait_until("document.getElementById('live')?.textContent.includes('in progress at step 9')")
        browser.wait_until_drawn()
        browser.evaluate("window.scrollTo({top: 300, behavior: 'instant'}); window.kept = true")
        place = "document.getElementById('loss').getBoundingClientRect().top"
        before = browser.evaluate(place)
        write_lines(folder, [run_record(), *steps, {"kind": "end", "step": 19, "seconds": 19.0, "status": "finished"}])
        browser.wait_until("document.getElementById('live').textContent.includes('finished at step 19')")
        browser.wait_until("document.querySelector('.lead').textContent.includes('19 steps')")
        browser.wait_until_drawn()
        assert browser.evaluate("window.kept"), "the page was updated in place"
        assert browser.evaluate(place) == pytest.approx(before, abs=2), "and stays where it was scrolled to"
        assert browser.complaints == []
    finally:
        stopped.set()
        thread.join(20)
    assert any("finished at step 19" in line for line in said)
    assert said[-1].startswith("stopped; the page is")


def test_the_state_of_many_runs_is_counted(tmp_path):
    ends = [{"kind": "end", "step": 3, "seconds": 3.0, "status": "finished"}, *[None] * 4]
    folders = [
        write_lines(tmp_path / str(i), [run_record(), train_record(3 + i, 2.0), *([end] if end else [])])
        for i, end in enumerate(ends)
    ]
    assert watching.describe(load_runs(folders)) == "5 runs: 1 finished, 4 in progress; at steps 3 to 7"
