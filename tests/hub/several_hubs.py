"""Several hubs on one database, each in a home of its own: one leads, the others stand by."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.hub.asking import ask, wait_until

from dray.errors import HubUnavailable
from dray.testing.hub_process import RunningHub

LEASE_S = 1.5


class Standby(RunningHub):
    """A hub that is started and not waited for: another one leads."""

    def start(self) -> None:
        self.waiting = threading.Thread(target=self._start)
        self.waiting.start()
        wait_until(lambda: "stands by" in self.said and (self.home / "hub.json").exists())

    def _start(self) -> None:
        # One that is ended while it stands by was never ready.
        with contextlib.suppress(HubUnavailable):
            super().start()

    @property
    def said(self) -> str:
        """What it has logged."""
        path = self.home / "hub.err"
        return path.read_text() if path.exists() else ""

    @property
    def address(self) -> str:
        """Where it listens, though it is not ready."""
        return str(json.loads((self.home / "hub.json").read_text())["url"])

    def wait(self) -> None:
        """Wait until it leads."""
        self.waiting.join(60)
        assert self.url


Hubs = Callable[..., RunningHub]


def at(hub: Standby) -> Any:
    """A hub that stands by, to be asked as any other."""
    return SimpleNamespace(url=hub.address, token=hub.token)


def stand_by(hubs: Hubs, **settings: Any) -> Standby:
    """A hub that stands by, is linked to the leader and passes on what clients ask."""
    hub = hubs(Standby, **settings)
    assert isinstance(hub, Standby)
    wait_until(lambda: ask(at(hub), "GET", "/jobs")[0] == 200)
    return hub


@pytest.fixture
def hubs(database: str, tmp_path: Path) -> Iterator[Hubs]:
    """Starts hubs on one database, each in a home of its own that has the token of the first."""
    made: list[RunningHub] = []

    def start(kind: type[RunningHub] = RunningHub, url: str = database, **settings: Any) -> RunningHub:
        home = tmp_path / f"home{len(made)}"
        home.mkdir()
        if made:
            (home / "token").write_bytes((made[0].home / "token").read_bytes())
        hub = kind(home, {"store": url, "store_lease_s": LEASE_S, **settings})
        made.append(hub)
        hub.start()
        return hub

    yield start
    for hub in made:
        hub.stop()
