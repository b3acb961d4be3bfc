"""Two hubs on one database, two workers, a client that never stops: the leader dies, stands still, or hands over."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tests.e2e.cluster import wait_for
from tests.e2e.site import Client, Site, settle

NOTHING_WRONG: dict[str, list[str]] = {"lost": [], "doubled": [], "stuck": []}


@pytest.fixture
def site(database: str, request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(database, **getattr(request, "param", {}))
    try:
        made.start_all()
        yield made
    finally:
        made.close()


def change_leader(site: Site, how: str) -> None:
    """Make the leader go, and wait until the other one leads."""
    leader = site.find_leader()
    if how == "resign":
        done = site.dray("hub", "resign", "--hub", ",".join(site.urls))
        assert done.code == 0, done.err
    else:
        site.signal_hub(leader, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    wait_for(lambda: site.find_leader(but=leader) >= 0, f"the other hub leads after {how}")
    if how == "kill":
        site.start_one(leader)


@pytest.mark.parametrize("how", ["kill", "stop", "resign"])
def test_nothing_is_lost_or_doubled_when_the_lead_changes(site: Site, how: str) -> None:
    client = Client(site, how)
    client.start()
    try:
        for _ in range(2):
            wait_for(lambda: len(client.acknowledged) > 3, "jobs are taken in")
            before = len(client.acknowledged)
            leader = site.find_leader()
            change_leader(site, how)
            wait_for(lambda: len(client.acknowledged) > before + 3, "jobs are taken in again")  # noqa: B023 - at once
            if how == "stop":
                site.signal_hub(leader, signal.SIGCONT)
            site.wait_standing()
    finally:
        client.stop()
    assert settle(site, [client]) == NOTHING_WRONG
    assert client.refused == []


def test_a_task_goes_on_through_a_take_over(site: Site) -> None:
    with site.connect() as hub:
        job = hub.submit(["sh", "-c", f"echo began >> {site.lines}; sleep 6; echo ended >> {site.lines}"])
        wait_for(site.lines.exists, "it runs")
        site.signal_hub(site.find_leader(), signal.SIGKILL)
        assert hub.wait(job, 60).state == "succeeded"
    assert site.lines.read_text().split() == ["began", "ended"]


def test_commands_find_the_leader_from_the_home_of_one_that_stands_by(site: Site) -> None:
    other = 1 - site.find_leader()
    done = site.dray("ps", "--home", str(site.homes[other]))
    assert done.code == 0, done.err
    done = site.dray("hub", "status", "-o", "json", "--home", str(site.homes[other]))
    assert done.json["role"] == "standby"


def count_ended(site: Site, name: str) -> int:
    """How many sessions of an agent have ended, by its own log."""
    return (site.folder / f"{name}.log").read_text().count("the session ended")


# As with the defaults, an agent is patient for longer than a take-over lasts.
@pytest.mark.parametrize("site", [{"HEARTBEAT_S": "4"}], indirect=True)
def test_an_agent_at_a_gateway_keeps_its_socket_when_the_leader_is_killed(site: Site) -> None:
    standby = 1 - site.find_leader()
    token = site.dray("token", "create", "--scope", "worker", "--hub", ",".join(site.urls), "-o", "json").json
    env = {"DRAY_TOKEN": token["token"]}
    site.start_agent("far", 4, site.urls[standby], "--label", "at=gateway", env=env, wait=False)
    with site.connect() as hub:
        wait_for(lambda: len(hub.workers()) == 3, "it is there")
        wait_for(
            lambda: {row["workers"] for row in site.dray("hub", "ls", "-o", "json").json["hubs"]} == {2, 1},
            "the hub that stands by has one",
        )
        words = f"echo began >> {site.lines}; echo out; sleep 5; echo more; echo ended >> {site.lines}"
        job = hub.submit(["sh", "-c", words], require=["at=gateway"])
        wait_for(site.lines.exists, "it runs")
        # A tunnel goes from the worker to the leader itself, whose address it was told.
        done = site.dray("exec", job.id, "--hub", ",".join(site.urls), "--", "echo", "inside")
        assert (done.code, done.out.strip()) == (0, "inside"), done.err
        site.signal_hub(1 - standby, signal.SIGKILL)
        assert hub.wait(job, 60).state == "succeeded"
        assert b"".join(hub.logs(job)).split() == [b"out", b"more"]
    assert site.lines.read_text().split() == ["began", "ended"]
    wait_for(lambda: count_ended(site, "w0") > 0, "one that was connected to the dead hub has dialled again")
    assert count_ended(site, "far") == 0
