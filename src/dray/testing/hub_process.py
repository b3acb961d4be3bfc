"""A real hub for the length of a test: its own process, its own home, any free port.

The process is the very command that people run, so that `kill` and `restart` mean what they mean in production.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from dray.errors import HubUnavailable
from dray.wire.reach.dialling import Way

if TYPE_CHECKING:
    from dray.client.faces.hub import Hub
    from dray.testing.async_worker import AsyncMockWorker
    from dray.testing.mock_worker import MockWorker

START_S = 30.0
STOP_S = 15.0


class RunningHub:
    """A hub process. `url`, `token` and `home` say how to reach it."""

    # What starts the process: a suite that starts hundreds may have a quicker way.
    popen: ClassVar[type[subprocess.Popen[str]]] = subprocess.Popen

    def __init__(self, home: Path, settings: Mapping[str, Any]) -> None:
        self.home, self._settings = home, settings
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def token(self) -> str:
        """The admin token of this home."""
        return (self.home / "token").read_text().strip()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the hub and wait until it is ready; a second start comes back at the same address."""
        port = str(urlsplit(self.url).port) if self.url else "0"
        command = [sys.executable, "-m", "dray.cli.main", "hub", "--home", str(self.home), "--port", port]
        with (self.home / "hub.err").open("w") as errors:
            self._process = self.popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                env=_environment(self._settings),
            )
        self.url = self._read_ready(self._process)

    def stop(self) -> None:
        """End the hub as SIGTERM does, and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the hub as a crash does (kill -9), and wait."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop, then start again on the same home and address."""
        self.stop()
        self.start()

    def connect(self, token: str = "") -> Hub:
        """A client of this hub; close it, or use it in a `with`."""
        from dray.client.faces.hub import connect

        return connect(self.url, token or self.token, self.home)

    def worker(self, worker_id: str = "mock", **options: Any) -> MockWorker:
        """A mock worker of this hub, not yet connected: use it in a `with`."""
        from dray.testing.mock_worker import MockWorker

        return MockWorker(self.url, self.token, worker_id, **options)

    def async_worker(self, worker_id: str = "mock", **options: Any) -> AsyncMockWorker:
        """The same for `async with`."""
        from dray.testing.async_worker import AsyncMockWorker

        return AsyncMockWorker(self.url, self.token, worker_id, **options)

    def make_token(self, user: str, scopes: Sequence[str] = ("submit",)) -> str:
        """A token for somebody else than the hub's owner."""
        from dray.wire.reach.http_line import HubConnection

        connection = HubConnection(Way(self.url), self.token, START_S, lambda: None)
        with contextlib.closing(connection):
            body = json.dumps({"user": user, "scopes": list(scopes), "shared_account": True})
            headers = {"Content-Type": "application/json"}
            answer = json.loads(connection.ask("POST", "/api/v1/tokens", body, headers).read())
        if "token" not in answer:
            raise HubUnavailable(f"the hub made no token: {answer}")
        return str(answer["token"])

    def _read_ready(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None  # asked for above
        timer = threading.Timer(START_S, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("ready "):
                    return line.split()[1]
        finally:
            timer.cancel()
        process.wait()
        said = (self.home / "hub.err").read_text()[-2000:]
        raise HubUnavailable(f"the hub did not start (exit {process.returncode}): {said}")

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            # A test may have closed what was not its own: that is for it to fail of, not for the end of this hub.
            with contextlib.suppress(OSError):
                process.stdout.close()


@contextlib.contextmanager
def running_hub(home: Path | None = None, **settings: Any) -> Iterator[RunningHub]:
    """A hub, started and stopped around a block. Keywords are settings of a hub: `running_hub(accept_s=1)`."""
    with contextlib.ExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dray-")))
        home.mkdir(parents=True, exist_ok=True)
        hub = RunningHub(home, settings)
        stack.callback(hub.stop)
        hub.start()
        yield hub


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """The caller's variables without those of dray, which speak of another hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    return kept | {f"DRAY_HUB_{name.upper()}": str(value) for name, value in settings.items()}
