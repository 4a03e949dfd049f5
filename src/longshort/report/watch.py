"""A report that stays current while runs grow: the file, and the page served on 127.0.0.1 alone.

Only the page and its version number are served, to requests that name this host; files are not.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from longshort.report.comparison import MAX_LISTED
from longshort.report.page import check_page, write_report
from longshort.runs import METRICS, Run, RunError, find_runs, load_runs

HOST = "127.0.0.1"
SECONDS = 2.0
"""Between two looks at the files."""
SHARE = 0.1
"""Most of one core that drawing the page takes from the training beside it, unless `LONGEST` seconds have passed."""
LONGEST = 15.0
"""Between two looks, however long the drawing took: the first also loads what draws."""

_WAITING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Waiting</title>
<meta name="color-scheme" content="light dark"></head><body style="font-family:sans-serif;margin:3em">
<p id="waiting">Waiting for the run's first record. The report appears here by itself.</p></body></html>"""
_SCRIPT = """<script>(() => { setInterval(async () => {
  const answer = await fetch("/version").catch(() => null);
  if (answer?.ok && (await answer.json()).runs) location.reload();
}, 1000); })();</script>"""


class LivePage:
    """The page as it is served, and its version, which every change raises."""

    def __init__(self) -> None:
        self.html, self.version, self.state = (_WAITING + _SCRIPT).encode(), 0, ""

    def set(self, html: str, state: str) -> None:
        live = html.replace("img-src data:", "img-src data:; connect-src 'self'", 1)
        self.html, self.state = live.replace("<body>", '<body data-live="/version">', 1).encode(), state
        self.version += 1

    @property
    def status(self) -> bytes:
        return json.dumps({"version": self.version, "runs": self.version > 0, "state": self.state}).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    page: LivePage


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "longshort", ""
    timeout = 10

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN, "the Host header must name this server")
        elif self.path == "/":
            self._answer(self.server.page.html, "text/html; charset=utf-8")
        elif self.path == "/version":
            self._answer(self.server.page.status, "application/json")
        elif self.path == "/favicon.ico":
            self._answer(b"", "image/x-icon")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for a request."""


def serve(page: LivePage, port: int = 0) -> _Server:
    """Serve the page from a thread; port 0 takes a free one. `shutdown()` ends it."""
    try:
        server = _Server((HOST, port), _Handler)
    except OSError as error:
        raise ValueError(f"--port must be a free port, got {port} ({error.strerror})") from None
    server.page = page
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def watch(paths: Sequence[Path], out: Path, *, title: str | None, port: int, say: Callable[[str], None]) -> None:
    """Keep `out` and its served copy current until Ctrl-C."""
    check_page(out)
    page = LivePage()
    server = serve(page, port)
    say(f"serving http://{HOST}:{server.server_address[1]}/ (this machine only); Ctrl-C ends it")
    try:
        _follow(paths, out, title, page, say)
    except KeyboardInterrupt:
        say(f"stopped; the page is {out}" if page.version else "stopped before the first record")
    finally:
        server.shutdown()
        server.server_close()


def _follow(paths: Sequence[Path], out: Path, title: str | None, page: LivePage, say: Callable[[str], None]) -> None:
    seen, said = "", ""
    while True:
        started = time.process_time()
        try:
            folders = find_runs(paths)
            stamp = str([(str(f), (f / METRICS).stat().st_size, (f / METRICS).stat().st_mtime_ns) for f in folders])
            if stamp != seen:
                state = describe(load_runs(folders))
                page.set(write_report(folders, out, title=title, png=False).html.read_text(encoding="utf-8"), state)
                seen, message = stamp, state if "in progress" not in state else ""
            else:
                message = said
        except (RunError, OSError) as error:
            message = f"waiting: {error}"
        if message and message != said:
            say(message)
        said = message
        _pause(pause_after(time.process_time() - started))


def pause_after(seconds: float) -> float:
    """How long to wait after a look that took so many seconds of a core.

    >>> pause_after(0.01), pause_after(0.5), pause_after(8.0)
    (2.0, 5.0, 15.0)
    """
    return min(LONGEST, max(SECONDS, seconds / SHARE))


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def describe(runs: Sequence[Run]) -> str:
    """Where the runs stand, in one line.

    >>> describe([])
    ''
    """
    if len(runs) <= MAX_LISTED:
        return "; ".join(f"{run.label}: {run.status} at step {run.last_step:,}" for run in runs)
    states = [run.status for run in runs]
    steps = sorted(run.last_step for run in runs)
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{len(runs)} runs: {counts}; at steps {steps[0]:,} to {steps[-1]:,}"
