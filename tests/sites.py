"""On which kind of site tests run their hubs: in a home alone, or on PostgreSQL with a second hub that stands by.

`./dev test --site postgres` gives every hub that the harnesses of end-to-end tests, contracts and calls start a
database of its own, and another hub beside it; a module that says `SITES = ("home", "postgres")` runs both ways in any
run. The lease is longer than any test, so that a hub which is killed and started again leads again: who takes over
when is for the tests of several hubs. `--site gateway` is the same, and everybody asks the hub that stands by.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests import warm
from tests.postgres import Server, Servers

HOME, POSTGRES, GATEWAY = KINDS = ("home", "postgres", "gateway")
LEASE_S = 60
START_S = 60.0
current = HOME
_server: Server | None = None


class Backing:
    """The database of one hub, and who stands by there."""

    def __init__(self, program: tuple[str, ...], folder: Path) -> None:
        self._program, self._home, self._log = program, folder / "standby", folder / "standby.log"
        self._database = _serve().make_database()
        self._standby: subprocess.Popen[bytes] | None = None
        self.settings = {
            "DRAY_HUB_STORE": _serve().url(self._database),
            "DRAY_HUB_STORE_LEASE_S": str(LEASE_S),
        }

    def stand_by(self, home: Path, env: Mapping[str, str]) -> None:
        """Start the second hub, once the first one leads; both let the same people in."""
        if self._standby is not None:
            return
        deadline = time.monotonic() + START_S
        while json.loads((home / "hub.json").read_text())["role"] != "leader":
            assert time.monotonic() < deadline, "the first hub does not lead"
            time.sleep(0.02)
        self._home.mkdir(mode=0o700, exist_ok=True)
        shutil.copy2(home / "token", self._home / "token")
        words = [*self._program, "hub", "--home", str(self._home), "--port", "0"]
        with self._log.open("wb") as log:
            self._standby = warm.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**env, **self.settings}
            )
        while b"stands by" not in self._log.read_bytes() or (current == GATEWAY and not self._is_open()):
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    @property
    def front(self) -> int | None:
        """The port to ask at, where that is not the leader's."""
        if current != GATEWAY or self._standby is None:
            return None
        return urlsplit(str(json.loads((self._home / "hub.json").read_text())["url"])).port

    def _is_open(self) -> bool:
        """Whether the second hub passes on what it is asked."""
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.front, timeout=5)) as line:
                line.request("GET", "/readyz")
                return line.getresponse().status == 200
        except (OSError, ValueError):
            return False

    def leave(self) -> None:
        """End the second hub: the first one is about to hand over, and shall lead again when it is back."""
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.kill()
            standby.wait()

    def close(self) -> None:
        """End what is left, and make room for others."""
        self.leave()
        _serve().run(f"DROP DATABASE IF EXISTS {self._database} WITH (FORCE)")


def make_backing(program: tuple[str, ...], folder: Path, env: Mapping[str, str]) -> Backing | None:
    """What stands behind a hub on the kind of site that is asked for; none where it has a store of its own already."""
    if current == HOME or "DRAY_HUB_STORE" in env or "DRAY_STORE" in env:
        return None
    return Backing(program, folder)


def _serve() -> Server:
    """One server for all sites of this process."""
    global _server  # noqa: PLW0603 - made when it is first asked for
    if _server is None:
        folder = Path(tempfile.mkdtemp(prefix="pg"))
        _server = Servers(folder).make("max_connections=400")
        _server.start()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(_server.stop)
    return _server


def stop() -> None:
    """End the server, if there was one."""
    if _server is not None:
        _server.stop()
