"""A headless Chromium driven over its own debugging pipe: commands and events are JSON, each ended by a zero byte.

The pipe needs no driver program and no package, unlike WebDriver or a websocket.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# Chromium reads from descriptor 3 and writes to 4.
LAUNCH = "import os, sys; a, b, *c = sys.argv[1:]; os.dup2(int(a), 3); os.dup2(int(b), 4); os.execv(c[0], c)"
PATIENCE = 60  # seconds; a loaded machine of two cores draws slowly


def find() -> str | None:
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. What the page loads and complains about is collected."""

    def __init__(self, binary: str, profile: Path) -> None:
        commands_out, self._commands = os.pipe()
        self._answers, answers_in = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands_out, answers_in)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, ends), binary, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands_out, answers_in, *ends):
            os.close(end)
        self._buffer, self._next, self._session = b"", 0, None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, **params: Any) -> dict:
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def show(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load `page` in a window of `width` CSS pixels and wait until every chart is drawn."""
        self.emulate(width=width, height=height, dark=dark)
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_until("document.readyState === 'complete'")
        self.wait_until_drawn(dark=dark)

    def emulate(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def wait_until_drawn(self, *, dark: bool = False) -> None:
        theme = "dark" if dark else "light"
        charts, drawn = "document.querySelectorAll('.chart')", f"c => c.dataset.drawn === '{theme}'"
        self.wait_until(f"{charts}.length > 0 && [...{charts}].every({drawn})")

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_until(self, expression: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._holds(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}; the page says: {self.complaints}")
            time.sleep(0.05)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(expression))
        except RuntimeError as error:
            if "navigated" in str(error):  # the page changed while it was asked: ask the next one
                return False
            raise

    def screenshot(self, file: Path) -> Path:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))
        return file

    def _receive(self, deadline: float) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._answers, 1 << 20) if ready else None
            if not chunk:
                raise TimeoutError("the browser did not answer" if chunk is None else "the browser is gone")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([arg.get("value") or arg.get("description") for arg in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
