"""Two hubs with different homes on one database: what tasks printed and functions gave before the leader is killed is
there after it, from the other one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.e2e.cluster import DRAY, Cluster, wait_for
from tests.e2e.proxy import Relay

import dray

LEASE = {"DRAY_HUB_STORE_LEASE_S": "1.5"}
COUNT = """
import os, time
for number in range(2000):
    print("line", number, flush=True)
    time.sleep(0.005)
    while number == 500 and not os.path.exists({go!r}):
        time.sleep(0.02)
"""


class Site(Cluster):
    """A cluster whose hub has another one that stands by; agents and people dial an address that moves."""

    def prepare(self, store: str, flags: list[str]) -> None:
        self.env |= LEASE | {"DRAY_STORE": store}
        self.start_hub(*flags)
        self.relay = Relay(self.port)
        self.other_home = self.folder / "other"
        self.other_home.mkdir()
        (self.other_home / "token").write_text(self.token)
        words = [*DRAY, "hub", "--home", str(self.other_home), "--port", "0", *flags]
        self.other: subprocess.Popen[bytes] = self.spawn(words, self.folder / "other.log")
        wait_for(lambda: b"stands by" in (self.folder / "other.log").read_bytes(), "the other one stands by")

    def change_leader(self) -> None:
        """kill -9; then the address leads to the other one."""
        self.kill_hub()

        def ready() -> Any:
            told = json.loads((self.other_home / "hub.json").read_text())
            return told if told["role"] == "leader" else None

        document = wait_for(ready, "the other one leads")
        self.home, self.hub = self.other_home, self.other
        self.port = int(urlsplit(document["url"]).port or 0)
        self.relay.lead_to(self.port)
        self.env["DRAY_HOME"] = str(self.home)


@pytest.fixture(params=["database", "folder"])
def site(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[Site]:
    cluster = Site()
    try:
        folder = ["--files", str(tmp_path / "shared")] if request.param == "folder" else []
        cluster.prepare(database, folder)
        cluster.start_agent("w1", 4, cluster.relay.url)
        yield cluster
        cluster.relay.close()
    finally:
        cluster.close()


def test_every_line_is_there_once_and_a_result_is_fetched_from_the_other_hub(
    site: Site, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    printing = site.submit("python3", "-c", COUNT.format(go=str(go)))
    with dray.connect(site.relay.url, site.token, site.folder / "client") as hub:
        value = hub.submit(lambda: b"\0value" * 500_000)
        job_id = value.id.partition("/")[0]
        wait_for(value.done, "the call has ended")
        size = len(value.result())
    wait_for(lambda: site.logs(printing).count(b"\n") > 100, "it prints")
    home = site.folder / "follower"
    home.mkdir()
    env = {"DRAY_HUB": site.relay.url, "DRAY_TOKEN": site.token, "DRAY_HOME": str(home)}
    follower, followed = site.begin("logs", "-f", printing, env=env)
    site.change_leader()
    go.touch()
    assert site.wait_state(printing, limit_s=120)["state"] == "succeeded"
    wanted = "".join(f"line {number}\n" for number in range(2000)).encode()
    wait_for(lambda: site.logs(printing) == wanted, "every line once")
    assert site.logs(printing, tail=2) == b"line 1998\nline 1999\n"
    shown = site.dray("logs", printing)
    assert (shown.code, shown.out) == (0, wanted.decode())
    follower.wait(120)
    # It reads on from where it was cut off.
    assert [line for line in followed.read_bytes().splitlines(keepends=True) if line.startswith(b"line")] == (
        wanted.splitlines(keepends=True)
    )
    with dray.connect(site.url, site.token, site.folder / "client") as hub:
        assert [len(one) for one in hub.results(job_id)] == [size] == [6 * 500_000]
    assert not (site.folder / "h" / "output").exists()
