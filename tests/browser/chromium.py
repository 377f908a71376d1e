"""A real Chromium without a window, driven over a pipe by the DevTools protocol.

Protocol: messages of JSON, each ended by a zero byte, on the file descriptors 3 (to the browser) and 4 (from it).
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.rig.debian import Tool, unpacked

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run")
FLAGS += ("--disable-component-update", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe")
PATIENCE_SECONDS = 60
KEYS = {"Enter": 13, "Escape": 27, "ArrowDown": 40}


def find_chromium() -> tuple[str, dict[str, str]] | None:
    """Return the path of a browser and the variables that it needs, or None if the machine has no browser."""
    return next(((path, {}) for name in NAMES if (path := shutil.which(name))), None)


def fetch_chromium() -> tuple[str, dict[str, str]]:
    """Return as `find_chromium` does Debian's browser, unpacked into the user's cache, fetched if it is not there.

    Raises ConfigError if it cannot be fetched.
    """
    root = unpacked(Tool(("chromium",)))
    libraries = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu/pulseaudio")]
    variables = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)), "XDG_DATA_HOME": str(root / "usr/share")}
    if (fonts := root / "etc/fonts").exists():
        variables["FONTCONFIG_PATH"] = str(fonts)
    return str(root / "usr/lib/chromium/chromium"), variables


class Chromium:
    """One browser with one page."""

    def __init__(self, path: str, variables: dict[str, str], profile: Path) -> None:
        """Start the browser at `path` with further environment variables; its files lie in profile."""
        (read, self._to), (self._from, write) = os.pipe(), os.pipe()
        # Chromium's own sandbox does not work for root.
        flags = [*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        # A shell, since the pipes have to be its descriptors 3 and 4.
        shell = ["bash", "-c", f'exec 3<&{read} 4>&{write} > /dev/null 2>&1; exec "$@"', "bash", path, *flags]
        self._process = subprocess.Popen(
            shell, env=os.environ | variables, pass_fds=(read, write), start_new_session=True
        )
        os.close(read)
        os.close(write)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, path: Path, width: int = 1400, scripts: bool = True) -> None:
        """Show a file on a light screen, and wait until all of it is there."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.resize(width)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.named("Page.loadEventFired"):
            assert time.monotonic() < deadline
            self.events.append(self._receive())

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page a size, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def run(self, expression: str) -> Any:
        """Return the value of an expression, waiting where it is a promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.run(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.02)

    def place(self, selector: str) -> tuple[float, float]:
        """Scroll to the first element, and return its middle; it must be the uppermost there."""
        box = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center', inline: 'center'});"
            "const {x, y, width, height} = one.getBoundingClientRect();"
            "const at = [x + width / 2, y + height / 2]; const top = document.elementFromPoint(...at);"
            "return [...at, one.parentNode.contains(top)]; })()"
        )
        assert box[2], f"{selector} is covered"
        return box[0], box[1]

    def click(self, selector: str) -> None:
        """Click on the middle of the first element, as a mouse does."""
        x, y = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str) -> tuple[float, float]:
        """Move the mouse to the first element; returns where that is."""
        x, y = self.place(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def key(self, name: str) -> None:
        """Press a key."""
        known = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name]}
        known |= {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **known)

    def write(self, selector: str, text: str) -> None:
        """Click into a field and write into it, over what is there."""
        self.click(selector)
        self.run("document.execCommand('selectAll')")
        self.call("Input.insertText", text=text)

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        found = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(found["data"])

    def named(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of events of one name since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self) -> None:
        """End the browser and all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], PATIENCE_SECONDS)
            assert ready, "the browser does not answer"
            read = os.read(self._from, 2**20)
            assert read, "the browser has ended"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))
